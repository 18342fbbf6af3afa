"""The figures of a run: totals, the share of each stage, costs, calibration, causes.

All functions take records and give plain JSON values: what `--json` prints and the report shows.
Questions whose gold did not run are counted, and left out of every share.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hexprefect.evaluation.records import (
    MEASURES,
    CandidateRecord,
    Measure,
    QuestionRecord,
    Verdict,
)
from hexprefect.evaluation.statistics import wilson_interval

_BUCKETS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Lower ends of the buckets of confidence; the last holds only what was sure."""
_EXAMPLES = 5
_MOST_JOINS = 3

Right = Callable[[Verdict], bool]


def summarise(records: Sequence[QuestionRecord], measure: Measure) -> dict[str, Any]:
    """All figures of a run.

    Args:
        records: of its questions.
        measure: by which stages, causes and groups are counted.
    """
    judged = [item for item in records if item.verdict.is_judged]
    return {
        "questions": len(records),
        "judged": len(judged),
        "gold_failed": [item.id for item in records if not item.verdict.is_judged],
        "measure": measure,
        "states": dict(Counter(item.state for item in records)),
        "totals": _totals(judged),
        "stages": _stages(judged, measure),
        "linking": _linking(judged),
        "cost": _cost(records),
        "calibration": _calibration(judged, measure),
        "causes": _causes(judged, measure),
        "by_database": _groups(judged, measure, lambda item: item.db_id),
        "by_joins": _groups(judged, measure, lambda item: _at_most(item.joins, "join")),
        "by_nesting": _groups(
            judged, measure, lambda item: _at_most(item.nesting, "inner query", "inner queries")
        ),
    }


def share(right: int, of: int) -> dict[str, Any]:
    """A share with its 95 % interval."""
    low, high = wilson_interval(right, of)
    return {
        "right": right,
        "of": of,
        "share": round(right / of, 4) if of else None,
        "interval": [round(low, 4), round(high, 4)],
    }


def _totals(judged: Sequence[QuestionRecord]) -> dict[str, Any]:
    totals: dict[str, Any] = {
        name: share(sum(item.verdict.right(name) for item in judged), len(judged))
        for name in MEASURES
    }
    totals["bird_soft_f1"] = _mean(item.verdict.bird_soft_f1 for item in judged)
    return totals


def _stages(judged: Sequence[QuestionRecord], measure: Measure) -> dict[str, Any] | None:
    """What was right after each stage; None where the source told of no candidates."""
    told = [item for item in judged if item.candidates]
    if not told:
        return None

    def is_right(verdict: Verdict | None) -> bool:
        return verdict is not None and verdict.right(measure)

    steps: list[tuple[str, Callable[[QuestionRecord], bool]]] = [
        ("first draft of candidate 1", lambda item: is_right(_first(item.candidates[0]))),
        (
            "any first draft (oracle)",
            lambda item: any(is_right(_first(one)) for one in item.candidates),
        ),
        ("candidate 1 after correction", lambda item: is_right(item.candidates[0].final.verdict)),
        (
            "any candidate after correction (oracle)",
            lambda item: any(is_right(one.final.verdict) for one in item.candidates),
        ),
        ("plain vote", lambda item: is_right(_of_branch(item, item.voted))),
        ("answer", lambda item: is_right(item.verdict)),
    ]
    pairs = [(one, item) for item in told for one in item.candidates if len(one.drafts) > 1]
    corrected = [(is_right(_first(one)), is_right(one.final.verdict)) for one, _ in pairs]
    judged_votes = [
        (is_right(_of_branch(item, item.voted)), is_right(_of_branch(item, item.chosen)))
        for item in told
        if item.voted is not None and item.chosen is not None
    ]
    return {
        "questions": len(told),
        "steps": [
            {"stage": name, **share(sum(map(check, told)), len(told))} for name, check in steps
        ],
        "correction": {"candidates_corrected": len(pairs), **_changes(corrected)},
        "judging": {
            "answers_that_left_the_vote": sum(item.voted != item.chosen for item in told),
            **_changes(judged_votes),
        },
    }


def _first(candidate: CandidateRecord) -> Verdict | None:
    return candidate.drafts[0].verdict if candidate.drafts else None


def _of_branch(item: QuestionRecord, branch: str | None) -> Verdict | None:
    candidate = item.candidate(branch)
    return candidate.final.verdict if candidate is not None else None


