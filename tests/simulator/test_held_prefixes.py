"""What an instance is believed to hold is what `hold_prefix` keeps."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hexprefect.scheduling import cached_prefix_tokens, hold_prefix
from hexprefect.simulator.held_prefixes import HeldPrefixes

segments = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 400)), max_size=4).map(
    tuple
)


@settings(max_examples=100)
@given(
    prompts=st.lists(segments, max_size=25),
    asked=segments,
    capacity=st.one_of(st.none(), st.integers(0, 1_500)),
    most=st.integers(1, 6),
)
def test_it_keeps_what_the_plain_functions_keep(
    prompts: list[tuple[tuple[str, int], ...]],
    asked: tuple[tuple[str, int], ...],
    capacity: int | None,
    most: int,
) -> None:
    held = HeldPrefixes(capacity_tokens=capacity, most=most)
    plain: tuple[tuple[str, int], ...] = ()
    for prompt in prompts:
        before = plain
        plain = hold_prefix(plain, prompt, capacity_tokens=capacity, most=most)
        changed = held.hold(prompt)
        assert held.held == plain
        keys = frozenset(dict(plain))
        assert held.cached_tokens(asked) == cached_prefix_tokens(asked, keys)
        assert changed or keys == frozenset(dict(before))
        assert held.overflowed or len(plain) >= len(before)


def test_a_prompt_of_which_all_is_held_changes_nothing_while_nothing_was_forgotten() -> None:
    held = HeldPrefixes(capacity_tokens=1_000, most=10)
    assert held.hold((("a", 300), ("b", 300)))
    assert not held.hold((("a", 300),))
    assert not held.overflowed
    assert held.hold((("c", 900),))
    assert held.overflowed
    assert held.held == (("c", 900),)
