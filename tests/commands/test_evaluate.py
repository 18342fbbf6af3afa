"""`hexprefect eval` and `eval-compare`, as a person and a script use them."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hexprefect.cli import app
from hexprefect.commands import evaluate_stack
from hexprefect.commands.evaluate_sources import SourceOptions, open_source
from hexprefect.commands.evaluate_stack import Stack
from hexprefect.errors import CallerMistake, NoAnswer
from hexprefect.evaluation.configuration import agent_fingerprint
from hexprefect.evaluation.questions import GoldQuestion
from hexprefect.instances.profiles import default_profile
from hexprefect.orchestration.answer_record import empty_record
from hexprefect.store import InstanceSpec, Store, upgrade
from hexprefect.store.fleet import enter_instance
from hexprefect.text2sql import AgentOptions

QUESTIONS = [
    ("all", "Which names are there?", "SELECT name FROM student"),
    ("old", "Who is older than 12?", "SELECT name FROM student WHERE age > 12"),
    ("age", "What are the ages?", "SELECT DISTINCT age FROM student"),
]


class Folder:
    """A file of questions, their database, and files of predictions."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.questions = root / "questions.jsonl"
        connection = sqlite3.connect(root / "school.sqlite")
        connection.executescript(
            "CREATE TABLE student (name TEXT, age INTEGER);"
            "INSERT INTO student VALUES ('Ada', 12), ('Bea', 13), ('Cid', 12);"
        )
        connection.close()
        self.questions.write_text(
            "".join(
                json.dumps({"id": key, "db_id": "school", "question": asked, "gold_sql": gold})
                + "\n"
                for key, asked, gold in QUESTIONS
            )
        )

    def predictions(self, name: str, **statements: str) -> Path:
        path = self.root / name
        path.write_text(
            "".join(json.dumps({"id": key, "sql": sql}) + "\n" for key, sql in statements.items())
        )
        return path

    def evaluate(self, *arguments: object) -> Result:
        given = [str(item) for item in (self.questions, "--databases", self.root, *arguments)]
        return CliRunner().invoke(app, ["eval", *given], env={"COLUMNS": "200"})


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def figures(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refusal(result: Result) -> str:
    assert result.exit_code == 2, result.output
    return str(json.loads(result.stdout)["error"])


class TestPredictions:
    def test_each_measure_is_reported_under_its_name(self, folder: Folder) -> None:
        predicted = folder.predictions(
            "p.jsonl",
            all="SELECT name FROM student",
            old="SELECT name, age FROM student WHERE age > 12",
            age="SELECT age FROM student",
        )
        totals = figures(folder.evaluate("--predictions", predicted, "--json"))["totals"]
        assert totals["bird_ex"]["right"] == 2
        assert totals["spider_execution"]["right"] == 2
        assert totals["spider_keep_distinct"]["right"] == 1
        assert totals["bird_soft_f1"] == pytest.approx((1 + 2 / 3 + 1) / 3, abs=1e-3)

    def test_people_get_tables_and_the_folder_gets_the_wrong_answers(self, folder: Folder) -> None:
        predicted = folder.predictions("p.jsonl", all="SELECT nick FROM student")
        result = folder.evaluate("--predictions", predicted, "--out", folder.root / "run")
        assert result.exit_code == 0
        assert "BIRD EX" in result.stdout
        report = (folder.root / "run" / "report.md").read_text()
        assert "| all | unknown column | Which names are there? |" in report

    def test_a_second_run_goes_on_and_a_wider_one_adds(self, folder: Folder) -> None:
        predicted = folder.predictions("p.jsonl", **{key: gold for key, _, gold in QUESTIONS})
        given = ("--predictions", predicted, "--out", folder.root / "run", "--json")
        assert figures(folder.evaluate(*given, "--limit", 2))["questions"] == 2
        answers = folder.root / "run" / "answers.jsonl"
        first = answers.read_text()
        assert figures(folder.evaluate(*given))["totals"]["bird_ex"]["right"] == 3
        assert answers.read_text().startswith(first)
        assert len(answers.read_text().splitlines()) == 3

    def test_other_predictions_do_not_go_into_the_same_folder(self, folder: Folder) -> None:
        run = folder.root / "run"
        one = folder.predictions("p.jsonl", all="SELECT 1")
        two = folder.predictions("q.jsonl", all="SELECT 2")
        figures(folder.evaluate("--predictions", one, "--out", run, "--json"))
        said = refusal(folder.evaluate("--predictions", two, "--out", run, "--json"))
        assert "source.predictions changed" in said
        assert "--out" in said

    def test_answers_about_another_content_do_not_go_into_the_same_folder(
        self, folder: Folder
    ) -> None:
        predicted = folder.predictions("p.jsonl", all="SELECT 1")
        given = ("--predictions", predicted, "--out", folder.root / "run", "--json")
        figures(folder.evaluate(*given))
        os.utime(folder.root / "school.sqlite", (0, 0))
        figures(folder.evaluate(*given))
        with contextlib.closing(sqlite3.connect(folder.root / "school.sqlite")) as connection:
            connection.execute("UPDATE student SET age = 99 WHERE name = 'Cid'")
            connection.commit()
        said = refusal(folder.evaluate(*given))
        assert "databases.school changed" in said
        assert "--out" in said

    def test_a_run_says_which_guard_its_predictions_passed(self, folder: Folder) -> None:
        predicted = folder.predictions("p.jsonl", all="SELECT 1")
        figures(folder.evaluate("--predictions", predicted, "--out", folder.root / "run", "--json"))
        kept = json.loads((folder.root / "run" / "configuration.json").read_text())
        assert kept["source"]["guard"] == agent_fingerprint()

    def test_two_runs_are_compared_by_question(self, folder: Folder) -> None:
        gold = {key: sql for key, _, sql in QUESTIONS}
        better = folder.predictions("p.jsonl", **gold)
        worse = folder.predictions("q.jsonl", **{**gold, "old": "SELECT name FROM student"})
        base, run = folder.root / "base", folder.root / "run"
        figures(folder.evaluate("--predictions", worse, "--out", base, "--json"))
        found = figures(
            folder.evaluate("--predictions", better, "--out", run, "--against", base, "--json")
        )
        assert found["against"]["measures"]["bird_ex"]["wins"] == ["old"]
        compared = CliRunner().invoke(app, ["eval-compare", str(base), str(run), "--json"])
        measure = json.loads(compared.stdout)["measures"]["bird_ex"]
        assert (measure["wins"], measure["losses"], measure["p"]) == ([], ["old"], 1.0)

    def test_a_sample_is_the_same_for_the_same_seed(self, folder: Folder) -> None:
        predicted = folder.predictions("p.jsonl", **{key: gold for key, _, gold in QUESTIONS})
        chosen = []
        for name in ("one", "two"):
            run = folder.root / name
            given = ("--predictions", predicted, "--sample", 2, "--seed", 5, "--out", run)
            figures(folder.evaluate(*given, "--json"))
            lines = (run / "answers.jsonl").read_text().splitlines()
            chosen.append([json.loads(line)["id"] for line in lines])
        assert chosen[0] == chosen[1]
        assert len(chosen[0]) == 2


class TestMistakes:
    def test_exactly_one_source_is_asked_for(self, folder: Folder) -> None:
        assert "nowhere" in refusal(folder.evaluate("--json"))
        said = refusal(folder.evaluate("--stack", "--model", "1.5B", "--json"))
        assert "--model and --stack" in said

    def test_an_unknown_measure_and_option_are_named(self, folder: Folder) -> None:
        predicted = folder.predictions("p.jsonl", all="SELECT 1")
        given = ("--predictions", predicted, "--json")
        assert "spider_execution" in refusal(folder.evaluate(*given, "--measure", "accuracy"))
        assert "candidates" in refusal(folder.evaluate(*given, "--option", "candidate=3"))
        said = refusal(folder.evaluate(*given, "--option", "candidates=99"))
        assert "candidates" in said
        assert "less than or equal to 8" in said

    def test_a_missing_database_is_found_before_anything_is_asked(self, folder: Folder) -> None:
        (folder.root / "school.sqlite").unlink()
        predicted = folder.predictions("p.jsonl", all="SELECT 1")
        said = refusal(folder.evaluate("--predictions", predicted, "--json"))
        assert "'school' of question 'all'" in said

    def test_a_folder_without_a_run_cannot_be_compared(self, folder: Folder) -> None:
        nothing = str(folder.root)
        compared = CliRunner().invoke(app, ["eval-compare", nothing, nothing, "--json"])
        assert "holds no evaluation" in refusal(compared)


@contextmanager
def openai_server(*models: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that answers each question with its gold, and the requests that it got."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"data": [{"id": name} for name in models]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(body)
            asked = body["messages"][-1]["content"]
            sql = next(gold for _, question, gold in QUESTIONS if question in asked)
            self._answer(
                {
                    "choices": [
                        {
                            "message": {"role": "assistant", "content": f"```sql\n{sql}\n```"},
                            "finish_reason": "stop",
                        }
                    ],
                    "usage": {"prompt_tokens": 50, "completion_tokens": 9},
                }
            )

        def _answer(self, value: dict[str, Any]) -> None:
            content = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing into the output of the tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


class TestInstances:
    def test_the_agent_runs_here_and_its_calls_are_paid_once(self, folder: Folder) -> None:
        cache = folder.root / "completions"
        with openai_server("tiny") as (url, requests):
            given = ("--instance", url, "--option", "candidates=1", "--json")
            found = figures(folder.evaluate(*given, "--completions-cache", cache, "--at-once", 2))
            paid = len(requests)
            again = figures(folder.evaluate(*given, "--completions-cache", cache))
        assert found["totals"]["spider_execution"]["right"] == 3
        assert found["stages"]["steps"][0]["right"] == 3
        assert found["cost"]["stages"][-1]["input_tokens"] == 50.0
        assert {request["model"] for request in requests} == {"tiny"}
        assert paid == 3
        assert len(requests) == paid, "every call of the second run came from the folder"
        assert again["totals"] == found["totals"]

    def test_a_changed_option_of_the_agent_is_another_run(self, folder: Folder) -> None:
        run = folder.root / "run"
        with openai_server("tiny") as (url, _):
            given = ("--instance", url, "--out", run, "--limit", 1, "--json")
            figures(folder.evaluate(*given, "--option", "candidates=1"))
            said = refusal(folder.evaluate(*given, "--option", "candidates=2"))
        assert "source.options.candidates changed" in said

    def test_of_several_models_one_must_be_named(self, folder: Folder) -> None:
        with openai_server("big", "tiny") as (url, requests):
            said = refusal(folder.evaluate("--instance", url, "--json"))
            assert "big, tiny" in said
            assert "--model-name" in said
            named = folder.evaluate(
                "--instance", url, "--model-name", "big", "--limit", 1, "--json"
            )
            assert figures(named)["questions"] == 1
        assert {request["model"] for request in requests} == {"big"}

    def test_a_server_that_is_gone_ends_the_run_and_keeps_nothing(self, folder: Folder) -> None:
        run = folder.root / "run"
        with openai_server("tiny") as (url, _):
            """It has a port that is free again afterwards."""
        said = refusal(folder.evaluate("--instance", url, "--out", run, "--json"))
        assert "does not say which models" in said
        assert not (run / "answers.jsonl").exists()


class TestStack:
    question = GoldQuestion("a", 0, "How many?", ("SELECT 1",), "school", evidence="all of them")

    async def test_the_deployment_is_asked_and_its_record_is_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[tuple[dict[str, Any], str | None]] = []
        stage = {
            "stage": "candidate_generation",
            "branch": "candidate-1",
            "ran_s": 1.5,
            "input_tokens": 30,
            "output_tokens": 5,
            "cached_tokens": None,
        }

        async def ask(parameters: dict[str, Any], store: str | None) -> dict[str, Any]:
            asked.append((parameters, store))
            return {
                **empty_record(question="How many?", database="x", tenant="sales"),
                "state": "answered",
                "sql": "SELECT 1",
                "confidence": 0.5,
                "elapsed_s": 2.5,
                "stages": [stage],
            }

        monkeypatch.setattr(evaluate_stack, "ask_deployment", ask)
        stack = Stack(store_url="sqlite:////s", tenant="sales", slo_s=60)
        attempt = await stack.answer(self.question, "sqlite:////school.sqlite")
        [(parameters, store)] = asked
        assert parameters == {
            "question": "How many?",
            "database": "sqlite:////school.sqlite",
            "tenant": "sales",
            "slo_s": 60,
            "evidence": "all of them",
        }
        assert store == "sqlite:////s"
        assert (attempt.state, attempt.sql, attempt.confidence) == ("answered", "SELECT 1", 0.5)
        assert attempt.seconds == 2.5
        assert attempt.calls[0].input_tokens == 30

    async def test_a_run_says_which_models_and_which_agent_answered(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
        url = f"sqlite:///{tmp_path / 'store.sqlite'}"
        upgrade(url)
        store = Store(url)
        for name, model in (("one", "small"), ("two", "large"), ("three", "small")):
            spec = InstanceSpec(name, "http://127.0.0.1:9", default_profile("a100"), 1, model=model)
            store.transact(lambda tx, spec=spec: enter_instance(tx, spec))
        store.close()
        options = SourceOptions(stack=True, store=url, tenant="sales", agent=AgentOptions())
        async with open_source(options, ()) as (_, described):
            assert described == {
                "stack": {"tenant": "sales", "slo_s": None, "models": ["large", "small"]},
                "agent": agent_fingerprint(),
            }

    async def test_a_store_that_is_not_there_is_named(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
        url = f"sqlite:///{tmp_path / 'absent.sqlite'}"
        options = SourceOptions(stack=True, store=url, agent=AgentOptions())
        with pytest.raises(CallerMistake, match=r"absent\.sqlite"):
            async with open_source(options, ()):
                pass

    async def test_a_flow_run_without_an_answer_is_a_failed_attempt(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def ask(parameters: dict[str, Any], store: str | None) -> dict[str, Any]:
            raise NoAnswer("The flow run ended Crashed.")

        monkeypatch.setattr(evaluate_stack, "ask_deployment", ask)
        stack = Stack(store_url=None, tenant="default", slo_s=None)
        attempt = await stack.answer(self.question, "sqlite:////school.sqlite")
        assert (attempt.state, attempt.reason) == ("failed", "The flow run ended Crashed.")
