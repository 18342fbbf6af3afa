"""Completing prompts on a few OpenAI-compatible servers, without queue and store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hexprefect.completion import Completion, Prompt
from hexprefect.errors import CallerMistake
from hexprefect.instances.client import InstanceClient
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.errors import InstanceError, InstanceUnavailable


class LeastBusy:
    """Completes prompts on the server with the fewest requests of ours; ties go to the first.

    A server that cannot be had is passed over for the others.

    Args:
        client: sends them.
        endpoints: where they may go.
        timeout_s: seconds that one request may take.
    """

    def __init__(
        self, client: InstanceClient, endpoints: Sequence[Endpoint], *, timeout_s: float = 300.0
    ) -> None:
        self.client = client
        self.endpoints = tuple(endpoints)
        self.timeout_s = timeout_s
        self._in_flight: Counter[str] = Counter()

    async def __call__(self, prompt: Prompt) -> Completion:
        """Serve a call.

        Raises:
            InstanceUnavailable: no server could be had; that of the last one tried.
            InstanceTimeout, PromptRejected, InstanceRefused: as the client's `complete`.
        """
        left = list(self.endpoints)
        while True:
            endpoint = min(left, key=lambda item: self._in_flight[item.name])
            left.remove(endpoint)
            self._in_flight[endpoint.name] += 1
            try:
                return await self.client.complete(endpoint, prompt, timeout_s=self.timeout_s)
            except InstanceUnavailable:
                if not left:
                    raise
            finally:
                self._in_flight[endpoint.name] -= 1


async def endpoints_at(
    client: InstanceClient, urls: Sequence[str], *, model: str | None = None
) -> tuple[Endpoint, ...]:
    """The servers at these URLs, each asked for its model.

    Args:
        client: asks them.
        urls: with or without a trailing `/v1`.
        model: the model to ask for; by default the only one that a server offers.

    Raises:
        CallerMistake: a server does not answer, offers several models and none was named, or the
            servers' models differ.
    """
    endpoints = []
    for number, url in enumerate(urls, start=1):
        endpoint = Endpoint(name=f"instance-{number}", url=url, model=model or "", speaks="openai")
        try:
            offered = await client.models(endpoint)
        except InstanceError as error:
            raise CallerMistake(
                f"The server {endpoint.shown_url} does not say which models it has: {error}",
                remedy="Check its URL, and that it is running.",
            ) from error
        wanted = model or (offered[0] if len(offered) == 1 else "")
        if wanted not in offered:
            raise CallerMistake(
                f"The server {endpoint.shown_url} offers the models "
                f"{', '.join(offered) or 'none'}.",
                remedy="Name one of them with --model-name.",
            )
        endpoints.append(replace(endpoint, model=wanted))
    names = {item.model for item in endpoints}
    if len(names) > 1:
        raise CallerMistake(
            f"The servers have different models: {', '.join(sorted(names))}.",
            remedy="An evaluation is of one model: leave the others out.",
        )
    return tuple(endpoints)
