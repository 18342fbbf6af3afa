"""`hexprefect emulate --cluster` starts a fleet that is ready to be used, and takes it out."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from hexprefect.commands import emulate
from hexprefect.errors import CallerMistake
from hexprefect.instances.emulator.__main__ import emulator_parser
from hexprefect.instances.profiles import default_profile
from hexprefect.store import InstanceView, Store
from hexprefect.store.views import instance_views


@dataclass
class Fleet:
    """A `hexprefect emulate` that runs, and what it told."""

    process: asyncio.subprocess.Process
    instances: list[dict[str, str]]
    said: str

    async def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), 60.0)


@asynccontextmanager
async def running(
    *arguments: str, number: int, environment: Mapping[str, str]
) -> AsyncIterator[Fleet]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "HEXPREFECT_"))
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hexprefect", "emulate", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**kept, **environment},
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(120.0):
            told = [json.loads(await process.stdout.readline()) for _ in range(number)]
            said = ""
            while "ntered" not in said:
                line = (await process.stderr.readline()).decode()
                assert line, f"it ended: {said}"
                said += line
        yield Fleet(process, told, said)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def views(store: Store) -> dict[str, InstanceView]:
    return store.read(instance_views)


POOLS = {
    "a100": [
        {
            "name": "a100-0",
            "url": "http://127.0.0.1:1",
            "model": "m",
            "profile": "a100@20",
            "speaks": "vllm",
            "slots": 8,
            "admission_depth": 8,
            "context_tokens": 4096,
        }
    ]
}


async def test_without_a_server_a_fleet_is_in_the_store_for_as_long_as_it_serves(
    new_sqlite_url: str, open_store: Callable[..., Store], capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(new_sqlite_url)
    for _ in range(2):
        with temporary_settings(restore_defaults={PREFECT_API_URL}):
            async with emulate.entered(POOLS, store_url=new_sqlite_url):
                view = views(store)["a100-0"]
                assert (view.state, view.spec.pool) == ("alive", "")
                assert view.profile == default_profile("a100@20")
                assert "a100-0: entered in the store." in capsys.readouterr().err
        assert views(store)["a100-0"].state == "draining"


async def test_a_server_that_is_not_there_is_said_with_the_way_out(
    new_sqlite_url: str, open_store: Callable[..., Store]
) -> None:
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        pytest.raises(CallerMistake, match="--no-pools"),
    ):
        async with emulate.entered(POOLS, store_url=new_sqlite_url):
            pytest.fail("it was entered")
    assert views(open_store(new_sqlite_url)) == {}


async def test_a_fleet_does_not_take_out_another_that_has_taken_over_its_names(
    new_sqlite_url: str, open_store: Callable[..., Store]
) -> None:
    """The first was started, the second too, with the same names, and the first ends first."""
    store = open_store(new_sqlite_url)
    second = {"a100": [{**POOLS["a100"][0], "url": "http://127.0.0.1:2"}]}
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        first = emulate.entered(POOLS, store_url=new_sqlite_url)
        await first.__aenter__()
        async with emulate.entered(second, store_url=new_sqlite_url):
            await first.__aexit__(None, None, None)
            view = views(store)["a100-0"]
            assert (view.state, view.spec.url) == ("alive", "http://127.0.0.1:2")
        assert views(store)["a100-0"].state == "draining"


@pytest.mark.slow
async def test_a_fleet_enters_the_store_and_leaves_it(
    new_sqlite_url: str, open_store: Callable[..., Store], tmp_path: Any
) -> None:
    store = open_store(new_sqlite_url)
    environment = {"HEXPREFECT_STORE": new_sqlite_url, "PREFECT_HOME": str(tmp_path / "prefect")}
    cluster = ("--cluster", "a100:2,l40s", "--time-scale", "20", "--max-num-seqs", "8")
    for _ in range(2):
        async with running(*cluster, number=3, environment=environment) as fleet:
            assert [told["name"] for told in fleet.instances] == ["a100-0", "a100-1", "l40s-0"]
            found = views(store)
            assert {name: view.state for name, view in found.items()} == {
                "a100-0": "alive",
                "a100-1": "alive",
                "l40s-0": "alive",
            }
            first = found["a100-0"]
            assert first.profile == default_profile("a100@20")
            assert (first.spec.slots, first.spec.admission_depth) == (8, 8)
            assert first.spec.url == fleet.instances[0]["url"]
            async with httpx.AsyncClient() as client:
                assert (await client.get(f"{first.spec.url}/health")).status_code == 200
            assert await fleet.end() == 0
        assert {view.state for view in views(store).values()} == {"draining"}


@pytest.mark.slow
async def test_without_pools_and_without_a_store_the_fleet_just_runs(tmp_path: Any) -> None:
    environment = {
        "HEXPREFECT_STATE": str(tmp_path),
        "PREFECT_HOME": str(tmp_path / "prefect"),
    }
    async with running("--cluster", "a6000", number=1, environment=environment) as fleet:
        assert "entered nowhere" in fleet.said
        assert await fleet.end() == 0
    assert not (tmp_path / "store.sqlite").exists()


def test_a_store_that_was_named_must_be_there(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    url = f"sqlite:///{tmp_path / 'none.sqlite'}"
    assert emulate.emulate(["--cluster", "a100", "--store", url]) == 2
    assert "hexprefect store upgrade" in capsys.readouterr().err


def test_each_instance_is_described_for_the_pool_of_its_hardware(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Listening:
        def __init__(self, hardware: str, port: int) -> None:
            self.name = f"{hardware}-0"
            self.profile = default_profile(hardware)
            self.endpoint = type("Endpoint", (), {"url": f"http://127.0.0.1:{port}", "model": "m"})

    monkeypatch.setenv("HEXPREFECT_EMULATOR_API_KEY", "sk")
    options = emulator_parser().parse_args(["--cluster", "x", "--max-num-seqs", "64"])
    emulators: Any = [Listening("a100", 1), Listening("local-1-thread", 2)]
    pools = emulate.described(emulators, options, {"a100", "local"})
    assert set(pools) == {"a100", "local"}
    assert pools["a100"] == [
        {
            "name": "a100-0",
            "url": "http://127.0.0.1:1",
            "model": "m",
            "profile": "a100",
            "speaks": "vllm",
            "slots": 64,
            "admission_depth": 16,
            "context_tokens": 32_768,
            "api_key_secret": "env:HEXPREFECT_EMULATOR_API_KEY",
        }
    ]
    assert pools["local"][0]["profile"] == "local-1-thread"
