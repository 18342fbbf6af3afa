"""An endpoint is checked when it is made, and keeps its secrets."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from hexprefect.errors import CallerMistake
from hexprefect.instances.endpoint import Endpoint


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "", "//host"])
def test_a_url_that_cannot_be_reached_over_http_is_refused(url: str) -> None:
    with pytest.raises(CallerMistake, match="'a100-0'"):
        Endpoint("a100-0", url, "tiny")


@pytest.mark.parametrize(
    "url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/", "http://h:1//"]
)
def test_every_spelling_of_the_base_gives_the_same_routes(url: str) -> None:
    assert Endpoint("a", url, "m").route("/v1/models") == "http://h:1/v1/models"


def test_secrets_are_taken_out_of_what_servers_say() -> None:
    endpoint = Endpoint("a", "http://user:pass-1@h:1", "m", api_key=SecretStr("sk-1"))
    assert endpoint.redact("sk-1 and http://user:pass-1@h:1") == "*** and http://user:***@h:1"


def test_a_bad_url_is_not_repeated_in_the_error() -> None:
    with pytest.raises(CallerMistake) as caught:
        Endpoint("a", "ftp://user:pass-1@h", "m")
    assert "pass-1" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://user:pass-1/x@h:1", "http://user:pass-1@h:port"])
def test_a_url_that_cannot_be_read_is_not_repeated_either(url: str) -> None:
    """Of the first, a library says that `pass-1` is no port."""
    with pytest.raises(CallerMistake) as caught:
        Endpoint("a", url, "m")
    assert "pass-1" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://h:1/?api-version=1", "http://h:1/v1#x"])
def test_a_base_behind_which_no_route_can_stand_is_refused(url: str) -> None:
    with pytest.raises(CallerMistake, match="query"):
        Endpoint("a", url, "m")


def test_a_password_is_not_shown_however_it_is_spelt() -> None:
    endpoint = Endpoint("a", "http://user:pass%2F1@h:1", "m")
    assert "pass" not in repr(endpoint)
    assert endpoint.redact("pass/1 or pass%2F1") == "*** or ***"
    assert endpoint.shown_url == "http://user:***@h:1"
    assert Endpoint("a", "http://h:1/v1", "m").shown_url == "http://h:1"


@pytest.mark.parametrize("key", ["sk-1\n", " sk-1 ", "sk-1\r\n"])
def test_a_key_is_sent_without_the_end_of_its_line(key: str) -> None:
    endpoint = Endpoint("a", "http://h:1", "m", api_key=SecretStr(key))
    assert endpoint.headers() == {"Authorization": "Bearer sk-1"}


def test_no_key_is_sent_where_it_is_empty() -> None:
    assert Endpoint("a", "http://h:1", "m", api_key=SecretStr("\n")).headers() == {}


@pytest.mark.parametrize("key", ["sk\n1", "sk\x001", "sk–1", "sk-é"])
def test_a_key_that_no_header_may_have_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(CallerMistake, match="API key of instance 'a'") as caught:
        Endpoint("a", "http://h:1", "m", api_key=SecretStr(key))
    assert key not in str(caught.value)
