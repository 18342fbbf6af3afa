"""A whole evaluation with a scripted model: stages, resumption, failures of the source."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hexprefect.completion import Completion, Prompt
from hexprefect.errors import CallerMistake
from hexprefect.evaluation.answer_log import ANSWERS, CONFIGURATION, AnswerLog, read_run
from hexprefect.evaluation.execution import Executor
from hexprefect.evaluation.questions import GoldQuestion
from hexprefect.evaluation.records import QuestionRecord
from hexprefect.evaluation.running import evaluate
from hexprefect.evaluation.sources import Agent, AnswerSource, Attempt, Predictions
from hexprefect.instances.errors import InstanceUnavailable
from hexprefect.text2sql import AgentOptions

QUESTIONS = (
    GoldQuestion("names", 0, "Who is there?", ("SELECT name FROM student",), "school"),
    GoldQuestion("oldest", 1, "Who is oldest?", ("SELECT max(age) FROM student",), "school"),
    GoldQuestion("lost", 2, "Where is it?", ("SELECT home FROM student",), "school"),
)


def fenced(sql: str) -> str:
    return f"```sql\n{sql}\n```"


async def run(
    source: AnswerSource, url: str, log: AnswerLog | None = None, **values: Any
) -> tuple[QuestionRecord, ...]:
    questions = values.pop("questions", QUESTIONS)
    async with Executor() as executor:
        return await evaluate(
            questions,
            urls={question.id: url for question in questions},
            source=source,
            executor=executor,
            log=log or AnswerLog(None, {}),
            **values,
        )


async def test_every_draft_of_every_candidate_is_judged(
    school_url: str, scripted: Callable[..., Any]
) -> None:
    model = scripted({"Who is there?": [fenced("SELECT nick FROM student"),
                                        fenced("SELECT name FROM student")]})  # fmt: skip
    options = AgentOptions(candidates=1, max_corrections=1, linking_from_tables=9)
    async with Agent(model, options) as agent:
        [record] = await run(agent, school_url, questions=QUESTIONS[:1])
    [candidate] = record.candidates
    assert [item.verdict.cause for item in candidate.drafts] == ["unknown column", "right"]
    assert candidate.final.verdict.spider_execution
    assert record.verdict == candidate.final.verdict
    assert (record.chosen, record.voted) == ("candidate-1", "candidate-1")
    assert [call.stage for call in record.calls] == ["candidate_generation", "self_correction"]
    assert record.calls[0].cached_tokens == 60
    assert record.linking is not None
    assert record.linking.shown_tables == record.linking.shown_columns == 1
    assert record.linking.hinted_tables == 0


async def test_a_question_without_an_answer_says_why(
    school_url: str, scripted: Callable[..., Any]
) -> None:
    model = scripted({"Where is it?": ["I do not know."], "Who": [fenced("SELECT x FROM nowhere")]})
    options = AgentOptions(candidates=1, max_corrections=0, linking_from_tables=9)
    async with Agent(model, options) as agent:
        records = await run(agent, school_url)
    assert [item.state for item in records] == ["failed"] * 3
    assert [item.verdict.cause for item in records] == [
        "unknown table",
        "unknown table",
        "no statement",
    ]
    assert not any(item.verdict.bird_ex for item in records)


async def test_predictions_are_judged_and_missing_ones_are_wrong(school_url: str) -> None:
    source = Predictions({"names": "SELECT name FROM student", "oldest": None})
    records = await run(source, school_url, at_once=3)
    assert [item.id for item in records] == ["names", "oldest", "lost"]
    assert [item.verdict.spider_execution for item in records] == [True, False, False]
    assert records[1].verdict.cause == "no statement"


@pytest.mark.parametrize(
    ("state", "cause"), [("abstained", "abstained"), ("unclear", "asked back")]
)
async def test_an_answer_that_was_held_back_is_a_cause_of_its_own(
    school_url: str, state: str, cause: str
) -> None:
    class Reserved:
        async def answer(self, question: GoldQuestion, url: str) -> Attempt:
            return Attempt(state, sql=question.gold[0], reason="The schema has none.")

    [record] = await run(Reserved(), school_url, questions=QUESTIONS[:1])
    assert record.verdict.cause == cause
    assert not record.verdict.spider_execution


@pytest.mark.parametrize("state", ["answered", "failed", "abstained", "unclear"])
@pytest.mark.parametrize("sql", ["SELECT name FROM student", None])
async def test_no_answer_counts_against_a_gold_that_fails(
    school_url: str, state: str, sql: str | None
) -> None:
    class Some:
        async def answer(self, question: GoldQuestion, url: str) -> Attempt:
            return Attempt(state, sql=sql, reason="The schema has none.")

    wrong = GoldQuestion("nick", 0, "Who?", ("SELECT nick FROM student",), "school")
    [record] = await run(Some(), school_url, questions=(wrong,))
    assert not record.verdict.is_judged


class Failing:
    """Answers until its source is gone."""

    def __init__(self, answers: int) -> None:
        self.left = answers
        self.asked: list[str] = []

    async def answer(self, question: GoldQuestion, url: str) -> Attempt:
        if not self.left:
            raise InstanceUnavailable("is gone.", instance="one", kind="died")
        self.left -= 1
        self.asked.append(question.id)
        return Attempt("answered", sql=question.gold[0])


async def test_a_run_that_broke_off_goes_on_where_it_was(school_url: str, tmp_path: Path) -> None:
    source = Failing(2)
    with pytest.raises(InstanceUnavailable):
        await run(source, school_url, AnswerLog(tmp_path, {"model": "m"}))
    lines = (tmp_path / ANSWERS).read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["names", "oldest"]
    progress: list[tuple[int, int]] = []
    later = Failing(9)
    records = await run(
        later,
        school_url,
        AnswerLog(tmp_path, {"model": "m"}),
        on_progress=lambda done, of, _: progress.append((done, of)),
    )
    assert later.asked == ["lost"]
    assert progress == [(2, 3), (3, 3)]
    assert all(item.verdict.bird_ex for item in records)
    assert read_run(tmp_path)[0] == {item.id: item for item in records}


async def test_a_question_whose_calls_found_no_instance_is_asked_again(school_url: str) -> None:
    """The agent itself forgives failed calls; a verdict on it would say nothing."""

    async def gone(prompt: Prompt) -> Completion:
        raise InstanceUnavailable("is gone.", instance="one", kind="died")

    log = AnswerLog(None, {})
    async with Agent(gone, AgentOptions(candidates=1)) as agent:
        with pytest.raises(InstanceUnavailable):
            await run(agent, school_url, log)
    assert not log.records


class TestTheFolder:
    def test_a_line_that_was_torn_anywhere_is_dropped_and_its_question_asked_again(
        self, tmp_path: Path, record: Callable[..., QuestionRecord]
    ) -> None:
        first, last = record("first"), record("last", question="Wie groß?\u2028Größe {}?")
        log = AnswerLog(tmp_path, {})
        log.keep(first)
        log.keep(last)
        file = tmp_path / ANSWERS
        whole = file.read_bytes()
        begun = whole.index(b"\n") + 1
        for end in range(begun, len(whole) - 1):
            file.write_bytes(whole[:end])
            assert set(read_run(tmp_path)[0]) == {"first"}
            again = AnswerLog(tmp_path, {})
            assert set(again.records) == {"first"}
            again.keep(last)
            assert file.read_bytes() == whole

    def test_a_record_that_lacks_only_the_end_of_its_line_is_kept(
        self, tmp_path: Path, record: Callable[..., QuestionRecord]
    ) -> None:
        AnswerLog(tmp_path, {}).keep(record("first"))
        file = tmp_path / ANSWERS
        file.write_bytes(file.read_bytes().rstrip(b"\n"))
        again = AnswerLog(tmp_path, {})
        again.keep(record("last"))
        assert set(read_run(tmp_path)[0]) == {"first", "last"}

    @pytest.mark.parametrize(
        "text", ["Why?\u2028And when?", "a\u2029b", "a\x85b", "a\x0bb\x0cc\x1cd\re\nf"]
    )
    def test_no_text_parts_a_line(
        self, tmp_path: Path, record: Callable[..., QuestionRecord], text: str
    ) -> None:
        AnswerLog(tmp_path, {}).keep(record("one", question=text))
        assert AnswerLog(tmp_path, {}).records["one"].question == text

    @pytest.mark.parametrize("wrong", [b'{"id": "x"', b'{"id": "x"}', b'{"id": "\xc3'])
    def test_what_is_no_record_is_named_by_its_line(
        self, tmp_path: Path, record: Callable[..., QuestionRecord], wrong: bytes
    ) -> None:
        AnswerLog(tmp_path, {}).keep(record("one"))
        file = tmp_path / ANSWERS
        whole = file.read_bytes()
        file.write_bytes(whole + wrong + b"\n" + whole)
        with pytest.raises(CallerMistake, match="line 2, is no record"):
            AnswerLog(tmp_path, {})

    def test_a_changed_configuration_is_refused_and_named(self, tmp_path: Path) -> None:
        AnswerLog(tmp_path, {"source": {"model": "m", "options": {"candidates": 2}}, "limits": 1})
        with pytest.raises(CallerMistake, match=r"source\.options\.candidates changed.*--out"):
            AnswerLog(
                tmp_path, {"source": {"model": "m", "options": {"candidates": 3}}, "limits": 1}
            )

    def test_a_changed_database_is_refused_and_an_added_one_is_not(self, tmp_path: Path) -> None:
        AnswerLog(tmp_path, {"databases": {"a": "1"}})
        AnswerLog(tmp_path, {"databases": {"b": "2"}})
        AnswerLog(tmp_path, {"databases": {"a": "1"}})
        with pytest.raises(CallerMistake, match=r"databases\.b changed"):
            AnswerLog(tmp_path, {"databases": {"a": "1", "b": "3"}})
        kept = json.loads((tmp_path / CONFIGURATION).read_text())
        assert kept == {"databases": {"a": "1", "b": "2"}}

    def test_a_run_of_another_version_is_told_apart(self, tmp_path: Path) -> None:
        AnswerLog(tmp_path, {"version": 1, "source": {"model": "m"}})
        with pytest.raises(CallerMistake, match=r"of version 1, and this is version 2.*--out"):
            AnswerLog(tmp_path, {"version": 2, "databases": {"a": "1"}})

    def test_answers_without_their_configuration_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / ANSWERS).write_text("{}\n")
        with pytest.raises(CallerMistake, match="without their configuration"):
            AnswerLog(tmp_path, {})

    def test_an_empty_folder_is_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(CallerMistake, match="holds no evaluation"):
            read_run(tmp_path)
