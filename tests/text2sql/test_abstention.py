"""A question that the schema holds nothing for is told from one that it can answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hexprefect.completion import Completion, Prompt
from hexprefect.demo.questions import sample_questions
from hexprefect.demo.shop import build_shop
from hexprefect.text2sql import AgentOptions, Answer, Database, answer
from hexprefect.text2sql.abstention import is_doubtful, missing_words, unmatched_words
from hexprefect.text2sql.candidates import Candidate, Draft
from hexprefect.text2sql.linking import Links, link_by_words
from hexprefect.text2sql.prompting import PromptBook
from hexprefect.text2sql.rendering import RenderedSchema
from hexprefect.text2sql.rows import Rows
from hexprefect.text2sql.schema import Column, Schema, Table
from hexprefect.text2sql.voting import cluster_by_rows

UNANSWERABLE = {
    "What is the blood type of each customer?": {"blood"},
    "Which employees speak Portuguese?": {"speak", "portuguese"},
    "How many parking spaces does each café have?": {"parking"},
    "What is the carbon footprint of every product?": {"carbon", "footprint"},
    "Which suppliers are insolvent?": {"insolvent"},
}


PEOPLE = Schema("sqlite", (Table("person", (Column("name", "TEXT"),)),))


@pytest.fixture(scope="module")
def demo_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "shop.sqlite"
    build_shop(path)
    return path


class Model:
    """Writes one statement, and calls these words missing."""

    def __init__(self, sql: str, *missing: str) -> None:
        self.sql = sql
        self.missing = missing
        self.asked: list[Prompt] = []

    async def __call__(self, prompt: Prompt) -> Completion:
        if prompt.branch != "answerability":
            return Completion(self.sql, 1, 1)
        self.asked.append(prompt)
        return Completion(json.dumps({"missing": list(self.missing)}), 1, 1)


async def ask(model: Model, file: Path, question: str, **options: object) -> Answer:
    async with await Database.connect(f"sqlite:///{file}") as database:
        return await answer(
            question,
            database=database,
            complete=model,
            options=AgentOptions(**{"max_corrections": 0, **options}),  # type: ignore[arg-type]
        )


@pytest.mark.parametrize(("question", "expected"), UNANSWERABLE.items())
async def test_words_that_the_schema_does_not_hold_are_found(
    demo_file: Path, question: str, expected: set[str]
) -> None:
    async with await Database.connect(f"sqlite:///{demo_file}") as database:
        schema = await database.schema()
    found = set(unmatched_words(question, "", schema, link_by_words(question, schema)))
    assert expected <= found
    assert not found & {"customer", "café", "employees", "suppliers", "product"}


async def test_words_that_only_link_others_are_never_missing(demo_file: Path) -> None:
    async with await Database.connect(f"sqlite:///{demo_file}") as database:
        schema = await database.schema()
    question = "Among the customers of either city, which ones do not have more than those others?"
    assert unmatched_words(question, "", schema, Links()) == ()


async def test_most_questions_that_can_be_answered_leave_no_word_over(demo_file: Path) -> None:
    async with await Database.connect(f"sqlite:///{demo_file}") as database:
        schema = await database.schema()
    asked = [item.question for item in sample_questions() if item.language == "en"]
    with_rest = [q for q in asked if unmatched_words(q, "", schema, link_by_words(q, schema))]
    assert len(with_rest) <= len(asked) / 2, with_rest


async def test_a_question_in_another_language_is_never_abstained_from(demo_file: Path) -> None:
    async with await Database.connect(f"sqlite:///{demo_file}") as database:
        schema = await database.schema()
    german = [item.question for item in sample_questions() if item.language == "de"]
    assert len(german) > 3
    assert [unmatched_words(item, "", schema, Links()) for item in german] == [()] * len(german)


async def test_what_the_evidence_explains_is_not_missing(demo_file: Path) -> None:
    async with await Database.connect(f"sqlite:///{demo_file}") as database:
        schema = await database.schema()
    question = "How many zebras are there?"
    assert unmatched_words(question, "", schema, Links()) == ("zebras",)
    assert unmatched_words(question, "a zebra spends over 500", schema, Links()) == ()


def ran(number: int, value: int, *drafts: Draft) -> Candidate:
    return Candidate(f"candidate-{number}", "SELECT", Rows(("n",), ((value,),)), drafts=drafts)


def test_what_ran_is_not_doubted_whether_it_found_rows_or_not() -> None:
    differ = (ran(1, 1), ran(2, 2), ran(3, 3))
    assert not is_doubtful(differ, cluster_by_rows(differ), PEOPLE)
    assert is_doubtful((Candidate("candidate-1", error="no"),), (), PEOPLE)
    nothing = (Candidate("candidate-1", "SELECT", Rows(("n",), ())),)
    assert not is_doubtful(nothing, cluster_by_rows(nothing), PEOPLE)


@pytest.mark.parametrize(
    "error",
    [
        "no such column: T1.blood_type",
        'column "blood_type" does not exist',
        "Unknown column 'c.blood_type' in 'field list'",
        'Binder Error: Referenced column "blood_type" not found in FROM clause!',
        "Refused by the rule 'catalogue': there is no table blood_type.",
    ],
)
def test_an_invented_name_is_doubted_on_every_engine(error: str) -> None:
    same = (ran(1, 1, Draft("SELECT", error=error)), ran(2, 1, Draft("SELECT", error=error)))
    assert is_doubtful(same, cluster_by_rows(same), PEOPLE)


def test_a_misplaced_column_is_not_an_invented_one_and_one_that_invents_none_is_no_doubt() -> None:
    elsewhere = Draft("SELECT", error="no such column: T1.name")
    invented = Draft("SELECT", error="no such column: T1.blood")
    misplaced = (ran(1, 1, elsewhere), ran(2, 1, elsewhere))
    assert not is_doubtful(misplaced, cluster_by_rows(misplaced), PEOPLE)
    two = (ran(1, 1, invented), ran(2, 1, invented), ran(3, 1))
    assert not is_doubtful(two, cluster_by_rows(two), PEOPLE)


async def test_an_abstention_names_what_is_missing(demo_file: Path) -> None:
    model = Model("SELECT blood_type FROM customer", "blood")
    found = await ask(model, demo_file, "What is the blood type of each customer?")
    assert (found.state, found.missing, found.rows) == ("abstained", ("blood",), ())
    assert found.reason is not None
    assert "blood" in found.reason
    assert len(model.asked) == 1


async def test_what_the_model_names_beyond_the_question_is_not_missing(demo_file: Path) -> None:
    model = Model("SELECT blood_type FROM customer", "customer", "moon")
    found = await ask(model, demo_file, "What is the blood type of each customer?")
    assert (found.state, found.missing) == ("failed", ())


async def test_candidates_that_agree_are_not_questioned(demo_file: Path) -> None:
    model = Model("SELECT full_name FROM customer", "blood")
    found = await ask(model, demo_file, "What is the blood type of each customer?")
    assert found.state == "answered"
    assert model.asked == []


async def test_an_empty_result_is_an_answer_and_says_which_words_are_unknown(
    demo_file: Path,
) -> None:
    model = Model("SELECT full_name FROM customer WHERE full_name = 'Zebra'", "zebra")
    found = await ask(model, demo_file, "Which customers are called Zebra?")
    assert (found.state, found.rows, model.asked) == ("answered", (), [])
    [warning] = [each for each in found.warnings if "zebra" in each]
    assert warning.startswith("No row was found")


async def test_the_option_turns_it_off(demo_file: Path) -> None:
    model = Model("SELECT blood_type FROM customer", "blood")
    question = "What is the blood type of each customer?"
    assert (await ask(model, demo_file, question, abstain=False)).state == "failed"
    assert model.asked == []


@pytest.mark.parametrize("text", ["", "none", "[]", '{"missing": 3}', '{"missing": [1]}'])
async def test_an_unreadable_answer_misses_nothing(text: str) -> None:
    async def complete(prompt: Prompt) -> Completion:
        return Completion(text, 1, 1)

    book = PromptBook("sqlite", RenderedSchema("", 1), "Why?")
    assert await missing_words(book, ("blood",), complete) == ()
