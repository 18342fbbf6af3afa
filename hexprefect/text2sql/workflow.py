"""The agent's shape for the scheduler: which calls follow which, and how large they are.

The figures are what a 1.5B model needed on questions over schemas of 4 to 12 tables; they stand in
until the scheduler has seen enough finished requests to predict from.
"""

from __future__ import annotations

from hexprefect.scheduling.workflow import Workflow, WorkflowNode

TEXT2SQL_WORKFLOW = Workflow(
    nodes=(
        WorkflowNode("schema_linking", input_tokens=1_100, output_tokens=60),
        WorkflowNode(
            "candidate_generation",
            needs=("schema_linking",),
            # Two branches a query, side by side: the critical path counts one of them. A third
            # follows where they differ.
            expected_visits=1.3,
            input_tokens=1_100,
            output_tokens=90,
        ),
        WorkflowNode(
            "self_correction",
            needs=("candidate_generation",),
            expected_visits=0.4,
            input_tokens=1_250,
            output_tokens=60,
        ),
        WorkflowNode(
            "judge",
            needs=("self_correction",),
            # Asked whether the schema can answer where the candidates leave that in doubt.
            expected_visits=0.1,
            input_tokens=1_300,
            output_tokens=50,
        ),
    )
)
"""Linking → candidates → correction → judge. Executing SQL needs no model and is not in it."""
