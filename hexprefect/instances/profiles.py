"""What hardware costs: the default profiles that a new instance starts from, before it has history.

The numbers are data with their sources, in `profiles.json`.
"""

from __future__ import annotations

import json
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

    Raises:
        CallerMistake: there is none.
    """
    facts = _facts()
    values = facts["profiles"].get(hardware.lower())
    if values is None:
        raise CallerMistake(
            f"There is no profile of the hardware {hardware!r}.",
            remedy=f"There are: {', '.join(hardware_names())}.",
        )
    return Profile(
        name=hardware.lower(),
        fixed_s=values["c"],
        input_s_per_token=values["a"],
        output_s_per_token=values["b"],
        batch_growth=values.get("batch_growth", facts["batching"]["batch_growth"]),
        kv_tokens=values["kv_tokens"],
    )
