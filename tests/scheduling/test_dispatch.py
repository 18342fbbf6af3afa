"""Dispatch: α between the fastest instance and the emptiest queue, in both forms."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.scheduling import Decision, DispatchPolicy, NoInstance, choose, dispatch
from hexprefect.scheduling.dispatch import scores

positive = st.floats(1e-3, 1e4)
alphas = st.floats(0, 1)
policies = st.sampled_from(("paper", "normalised"))
fleets = st.lists(
    st.tuples(positive, st.one_of(st.just(0.0), positive)), min_size=1, max_size=8
).map(lambda pairs: ([c for c, _ in pairs], [q for _, q in pairs]))
"""`(t_comp, t_queue)` of each instance, idle ones among them."""

Fleet = tuple[list[float], list[float]]


@given(fleets, policies)
def test_alpha_one_is_the_fastest_instance(fleet: Fleet, policy: DispatchPolicy) -> None:
    completion, queues = fleet
    chosen = choose(completion, queues, alpha=1.0, policy=policy)
    assert chosen == completion.index(min(completion))


@given(fleets, policies)
def test_alpha_zero_is_the_emptiest_queue(fleet: Fleet, policy: DispatchPolicy) -> None:
    completion, queues = fleet
    chosen = choose(completion, queues, alpha=0.0, policy=policy)
    assert chosen == queues.index(min(queues))


@given(positive, st.floats(0, 1e3), alphas, policies, st.integers(2, 6))
def test_equal_instances_tie_to_the_lower_index(
    cost: float, delay: float, alpha: float, policy: DispatchPolicy, count: int
) -> None:
    assert choose([cost] * count, [delay] * count, alpha=alpha, policy=policy) == 0


@given(fleets, alphas, policies, st.floats(0.1, 10))
def test_what_is_chosen_has_the_best_score(
    fleet: Fleet, alpha: float, policy: DispatchPolicy, beta: float
) -> None:
    completion, queues = fleet
    scored = scores(completion, queues, alpha=alpha, policy=policy, beta=beta)
    chosen = choose(completion, queues, alpha=alpha, policy=policy, beta=beta)
    assert scored[chosen] == min(scored)


@given(fleets, alphas, st.integers(-6, 6))
def test_the_normalised_form_does_not_depend_on_the_unit(
    fleet: Fleet, alpha: float, power: int
) -> None:
    completion, queues = fleet
    unit = 2.0**power  # exact in binary: no tie is broken by rounding
    assert choose(completion, queues, alpha=alpha) == choose(
        [c * unit for c in completion], [q * unit for q in queues], alpha=alpha
    )


def test_the_papers_form_does_depend_on_the_unit() -> None:
    completion, queues = [1.0, 3.0], [4.0, 1.0]
    in_hours = choose(
        [c / 3600 for c in completion], [q / 3600 for q in queues], alpha=0.4, policy="paper"
    )
    in_milliseconds = choose(
        [c * 1000 for c in completion], [q * 1000 for q in queues], alpha=0.4, policy="paper"
    )
    assert (in_hours, in_milliseconds) == (1, 0)


@given(fleets, alphas)
def test_both_terms_of_the_normalised_form_lie_between_zero_and_one(
    fleet: Fleet, alpha: float
) -> None:
    completion, queues = fleet
    for score in scores(completion, queues, alpha=alpha):
        assert -1e-9 <= score <= 1 + 1e-9


@given(fleets, st.floats(0, 0.99))
def test_the_papers_form_prefers_idle_instances_and_the_fastest_of_them(
    fleet: Fleet, alpha: float
) -> None:
    completion, queues = fleet
    idle = [index for index, delay in enumerate(queues) if delay == 0]
    chosen = choose(completion, queues, alpha=alpha, policy="paper")
    if idle:
        assert chosen in idle
        if alpha > 0:
            assert alpha * completion[chosen] == min(alpha * completion[index] for index in idle)


@given(fleets, alphas, policies, st.floats(0.1, 10))
def test_a_decision_replays_and_survives_its_record(
    fleet: Fleet, alpha: float, policy: DispatchPolicy, beta: float
) -> None:
    completion, queues = fleet
    names = [f"i{index}" for index in range(len(completion))]
    decision = dispatch(names, completion, queues, alpha=alpha, policy=policy, beta=beta)
    assert decision.replayed() == decision.instance
    record = json.loads(json.dumps(decision.as_record(), allow_nan=False))
    assert Decision.from_record(record) == decision


def test_without_instances_there_is_nothing_to_choose() -> None:
    with pytest.raises(NoInstance):
        choose([], [], alpha=0.5)
    with pytest.raises(NoInstance):
        dispatch([], [], [], alpha=0.5)
