"""The workflow of a query: which LLM calls follow which, and how long the longest way home is.

A `Workflow` is a directed acyclic graph. Its nodes are stages (before a query runs, when only the
shape of the agent is known) or single requests (in the simulator, where the whole query is known).
Parallel branches count once, with their longest: HEXGEN-FLOW's budget (arXiv 2505.05286, section
4.2) divides the time left along the critical path only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkflowNode:
    """One LLM call that a query makes, or may make."""

    name: str
    """Unique in its workflow; for an agent's workflow, the stage."""
    needs: tuple[str, ...] = ()
    """Names of the nodes that must have finished before this one may be dispatched."""
    expected_visits: float = 1.0
    """How often a query comes here on average: 0.3 for a judge called in 3 of 10 queries."""
    input_tokens: float = 0.0
    """Expected prompt length, until history tells better."""
    output_tokens: float = 0.0
    """Expected answer length, until history tells better."""


class WorkflowError(ValueError):
    """The nodes do not form a directed acyclic graph."""


@dataclass(frozen=True)
class Workflow:
    """A checked directed acyclic graph of `WorkflowNode`.

    Raises:
        WorkflowError: on a duplicate name, an unknown need or a cycle.
    """

    nodes: tuple[WorkflowNode, ...]
    _by_name: Mapping[str, WorkflowNode] = field(init=False, repr=False, compare=False)
    _followers: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _order: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {node.name: node for node in self.nodes}
        if len(by_name) != len(self.nodes):
            raise WorkflowError("two nodes of the workflow have the same name")
        followers: dict[str, list[str]] = {name: [] for name in by_name}
        for node in self.nodes:
            for need in node.needs:
                if need not in by_name:
                    raise WorkflowError(f"{node.name!r} needs {need!r}, which is not in it")
                followers[need].append(node.name)
        frozen_followers = {name: tuple(after) for name, after in followers.items()}
        object.__setattr__(self, "_by_name", by_name)
        object.__setattr__(self, "_followers", frozen_followers)
        object.__setattr__(self, "_order", _topological_order(self.nodes, frozen_followers))

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> WorkflowNode:
        return self._by_name[name]

    @property
    def order(self) -> tuple[str, ...]:
        """All names, every node after all that it needs."""
        return self._order

    def followers(self, name: str) -> tuple[str, ...]:
        """Names of the nodes that need `name` directly."""
        return self._followers[name]

    def ready(self, finished: Iterable[str]) -> tuple[str, ...]:
        """Names of the unfinished nodes whose needs have finished, in declared order (law 2)."""
        done = frozenset(finished)
        return tuple(
            node.name
            for node in self.nodes
            if node.name not in done and all(need in done for need in node.needs)
        )

    def critical_path_from(self, name: str, cost: Callable[[str], float]) -> tuple[str, ...]:
        """The costliest chain of nodes from `name` (included) to an end of the workflow.

        Args:
            name: where the path starts.
            cost: seconds that a node takes; see `weighted_cost` for nodes that may not happen.

        Returns:
            The names along the path. Of two equally long ones, the one declared first.
        """
        length: dict[str, float] = {}
        following: dict[str, str | None] = {}
        for node in reversed(self._order):
            best, best_length = None, 0.0
            for follower in self._followers[node]:
                if best is None or length[follower] > best_length:
                    best, best_length = follower, length[follower]
            length[node] = cost(node) + best_length
            following[node] = best
        path = [name]
        while (after := following[path[-1]]) is not None:
            path.append(after)
        return tuple(path)

    def remaining_seconds(self, name: str, cost: Callable[[str], float]) -> float:
        """Length in seconds of the critical path from `name`, itself included."""
        return sum(cost(node) for node in self.critical_path_from(name, cost))


def _topological_order(
    nodes: tuple[WorkflowNode, ...], followers: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    missing = {node.name: len(set(node.needs)) for node in nodes}
    ready = [node.name for node in nodes if not missing[node.name]]
    order: list[str] = []
    while ready:
        name = ready.pop(0)
        order.append(name)
        for follower in dict.fromkeys(followers[name]):
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
    if len(order) != len(nodes):
        stuck = sorted(set(missing) - set(order))
        raise WorkflowError(f"the workflow has a cycle through {', '.join(stuck)}")
    return tuple(order)


def single_stage(stage: str) -> Workflow:
    """The workflow of a query about which nothing is known: one call, then it ends."""
    return Workflow(nodes=(WorkflowNode(name=stage),))
