"""Where an instance listens and which dialect of the OpenAI protocol it speaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
        CallerMistake: the URL is not an http(s) URL with a host.
    """

    name: str
    url: str
    model: str
    api_key: SecretStr | None = None
    speaks: Dialect = "vllm"

    def __post_init__(self) -> None:
        try:
            parsed = httpx.URL(self.url)
        except (httpx.InvalidURL, TypeError) as invalid:
            raise CallerMistake(
                f"The URL of instance {self.name!r} cannot be read: {invalid}."
            ) from invalid
        if parsed.scheme not in ("http", "https") or not parsed.host:
            # The URL itself is not repeated: it may hold a password.
            raise CallerMistake(
                f"The URL of instance {self.name!r} is not an http or https address with a host.",
                remedy="Write it as http://HOST:PORT.",
            )
        if parsed.port is not None and not 0 < parsed.port < 65_536:
            raise CallerMistake(
                f"The URL of instance {self.name!r} has the port {parsed.port}.",
                remedy="Ports are from 1 to 65535.",
            )
        object.__setattr__(self, "url", self.url.rstrip("/").removesuffix("/v1").rstrip("/"))

    def route(self, path: str) -> str:
        """The full URL of `path`, which begins with a slash."""
        return f"{self.url}{path}"

    def headers(self) -> dict[str, str]:
        """The headers that authorise a request; empty where no key is set."""
        if self.api_key is None:
            return {}
        return {"Authorization": f"Bearer {self.api_key.get_secret_value()}"}

    def redact(self, text: str) -> str:
        """`text` without this endpoint's secrets: servers echo keys in their errors."""
        secrets = [self.api_key.get_secret_value()] if self.api_key is not None else []
        password = httpx.URL(self.url).password
        for secret in filter(None, [*secrets, password]):
            text = text.replace(secret, "***")
        return text
