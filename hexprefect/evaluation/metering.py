"""What the calls of one question cost, and what its prompts showed."""

from __future__ import annotations

from hexprefect.completion import Complete, Completion, Prompt
from hexprefect.evaluation.completions_cache import is_from_cache
from hexprefect.evaluation.gold_names import Names, names_shown
from hexprefect.evaluation.records import CallRecord
from hexprefect.instances.errors import InstanceUnavailable


class Meter:
    """Serves the calls of one question by `complete`, and keeps what each cost."""

    def __init__(self, complete: Complete) -> None:
        self.complete = complete
        self.calls: list[CallRecord] = []
        self.unavailable: InstanceUnavailable | None = None
        """The first failure that says nothing of the question: no instance could be had."""
        self._system = ""

    async def __call__(self, prompt: Prompt) -> Completion:
        """Serve a call.

        Raises:
            As `complete`.
        """
        system = "\n".join(item.content for item in prompt.messages if item.role == "system")
        # What linking cut away is seen in the prompts that write statements, not in its own.
        if prompt.branch is not None or not self._system:
            self._system = system
        try:
            completion = await self.complete(prompt)
        except InstanceUnavailable as error:
            self.unavailable = self.unavailable or error
            raise
        self.calls.append(
            CallRecord(
                stage=prompt.stage,
                branch=prompt.branch,
                input_tokens=completion.input_tokens,
                cached_tokens=completion.cached_tokens,
                output_tokens=completion.output_tokens,
                seconds=round(completion.ran_s, 3),
                from_cache=is_from_cache(completion),
            )
        )
        return completion

    @property
    def shown(self) -> Names | None:
        """Tables and columns that the prompts of the candidates showed."""
        return names_shown(self._system)
