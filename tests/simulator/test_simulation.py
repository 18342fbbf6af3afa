"""The simulation: laws, determinism, decisions that can be replayed, queueing theory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexprefect.scheduling import Profile
from hexprefect.simulator import (
    POLICIES,
    Call,
    EngineOptions,
    Experiment,
    Generator,
    Policy,
    Query,
    Simulation,
    capacity,
    named_policy,
    parse_arrivals,
    parse_cluster,
)
from hexprefect.simulator.cluster import Cluster, Instance
from hexprefect.simulator.engine_values import PromptTooLong
from hexprefect.simulator.instance import SimulatedInstance
from hexprefect.simulator.knowledge import Knowledge
from hexprefect.simulator.laws import LawBroken
from hexprefect.simulator.requests import Request

CLUSTER = parse_cluster("a100:2,a6000:1,l40s:1")
BIRD = Generator(family="bird", seed=7).some(40)
PROFILE = Profile("one", 0.05, 3e-4, 0.02, 0.001, None)


def experiment(
    policy: Policy, *, load: float = 1.0, seed: int = 0, **options: object
) -> Experiment:
    return replace(
        Experiment(
            trace="bird",
            queries=BIRD,
            cluster=CLUSTER,
            policy=policy,
            rate=load * capacity(BIRD, CLUSTER),
            number=60,
            seed=seed,
        ),
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_keeps_the_laws_under_overload(name: str) -> None:
    outcome = experiment(POLICIES[name], load=2.0, check_laws=True).run()
    assert len(outcome.latency_s) == 60
    assert outcome.requests == sum(len(BIRD[i % 40].calls) for i in range(60))


@st.composite
def queries(draw: st.DrawFn) -> Query:
    calls: list[Call] = []
    for index in range(draw(st.integers(1, 6))):
        needs = tuple(sorted(draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else ()))
        prefix = draw(st.sampled_from([(), (("a", 50),), (("a", 50), ("s1", 70)), (("b", 90),)]))
        tokens = draw(st.integers(150, 1_500))
        stage = draw(st.sampled_from(["link", "write", "judge"]))
        calls.append(Call(stage, tokens, draw(st.integers(0, 400)), needs, prefix))
    return Query(tuple(calls), database=draw(st.sampled_from(["", "d1"])))


SMALL = Cluster(
    "small",
    tuple(
        Instance(
            name, Profile(name, 0.01, slow * 3e-4, slow * 0.02, 0.01, 4_000), EngineOptions(slots=4)
        )
        for name, slow in (("fast", 1), ("slow", 3))
    ),
)


@settings(max_examples=60)
@given(
    workload=st.lists(st.tuples(st.integers(0, 60), queries()), min_size=1, max_size=12),
    name=st.sampled_from(list(POLICIES)),
    late_penalty=st.sampled_from([None, 0.5, 100.0]),
    reappoints=st.booleans(),
    depth=st.sampled_from([None, 1, 3]),
)
def test_the_laws_hold_for_any_graph_with_little_memory(
    workload: list[tuple[int, Query]],
    name: str,
    late_penalty: float | None,
    reappoints: bool,
    depth: int | None,
) -> None:
    policy = replace(
        POLICIES[name],
        late_penalty=late_penalty,
        depth=depth,
        reappoints=reappoints and POLICIES[name].reserves,
    )
    arrivals = sorted(((float(moment), query) for moment, query in workload), key=lambda a: a[0])
    outcome = Simulation(SMALL, policy, check_laws=True).run(arrivals)
    assert len(outcome.latency_s) == len(workload)
    for latency in outcome.latency_s:
        assert latency >= 0


def test_one_seed_repeats_bit_for_bit_and_two_differ() -> None:
    once, again, other = (
        experiment(named_policy("hexprefect"), seed=seed).run() for seed in (1, 1, 2)
    )
    assert once.latency_s.tobytes() == again.latency_s.tobytes()
    assert once.latency_s.tobytes() != other.latency_s.tobytes()


@pytest.mark.parametrize("name", ["hexgen", "hexprefect", "hexgen-paper-form"])
def test_every_recorded_decision_replays_to_the_same_instance(name: str) -> None:
    run = experiment(named_policy(name))
    simulation = Simulation(CLUSTER, run.policy, record_decisions=True)
    recorded = simulation.run(run.arriving())
    assert simulation.decisions
    assert all(decision.replayed() == decision.instance for decision in simulation.decisions)
    assert recorded.latency_s.tobytes() == run.run().latency_s.tobytes(), (
        "the fast path appoints as the recorded one"
    )


def test_a_query_alone_takes_the_sum_of_its_critical_path() -> None:
    cluster = parse_cluster("a100")
    query = replace(BIRD[0])
    outcome = Simulation(cluster, POLICIES["rr-fcfs"]).run([(5.0, query)])
    # Parallel calls share the engine: never sooner than the path alone with everything cached.
    longest = query.alone_seconds(cluster.profiles)
    assert 0.4 * longest < outcome.latency_s[0] <= longest * 1.5


def test_a_chain_alone_takes_exactly_the_sum_of_its_calls() -> None:
    cluster = parse_cluster("a100", options=EngineOptions(prefix_cache=False))
    chain = Query(tuple(Call(f"s{i}", 500 + i, 20 * i, (i - 1,) if i else ()) for i in range(5)))
    outcome = Simulation(cluster, POLICIES["hexprefect"], check_laws=True).run([(0.0, chain)])
    assert outcome.latency_s[0] == pytest.approx(chain.alone_seconds(cluster.profiles), rel=1e-9)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_constant_service_and_poisson_arrivals_wait_as_pollaczek_and_khinchine_say(
    load: float,
) -> None:
    # Prompts only, one server: M/D/1, whose mean wait is load / (2 (1 - load)) services.
    service = 1.0
    profile = Profile("server", 0.0, service / 1000, 0.02, 0.0, None)
    server = Instance("server", profile, EngineOptions(prefill="first", prefix_cache=False))
    cluster = Cluster("one", (server,))
    number = 20_000
    run = Experiment(
        trace="md1",
        queries=(Query((Call("only", 1000, 0),)),),
        cluster=cluster,
        policy=POLICIES["rr-fcfs"],
        rate=load / service,
        number=number,
    )
    latency = run.run().latency_s
    wait = sum(latency) / number - service
    assert wait == pytest.approx(load / (2 * (1 - load)) * service, rel=0.12)


def test_no_policy_sees_the_length_of_an_answer_before_it_ends() -> None:
    """Two workloads that differ only in the answers of the last call decide the same before it."""

    def decisions(last_answer: int) -> list[object]:
        calls = (Call("a", 400, 50), Call("b", 900, 70, (0,)), Call("c", 300, last_answer, (1,)))
        query = Query(calls, slo_s=60.0)
        simulation = Simulation(CLUSTER, named_policy("hexprefect"), record_decisions=True)
        simulation.run([(0.0, query)])
        assert simulation.decisions is not None
        return [decision.as_record() for decision in simulation.decisions]

    assert decisions(5) == decisions(2_000)


def test_what_is_learned_replaces_what_was_expected() -> None:
    knowledge = Knowledge(CLUSTER.profiles, expected={"a": 100.0})
    query = Query((Call("a", 10, 7), Call("a", 10, 7, (0,))))
    assert knowledge.output_tokens("a", "") == 100.0
    knowledge.request_finished(query, 0)
    knowledge.query_finished(query)
    assert knowledge.output_tokens("a", "") == 7.0
    assert knowledge.remaining_after("a", 0) == pytest.approx(knowledge.mean_seconds(10, 7.0))
    assert knowledge.remaining_after("a", 1) == 0.0


def test_a_broken_law_is_reported() -> None:
    run = experiment(POLICIES["hexgen"])
    simulation = Simulation(CLUSTER, run.policy, check_laws=True)
    simulation.unfinished[0] += 1
    with pytest.raises(LawBroken, match="law 1"):
        simulation.run(run.arriving())


def test_who_starts_out_of_order_breaks_law_4(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_first(self: SimulatedInstance, now: float) -> list[Request]:
        if not self.queue or self.admitted >= self.depth:
            return []
        last = self.queue.pop()[3]
        self._reserve(last)
        return [last]

    monkeypatch.setattr(SimulatedInstance, "startable", last_first)
    for depth in (1, 4):
        run = experiment(replace(POLICIES["hexgen"], depth=depth), load=2.0)
        with pytest.raises(LawBroken, match="law 4"):
            replace(run, check_laws=True).run()


def test_who_starts_without_a_slot_breaks_law_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(self: SimulatedInstance, request: Request) -> bool:
        self._reserve(request)
        return True

    monkeypatch.setattr(SimulatedInstance, "take", always)
    four = parse_cluster("a100:2,a6000:1,l40s:1", options=EngineOptions(slots=4))
    for name in ("hexprefect", "hexgen"):
        with pytest.raises(LawBroken, match="law 3"):
            experiment(POLICIES[name], load=2.0, cluster=four, check_laws=True).run()


def test_who_is_passed_over_for_ever_breaks_law_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hexprefect.simulator.instance.DEFAULT_PATIENCE", 10_000)
    monkeypatch.setattr("hexprefect.simulator.instance.LOOK_AHEAD", 10_000)
    small = Cluster("small", (Instance("one", replace(PROFILE, kv_tokens=3_000), EngineOptions()),))
    long, short = Query((Call("long", 2_900, 50),)), Query((Call("short", 200, 50),))
    arrivals = [(0.0, short), (0.1, long), *((0.2 + 0.1 * n, short) for n in range(200))]
    with pytest.raises(LawBroken, match=r"law 4.*passed over"):
        Simulation(small, POLICIES["wb-fcfs"], check_laws=True).run(arrivals)


@pytest.mark.parametrize("name", POLICIES)
def test_a_call_goes_only_where_it_could_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"small": 2_000, "large": 100_000, "tiny": 500}
    mixed = Cluster(
        "mixed",
        tuple(
            Instance(size, replace(PROFILE, kv_tokens=tokens), EngineOptions())
            for size, tokens in sizes.items()
        ),
    )
    calls = (Call("long", 3_000, 100), Call("short", 300, 20), Call("middle", 1_500, 100, (0, 1)))
    arrivals = [(0.3 * number, Query(calls)) for number in range(60)]
    simulation = Simulation(mixed, POLICIES[name], check_laws=True, record_decisions=True)
    went: dict[str, set[str]] = {call.stage: set() for call in calls}
    start = Simulation._start

    def noted(self: Simulation, request: Request) -> None:
        went[calls[request.index].stage].add(self.instances[request.instance].name)
        start(self, request)

    monkeypatch.setattr(Simulation, "_start", noted)
    assert len(simulation.run(arrivals).latency_s) == 60
    assert went["long"] == {"large"}
    assert "tiny" not in went["middle"]
    monkeypatch.undo()
    with pytest.raises(PromptTooLong, match=r"fits into no instance.*large.*100000"):
        Simulation(mixed, POLICIES[name]).run([(0.0, Query((Call("huge", 200_000, 1),)))])


def test_work_that_is_never_taken_off_is_the_flaw_of_the_reference() -> None:
    run = experiment(POLICIES["reference"])
    simulation = Simulation(CLUSTER, run.policy, check_laws=True)
    simulation.run(run.arriving())
    assert min(simulation.queue_s) > 0
    honest = Simulation(CLUSTER, POLICIES["hexgen-paper-form"])
    honest.run(run.arriving())
    assert honest.queue_s == [0.0] * 4


def test_recorded_arrivals_keep_their_pattern() -> None:
    queries = tuple(replace(BIRD[i], arrived_at=float(i * i)) for i in range(5))
    run = experiment(POLICIES["hexgen"], queries=queries, arrivals=parse_arrivals("recorded"))
    moments = [moment for moment, _ in replace(run, rate=4 / 16).arriving()]
    assert moments == pytest.approx([0, 1, 4, 9, 16])


def test_under_endless_overload_the_late_still_have_their_turn() -> None:
    """One instance, twice its load: put off for ever, no late query is answered meanwhile."""
    cluster = parse_cluster("a100")
    call = Query((Call("only", 1_000, 200),), slo_s=20.0)
    arrivals = [(2.0 * number, call) for number in range(200)]
    for_a_while = replace(
        POLICIES["hexprefect-attainment"], depth=1, slowdown=None, late_penalty=4.0
    )

    def late_answers(policy: Policy) -> int:
        outcome = Simulation(cluster, policy, check_laws=True).run(arrivals)
        return sum(
            latency > 2 * 20.0 and arrived_at + latency < arrivals[-1][0]
            for arrived_at, latency in zip(outcome.arrived_at, outcome.latency_s, strict=True)
        )

    assert late_answers(for_a_while) > 3
    assert late_answers(replace(for_a_while, late_penalty=10_000.0)) == 0
