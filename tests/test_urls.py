"""Secrets in the URLs of databases: found wherever a driver takes them, shown nowhere."""

from __future__ import annotations

import pytest
import sqlalchemy

from hexprefect.errors import CallerMistake
from hexprefect.urls import holds_secret, refuse_secrets, secrets_of, shown_url, without_secrets

SECRET = [
    "postgresql://u:s3cret@h/d",
    "postgresql://u@h/d?password=s3cret",
    "postgresql://u@h/d?sslpassword=s3cret&sslmode=require",
    "postgresql://u@h/d?oauth_client_secret=s3cret",
    "mysql://u@h/d?passwd=s3cret",
    "mysql+pymysql://u@h/d?ssl_key_password=s3cret",
    "duckdb:///a.duckdb?motherduck_token=s3cret",
    "sqlite:///a.sqlite?PassPhrase=s3cret",
    "postgresql://u@h/d?password=s3cret&password=s3cret2",
]
PLAIN = [
    "postgresql://u@h/d?passfile=/home/u/.pgpass&sslkey=/home/u/key.pem",
    "mysql://u@h/d?unix_socket=/run/mysqld.sock",
    "sqlite:////data/shop.sqlite",
    "duckdb:////data/shop.duckdb",
]


@pytest.mark.parametrize("text", SECRET)
def test_a_secret_is_refused_as_a_parameter_and_never_shown(text: str) -> None:
    url = sqlalchemy.make_url(text)
    assert holds_secret(url)
    assert "s3cret" not in shown_url(url)
    assert "***" in shown_url(url)
    assert "s3cret" not in without_secrets(f"no: {' '.join(secrets_of(url))}", url)
    with pytest.raises(CallerMistake, match=r"password.*Text2SQLDatabase.*env:") as caught:
        refuse_secrets(f" {text}")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("text", PLAIN)
def test_what_only_says_where_a_secret_is_kept_is_none(text: str) -> None:
    url = sqlalchemy.make_url(text)
    assert not holds_secret(url)
    assert shown_url(url) == url.render_as_string()
    refuse_secrets(text)


@pytest.mark.parametrize("name", ["demo", "block:shop", "shop", "env:SHOP_URL"])
def test_a_block_and_a_variable_hold_no_secret(name: str) -> None:
    refuse_secrets(name)


@pytest.mark.parametrize(
    "text", ["postgresql://u:p/s3cret@h:x/d", "://s3cret", "postgresql://u:s3cret@h:x/d"]
)
def test_what_cannot_be_read_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(CallerMistake, match="cannot be read") as caught:
        refuse_secrets(text)
    assert "s3cret" not in str(caught.value)
