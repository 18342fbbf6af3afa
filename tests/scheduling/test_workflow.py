"""Law 2 and the critical path: which call follows which, and how long the longest way home is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.scheduling import Workflow, WorkflowError, WorkflowNode, single_stage


@st.composite
def workflows(draw: st.DrawFn) -> Workflow:
    """Any DAG of up to eight nodes, declared in any order."""
    count = draw(st.integers(1, 8))
    nodes = []
    for index in range(count):
        needs = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
        nodes.append(WorkflowNode(f"n{index}", needs=tuple(f"n{need}" for need in sorted(needs))))
    return Workflow(tuple(draw(st.permutations(nodes))))


costs = st.lists(st.floats(0, 1e3), min_size=8, max_size=8)


def chains_from(workflow: Workflow, name: str) -> list[tuple[str, ...]]:
    """Every chain from `name` to an end, by brute force."""
    followers = workflow.followers(name)
    if not followers:
        return [(name,)]
    return [(name, *rest) for after in followers for rest in chains_from(workflow, after)]


@given(workflows())
def test_the_order_puts_every_node_after_all_that_it_needs(workflow: Workflow) -> None:
    place = {name: index for index, name in enumerate(workflow.order)}
    assert sorted(place) == sorted(node.name for node in workflow.nodes)
    for node in workflow.nodes:
        assert all(place[need] < place[node.name] for need in node.needs)


@given(workflows(), st.data())
def test_a_node_is_ready_exactly_when_all_that_it_needs_has_finished(
    workflow: Workflow, data: st.DataObject
) -> None:
    finished: set[str] = set()
    while ready := workflow.ready(finished):
        for name in (node.name for node in workflow.nodes):
            needs_done = set(workflow[name].needs) <= finished
            assert (name in ready) == (needs_done and name not in finished)
        finished.add(data.draw(st.sampled_from(ready)))
    assert finished == {node.name for node in workflow.nodes}


@given(workflows(), costs)
def test_the_critical_path_is_the_costliest_of_all_chains(
    workflow: Workflow, costs: list[float]
) -> None:
    def cost(name: str) -> float:
        return costs[int(name[1:])]

    for name in workflow.order:
        path = workflow.critical_path_from(name, cost)
        chains = chains_from(workflow, name)
        assert path in chains
        longest = max(sum(map(cost, chain)) for chain in chains)
        assert sum(map(cost, path)) == pytest.approx(longest)
        assert workflow.remaining_seconds(name, cost) == pytest.approx(longest)


def test_parallel_branches_count_once_with_their_longest() -> None:
    workflow = Workflow(
        (
            WorkflowNode("link"),
            WorkflowNode("quick", needs=("link",)),
            WorkflowNode("slow", needs=("link",)),
            WorkflowNode("judge", needs=("quick", "slow")),
        )
    )
    seconds = {"link": 1.0, "quick": 2.0, "slow": 5.0, "judge": 1.0}
    assert workflow.critical_path_from("link", seconds.__getitem__) == ("link", "slow", "judge")
    assert workflow.remaining_seconds("link", seconds.__getitem__) == 7.0
    assert workflow.remaining_seconds("quick", seconds.__getitem__) == 3.0


@given(st.integers(2, 6))
def test_a_cycle_is_refused_and_named(length: int) -> None:
    names = [f"c{index}" for index in range(length)]
    nodes = [
        WorkflowNode(name, needs=(before,))
        for before, name in itertools.pairwise([*names, names[0]])
    ]
    with pytest.raises(WorkflowError, match=r"cycle through.*c0"):
        Workflow(tuple(nodes))


def test_a_node_that_needs_itself_is_a_cycle() -> None:
    with pytest.raises(WorkflowError, match="cycle"):
        Workflow((WorkflowNode("a", needs=("a",)),))


def test_unknown_needs_and_double_names_are_refused() -> None:
    with pytest.raises(WorkflowError, match="'b' needs 'a', which is not in it"):
        Workflow((WorkflowNode("b", needs=("a",)),))
    with pytest.raises(WorkflowError, match="same name"):
        Workflow((WorkflowNode("a"), WorkflowNode("a")))


def test_a_need_named_twice_is_one_need() -> None:
    workflow = Workflow((WorkflowNode("a"), WorkflowNode("b", needs=("a", "a"))))
    assert workflow.order == ("a", "b")
    assert workflow.ready({"a"}) == ("b",)


def test_a_single_stage_is_its_own_critical_path() -> None:
    workflow = single_stage("ask")
    assert "ask" in workflow
    assert workflow.critical_path_from("ask", lambda _: 3.0) == ("ask",)
