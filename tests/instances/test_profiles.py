"""The shipped profiles are data with their sources, and say what the hardware is known to say."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from hexprefect.errors import CallerMistake
from hexprefect.instances.profiles import default_profile, hardware_names
from hexprefect.scheduling.cost import RequestSize, completion_seconds


def test_the_published_numbers_are_read_as_c_a_b() -> None:
    a100 = default_profile("A100")
    assert (a100.name, a100.kv_tokens) == ("a100", 448_000)
    # T = c + a·input + b·output, by hand: 0.014 + 0.000299·1000 + 0.0215·100
    size = RequestSize(input_tokens=1000, output_tokens=100)
    assert completion_seconds(size, a100) == pytest.approx(0.014 + 0.299 + 2.15)


@pytest.mark.parametrize("hardware", hardware_names())
def test_every_profile_costs_something(hardware: str) -> None:
    profile = default_profile(hardware)
    assert profile.output_s_per_token > profile.input_s_per_token > 0
    assert profile.fixed_s > 0
    # On a processor the context of a slot is the limit, not a memory that requests share.
    assert (profile.kv_tokens is None) == hardware.startswith("local-")


def test_faster_hardware_is_faster() -> None:
    size = RequestSize(input_tokens=2000, output_tokens=150)
    order = ["h100", "a100", "l40s", "local-2-threads", "local-1-thread"]
    took = [completion_seconds(size, default_profile(name)) for name in order]
    assert took == sorted(took)


def test_the_numbers_name_their_sources() -> None:
    facts = json.loads(files("hexprefect.instances").joinpath("profiles.json").read_text())
    assert all(facts[source] for source in ("source", "local_source", "kv_tokens_source"))


def test_unknown_hardware_is_named_with_what_there_is() -> None:
    with pytest.raises(CallerMistake, match=r"'tpu'.*a100"):
        default_profile("tpu")
