"""How much work a query can still afford before its deadline."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hexprefect.completion import Complete, Completion, Prompt


@dataclass(slots=True)
class Effort:
    """Watches the time left and what calls have cost, and remembers what was dropped.

    Args:
        complete: what serves the calls.
        time_left: seconds to the query's deadline; None when it has none.
        expected_call_s: seconds a call is taken to need before the first has been seen.
    """

    complete: Complete
    time_left: Callable[[], float] | None
    expected_call_s: float
    dropped: list[str] = field(default_factory=list)
    _calls: int = 0
    _spent_s: float = 0.0

    @property
    def calls(self) -> int:
        """Calls that have been answered."""
        return self._calls

    @property
    def seconds_left(self) -> float:
        """Seconds to the deadline, infinite without one, negative when it has passed."""
        return math.inf if self.time_left is None else self.time_left()

    @property
    def call_s(self) -> float:
        """Seconds a call takes, waiting included: the mean of this query's calls so far."""
        return self._spent_s / self._calls if self._calls else self.expected_call_s

    async def __call__(self, prompt: Prompt) -> Completion:
        """Serve a call and learn from how long it took."""
        started = time.monotonic()
        completion = await self.complete(prompt)
        self._calls += 1
        # The longer of the two: an instance may not tell its times, and a clock may have slept.
        told = completion.waited_s + completion.ran_s
        self._spent_s += max(told, time.monotonic() - started)
        return completion

    def affords(self, work: str, *, calls_in_a_row: int) -> bool:
        """Whether optional work fits, given the calls that must follow one another.

        When it does not, the work is recorded as dropped with the reason.
        """
        needed = calls_in_a_row * self.call_s
        left = self.seconds_left
        if left >= needed:
            return True
        self.dropped.append(f"{work}: {max(left, 0):.1f} s left, about {needed:.1f} s needed")
        return False
