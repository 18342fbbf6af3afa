"""Suspicion before death, recovery after it, and each instance by its own evidence."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexprefect.instances.errors import FailureKind
from hexprefect.instances.health import HealthMonitor, HealthPolicy, StateChange

KINDS: tuple[FailureKind, ...] = get_args(FailureKind)


@pytest.fixture
def monitor() -> HealthMonitor:
    return HealthMonitor()


def kill(monitor: HealthMonitor, instance: str = "a100-0", now: float = 0.0) -> None:
    monitor.failure(instance, "refused", now)
    monitor.failure(instance, "refused", now)
    assert monitor.state(instance) == "dead"


@pytest.mark.parametrize("kind", KINDS)
def test_no_single_failure_is_death(monitor: HealthMonitor, kind: FailureKind) -> None:
    monitor.failure("a100-0", kind, 0.0)
    assert monitor.state("a100-0") != "dead"
    assert monitor.admits("a100-0") is None


def test_a_refused_connection_is_a_suspicion_and_a_second_one_death(
    monitor: HealthMonitor,
) -> None:
    first = monitor.failure("a100-0", "refused", 1.0)
    second = monitor.probe("a100-0", False, 1.1, kind="refused", busy=True)
    assert first == StateChange("a100-0", "alive", "suspect", "a request failed (refused)", 1.0)
    assert second == StateChange("a100-0", "suspect", "dead", "2 refusals in a row", 1.1)
    assert monitor.admits("a100-0") == 0


@pytest.mark.parametrize("kind", ["died", "unavailable"])
def test_other_failures_take_three_in_a_row(monitor: HealthMonitor, kind: FailureKind) -> None:
    for at in (0.0, 1.0):
        monitor.failure("a100-0", kind, at)
    assert monitor.state("a100-0") == "suspect"
    monitor.failure("a100-0", kind, 2.0)
    assert monitor.state("a100-0") == "dead"


def test_a_success_between_failures_clears_the_suspicion(monitor: HealthMonitor) -> None:
    for at in range(8):
        monitor.failure("a100-0", "died", at)
        monitor.failure("a100-0", "died", at + 0.1)
        change = monitor.success("a100-0", at + 0.2)
        assert change is not None
        assert change.after == "alive"
        for spared in range(4):
            monitor.success("a100-0", at + 0.3 + spared / 100)


@pytest.mark.parametrize("kind", ["overloaded", "rejected"])
def test_an_answer_is_a_sign_of_life_whatever_it_says(
    monitor: HealthMonitor, kind: FailureKind
) -> None:
    for at in range(100):
        assert monitor.failure("a100-0", kind, at) is None
    assert monitor.state("a100-0") == "alive"


def test_a_health_route_that_sheds_load_is_there(monitor: HealthMonitor) -> None:
    for at in range(100):
        monitor.probe("a100-0", False, float(at), kind="overloaded")
        assert monitor.state("a100-0") == "alive"


def test_a_busy_server_that_misses_health_checks_is_not_dead(monitor: HealthMonitor) -> None:
    # The kind of sgl-project/sglang PR#9198: probes time out while the server works.
    for at in range(100):
        monitor.probe("a100-0", False, float(at), kind="timeout", busy=True)
        assert monitor.state("a100-0") != "dead"
        if at % 5 == 4:
            monitor.success("a100-0", at + 0.5)
            assert monitor.state("a100-0") == "alive"


@pytest.mark.parametrize("busy", [True, False])
def test_a_server_that_sheds_its_health_checks_is_not_dead(
    monitor: HealthMonitor, busy: bool
) -> None:
    changes = [
        monitor.probe("a", False, float(now), kind="overloaded", busy=busy) for now in range(10)
    ]
    assert changes == [None] * 10
    assert monitor.state("a") == "alive"


def test_a_hung_engine_is_not_cleared_by_health_checks_that_it_sheds(
    monitor: HealthMonitor,
) -> None:
    for at in range(0, 13, 4):
        monitor.failure("hung", "timeout", float(at))
        monitor.probe("hung", False, at + 0.5, kind="overloaded", busy=True)
    assert monitor.state("hung") == "dead"


def test_a_busy_server_that_gives_no_sign_of_life_at_all_dies(monitor: HealthMonitor) -> None:
    for at in range(30):
        monitor.probe("a100-0", False, float(at), kind="timeout", busy=True)
    assert monitor.state("a100-0") == "dead"


def test_an_idle_server_that_misses_health_checks_dies(monitor: HealthMonitor) -> None:
    for at in range(3):
        monitor.probe("a100-0", False, float(at), kind="timeout", busy=False)
    assert monitor.state("a100-0") == "dead"


def test_a_hung_server_dies_although_its_probes_pass(monitor: HealthMonitor) -> None:
    # The kind of vllm-project/production-stack#749: taken, never answered, health says 200.
    for at in range(0, 13, 4):
        monitor.failure("hung", "timeout", float(at))
        monitor.probe("hung", True, at + 0.5)
        monitor.success("healthy", at + 1.0)
    assert monitor.state("hung") == "dead"
    assert monitor.state("healthy") == "alive"
    assert monitor.admits("healthy") is None


def test_timeouts_of_short_budgets_on_a_busy_server_are_not_death(monitor: HealthMonitor) -> None:
    for tick in range(600):
        now = tick / 10
        monitor.failure("a100-0", "timeout", now)
        if tick % 20 == 0:
            monitor.success("a100-0", now)
        assert monitor.state("a100-0") != "dead"


def test_a_server_that_fails_half_of_its_requests_is_cut_off(monitor: HealthMonitor) -> None:
    for at in range(40):
        if at % 2:
            monitor.failure("flaky", "unavailable", float(at))
        else:
            monitor.success("flaky", float(at))
        if monitor.state("flaky") == "dead":
            break
    assert monitor.state("flaky") == "dead"
    assert "50%" in monitor.reason("flaky")


def test_a_dead_instance_comes_back_on_trial_and_one_success_ends_it(
    monitor: HealthMonitor,
) -> None:
    kill(monitor)
    assert monitor.probe("a100-0", True, 0.5) is None, "the pause is not over"
    back = monitor.probe("a100-0", True, 2.0)
    assert back is not None
    assert (back.before, back.after) == ("dead", "suspect")
    assert monitor.admits("a100-0") == 1
    monitor.success("a100-0", 3.0)
    assert (monitor.state("a100-0"), monitor.admits("a100-0")) == ("alive", None)


def test_without_traffic_healthy_probes_end_the_trial(monitor: HealthMonitor) -> None:
    kill(monitor)
    states = []
    for at in (2.0, 3.0, 4.0):
        monitor.probe("a100-0", True, at)
        states.append(monitor.state("a100-0"))
    assert states == ["suspect", "suspect", "alive"]


def test_each_death_on_trial_doubles_the_pause_up_to_its_limit(monitor: HealthMonitor) -> None:
    policy = monitor.policy
    kill(monitor)
    now, pauses = 0.0, []
    for _ in range(9):
        died = now
        while monitor.state("a100-0") == "dead":
            now += 0.25
            monitor.probe("a100-0", True, now)
        pauses.append(now - died)
        monitor.failure("a100-0", "unavailable", now)
        assert monitor.state("a100-0") == "dead", "one failure on trial is enough"
    assert pauses[:3] == [1.0, 2.0, 4.0]
    assert pauses[-1] == policy.longest_pause_s


def test_a_suspect_that_a_probe_finds_healthy_is_alive_again(monitor: HealthMonitor) -> None:
    monitor.failure("a100-0", "died", 0.0)
    change = monitor.probe("a100-0", True, 0.1)
    assert change is not None
    assert change.after == "alive"


def test_old_failures_are_forgotten(monitor: HealthMonitor) -> None:
    for day in range(10):
        monitor.failure("a100-0", "died", day * 86_400.0)
    assert monitor.state("a100-0") == "suspect"


def test_probes_are_asked_for_when_they_tell_something(monitor: HealthMonitor) -> None:
    assert monitor.probes_due(["new"], 0.0) == ["new"]
    monitor.success("busy", 100.0)
    assert monitor.probes_due(["busy"], 105.0) == [], "traffic tells more"
    assert monitor.probes_due(["busy"], 120.0) == ["busy"]
    monitor.failure("doubted", "died", 100.0)
    assert monitor.probes_due(["doubted"], 100.0) == ["doubted"], "at once"
    monitor.probe("doubted", False, 100.0, kind="died")
    assert monitor.probes_due(["doubted"], 100.5) == []
    kill(monitor, "dead", 100.0)
    assert monitor.probes_due(["dead"], 100.5) == []
    assert monitor.probes_due(["dead"], 101.0) == ["dead"]


def test_a_removed_instance_leaves_nothing_behind(monitor: HealthMonitor) -> None:
    kill(monitor)
    monitor.forget("a100-0")
    assert monitor.state("a100-0") == "alive"


events = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.one_of(
            st.just(("success",)),
            st.tuples(st.just("failure"), st.sampled_from(KINDS)),
            st.tuples(
                st.just("probe"), st.booleans(), st.sampled_from([*KINDS, None]), st.booleans()
            ),
        ),
        st.floats(0, 30),
    ),
    max_size=60,
)


def tell(monitor: HealthMonitor, instance: str, event: tuple, now: float) -> StateChange | None:
    if event[0] == "success":
        return monitor.success(instance, now)
    if event[0] == "failure":
        return monitor.failure(instance, event[1], now)
    return monitor.probe(instance, event[1], now, kind=event[2], busy=event[3])


@settings(max_examples=150)
@given(events)
def test_the_changes_tell_the_whole_story_and_death_always_follows_suspicion(
    happened: list,
) -> None:
    monitor, now = HealthMonitor(), 0.0
    states = {"a": "alive", "b": "alive"}
    for instance, event, pause in happened:
        now += pause
        change = tell(monitor, instance, event, now)
        if change is not None:
            assert (change.instance, change.before, change.at) == (instance, states[instance], now)
            assert change.before != change.after
            assert change.reason
            if change.after == "dead":
                assert change.before == "suspect"
            states[instance] = change.after
        assert monitor.state("a") == states["a"]
        assert monitor.state("b") == states["b"]


@settings(max_examples=100)
@given(events)
def test_whatever_happened_a_healthy_instance_comes_back(happened: list) -> None:
    monitor, now = HealthMonitor(), 0.0
    for instance, event, pause in happened:
        now += pause
        tell(monitor, instance, event, now)
    for _ in range(2):
        now += HealthPolicy().longest_pause_s
        monitor.probe("a", True, now)
    monitor.success("a", now)
    assert monitor.state("a") == "alive"
    assert monitor.admits("a") is None


@settings(max_examples=100)
@given(events)
def test_no_instance_is_judged_by_anothers_evidence(happened: list) -> None:
    together, alone, now = HealthMonitor(), HealthMonitor(), 0.0
    for instance, event, pause in happened:
        now += pause
        tell(together, instance, event, now)
        if instance == "a":
            tell(alone, "a", event, now)
    assert together.state("a") == alone.state("a")
    assert together.admits("a") == alone.admits("a")
