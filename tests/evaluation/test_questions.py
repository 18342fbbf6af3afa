"""Files of questions and of predictions, in the forms that people have."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hexprefect.errors import CallerMistake
from hexprefect.evaluation.predictions import read_predictions
from hexprefect.evaluation.questions import (
    GoldQuestion,
    choose_questions,
    database_url,
    read_questions,
)

Write = Callable[[str, list[dict[str, Any]]], Path]


def question(key: str, **values: Any) -> GoldQuestion:
    known = {"position": 0, "question": "?", "gold": ("SELECT 1",), "db_id": "school"}
    return GoldQuestion(id=key, **{**known, **values})


class TestReading:
    def test_our_own_form_is_read_with_its_alternatives(self, written: Write) -> None:
        path = written(
            "own.jsonl",
            [
                {
                    "id": "a",
                    "db_id": "school",
                    "question": "How many?",
                    "gold_sql": "SELECT 1",
                    "gold_alternatives": ["SELECT 2"],
                    "evidence": "one",
                    "db": "x/school.sqlite",
                }
            ],
        )
        [read] = read_questions(path)
        assert read.gold == ("SELECT 1", "SELECT 2")
        assert (read.evidence, read.file) == ("one", "x/school.sqlite")

    def test_only_a_line_feed_ends_a_line(self, tmp_path: Path) -> None:
        path = tmp_path / "questions.jsonl"
        entry = {"question": "Why?\u2028And\x85when?", "db_id": "d", "gold_sql": "SELECT 1"}
        path.write_text(f"{json.dumps(entry, ensure_ascii=False)}\r\n" * 2, encoding="utf-8")
        assert [item.question for item in read_questions(path)] == [entry["question"]] * 2

    def test_bird_and_spider_are_read_as_they_are_published(self, tmp_path: Path) -> None:
        bird = {"question_id": 7, "db_id": "d", "question": "?", "SQL": "SELECT 1", "evidence": ""}
        spider = {"db_id": "d", "question": "?", "query": "SELECT 2", "sql": {"select": []}}
        path = tmp_path / "dev.json"
        path.write_text(json.dumps([bird, spider]))
        found = read_questions(path)
        assert [(item.id, item.gold) for item in found] == [
            ("7", ("SELECT 1",)),
            ("1", ("SELECT 2",)),
        ]

    def test_a_question_without_gold_is_named(self, written: Write) -> None:
        path = written("q.jsonl", [{"id": "a", "db_id": "d", "question": "?"}])
        with pytest.raises(CallerMistake, match="entry 1, has no gold_sql"):
            read_questions(path)

    def test_two_questions_of_one_id_are_refused(self, written: Write) -> None:
        entry = {"id": "a", "db_id": "d", "question": "?", "gold_sql": "SELECT 1"}
        with pytest.raises(CallerMistake, match="entries 1 and 2 have the same id"):
            read_questions(written("q.jsonl", [entry, entry]))

    def test_a_line_that_is_not_json_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "q.jsonl"
        path.write_text('{"id": 1\n')
        with pytest.raises(CallerMistake, match="line 1, is not JSON"):
            read_questions(path)

    def test_what_is_nested_without_end_is_not_json(self, tmp_path: Path) -> None:
        path = tmp_path / "q.jsonl"
        path.write_text("[" * 200_000)
        with pytest.raises(CallerMistake, match="line 1, is not JSON"):
            read_questions(path)
        with pytest.raises(CallerMistake, match="line 1, is not JSON"):
            read_predictions(path, [question("a")])

    def test_half_a_character_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "q.json"
        path.write_text('{"id": "a", "question": "\\ud800", "db_id": "d", "gold_sql": "SELECT 1"}')
        with pytest.raises(CallerMistake, match=r"line 1, is not JSON.*surrogates not allowed"):
            read_questions(path)
        path.write_text('{"0": "SELECT \'\\ud800\'"}')
        with pytest.raises(CallerMistake, match="half of a surrogate pair"):
            read_predictions(path, [question("a")])

    def test_a_file_that_is_not_there_is_the_callers_mistake(self, tmp_path: Path) -> None:
        with pytest.raises(CallerMistake, match="cannot be read"):
            read_questions(tmp_path / "none.jsonl")


class TestChoosing:
    every = tuple(question(f"{kind}_{number}") for kind in ("a", "b") for number in range(30))

    def test_the_sample_is_drawn_by_the_stated_rule(self) -> None:
        ids = sorted(item.id for item in self.every if item.id.startswith("a_"))
        expected = set(random.Random(150).sample(ids, 10))
        chosen = choose_questions(self.every, ids="a_*", sample=10, seed=150)
        assert {item.id for item in chosen} == expected

    def test_the_order_of_the_file_is_kept_and_the_limit_comes_last(self) -> None:
        chosen = choose_questions(self.every, sample=20, seed=1)
        assert choose_questions(self.every, sample=20, seed=1, limit=5) == chosen[:5]
        assert list(chosen) == [item for item in self.every if item in chosen]

    def test_too_large_a_sample_and_an_empty_choice_are_refused(self) -> None:
        with pytest.raises(CallerMistake, match="sample of 61 cannot be drawn"):
            choose_questions(self.every, sample=61)
        with pytest.raises(CallerMistake, match="No question is left"):
            choose_questions(self.every, ids="c*")


class TestDatabases:
    def test_the_named_file_goes_before_the_layouts_of_bird_and_spider(
        self, school: Path, school_url: str
    ) -> None:
        assert database_url(question("a"), str(school)) == school_url
        named = school / "other.sqlite"
        named.touch()
        assert database_url(question("a", file="other.sqlite"), str(school)).endswith(str(named))

    def test_a_duckdb_file_is_found_beside_the_others(self, tmp_path: Path) -> None:
        (tmp_path / "shop.duckdb").touch()
        found = database_url(question("a", db_id="shop"), str(tmp_path))
        assert found == f"duckdb:///{tmp_path / 'shop.duckdb'}"

    def test_a_url_gets_the_name_of_the_database(self) -> None:
        found = database_url(question("a"), "postgresql://reader@host/{db_id}")
        assert found == "postgresql://reader@host/school"

    def test_a_missing_database_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(CallerMistake, match="'school' of question 'a'"):
            database_url(question("a"), str(tmp_path))


class TestPredictions:
    questions = (question("x", position=0), question("y", position=1))

    def test_json_lines_go_by_id(self, written: Write) -> None:
        path = written("p.jsonl", [{"id": "y", "sql": "SELECT 1;"}, {"id": "x", "sql": ""}])
        assert read_predictions(path, self.questions) == {"y": "SELECT 1", "x": None}

    def test_one_line_is_no_object_of_bird(self, written: Write) -> None:
        path = written("p.jsonl", [{"id": "y", "sql": "SELECT 1"}])
        assert read_predictions(path, self.questions) == {"y": "SELECT 1"}

    def test_birds_object_counts_the_questions(self, tmp_path: Path) -> None:
        path = tmp_path / "predict_dev.json"
        path.write_text(json.dumps({"0": "SELECT 1\t----- bird -----\tschool", "1": 0}))
        assert read_predictions(path, self.questions) == {"x": "SELECT 1", "y": None}

    def test_spiders_lines_count_the_questions(self, tmp_path: Path) -> None:
        path = tmp_path / "predicted.sql"
        path.write_text("SELECT 1\tschool\nSELECT 2\n")
        assert read_predictions(path, self.questions) == {"x": "SELECT 1", "y": "SELECT 2"}

    def test_two_predictions_of_one_question_are_refused(self, written: Write) -> None:
        one = {"id": "x", "sql": "SELECT 1"}
        assert read_predictions(written("p.jsonl", [one, one]), self.questions) == {"x": "SELECT 1"}
        with pytest.raises(CallerMistake, match="two different predictions for 'x'"):
            read_predictions(written("p.jsonl", [one, {**one, "sql": "SELECT 2"}]), self.questions)

    def test_predictions_of_other_questions_are_refused(self, written: Write) -> None:
        with pytest.raises(CallerMistake, match="no prediction for any"):
            read_predictions(written("p.jsonl", [{"id": "z", "sql": "SELECT 1"}]), self.questions)
