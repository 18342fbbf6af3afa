"""Outcomes: the figures of a record."""

from __future__ import annotations

import pytest

from hexprefect.simulator.outcome import Outcome, plateau_rate


def outcome(latencies: list[float], *, alone: float = 10.0, slo: float = 30.0) -> Outcome:
    made = Outcome()
    for number, latency in enumerate(latencies):
        made.query_ended(arrived_at=5.0 + number, latency_s=latency, alone_s=alone, slo_s=slo)
        made.ended_at = max(made.ended_at, 5.0 + number + latency)
    return made


def test_percentiles_attainment_and_scales() -> None:
    summary = outcome([float(seconds) for seconds in range(1, 101)]).summary()
    assert summary.mean_s == pytest.approx(50.5)
    assert summary.p95_s == pytest.approx(95.05)
    assert summary.slo_attainment == pytest.approx(0.30)
    assert summary.slo_scale_at_95 == pytest.approx(9.505)
    assert summary.longest_latency_s == 100.0


def test_the_scale_at_95_is_the_one_at_which_95_percent_are_in_time() -> None:
    made = outcome([float(seconds) for seconds in range(1, 101)])
    scale = made.summary().slo_scale_at_95
    below, above = made.attainment_curve([scale * 0.98, scale * 1.02])
    assert below <= 0.95 <= above


def test_throughput_counts_from_the_first_arrival_to_the_last_answer() -> None:
    assert outcome([10.0, 10.0, 10.0]).summary().throughput_qps == pytest.approx(3 / 12)


def test_the_plateau_leaves_filling_and_draining_out() -> None:
    ends = [0.0, *(100.0 + step for step in range(18)), 1000.0]
    assert plateau_rate(ends) == pytest.approx(1.0, rel=0.1)
    assert plateau_rate([1.0]) == 0.0


def test_nothing_cannot_be_summed_up() -> None:
    with pytest.raises(ValueError, match="no query"):
        Outcome().summary()
