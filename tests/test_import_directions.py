"""The arrows between the rooms point one way; what each room may import is written here."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "hexprefect"
PROJECT = "hexprefect"

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "urls": {"errors"},
    "completion": set(),
    "settings": {"errors"},
    "scheduling": {"errors"},
    "store": {"scheduling", "errors", "urls"},
    "instances": {"scheduling", "completion", "errors", "settings"},
    "queue": {"store", "instances", "scheduling", "completion", "errors", "settings"},
    "text2sql": {"scheduling", "completion", "errors", "urls"},
    "reports": {"text2sql", "errors"},
    "evaluation": {"text2sql", "instances", "completion", "errors"},
    "observability": {"store", "completion"},
    # The profiles are facts about instances, and simulate them, too.
    "simulator": {"scheduling", "errors", "instances.profiles"},
}
"""Room → what it may import of the project, besides itself. Rooms that are not here may import
everything but the command line and what `FORBIDDEN` names."""

FORBIDDEN: dict[str, set[str]] = {
    # The embedded stack is one of several ways to run what Prefect sees.
    "orchestration": {"embedded"},
}
"""Room → what it must not import of the project, though it may import nearly everything."""

FRONT = {"__main__", "cli", "commands"}
"""The command line: nobody imports it but itself."""

FOREIGN: dict[str, set[str]] = {
    "scheduling": {"prefect", "sqlalchemy", "httpx", "asyncio", "time"},
    "text2sql": {"prefect", "httpx"},
    "store": {"prefect", "httpx"},
    "queue": {"prefect"},
    "simulator": {"prefect", "httpx"},
    "reports": {"prefect", "httpx"},
    "evaluation": {"prefect", "httpx"},
}
"""Packages that a room must do without."""


def imported(source: str) -> Iterator[tuple[str, int]]:
    """Every module that a source imports, with the line: also within functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield "." * node.level + (node.module or ""), node.lineno
            elif node.module == PROJECT:
                for alias in node.names:
                    yield f"{PROJECT}.{alias.name}", node.lineno
            elif node.module:
                yield node.module, node.lineno


def violations(room: str, where: str, source: str) -> list[str]:
    """What a source of this room imports and must not."""
    found = []
    for module, line in imported(source):
        if module.startswith("."):
            found.append(f"{where}:{line} imports {module}: relatively")
            continue
        top, _, inner = module.partition(".")
        if top in FOREIGN.get(room, ()):
            found.append(f"{where}:{line} imports {module}")
        if top != PROJECT or not inner or inner.split(".")[0] == room:
            continue
        other = inner.split(".")[0]
        if other in FRONT and room not in FRONT:
            found.append(f"{where}:{line} imports {module}: the command line")
        elif other in FORBIDDEN.get(room, ()) or (
            room in ALLOWED and not _allowed(inner, ALLOWED[room])
        ):
            found.append(f"{where}:{line} imports {module}")
    return found


def _allowed(inner: str, allowed: Iterable[str]) -> bool:
    return any(inner == name or inner.startswith(f"{name}.") for name in allowed)


def sources() -> list[tuple[str, Path]]:
    """`(room, file)` of every module of the package."""
    return [
        (path.relative_to(PACKAGE).with_suffix("").parts[0], path)
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


def test_every_room_imports_only_what_it_may() -> None:
    found = [
        violation
        for room, path in sources()
        for violation in violations(room, str(path.relative_to(PACKAGE.parent)), path.read_text())
    ]
    assert not found, "\n".join(found)


def test_the_rooms_that_are_held_exist() -> None:
    rooms = {room for room, _ in sources()}
    assert set(ALLOWED) <= rooms
    assert set(FORBIDDEN).union(*FORBIDDEN.values()) <= rooms
    assert len(sources()) > 50


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("scheduling", "from hexprefect.store import Store"),
        ("scheduling", "import hexprefect.store.tables"),
        ("scheduling", "from hexprefect import store"),
        ("scheduling", "import sqlalchemy"),
        ("scheduling", "def now():\n    import time\n    return time.time()"),
        ("store", "from hexprefect.queue import SharedQueue"),
        ("store", "from hexprefect.instances.client import InstanceClient"),
        ("instances", "from hexprefect.store import Store"),
        ("queue", "from hexprefect.orchestration.llm_task import llm_task"),
        ("text2sql", "from hexprefect.queue import Query"),
        ("text2sql", "from prefect import flow"),
        ("reports", "from hexprefect.store import Store"),
        ("reports", "from prefect import flow"),
        ("evaluation", "from hexprefect.store import Store"),
        ("evaluation", "from hexprefect.orchestration.ask import ask_in_flow"),
        ("text2sql", "from hexprefect.evaluation.records import Verdict"),
        ("observability", "from hexprefect.orchestration.ask import ask_in_flow"),
        ("simulator", "from hexprefect.store import Store"),
        ("simulator", "from hexprefect.instances.client import InstanceClient"),
        ("orchestration", "from hexprefect.cli import main"),
        ("orchestration", "from hexprefect.commands.output import out"),
        ("orchestration", "from hexprefect.embedded.stack import embedded_stack"),
        ("orchestration", "from hexprefect import embedded"),
        ("orchestration", "def run():\n    import hexprefect.embedded.folders"),
        ("store", "from . import tables"),
        ("store", "if True:\n    from ..queue import query"),
    ],
)
def test_a_violation_is_found(room: str, source: str) -> None:
    [found] = violations(room, "synthetic.py", source)
    assert found.startswith("synthetic.py:")


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("scheduling", "from hexprefect.scheduling.cost import Profile\nimport math"),
        ("scheduling", "from hexprefect.errors import HexprefectError"),
        ("store", "from hexprefect.scheduling import Decision\nimport sqlalchemy"),
        ("queue", "from hexprefect.store import Store\nfrom hexprefect.completion import Prompt"),
        ("simulator", "from hexprefect.instances.profiles import default_profile"),
        ("orchestration", "import prefect\nfrom hexprefect.queue import SharedQueue"),
        ("embedded", "from hexprefect.orchestration.pools import create_pools"),
        ("commands", "from hexprefect.embedded.stack import embedded_stack"),
        ("cli", "from hexprefect.commands.store import app"),
        ("commands", "from hexprefect.orchestration.ask import ask"),
    ],
)
def test_what_is_allowed_is_no_violation(room: str, source: str) -> None:
    assert violations(room, "synthetic.py", source) == []
