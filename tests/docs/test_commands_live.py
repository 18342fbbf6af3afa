"""The commands of the docs that need a Prefect server, typed into a shell as they stand there.

A real server, worker and database; the instances are emulated ones that write SQL. What stands for
something of the reader's own (a path, a question, a free port) is replaced; the rest is literal.
"""

from __future__ import annotations

import asyncio
import os
import pty
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest
from prefect.blocks.notifications import SlackWebhook
from prefect.client.orchestration import PrefectClient
from prefect.settings import PREFECT_API_URL, temporary_settings
from pydantic import SecretStr
from sqlalchemy.engine import make_url

from hexprefect.demo.shop import build_shop
from hexprefect.embedded.children import free_port
from tests.docs.commands_in_docs import REPOSITORY, Command, all_commands
from tests.docs.parsing import Mistyped, parse
from tests.docs.running import how, unique
from tests.integration.test_deployments import running_stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

COMMAND_TIMEOUT_S = 240.0
QUESTION = "How many customers do we have?"


@dataclass(frozen=True)
class Shell:
    """Where people type: a folder with what a checkout has, and an environment."""

    folder: Path
    environment: Mapping[str, str]

    async def typed(self, text: str) -> str | None:
        """Type a command; what was wrong, or None."""
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euc", text),
            cwd=self.folder,
            env=dict(self.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), COMMAND_TIMEOUT_S)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            return f"did not end in {COMMAND_TIMEOUT_S:.0f} s"
        if process.returncode != 0:
            return f"ended with {process.returncode}:\n{said.decode(errors='replace')[-1500:]}"
        return None

    async def served(self, text: str, expect: str) -> str | None:
        """Type a command that goes on until Ctrl-C, at a terminal; what was wrong, or None."""
        ours, its = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euc", f"exec {text}"),
            cwd=self.folder,
            env={**self.environment, "TERM": "xterm", "COLUMNS": "160", "LINES": "50"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=its,
            stderr=its,
            start_new_session=True,
        )
        os.close(its)
        seen = bytearray()
        loop = asyncio.get_running_loop()
        said = asyncio.Event()

        def read() -> None:
            try:
                seen.extend(os.read(ours, 65536))
            except OSError:  # It has ended.
                loop.remove_reader(ours)
                said.set()
            if expect.encode() in seen:
                said.set()

        loop.add_reader(ours, read)
        try:
            await asyncio.wait_for(said.wait(), COMMAND_TIMEOUT_S)
            if expect.encode() not in seen:
                return f"ended without {expect!r}:\n{seen.decode(errors='replace')[-1500:]}"
            os.killpg(process.pid, signal.SIGINT)
            await asyncio.wait_for(process.wait(), COMMAND_TIMEOUT_S)
        except TimeoutError:
            return f"said no {expect!r}, or did not end:\n{seen.decode(errors='replace')[-1500:]}"
        finally:
            loop.remove_reader(ours)
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            os.close(ours)
        return None


def meant(command: Command, replaced: Mapping[str, str]) -> str:
    """The command with the reader's own things in it."""
    text = command.text
    for placeholder, value in replaced.items():
        text = text.replace(placeholder, value)
    # The stack has these pools already.
    for pool in ("a100", "text2sql"):
        text = text.replace(f"work-pool create {pool}", f"work-pool create {pool}-typed")
    return text


def complete(command: Command) -> bool:
    """Whether it can be typed: in the prose, a bare name or an ellipsis stands for a longer one."""
    if command.fenced:
        return True
    try:
        parse(replace(command, fenced=True))
    except Mistyped:
        return False
    return "…" not in command.text and len(command.words) > 2


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """What is typed can be interrupted, although who runs the tests may have left that off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("flows", "work_pools", "blocks"):
        shutil.copytree(REPOSITORY / name, folder / name)
    for name in ("prefect.yaml", "prefect.fleet.yaml", "Makefile"):
        shutil.copy(REPOSITORY / name, folder / name)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "questions.csv").write_text(f"question\n{QUESTION}\n", encoding="utf-8")
    return folder


@pytest.fixture
def shop_on_postgresql(store_server: str) -> str:
    """URL, without a password, of a database with the table that the questions are about."""
    with psycopg.connect(store_server, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS shop_of_the_docs")
        connection.execute("CREATE DATABASE shop_of_the_docs")
    url = make_url(store_server).set(database="shop_of_the_docs")
    text = url.render_as_string(hide_password=False)
    with psycopg.connect(text, autocommit=True) as connection:
        connection.execute("CREATE TABLE customer (id integer PRIMARY KEY, name text)")
        connection.execute("INSERT INTO customer VALUES (1, 'Ada'), (2, 'Grace')")
    return text


async def test_every_command_of_the_docs_works(
    tmp_path: Path, folder: Path, shop_on_postgresql: str
) -> None:
    own = tmp_path / "own.sqlite"
    await asyncio.to_thread(build_shop, own)
    replaced = {
        "sqlite:////absolute/path.sqlite": f"sqlite:///{own}",
        "postgresql://reader@host/shop": f"'{shop_on_postgresql}'",
        '"…"': f'"{QUESTION}"',
        "/data/questions.csv": str(folder / "questions.csv"),
        "9464": str(free_port()),
    }
    wrong = []
    async with running_stack(tmp_path / "state", "hexgen") as stack:
        with temporary_settings({PREFECT_API_URL: stack.api_url}):
            async with PrefectClient(stack.api_url) as client:
                webhook = SlackWebhook(url=SecretStr("http://127.0.0.1:9/nobody"))
                await webhook.save("ops", client=client)
        path = f"{Path(sys.executable).parent}{os.pathsep}{stack.environment.get('PATH', '')}"
        shell = Shell(folder, {**stack.environment, "PATH": path, "COLUMNS": "160"})
        commands = [one for one in unique(all_commands(), "live", "serving") if complete(one)]
        assert len(commands) > 15
        for command in commands:
            run = how(command)
            assert run is not None
            text = meant(command, replaced)
            print(text, flush=True)
            if run.where == "serving":
                failure = await shell.served(text, run.expect)
            else:
                failure = await shell.typed(text)
            if failure is not None:
                wrong.append(f"{command}\n    {failure}")
                print(failure, flush=True)
    assert not wrong, "\n".join(wrong)
