"""The tuner: never worse than round-robin, repeatable, joint where asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hexprefect.simulator import (
    POLICIES,
    Experiment,
    Generator,
    capacity,
    named_policy,
    parse_cluster,
    tune,
)
from hexprefect.simulator.tuner import OBJECTIVES, CannotTune, Objective

BIRD = Generator(seed=11).some(30)
UNEQUAL = parse_cluster("a100:1,a6000:1")


def window(name: str = "hexgen", cluster: str = "a100:1,a6000:1", load: float = 1.2) -> Experiment:
    instances = parse_cluster(cluster)
    return Experiment(
        trace="bird",
        queries=BIRD,
        cluster=instances,
        policy=named_policy(name),
        rate=load * capacity(BIRD, instances),
        number=30,
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("cluster", ["a100:1,a6000:1", "a100:2"])
def test_the_choice_is_never_worse_than_round_robin_on_the_window(
    objective: Objective, cluster: str
) -> None:
    tuning = tune(window(cluster=cluster), objective=objective, seeds=(0,), alphas=(0.0, 0.5, 1.0))
    assert tuning.best.cost(objective) <= tuning.round_robin.cost(objective)
    assert all(tuning.best.cost(objective) <= p.cost(objective) for p in tuning.points)


def test_a_grid_that_is_worse_everywhere_leaves_round_robin() -> None:
    # With α = 1 everything goes to one of two equal instances: half of the capacity.
    tuning = tune(window(cluster="a100:2", load=1.5), seeds=(0,), alphas=(1.0,))
    assert tuning.policy == POLICIES["rr-fcfs"] or tuning.best.cost("p95") <= (
        tuning.round_robin.cost("p95")
    )


def test_the_same_window_and_seeds_give_the_same_choice_on_one_core_and_on_two() -> None:
    one, two = (
        tune(window(), seeds=(0, 1), alphas=(0.2, 0.8), cores=cores).as_record() for cores in (1, 2)
    )
    assert one == two


def test_the_grid_is_refined_around_the_best() -> None:
    tuning = tune(window(), seeds=(0,), alphas=(0.3, 0.7))
    tried = sorted(p.policy.alpha for p in tuning.points if p.policy.tunes_alpha)
    assert len(tried) == 2 + 6
    assert min(abs(alpha - near) for alpha in tried for near in (0.28, 0.68)) < 1e-9


def test_order_depth_and_overload_policy_are_searched_together_with_alpha() -> None:
    start = window("hexprefect", load=2.0)
    tuning = tune(replace(start, number=40), objective="attainment", seeds=(0,), jointly=True)
    assert {p.policy.order for p in tuning.points} > {"urgency", "laxity", "remaining"}
    assert len({p.policy.slowdown for p in tuning.points}) > 5
    [alone] = [p for p in tuning.points if p.policy == start.policy]
    assert tuning.best.slo_attainment >= alone.slo_attainment


def test_what_has_no_alpha_cannot_be_tuned() -> None:
    with pytest.raises(CannotTune, match="least-loaded"):
        tune(window("least-loaded"))
    with pytest.raises(CannotTune, match="between 0 and 1"):
        tune(window(), alphas=(2.0,))
    with pytest.raises(CannotTune, match="seed"):
        tune(window(), seeds=())
