"""Many questions from a file: checked first, asked at once, kept, and gone on with."""

from __future__ import annotations

import asyncio
import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.errors import CallerMistake
from hexprefect.orchestration.answer_record import AnswerRecord, empty_record
from hexprefect.orchestration.ask_many import (
    Answers,
    Line,
    ask_lines,
    places_of_answers,
    read_questions,
)


@pytest.fixture
def write(tmp_path: Path):
    def write_(text: str, encoding: str = "utf-8") -> Path:
        path = tmp_path / "questions.csv"
        path.write_text(text, encoding=encoding)
        return path

    return write_


def record_of(line: Line, **changed: Any) -> AnswerRecord:
    record = empty_record(question=line.question, database=line.database, tenant=line.tenant)
    return {**record, "state": "answered", "rows": [[1]], "sql": "SELECT 1", **changed}


class Asker:
    """Answers every question, but for those that say what goes wrong."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.now = 0
        self.most = 0

    async def __call__(self, line: Line) -> AnswerRecord:
        self.asked.append(line.question)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.now -= 1
        if line.question == "raise":
            raise RuntimeError("boom")
        if line.question == "fail":
            return record_of(line, state="failed", error="no instance", rows=[])
        return record_of(line)


def test_lines_take_what_they_do_not_say_from_the_parameters(write) -> None:
    path = write('Question, database ,slo_s,evidence\nHow many?,,,\n\n"a, b?",shop,2.5,x\n')
    first, second = read_questions(path, database="demo", tenant="sales", slo_s=60.0)
    assert (first.number, first.question, first.database) == (2, "How many?", "demo")
    assert (first.tenant, first.slo_s, first.evidence) == ("sales", 60.0, "")
    assert (second.question, second.database, second.slo_s) == ("a, b?", "shop", 2.5)
    assert second.number == 4


def test_a_spreadsheets_byte_order_mark_is_no_part_of_the_column(write) -> None:
    [line] = read_questions(write("question\nWie viele?\n", "utf-8-sig"), database="demo")
    assert line.question == "Wie viele?"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("frage\nx\n", "no column `question`"),
        ("question\n", "has no question"),
        ("", "no column"),
        ("question,slo_s\na,0\nb,fast\nc,1\n", "line 2: An SLO of 0.0"),
        ("question,slo_s\na,0\nb,fast\nc,1\n", "line 3: An SLO of nan"),
        ("question,slo_s\n,5\n", "line 2: The question is empty"),
        ("question\na,b\n", "line 2: There are more fields than columns"),
        ("question\n" + "x" * 5000 + "\n", "longer than 4000"),
    ],
)
def test_mistakes_are_named_with_their_line_before_anything_is_asked(
    write, text: str, said: str
) -> None:
    with pytest.raises(CallerMistake) as caught:
        read_questions(write(text), database="demo")
    assert said in str(caught.value)


def test_a_line_needs_a_database(write) -> None:
    with pytest.raises(CallerMistake, match="names no database"):
        read_questions(write("question\na\n"), database=None)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CallerMistake, match="Check its path"):
        read_questions(tmp_path / "nowhere.csv", database="demo")


def lines(*questions: str) -> tuple[Line, ...]:
    return tuple(
        Line(number, question, "demo", "default", None, "")
        for number, question in enumerate(questions, 2)
    )


async def test_each_is_asked_once_and_failures_stay_alone(tmp_path: Path) -> None:
    answers, ask = Answers(tmp_path / "a.jsonl"), Asker()
    told: list[tuple[int, int]] = []
    counts = await ask_lines(
        lines("a", "raise", "fail", "b", "a"), ask, answers, at_once=2,
        on_progress=lambda done, of: told.append((done, of)),
    )  # fmt: skip
    assert counts == {"answered": 2, "failed": 2, "kept": 0}
    assert sorted(ask.asked) == ["a", "b", "fail", "raise"]
    assert ask.most == 2
    assert told == [(done, 4) for done in range(5)]


async def test_a_second_run_asks_only_what_has_no_answer(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    await ask_lines(lines("a", "fail"), Asker(), Answers(file), at_once=4)
    again = Asker()
    counts = await ask_lines(lines("a", "fail", "new"), again, Answers(file), at_once=4)
    assert sorted(again.asked) == ["fail", "new"]
    assert counts == {"answered": 1, "failed": 1, "kept": 1}
    last = Asker()
    await ask_lines(lines("a", "fail"), last, Answers(file), at_once=4, ask_failed_again=False)
    assert last.asked == []


async def test_a_run_that_was_killed_in_the_middle_of_a_line_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    await ask_lines(lines("a", "b"), Asker(), Answers(file), at_once=1)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) - 20])
    again = Asker()
    await ask_lines(lines("a", "b"), again, Answers(file), at_once=1)
    assert again.asked == ["b"]
    assert Answers(file).of(lines("b")[0]) is not None


async def test_cancelling_keeps_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    first_is_done = asyncio.Event()

    async def ask(line: Line) -> AnswerRecord:
        if line.question != "a":
            await asyncio.Event().wait()
        return record_of(line)

    running = asyncio.create_task(
        ask_lines(
            lines("a", "b"), ask, Answers(file), at_once=1,
            on_progress=lambda done, _: first_is_done.set() if done else None,
        )
    )  # fmt: skip
    await asyncio.wait_for(first_is_done.wait(), 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert Answers(file).of(lines("a")[0]) is not None


async def test_the_table_has_every_question_in_its_order(tmp_path: Path) -> None:
    answers = Answers(tmp_path / "a.jsonl")
    asked = lines("b", "fail", "a")
    await ask_lines(asked, Asker(), answers, at_once=3)
    answers.write_table((*asked, *lines("never")), tmp_path / "a.csv")
    rows = list(csv.DictReader((tmp_path / "a.csv").open(newline="")))
    assert [row["question"] for row in rows] == ["b", "fail", "a", "never"]
    assert [row["state"] for row in rows] == ["answered", "failed", "answered", "not asked"]
    assert json.loads(rows[0]["rows"]) == [[1]]
    assert rows[1]["error"] == "no instance"


def test_half_a_character_in_an_answer_spoils_no_table(tmp_path: Path) -> None:
    answers = Answers(tmp_path / "a.jsonl")
    [line] = lines("a")
    answers.keep(line, {"state": "failed", "error": "there is no table \ud800"})
    answers.write_table([line], tmp_path / "a.csv")
    assert "there is no table ?" in (tmp_path / "a.csv").read_text(encoding="utf-8")


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30).filter(
    lambda text: text.strip()
)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=5))
def test_any_questions_survive_the_file(tmp_path_factory, rows: list[tuple[str, str]]) -> None:
    path = tmp_path_factory.mktemp("any") / "q.csv"
    with path.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([("question", "evidence"), *rows])
    read = read_questions(path, database="demo")
    assert [(line.question, line.evidence) for line in read] == [
        (question.strip(), evidence.strip()) for question, evidence in rows
    ]


def test_answers_never_go_into_the_questions(tmp_path: Path) -> None:
    file = tmp_path / "questions.csv"
    kept_in, table = places_of_answers(file)
    assert (kept_in.name, table.name) == (
        "questions.csv.answers.jsonl",
        "questions.csv.answers.csv",
    )
    for name in ("questions.jsonl", "answers.csv", "answers", "sub/../questions.jsonl"):
        kept_in, table = places_of_answers(file, tmp_path / name)
        assert kept_in == tmp_path / name
        assert len({place.resolve() for place in (file, kept_in, table)}) == 3
        assert table.suffix == ".csv"
    with pytest.raises(CallerMistake, match="into the questions"):
        places_of_answers(file, tmp_path / "other" / ".." / "questions.csv")


def test_a_folder_is_no_file_of_answers(tmp_path: Path) -> None:
    with pytest.raises(CallerMistake, match="cannot be read"):
        Answers(tmp_path)


def test_a_spreadsheet_runs_nothing_of_the_table(tmp_path: Path) -> None:
    line = Line(2, "=cmd|'/C calc'!A0", "demo", "default", None, "")
    answers = Answers(tmp_path / "answers.jsonl")
    answers.keep(line, {"state": "failed", "rows": [["\ud83d"]], "error": "@x", "sql": "-y"})
    answers.write_table([line], tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as table:
        [row] = csv.DictReader(table)
    assert (row["question"], row["error"], row["sql"]) == ("'=cmd|'/C calc'!A0", "'@x", "'-y")
    assert row["rows"] == '[["?"]]'
