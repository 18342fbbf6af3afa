"""Where an instance listens and which dialect of the OpenAI protocol it speaks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote

import httpx
from pydantic import SecretStr

from hexprefect.errors import CallerMistake

Dialect = Literal["vllm", "llama.cpp", "openai"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One OpenAI-compatible server, as the client needs to know it.

    Args:
        name: the instance's name; errors and completions carry it.
        url: the server's base, with or without a trailing `/v1`.
        model: the model's name as the server knows it.
        api_key: sent as a bearer token, where there is one.
        speaks: `vllm` takes a priority and tells its cache hits; `llama.cpp` has its own
            tokenizer route and timings; `openai` is anything else that is compatible.

    Raises:
        CallerMistake: the URL is not an http(s) URL with a host, or has a query, after which no
            route can stand; or the key has characters that no header may have.
    """

    name: str
    url: str = field(repr=False)
    """May hold a password."""
    model: str
    api_key: SecretStr | None = None
    speaks: Dialect = "vllm"

    def __post_init__(self) -> None:
        try:
            parsed = httpx.URL(self.url)
        except (httpx.InvalidURL, TypeError):
            # What it says may hold a part of a password, as the URL itself may.
            raise CallerMistake(
                f"The URL of instance {self.name!r} cannot be read.",
                remedy="Write it as http://HOST:PORT.",
            ) from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise CallerMistake(
                f"The URL of instance {self.name!r} is not an http or https address with a host.",
                remedy="Write it as http://HOST:PORT.",
            )
        if "?" in self.url or "#" in self.url:
            raise CallerMistake(
                f"The URL of instance {self.name!r} has a query or a fragment.",
                remedy="Give the server's base alone: /v1/chat/completions is put behind it.",
            )
        if parsed.port is not None and not 0 < parsed.port < 65_536:
            raise CallerMistake(
                f"The URL of instance {self.name!r} has the port {parsed.port}.",
                remedy="Ports are from 1 to 65535.",
            )
        object.__setattr__(self, "url", self.url.rstrip("/").removesuffix("/v1").rstrip("/"))
        if self.api_key is not None:
            object.__setattr__(self, "api_key", self._as_header(self.api_key))

    def _as_header(self, key: SecretStr) -> SecretStr:
        """The key without the line's end that files and forms put behind it."""
        bare = key.get_secret_value().strip()
        if not (bare.isascii() and bare.isprintable()):
            raise CallerMistake(
                f"The API key of instance {self.name!r} has a character that no header may have.",
                remedy="Save the key alone: one line, and no typographic dashes or quotes.",
            )
        return SecretStr(bare)

    def route(self, path: str) -> str:
        """The full URL of `path`, which begins with a slash."""
        return f"{self.url}{path}"

    def headers(self) -> dict[str, str]:
        """The headers that authorise a request; empty where no key is set."""
        if self.api_key is None or not self.api_key.get_secret_value():
            return {}
        return {"Authorization": f"Bearer {self.api_key.get_secret_value()}"}

    def redact(self, text: str) -> str:
        """`text` without this endpoint's secrets: servers echo keys in their errors."""
        secrets = [self.api_key.get_secret_value()] if self.api_key is not None else []
        if password := httpx.URL(self.url).password:
            # As it is, and as a URL spells it: servers and libraries repeat either.
            spelt = self.url.partition("://")[2].rpartition("@")[0].partition(":")[2]
            secrets += [password, quote(password, safe=""), spelt]
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    @property
    def shown_url(self) -> str:
        """The URL as messages and records may show it."""
        return shown_url(self.url)


def shown_url(url: str) -> str:
    """The URL of a server without the password that it may hold."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return "***"
    if not parsed.password:
        return url
    return str(parsed.copy_with(username=parsed.username, password="***"))
