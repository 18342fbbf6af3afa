"""Every command in the docs exists as it is written, and those that take seconds are run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from hexprefect.cli import app
from hexprefect.instances.profiles import default_profile
from hexprefect.scheduling import RequestSize
from hexprefect.settings import settings
from hexprefect.store import InstanceSpec, NewQuery, NewRequest, Outcome, Store, leases
from hexprefect.store import queries as move_query
from hexprefect.store import transitions as move_request
from hexprefect.store.fleet import enter_instance
from tests.docs.commands_in_docs import REPOSITORY, Command, all_commands, commands_of, pages
from tests.docs.parsing import Mistyped, parse
from tests.docs.running import RUNS, Where, how, unique

COMMANDS = all_commands()


def named(commands: list[Command]) -> list[Any]:
    return [pytest.param(one, id=f"{one.page}:{one.line}") for one in commands]


def in_process(where: Where) -> list[Any]:
    return named([one for one in unique(COMMANDS, where) if one.words[0] == "hexprefect"])


def test_the_docs_have_commands() -> None:
    assert len(pages()) > 10
    assert {"README.md", "docs/fleet.md", "docs/simulator.md"} <= {one.page for one in COMMANDS}
    assert len([one for one in COMMANDS if one.fenced]) > 40


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_command_of_a_page_is_taken_by_its_program(page: Path) -> None:
    wrong = []
    for command in commands_of(page):
        try:
            parse(command)
        except Mistyped as mistake:
            wrong.append(f"{command}\n    {mistake}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "hexprefect ask 'How many?' --databse demo",
        "hexprefect ask",
        "hexprefect instances lst",
        "hexprefect emulate --clutser a100:1",
        "hexprefect policy set --order",
        "prefect deployment run text2sql/ask --wach",
        "prefect deployment run text2sql/ask -p qestion=x",
        "prefect deployment run text2sql/nobody",
        "prefect worker strat",
        "make dmeo",
        "make demo KEPT=1",
        "pytest -m slwo tests/docs",
        "pytest tests/nowhere.py",
        "pip install hexprefect[duckbd]",
        "vllm serve MODEL --scheduling-polcy priority",
        "curl http://127.0.0.1",
    ],
)
def test_what_is_misspelt_is_found(text: str) -> None:
    with pytest.raises(Mistyped):
        parse(Command("page.md", 1, text, fenced=True))


def test_every_command_of_a_page_is_run_by_some_test() -> None:
    assert [str(one) for one in COMMANDS if how(one) is None] == []


@pytest.mark.parametrize("start", [start for start, run in RUNS.items() if run.test])
def test_what_is_run_elsewhere_is_run_there(start: str) -> None:
    text = (REPOSITORY / RUNS[start].test).read_text(encoding="utf-8")
    assert [word for word in RUNS[start].mentions if word not in text] == []


@pytest.mark.parametrize("command", named(unique(COMMANDS, "dry")))
def test_make_knows_what_it_would_do(command: Command) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("there is no make here")
    said = subprocess.run(
        [make, "--dry-run", *command.words[1:]],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 0, said.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to type in, with the files that the docs speak of, or make with Python."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "flows").symlink_to(REPOSITORY / "flows")
    (folder / "state").mkdir()
    simulator = (REPOSITORY / "docs" / "simulator.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```json\n(.*?)```", simulator, re.DOTALL)
    line = json.dumps(json.loads(example))
    (folder / "my-trace.jsonl").write_text(f"{line}\n" * 12, encoding="utf-8")
    steps = [
        {"step": step, "input_length": 800, "output_length": 60}
        for step in ("schema_linking", "generate_candidate_1", "generate_candidate_2", "evaluate")
    ]
    for name in ("trace1.json", "formula1.json"):
        (folder / name).write_text(json.dumps([{"Text2SQLRequest": steps}] * 12), encoding="utf-8")
    for one in unique(COMMANDS, "here"):
        if one.words[0] == "python":
            subprocess.run([sys.executable, *one.words[1:]], cwd=folder, timeout=120, check=True)
    return folder


@pytest.fixture(scope="module")
def prepared_store(folder: Path) -> Path:
    """A store with an instance of a pool, on which two queries were answered, and one by hand."""
    path = folder / "prepared.sqlite"
    url = f"sqlite:///{path}"
    assert CliRunner().invoke(app, ["store", "upgrade", "--store", url]).exit_code == 0
    store = Store(url)
    profile = default_profile("a100")
    spec = InstanceSpec("a100-0", "http://127.0.0.1:9", profile, slots=4, pool="a100")
    try:
        store.transact(leases.join)
        store.transact(lambda tx: enter_instance(tx, spec))
        by_hand = replace(spec, name="gpu-1", pool="", slots=64)
        for name in ("answered", "answered-too"):
            answer(store, name)
        store.transact(lambda tx: enter_instance(tx, by_hand))
    finally:
        store.close()
    return path


@pytest.fixture
def store_url(prepared_store: Path, folder: Path) -> str:
    """A copy of it for each test: no command depends on another one."""
    path = folder / "state" / "store.sqlite"
    shutil.copy(prepared_store, path)
    return f"sqlite:///{path}"


def answer(store: Store, name: str) -> None:
    """A query of one call, from its arrival to its answer."""
    query = NewQuery(name, "default", "shop", 60.0, store.now(), "How many?")
    deadline = query.arrived_at + query.slo_s
    request = NewRequest(f"r-{name}", name, "judge", RequestSize(900, 40), deadline)
    done = Outcome(None)
    store.transact(lambda tx: move_query.register_query(tx, query))
    store.transact(lambda tx: move_request.submit(tx, request))
    store.transact(
        lambda tx: move_request.finish(tx, request_id=request.id, attempt=1, outcome=done)
    )
    store.transact(lambda tx: move_query.end_query(tx, name, state="answered"))


@pytest.fixture
def type_it(
    folder: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[str]], str]:
    """Runs `hexprefect` with these words in that folder, on that store; what it says."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HEXPREFECT_STORE", store_url)
    monkeypatch.setenv("HEXPREFECT_STATE", str(folder / "state"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    settings.cache_clear()

    def typed(words: list[str]) -> str:
        ended = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
        assert ended.exit_code == 0, f"{words}\n{ended.output}\n{ended.exception!r}"
        # What is said besides goes to standard error, so that a script can read the JSON.
        return ended.stdout if "--json" in words else ended.output

    return typed


def meant(word: str, store_url: str) -> str:
    """A word of the docs, or what the reader has in its place."""
    return {"ID": "answered", "sqlite:////absolute/store.sqlite": store_url}.get(word, word)


@pytest.mark.parametrize("command", in_process("here"))
def test_it_does_what_it_is_told(
    command: Command, type_it: Callable[[list[str]], str], store_url: str
) -> None:
    obeys(command, type_it, store_url)


@pytest.mark.slow
@pytest.mark.parametrize("command", in_process("slow"))
def test_it_does_also_what_takes_long(
    command: Command, type_it: Callable[[list[str]], str], store_url: str
) -> None:
    obeys(command, type_it, store_url)


def obeys(command: Command, type_it: Callable[[list[str]], str], store_url: str) -> None:
    """The command ends well, and says something; with `--json`, one JSON value."""
    words = [meant(word, store_url) for word in command.words[1:]]
    if not command.fenced and len(words) == 1:
        type_it([*words, "--help"])
        return
    run = how(command)
    assert run is not None
    told = type_it([*words, *run.smaller])
    assert told.strip()
    if "--json" in words:
        json.loads(told)


def test_the_emulator_takes_what_the_docs_were_parsed_with() -> None:
    """`hexprefect emulate` has a parser of its own, which parsing.py adds these two to."""
    source = (REPOSITORY / "hexprefect" / "commands" / "emulate.py").read_text(encoding="utf-8")
    added = re.findall(r"parser\.add_argument\(\s*\"(--[a-z-]+)\"", source)
    assert sorted(added) == ["--no-pools", "--store"]


def test_every_command_has_a_line_of_help() -> None:
    def walk(command: Any, name: str) -> list[str]:
        if hasattr(command, "commands"):
            return [
                one for key, sub in command.commands.items() for one in walk(sub, f"{name} {key}")
            ]
        return [] if command.help else [name]

    assert walk(typer.main.get_command(app), "hexprefect") == []
