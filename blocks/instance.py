"""`ModelInstance`: one OpenAI-compatible server and its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, SecretStr, field_validator

from hexprefect.blocks import logos
from hexprefect.errors import CallerMistake

if TYPE_CHECKING:
    from hexprefect.instances.endpoint import Endpoint

_CHECK_LIMIT_S = 10.0


class ModelInstance(Block):
    """One OpenAI-compatible model server: where it is, what it serves, and its key.

    Example:
        Load a stored instance and see whether it serves its model:
        ```python
        from hexprefect.blocks import ModelInstance

        instance = ModelInstance.load("BLOCK_NAME")
        print(instance.test_connection())
        ```
    """

    _block_type_name: ClassVar[str | None] = "Model Instance"
    _block_type_slug: ClassVar[str | None] = "hexprefect-model-instance"
    _logo_url: ClassVar[HttpUrl | None] = logos.INSTANCE
    _documentation_url: ClassVar[HttpUrl | None] = logos.DOCUMENTATION
    _description: ClassVar[str | None] = (
        "One OpenAI-compatible model server (vLLM, llama.cpp): address, model, capacity and key."
    )

    url: str = Field(
        description="Base URL of the server, for example http://gpu-7:8000.",
        examples=["http://gpu-7:8000"],
    )
    model: str = Field(
        min_length=1, description="The model's name as the server knows it.", examples=["qwen"]
    )
    api_key: SecretStr | None = Field(
        default=None, description="Sent as a bearer token; leave empty where none is needed."
    )
    profile: str = Field(
        default="unknown",
        min_length=1,
        description="Hardware profile that predicts how long a request takes, for example a100.",
    )
    slots: int = Field(default=1, ge=1, description="Requests that the server runs at once.")
    speaks: Literal["vllm", "llama.cpp", "openai"] = Field(
        default="vllm", description="Dialect of the OpenAI protocol."
    )

    @field_validator("url")
    @classmethod
    def _must_be_reachable_by_http(cls, url: str) -> str:
        from hexprefect.instances.endpoint import Endpoint

        try:
            return Endpoint(name="instance", url=url.strip(), model="").url
        except CallerMistake as mistake:
            raise ValueError(str(mistake)) from None

    def get_endpoint(self, name: str | None = None) -> Endpoint:
        """Where and how the client talks to it.

        Args:
            name: the instance's name in errors and results; by default the block's.
        """
        from hexprefect.instances.endpoint import Endpoint, shown_url

        shown = name or self._block_document_name or shown_url(self.url)
        return Endpoint(shown, self.url, self.model, self.api_key, self.speaks)

    def test_connection(self) -> tuple[str, ...]:
        """Ask the server for its models, within ten seconds.

        Returns:
            The names of the models that it serves.

        Raises:
            CallerMistake: it does not answer, refuses the key, or does not serve `model`.
        """
        import httpx

        endpoint = self.get_endpoint()
        try:
            # As requests reach it: the environment's proxies and .netrc are not for model servers.
            with httpx.Client(timeout=_CHECK_LIMIT_S, trust_env=False) as client:
                answer = client.get(endpoint.route("/v1/models"), headers=endpoint.headers())
        except httpx.HTTPError as error:
            raise _no_answer(endpoint, error) from error
        return self._served(endpoint, answer)

    async def atest_connection(self) -> tuple[str, ...]:
        """`test_connection` without blocking the event loop."""
        import httpx

        endpoint = self.get_endpoint()
        try:
            async with httpx.AsyncClient(timeout=_CHECK_LIMIT_S, trust_env=False) as client:
                answer = await client.get(endpoint.route("/v1/models"), headers=endpoint.headers())
        except httpx.HTTPError as error:
            raise _no_answer(endpoint, error) from error
        return self._served(endpoint, answer)

    def _served(self, endpoint: Endpoint, answer: Any) -> tuple[str, ...]:
        if answer.status_code in (401, 403):
            raise CallerMistake(
                f"The instance {endpoint.name!r} refuses the API key ({answer.status_code}).",
                remedy="Save the right key in the block.",
            )
        try:
            models = tuple(str(entry["id"]) for entry in answer.raise_for_status().json()["data"])
        except Exception as error:
            raise CallerMistake(
                f"The instance {endpoint.name!r} did not list its models "
                f"(HTTP {answer.status_code}).",
                remedy="Give the base URL of an OpenAI-compatible server.",
            ) from error
        # llama.cpp lists one model, often by its file, and answers to any name.
        if self.model not in models and self.speaks != "llama.cpp":
            raise CallerMistake(
                f"The instance {endpoint.name!r} does not serve the model {self.model!r}.",
                remedy=f"It serves: {', '.join(models) or 'none'}.",
            )
        return models


def _no_answer(endpoint: Endpoint, error: Exception) -> CallerMistake:
    reason = endpoint.redact(f"{type(error).__name__}: {error}")
    return CallerMistake(
        f"The instance {endpoint.name!r} does not answer ({reason}).",
        remedy="Check that the server runs and that its URL is right.",
    )
