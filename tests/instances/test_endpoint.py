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
