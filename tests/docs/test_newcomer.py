"""A newcomer's path, literally: the commands of the quickstart in a fresh clone, with the time.

Run it with `pytest -s -m slow tests/docs/test_newcomer.py`. It needs a package registry, and a real
model, which is downloaded unless it is in the cache; it says which.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from hexprefect.instances.local_model import models_folder
from tests.docs.commands_in_docs import REPOSITORY, commands_of

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(1800)]

COMMAND_TIMEOUT_S = 1500.0


def newcomers_commands() -> list[str]:
    """The first block of the quickstart."""
    page = REPOSITORY / "docs" / "quickstart.md"
    [first] = re.findall(r"```sh\n(git clone .*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [one.text for one in commands_of(page) if one.fenced and one.text in first]
    assert lines == first.splitlines()
    return lines


def test_there_are_at_most_five_commands() -> None:
    assert 1 < len(newcomers_commands()) <= 5


def test_from_a_clone_to_an_answer(tmp_path: Path) -> None:
    cancelled = random.randrange(5, 40)
    path = tmp_path / "own.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as own:
        own.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, status TEXT)")
        states = ["cancelled"] * cancelled + ["delivered"] * 50 + ["open"] * 60
        rows = [(number, f"Customer {number}", state) for number, state in enumerate(states)]
        own.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
        own.commit()
    kept = ("PREFECT_", "HEXPREFECT_STORE", "HEXPREFECT_STATE", "VIRTUAL_ENV", "PYTHONPATH")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(kept)}
    environment["PREFECT_HOME"] = str(tmp_path / "prefect")
    environment["COLUMNS"] = "160"
    cached = any(models_folder().rglob("*.gguf"))
    print(f"\nThe model is {'in the cache' if cached else 'downloaded'}.")

    folder, said, begun = tmp_path, "", time.perf_counter()
    for text in newcomers_commands():
        typed = text.replace("ADDRESS", str(REPOSITORY)).replace("/absolute/path.sqlite", str(path))
        started = time.perf_counter()
        if typed.startswith("cd "):
            folder = folder / typed.removeprefix("cd ")
            continue
        ended = subprocess.run(
            ["bash", "-euc", typed],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        said = ended.stdout
        assert ended.returncode == 0, f"{text}\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}"
        print(f"{time.perf_counter() - started:7.1f} s  {text}")
    print(f"{time.perf_counter() - begun:7.1f} s  in all")
    right = re.search(rf"│ {cancelled} +│", said) is not None
    print(f"The small model's answer is {'right' if right else 'WRONG'}.")
    # What is promised is an answer out of one's own database; how often a model of this size is
    # right is what `hexprefect eval` measures.
    assert re.search(r"FROM\s+orders", said), said
    assert "'cancelled'" in said, said
