"""The workflow's effect: the same questions, fewer calls, sooner and more of them."""

from __future__ import annotations

from hexprefect.simulator import named_policy, parse_cluster
from hexprefect.simulator.workflow_effect import workflow_effect


def test_our_graph_answers_sooner_and_bears_more() -> None:
    reference, corrected, graph, laid_out = workflow_effect(
        parse_cluster("a100:1"),
        named_policy("hexprefect"),
        family="spider",
        number=20,
        seeds=1,
        lasts_s=200.0,
    )
    assert corrected.mean_s_at_low_load < reference.mean_s_at_low_load
    assert graph.mean_s_at_low_load <= corrected.mean_s_at_low_load
    assert laid_out.mean_s_at_low_load < graph.mean_s_at_low_load
    assert reference.capacity_qps < graph.capacity_qps < laid_out.capacity_qps
    assert corrected.capacity_qps <= graph.capacity_qps