def _changes(pairs: Iterable[tuple[bool, bool]]) -> dict[str, int]:
    counts = Counter(pairs)
    return {"made_right": counts[(False, True)], "made_wrong": counts[(True, False)]}


def _linking(judged: Sequence[QuestionRecord]) -> dict[str, Any] | None:
    """Mean recall of the gold's tables and columns, and how often it was complete."""
    known = [item.linking for item in judged if item.linking is not None]
    if not known:
        return None
    figures: dict[str, Any] = {"questions": len(known)}
    for name in ("shown_tables", "shown_columns", "hinted_tables", "hinted_columns"):
        values = [value for item in known if (value := getattr(item, name)) is not None]
        figures[name] = {
            "recall": _mean(values),
            "complete": share(sum(value == 1 for value in values), len(values)),
        }
    return figures


def _cost(records: Sequence[QuestionRecord]) -> dict[str, Any] | None:
    """Calls, tokens and seconds a question, by stage; None where the source told of no calls."""
    told = [item for item in records if item.calls]
    if not told:
        return None
    of = len(told)
    stages: defaultdict[str, Counter[str]] = defaultdict(Counter)
    cached = 0
    for item in told:
        for call in item.calls:
            cached += call.from_cache
            for stage in (call.stage, "all"):
                stages[stage].update(
                    {
                        "calls": 1,
                        "input_tokens": call.input_tokens,
                        "cached_tokens": call.cached_tokens,
                        "output_tokens": call.output_tokens,
                        "milliseconds": round(call.seconds * 1000),
                    }
                )
    whole = stages.pop("all")
    return {
        "questions": of,
        "calls_from_cache": cached,
        "wall_seconds": _mean(item.seconds for item in told) if not cached else None,
        "stages": [
            {"stage": name, **_a_question(counts, of)}
            for name, counts in [*sorted(stages.items()), ("all", whole)]
        ],
    }


def _a_question(counts: Mapping[str, int], of: int) -> dict[str, float]:
    figures = {name: round(value / of, 3) for name, value in counts.items()}
    figures["seconds"] = round(figures.pop("milliseconds") / 1000, 3)
    return figures


def _calibration(judged: Sequence[QuestionRecord], measure: Measure) -> list[dict[str, Any]] | None:
    """How often the answers of each level of confidence were right."""
    sure = [item for item in judged if item.confidence is not None and item.state == "answered"]
    if not sure:
        return None
    buckets: defaultdict[float, list[QuestionRecord]] = defaultdict(list)
    for item in sure:
        assert item.confidence is not None, "the others were left out"
        buckets[max(low for low in _BUCKETS if low <= item.confidence)].append(item)
    return [
        {
            "from": low,
            "mean_confidence": _mean(item.confidence or 0.0 for item in held),
            **share(sum(item.verdict.right(measure) for item in held), len(held)),
        }
        for low, held in sorted(buckets.items())
    ]


def _causes(judged: Sequence[QuestionRecord], measure: Measure) -> list[dict[str, Any]]:
    """Why answers are wrong, the most frequent first, with a few examples of each."""
    wrong = [item for item in judged if not item.verdict.right(measure)]
    groups: defaultdict[str, list[QuestionRecord]] = defaultdict(list)
    for item in wrong:
        groups[item.verdict.cause].append(item)
    return [
        {
            "cause": cause,
            "questions": len(held),
            "share_of_wrong": round(len(held) / len(wrong), 4),
            "examples": [item.id for item in held[:_EXAMPLES]],
        }
        for cause, held in sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    ]


def _groups(
    judged: Sequence[QuestionRecord], measure: Measure, of: Callable[[QuestionRecord], str]
) -> list[dict[str, Any]]:
    groups: defaultdict[str, list[QuestionRecord]] = defaultdict(list)
    for item in judged:
        groups[of(item)].append(item)
    return [
        {"group": name, **share(sum(item.verdict.right(measure) for item in held), len(held))}
        for name, held in sorted(groups.items())
    ]


def _at_most(count: int, one: str, many: str | None = None) -> str:
    if count >= _MOST_JOINS:
        return f"{_MOST_JOINS} or more {many or one + 's'}"
    return f"{count} {one if count == 1 else many or one + 's'}"


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return round(sum(listed) / len(listed), 4) if listed else None
