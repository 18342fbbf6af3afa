"""The figures of a run as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hexprefect.evaluation.records import Measure, QuestionRecord

_NAMES = {
    "bird_ex": "BIRD EX",
    "spider_execution": "Spider execution",
    "spider_keep_distinct": "Spider execution, `--keep_distinct`",
}
_GOLD_FAILED_SHOWN = 30
_LONGEST_CELL = 400


def markdown_report(
    summary: Mapping[str, Any],
    records: Sequence[QuestionRecord],
    *,
    title: str,
    comparison: Mapping[str, Any] | None = None,
    against: str = "",
    wrong_shown: int = 30,
) -> str:
    """A report for people.

    Args:
        summary: of `hexprefect.evaluation.summary.summarise`.
        records: the same questions, of which wrong ones are shown.
        title: what was evaluated.
        comparison: with an earlier run, of `hexprefect.evaluation.comparing.compare`.
        against: names that run.
        wrong_shown: how many of the wrong answers stand in it with their statements.
    """
    measure: Measure = summary["measure"]
    parts = [
        f"# {title}",
        _totals(summary),
        *([comparison_text(comparison, against)] if comparison else []),
        *([_stages(summary["stages"], measure)] if summary["stages"] else []),
        *([_linking(summary["linking"])] if summary["linking"] else []),
        *([_cost(summary["cost"])] if summary["cost"] else []),
        *([_calibration(summary["calibration"])] if summary["calibration"] else []),
        _causes(summary["causes"], measure),
        _groups(summary),
        *([_wrong(records, measure, wrong_shown)] if wrong_shown else []),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def comparison_text(comparison: Mapping[str, Any], against: str) -> str:
    """Wins, losses and their p, for each measure."""
    rows = [
        (
            _NAMES[name],
            found["right"],
            found["right_there"],
            len(found["wins"]),
            len(found["losses"]),
            f"{found['p']:.3g}",
        )
        for name, found in comparison["measures"].items()
    ]
    heads = (
        "Measure",
        "Right here",
        "Right there",
        "Only here",
        "Only there",
        "p (McNemar, exact)",
    )
    return "\n\n".join(
        [
            f"## Against {against}",
            f"{comparison['questions']} questions were judged in both runs.",
            _table(heads, rows),
        ]
    )


def _totals(summary: Mapping[str, Any]) -> str:
    rows: list[tuple[object, ...]] = [
        (_NAMES[name], *_share_cells(summary["totals"][name])) for name in _NAMES
    ]
    soft = summary["totals"]["bird_soft_f1"]
    rows.append(("BIRD soft F1 (mean)", "", _percent(soft), ""))
    states = ", ".join(f"{count} {state}" for state, count in summary["states"].items())
    text = f"{summary['questions']} questions: {states}."
    if summary["gold_failed"]:
        ids = ", ".join(summary["gold_failed"][:_GOLD_FAILED_SHOWN])
        text += (
            f" The gold statement of {len(summary['gold_failed'])} gave no result to compare with; "
            f"they are in no share: {ids}."
        )
    return f"{text}\n\n{_table(('Measure', 'Right', 'Share', '95 % interval'), rows)}"


def _stages(stages: Mapping[str, Any], measure: Measure) -> str:
    rows = [(step["stage"], *_share_cells(step)) for step in stages["steps"]]
    correction, judging = stages["correction"], stages["judging"]
    return "\n\n".join(
        [
            "## Stage by stage",
            f"By {_NAMES[measure]}, over {stages['questions']} questions.",
            _table(("After", "Right", "Share", "95 % interval"), rows),
            f"Correction worked on {correction['candidates_corrected']} candidates: "
            f"{correction['made_right']} became right, {correction['made_wrong']} became wrong. "
            f"{judging['answers_that_left_the_vote']} answers left the plain vote: "
            f"{judging['made_right']} became right, {judging['made_wrong']} became wrong.",
        ]
    )


def _linking(linking: Mapping[str, Any]) -> str:
    rows = [
        (
            name.replace("_", " "),
            _percent(linking[name]["recall"]),
            _percent(linking[name]["complete"]["share"]),
        )
        for name in ("shown_tables", "shown_columns", "hinted_tables", "hinted_columns")
    ]
    return "\n\n".join(
        [
            "## Linking",
            "What the gold statements need, and how much of it the candidates' prompts showed and "
            "linking hinted at.",
            _table(("", "Mean recall", "Complete"), rows),
        ]
    )


def _cost(cost: Mapping[str, Any]) -> str:
    heads = ("Stage", "Calls", "Input tokens", "of them cached", "Output tokens", "Seconds")
    names = ("stage", "calls", "input_tokens", "cached_tokens", "output_tokens", "seconds")
    rows = [tuple(stage[name] for name in names) for stage in cost["stages"]]
    wall = (
        f"{cost['wall_seconds']} s passed from a question to its answer."
        if cost["wall_seconds"] is not None
        else f"{cost['calls_from_cache']} calls came from the cache; their seconds are those of "
        "the run that made them."
    )
    text = f"The mean of a question, over {cost['questions']} questions. {wall}"
    return "\n\n".join(["## Cost", text, _table(heads, rows)])


def _calibration(buckets: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (f"from {bucket['from']}", bucket["mean_confidence"], *_share_cells(bucket))
        for bucket in buckets
    ]
    heads = ("Confidence", "Mean", "Right", "Share", "95 % interval")
    return "\n\n".join(["## Confidence", _table(heads, rows)])


def _causes(causes: Sequence[Mapping[str, Any]], measure: Measure) -> str:
    if not causes:
        return f"## Causes\n\nEvery answer was right by {_NAMES[measure]}."
    rows = [
        (
            item["cause"],
            item["questions"],
            _percent(item["share_of_wrong"]),
            ", ".join(item["examples"]),
        )
        for item in causes
    ]
    heads = ("Cause", "Questions", "Of the wrong", "Examples")
    return "\n\n".join(["## Causes", f"What was wrong by {_NAMES[measure]}.", _table(heads, rows)])


def _groups(summary: Mapping[str, Any]) -> str:
    heads = ("", "Right", "Share", "95 % interval")
    tables = [
        (title, [(item["group"], *_share_cells(item)) for item in summary[name]])
        for title, name in (
            ("By joins of the gold statement", "by_joins"),
            ("By inner queries of the gold statement", "by_nesting"),
            ("By database", "by_database"),
        )
    ]
    return "\n\n".join(f"## {title}\n\n{_table(heads, rows)}" for title, rows in tables)


def _wrong(records: Sequence[QuestionRecord], measure: Measure, most: int) -> str:
    wrong = [item for item in records if item.verdict.is_judged and not item.verdict.right(measure)]
    if not wrong:
        return ""
    heads = ("Id", "Cause", "Question", "Predicted", "Gold")
    rows = [
        (
            item.id,
            item.verdict.cause,
            item.question,
            item.sql or item.reason or "",
            item.gold,
        )
        for item in wrong[:most]
    ]
    more = len(wrong) - len(rows)
    tail = f"\n\n{more} more are in `answers.jsonl`." if more > 0 else ""
    return f"## Wrong answers\n\n{_table(heads, rows)}{tail}"


def _share_cells(item: Mapping[str, Any]) -> tuple[str, str, str]:
    low, high = item["interval"]
    return (
        f"{item['right']} of {item['of']}",
        _percent(item["share"]),
        (f"{_percent(low)} – {_percent(high)}"),
    )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.1f} %"


def _table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [list(heads), ["---"] * len(list(heads)), *rows]
    return "\n".join("| " + " | ".join(_cell(item) for item in line) + " |" for line in lines)


def _cell(value: object) -> str:
    """One line, and nothing in it that ends the cell."""
    text = " ".join(str(value).split())
    text = text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…"
    return text.replace("|", "\\|").replace("<", "&lt;")
