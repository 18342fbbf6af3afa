"""Faults on demand: what can be wrong with an instance, as text and as a value."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

from hexprefect.errors import CallerMistake

FaultKind = Literal["hang", "error", "refuse", "die", "engine-death", "slow"]
"""`hang`: requests are taken and never answered; health says 200. `error`: 500 to each request.
`refuse`: nothing listens. `die`: the connection breaks within the answer. `engine-death`: what runs
fails with a 500, or with an error event followed by `[DONE]`; health says 503. `slow`: steps take
`factor` times as long."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Args:
        kind: what goes wrong.
        factor: of `slow`.
        share: the share of requests it happens to (of `error` and `die`).
    """

    kind: FaultKind
    factor: float = 1.0
    share: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Fault | None:
        """Read `hang`, `error`, `500`, `error@0.1`, `refuse`, `die`, `engine-death`, `slow:3`.

        `none` is no fault.

        Raises:
            CallerMistake: the text is something else.
        """
        name, _, share = text.strip().partition("@")
        name, _, factor = name.partition(":")
        name = {"500": "error", "die-mid-stream": "die"}.get(name, name)
        if name in ("none", ""):
            return None
        try:
            if name not in get_args(FaultKind):
                raise ValueError(name)
            fault = cls(name, float(factor or 1.0), float(share or 1.0))  # type: ignore[arg-type]
            if not 0 < fault.factor < inf or not 0 <= fault.share <= 1:
                raise ValueError(text)
        except ValueError as odd:
            raise CallerMistake(
                f"There is no fault {text!r}.",
                remedy="Write none, hang, error, error@0.1, refuse, die, engine-death or slow:3.",
            ) from odd
        return fault
