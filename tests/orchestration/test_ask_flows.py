"""`text2sql/ask` and `text2sql/ask-many` as flows, and asking from Python."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prefect.exceptions import ParameterTypeError
from prefect.utilities.callables import parameter_schema

from hexprefect.flows.ask_many import ask_many
from hexprefect.flows.text2sql import ask
from hexprefect.instances.emulator import Computed, Emulator, Generation
from hexprefect.instances.profiles import default_profile
from hexprefect.orchestration.ask import SLO_CLASSES
from hexprefect.store import InstanceSpec, tables
from hexprefect.store.fleet import enter_instance, remove_instance, set_instance_state
from hexprefect.text2sql import AgentOptions
from tests.orchestration.bench import Fleet

pytestmark = [pytest.mark.usefixtures("seen_by_prefect"), pytest.mark.timeout(180)]

DOCS = Path(__file__).parents[2] / "docs"


PURGE = "SELECT 1; DELETE FROM customer"


def sql_writer(generation: Generation) -> str:
    asked = generation.text.rsplit("Question:", 1)[-1]
    if '"missing"' in asked:
        return '{"missing": ["blood"]}'
    if "JSON object" in asked:
        return '{"tables": ["customer"], "columns": ["customer.id"], "values": []}'
    if "blood" in asked:
        return "SELECT blood_type FROM customer"
    if "purge" in asked:
        return f"```sql\n{PURGE}\n```"
    if "nothing" in asked:
        return "I cannot write that."
    return "```sql\nSELECT COUNT(*) AS n FROM customer\n```"


@pytest.fixture(autouse=True)
async def instance(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[None]:
    monkeypatch.setenv("HEXPREFECT_STATE", str(tmp_path / "state"))
    emulator = Emulator.serve(
        profile="a100", name="gpu", time_scale=400.0, content=Computed(sql_writer)
    )
    async with emulator as endpoint:
        spec = InstanceSpec(
            "gpu", endpoint.url, default_profile("a100"), 2, model=endpoint.model, speaks="vllm"
        )
        fleet.store.transact(lambda tx: enter_instance(tx, spec))
        yield


async def test_the_record_explains_the_answer() -> None:
    record = await ask("How many customers do we have?", database="demo", slo_s=120)
    assert record["rows"] == [[400]]
    assert record["confidence"] == 1.0
    assert all(
        [score["instance"] for score in stage["dispatch"]["scores"]] == ["gpu"]
        for stage in record["stages"]
    )
    json.dumps(record, allow_nan=False)


async def test_the_record_says_what_was_linked_and_chosen() -> None:
    record = await ask("How many customers do we have?", database="demo")
    assert record["chosen"] == "candidate-1"
    assert record["links"]["by_model"]
    assert record["links"]["columns"] == ["customer.id"]
    skipped = await ask(
        "How many customers do we have?",
        database="demo",
        options=AgentOptions(linking_from_tables=99, candidates=1),
    )
    assert not skipped["links"]["by_model"]
    assert [stage["stage"] for stage in skipped["stages"]] == ["candidate_generation"]


async def test_options_are_a_parameter_that_a_form_can_fill(fleet: Fleet) -> None:
    form: Any = {"candidates": 1, "linking_from_tables": 99, "abstain": False}
    record = await ask("How many customers do we have?", database="demo", options=form)
    assert len(record["stages"]) == 1
    with pytest.raises(ParameterTypeError, match="candidates"):
        await ask("How many?", database="demo", options={**form, "candidates": 0})


async def test_an_answer_is_given_again_only_while_the_same_models_serve(fleet: Fleet) -> None:
    form: Any = {"candidates": 1, "reuse_answers_s": 600}
    question = "How many customers do we have?"

    async def is_reused() -> bool:
        state: Any = await ask(question, database="demo", options=form, return_state=True)
        record = await state.aresult(raise_on_failure=False)
        return bool(record["from_cache"])

    assert not await is_reused()
    assert await is_reused()
    larger = InstanceSpec("big", "http://127.0.0.1:9", default_profile("a100"), 1, model="large")
    fleet.store.transact(lambda tx: enter_instance(tx, larger))
    fleet.store.transact(lambda tx: set_instance_state(tx, "big", "draining"))
    assert await is_reused(), "an instance that takes no calls has no part in an answer"
    fleet.store.transact(lambda tx: remove_instance(tx, "big"))
    [known] = [spec for spec in fleet.rows(tables.instances) if spec["name"] == "gpu"]
    other = InstanceSpec(
        "gpu", known["url"], default_profile("a100"), 2, model="another", speaks="vllm"
    )
    fleet.store.transact(lambda tx: enter_instance(tx, other))
    assert not await is_reused()


async def test_an_abstention_is_a_failed_run_that_names_what_is_missing(fleet: Fleet) -> None:
    state: Any = await ask("What is the blood type?", database="demo", return_state=True)
    assert state.is_failed()
    record = await state.aresult(raise_on_failure=False)
    assert (record["state"], record["missing"]) == ("abstained", ["blood"])
    assert record["error_kind"] == "no_answer"
    assert "blood" in state.message
    [query] = fleet.rows(tables.queries)
    assert query["state"] == "failed"


async def test_what_the_guard_refused_is_in_the_record() -> None:
    state: Any = await ask("Please purge them", database="demo", return_state=True)
    record = await state.aresult(raise_on_failure=False)
    assert {refusal["statement"] for refusal in record["refusals"]} == {PURGE}
    assert record["refusals"][0]["rule"] == "one-statement"
    json.dumps(record, allow_nan=False)


async def test_the_docs_five_lines_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "asking.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 5
    assert "asyncio.run(" in code
    # The test has a loop already: the docs' program brings its own.
    within = code.replace("asyncio.run(", "await (")
    body = "\n".join(f"    {line}" for line in within.splitlines())
    scope: dict[str, Any] = {}
    exec(f"async def program():\n{body}", scope)
    await scope["program"]()
    assert "[[400]]" in capsys.readouterr().out


@pytest.mark.parametrize(("chosen", "slo_s"), [("interactive", 30), ("batch", 3600)])
async def test_a_class_of_slo_stands_for_its_seconds(
    fleet: Fleet, chosen: Any, slo_s: float
) -> None:
    await ask("How many customers do we have?", database="demo", slo_class=chosen)
    [query] = fleet.rows(tables.queries)
    assert query["slo_s"] == slo_s


async def test_seconds_go_before_a_class(fleet: Fleet) -> None:
    await ask("How many customers?", database="demo", slo_class="batch", slo_s=77)
    [query] = fleet.rows(tables.queries)
    assert query["slo_s"] == 77


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"question": ""}, "at least 1 character"),
        ({"slo_s": -1}, "greater than 0"),
        ({"slo_class": "soon"}, "'interactive'"),
        ({"database": ""}, "at least 1 character"),
    ],
)
async def test_wrong_parameters_are_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterTypeError) as caught:
        await ask(**{"question": "How many?", "database": "demo", **wrong})
    assert next(iter(wrong)) in str(caught.value)
    assert said in str(caught.value)


def test_the_form_names_the_classes_with_their_seconds_and_examples_of_databases() -> None:
    properties = parameter_schema(ask.fn).model_dump()["properties"]
    said = " ".join(properties["slo_class"]["description"].split())
    for name, seconds in SLO_CLASSES.items():
        assert f"{name} {seconds:.0f} s" in said
        assert name in json.dumps(properties["slo_class"]["anyOf"])
    assert "demo" in properties["database"]["examples"]


async def test_a_file_of_questions_is_asked_and_gone_on_with(tmp_path: Path, fleet: Fleet) -> None:
    file = tmp_path / "questions.csv"
    file.write_text("question\nHow many customers?\nHow many customers in all?\n")
    state: Any = await ask_many(file=str(file), database="demo", slo_s=120, return_state=True)
    assert state.is_completed(), state.message
    assert state.name == "Completed"
    result = await state.aresult()
    assert (result["answered"], result["kept"]) == (2, 0)
    assert "[[400]]" in await asyncio.to_thread(Path(result["table"]).read_text)
    assert len(fleet.rows(tables.queries)) == 2

    file.write_text("question\nHow many customers?\nnothing\n")
    state = await ask_many(file=str(file), database="demo", slo_s=120, return_state=True)
    assert state.name == "Partial"
    assert "1 of 2 questions have an answer" in str(state.message)
    assert (await state.aresult())["kept"] == 1
    assert len(fleet.rows(tables.queries)) == 3


async def test_a_file_that_cannot_be_asked_says_why(tmp_path: Path, fleet: Fleet) -> None:
    state: Any = await ask_many(file=str(tmp_path / "x.csv"), database="demo", return_state=True)
    assert state.is_failed()
    assert "Check its path" in str(state.message)
    assert fleet.rows(tables.queries) == []
