"""Measured facts that the simulator ships, each file with its source in it; the GPUs' profiles
are those of `hexprefect/instances/profiles.json`, read as package data.

- `stage_statistics.json`: lengths and counts per stage of the published BIRD traces, and the static
  text of each stage's prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from hexprefect.errors import HexprefectError
from hexprefect.scheduling import Profile

MODELS = ("llama-3.1-70b", "qwen3-30b-a3b")


class UnknownHardware(HexprefectError):
    """A cluster names hardware or a model of which there is no profile."""


def _read(*parts: str) -> dict[str, Any] | None:
    file = files("hexprefect").joinpath(*parts)
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


@cache
def cost_facts() -> Mapping[str, Any]:
    """The shipped profiles: `c, a, b` and KV tokens per GPU, with their source."""
    facts = _read("instances", "profiles.json")
    assert facts is not None
    return facts


@cache
def stage_statistics() -> Mapping[str, Any]:
    """`stage_statistics.json` as published."""
    facts = _read("simulator", "facts", "stage_statistics.json")
    assert facts is not None
    return facts


@cache
def profiles(model: str = "llama-3.1-70b") -> Mapping[str, Profile]:
    """Profiles by hardware name, four GPUs an instance (tensor parallel).

    `llama-3.1-70b` is measured. `qwen3-30b-a3b` is derived from it, because no measurement is
    published: of its 30.5 billion weights 3.3 billion work on a token, so that `a` shrinks by
    3.3/70.6 at half the efficiency (small matrices), and `b` by the share of weights read, plus
    3 ms for launching 48 layers of experts; a batch wakes further experts, so that `b` grows by
    2 % a sequence. KV tokens: 0.9 of memory less 61 GB of weights, at 98,304 bytes a token.

    Raises:
        UnknownHardware: for a model that is not in `MODELS`.
    """
    facts = cost_facts()
    growth = float(facts["batching"]["batch_growth"])
    llama = {
        name: Profile(
            name=name,
            fixed_s=values["c"],
            input_s_per_token=values["a"],
            output_s_per_token=values["b"],
            batch_growth=float(values.get("batch_growth", growth)),
            kv_tokens=values["kv_tokens"],
        )
        for name, values in facts["profiles"].items()
    }
    if model == "llama-3.1-70b":
        return llama
    if model == "qwen3-30b-a3b":
        active, bytes_a_token = 3.3 / 70.6, 98304
        memory = {"a100": 80e9, "h100": 80e9, "l40s": 48e9, "a6000": 48e9}
        return {
            name: replace(
                profile,
                input_s_per_token=profile.input_s_per_token * active * 2,
                output_s_per_token=profile.output_s_per_token * active + 0.003,
                batch_growth=0.02,
                kv_tokens=int((0.9 * 4 * memory[name] - 61e9) / bytes_a_token),
            )
            for name, profile in llama.items()
            if name in memory
        }
    raise UnknownHardware(
        f"there is no profile of the model {model!r}.", remedy=f"There are: {', '.join(MODELS)}."
    )


@cache
def static_prompt_tokens(stage: str, place: int) -> tuple[str, int] | None:
    """Key and tokens of the static text of a reference stage's prompt, or `None`.

    Args:
        stage: as the reference names it.
        place: its place among parallel calls; candidates alternate between two templates.
    """
    static: Mapping[str, int] = stage_statistics()["static_prompt_tokens"]
    name = stage
    if stage.startswith("generate_candidate"):
        name = f"generate_candidate ({'second' if place else 'first'} template)"
    return (f"static:{name}", static[name]) if name in static else None


@cache
def expected_output_tokens() -> Mapping[str, float]:
    """Mean answer length of each reference stage over all published traces: what is expected of a
    stage before any of its requests has finished."""
    total: dict[str, float] = {}
    calls: dict[str, float] = {}
    for trace in stage_statistics()["traces"].values():
        for stage, facts in trace["stages"].items():
            number = trace["queries"] * facts["calls_per_query_mean"]
            calls[stage] = calls.get(stage, 0.0) + number
            total[stage] = total.get(stage, 0.0) + number * facts["output_tokens"]["mean"]
    return {stage: total[stage] / calls[stage] for stage in total}
