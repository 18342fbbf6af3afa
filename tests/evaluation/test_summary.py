"""The figures of a run, the report of them, and the comparison of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hexprefect.errors import CallerMistake
from hexprefect.evaluation.comparing import compare
from hexprefect.evaluation.records import (
    CallRecord,
    CandidateRecord,
    DraftRecord,
    LinkingRecord,
    QuestionRecord,
    Verdict,
)
from hexprefect.evaluation.report import markdown_report
from hexprefect.evaluation.summary import summarise

Make = Callable[..., QuestionRecord]
RIGHT = Verdict(bird_ex=True, bird_soft_f1=1.0, spider_execution=True, spider_keep_distinct=True)
WRONG = Verdict(cause="wrong values")


def candidate(number: int, *drafts: Verdict) -> CandidateRecord:
    written = tuple(DraftRecord(sql=f"SELECT {at}", verdict=item) for at, item in enumerate(drafts))
    return CandidateRecord(branch=f"candidate-{number}", drafts=written, final=written[-1])


def test_the_totals_are_counted_by_each_measure_under_its_name(record: Make) -> None:
    by_bird = Verdict(bird_ex=True, bird_soft_f1=0.5, cause="repeated rows")
    records = [record("a"), record("b", right=False), record("c", verdict=by_bird)]
    totals = summarise(records, "spider_execution")["totals"]
    assert totals["bird_ex"]["right"] == 2
    assert totals["spider_execution"]["right"] == 1
    assert totals["bird_soft_f1"] == 0.5
    low, high = totals["bird_ex"]["interval"]
    assert low < 2 / 3 < high


def test_a_question_whose_gold_failed_is_in_no_share(record: Make) -> None:
    records = [record("a"), record("b", verdict=Verdict(cause="gold failed"))]
    summary = summarise(records, "bird_ex")
    assert summary["gold_failed"] == ["b"]
    assert summary["totals"]["bird_ex"]["of"] == 1
    assert [group["of"] for group in summary["by_database"]] == [1]


def test_each_stage_is_counted_by_what_was_right_after_it(record: Make) -> None:
    mended = record(
        "mended",
        candidates=(candidate(1, WRONG, RIGHT), candidate(2, WRONG)),
        chosen="candidate-1",
        voted="candidate-2",
    )
    spoilt = record(
        "spoilt",
        verdict=WRONG,
        candidates=(candidate(1, RIGHT, WRONG), candidate(2, RIGHT)),
        chosen="candidate-1",
        voted="candidate-2",
    )
    stages = summarise([mended, spoilt], "spider_execution")["stages"]
    assert {step["stage"]: step["right"] for step in stages["steps"]} == {
        "first draft of candidate 1": 1,
        "any first draft (oracle)": 1,
        "candidate 1 after correction": 1,
        "any candidate after correction (oracle)": 2,
        "plain vote": 1,
        "answer": 1,
    }
    assert stages["correction"] == {"candidates_corrected": 2, "made_right": 1, "made_wrong": 1}
    assert stages["judging"] == {
        "answers_that_left_the_vote": 2,
        "made_right": 1,
        "made_wrong": 1,
    }


def test_costs_are_those_of_a_question_and_add_up(record: Make) -> None:
    calls = (
        CallRecord(stage="judge", input_tokens=100, output_tokens=8, seconds=0.5),
        CallRecord(stage="candidate_generation", input_tokens=300, cached_tokens=200, seconds=1.5),
    )
    cost = summarise(
        [record("a", calls=calls, seconds=2.0), record("b", calls=calls[1:])], "bird_ex"
    )["cost"]
    figures = {stage["stage"]: stage for stage in cost["stages"]}
    assert figures["judge"]["calls"] == 0.5
    assert figures["candidate_generation"]["cached_tokens"] == 200
    assert figures["all"]["input_tokens"] == 350
    assert figures["all"]["seconds"] == 1.75
    assert cost["wall_seconds"] == 1.0


def test_seconds_on_the_clock_are_not_told_where_calls_came_from_a_cache(record: Make) -> None:
    cached = record("a", calls=(CallRecord(stage="judge", from_cache=True),), seconds=0.1)
    cost = summarise([cached, record("b")], "bird_ex")["cost"]
    assert cost["calls_from_cache"] == 1
    assert cost["wall_seconds"] is None


def test_confidence_is_held_against_what_was_right(record: Make) -> None:
    records = [record(str(at), right=at < 3, confidence=0.5) for at in range(4)]
    records += [record("sure", confidence=1.0), record("none")]
    buckets = summarise(records, "bird_ex")["calibration"]
    assert [(item["from"], item["right"], item["of"]) for item in buckets] == [
        (0.4, 3, 4),
        (1.0, 1, 1),
    ]


def test_linking_recall_is_the_mean_and_how_often_it_was_complete(record: Make) -> None:
    whole = LinkingRecord(hinted_tables=1, hinted_columns=0.5, shown_tables=1, shown_columns=1)
    half = LinkingRecord(hinted_tables=0.5, hinted_columns=0.5)
    linking = summarise([record("a", linking=whole), record("b", linking=half)], "bird_ex")[
        "linking"
    ]
    assert linking["hinted_tables"]["recall"] == 0.75
    assert linking["hinted_tables"]["complete"]["right"] == 1
    assert linking["shown_tables"]["complete"]["of"] == 1


def test_what_a_source_does_not_tell_is_not_reported(record: Make) -> None:
    summary = summarise([record("a", calls=())], "bird_ex")
    assert summary["stages"] is None
    assert summary["cost"] is None
    assert summary["linking"] is None
    assert summary["calibration"] is None


def test_causes_are_those_of_what_is_wrong_by_the_measure(record: Make) -> None:
    forgiven = Verdict(bird_ex=True, spider_execution=True, cause="repeated rows")
    records = [record("a", verdict=forgiven), record("b", right=False), record("c", right=False)]
    [cause] = summarise(records, "spider_execution")["causes"]
    assert cause["cause"] == "wrong columns"
    assert (cause["questions"], cause["examples"]) == (2, ["b", "c"])
    strict = summarise(records, "spider_keep_distinct")["causes"]
    assert [item["cause"] for item in strict] == ["wrong columns", "repeated rows"]


def test_hardness_is_counted_from_the_gold(record: Make) -> None:
    records = [record("a", joins=0), record("b", joins=1), record("c", joins=7, nesting=1)]
    summary = summarise(records, "bird_ex")
    assert [group["group"] for group in summary["by_joins"]] == [
        "0 joins",
        "1 join",
        "3 or more joins",
    ]
    assert [group["group"] for group in summary["by_nesting"]] == [
        "0 inner queries",
        "1 inner query",
    ]


def test_a_comparison_is_paired_by_question(record: Make) -> None:
    ours = {key: record(key, right=key in "abcx") for key in "abcdx"}
    theirs = {key: record(key, right=key in "ay") for key in "abcdy"}
    found = compare(ours, theirs)
    assert found["questions"] == 4
    measure = found["measures"]["bird_ex"]
    assert (measure["right"], measure["right_there"]) == (3, 1)
    assert (measure["wins"], measure["losses"]) == (["b", "c"], [])
    assert measure["p"] == 0.5


def test_runs_on_other_questions_cannot_be_compared(record: Make) -> None:
    with pytest.raises(CallerMistake, match="no judged question in common"):
        compare({"a": record("a")}, {"a": record("a", gold="SELECT 2")})


def test_the_report_shows_every_figure_and_no_cell_breaks_out(record: Make) -> None:
    records = [
        record("a", candidates=(candidate(1, WRONG, RIGHT),), voted="candidate-1",
               chosen="candidate-1", confidence=1.0,
               linking=LinkingRecord(hinted_tables=1, hinted_columns=1)),
        record("b", right=False, question="A | B\n<script>"),
    ]  # fmt: skip
    summary: dict[str, Any] = summarise(records, "spider_execution")
    comparison = compare({item.id: item for item in records}, {"b": record("b")})
    text = markdown_report(
        summary, records, title="Night run", comparison=comparison, against="base"
    )
    headings = (
        "# Night run",
        "## Against base",
        "## Stage by stage",
        "## Linking",
        "## Cost",
        "## Confidence",
        "## Causes",
        "## By database",
        "## Wrong answers",
    )
    for heading in headings:
        assert heading in text
    assert "A \\| B &lt;script>" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)
    assert "## Wrong answers" not in markdown_report(summary, records, title="x", wrong_shown=0)
