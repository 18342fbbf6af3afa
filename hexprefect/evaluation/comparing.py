"""Two runs on the same questions: who won where, and whether that can be chance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hexprefect.errors import CallerMistake
from hexprefect.evaluation.records import MEASURES, QuestionRecord
from hexprefect.evaluation.statistics import mcnemar_exact


def compare(
    ours: Mapping[str, QuestionRecord], theirs: Mapping[str, QuestionRecord]
) -> dict[str, Any]:
    """Paired differences on the questions that both runs have judged against the same gold.

    Args:
        ours: records by the ids of their questions.
        theirs: of the run to compare with.

    Returns:
        By measure: how many each got right, the ids of wins and losses of ours, and the exact
        two-sided p of McNemar's test.

    Raises:
        CallerMistake: they share no question.
    """
    shared = [
        (ours[key], theirs[key])
        for key in ours
        if key in theirs
        and ours[key].gold == theirs[key].gold
        and ours[key].verdict.is_judged
        and theirs[key].verdict.is_judged
    ]
    if not shared:
        raise CallerMistake(
            "The two runs have no judged question in common.",
            remedy="Compare runs on the same file of questions.",
        )
    measures: dict[str, Any] = {}
    for name in MEASURES:
        pairs = [(a.id, a.verdict.right(name), b.verdict.right(name)) for a, b in shared]
        wins = [key for key, right, other in pairs if right and not other]
        losses = [key for key, right, other in pairs if other and not right]
        measures[name] = {
            "right": sum(right for _, right, _ in pairs),
            "right_there": sum(other for _, _, other in pairs),
            "wins": wins,
            "losses": losses,
            "p": mcnemar_exact(len(wins), len(losses)),
        }
    return {"questions": len(shared), "measures": measures}
