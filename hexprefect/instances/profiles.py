"""What hardware costs: the default profiles that a new instance starts from, before it has history.

The numbers are data with their sources, in `profiles.json`.
"""

from __future__ import annotations

import json
import math
from functools import cache
from importlib.resources import files
from typing import Any

from hexprefect.errors import CallerMistake
from hexprefect.scheduling.cost import Profile


@cache
def _facts() -> dict[str, Any]:
    text = files("hexprefect.instances").joinpath("profiles.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def hardware_names() -> tuple[str, ...]:
    """The hardware of which there is a profile."""
    return tuple(_facts()["profiles"])


def default_profile(hardware: str) -> Profile:
    """The profile of `hardware`, for example `a100` or `local-2-threads`.

    `a100@20` is an emulated one that lives 20 times faster.

    Raises:
        CallerMistake: there is none.
    """
    facts = _facts()
    known, _, speed_text = hardware.lower().partition("@")
    values = facts["profiles"].get(known)
    speed = _speed(speed_text or "1")
    if values is None or speed is None:
        raise CallerMistake(
            f"There is no profile of the hardware {hardware!r}.",
            remedy=f"There are: {', '.join(hardware_names())}.",
        )
    return Profile(
        name=hardware.lower(),
        fixed_s=values["c"] / speed,
        input_s_per_token=values["a"] / speed,
        output_s_per_token=values["b"] / speed,
        batch_growth=values.get("batch_growth", facts["batching"]["batch_growth"]),
        kv_tokens=values["kv_tokens"],
    )


def _speed(text: str) -> float | None:
    try:
        speed = float(text)
    except ValueError:
        return None
    return speed if 0.0 < speed < math.inf else None
