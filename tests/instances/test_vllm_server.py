"""A launched vLLM server: its command line, its start, its end, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from hexprefect.completion import Message, Prompt
from hexprefect.errors import CallerMistake
from hexprefect.instances.client import InstanceClient
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.errors import InstanceRefused, InstanceStartFailed
from hexprefect.instances.launched import (
    Capacity,
    StartProgress,
    VllmOptions,
    VllmServer,
    read_capacity,
)
from hexprefect.instances.launched.log import last_lines, start_progress
from hexprefect.instances.launched.server import GUARDIAN

LIMIT_S = 120.0
KEY = SecretStr("sk-never-to-be-seen")
STAND_IN = Path(__file__).with_name("stand_in_vllm.py")


def alive(pid: int) -> bool:
    """Whether a process exists and is not merely waiting to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def said_to(pid: int) -> str:
    """A process's command line, as everybody may read it."""
    return Path(f"/proc/{pid}/cmdline").read_text()


async def until(look: Callable[[], Any]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not look():  # noqa: ASYNC110 (processes do not tell)
            await asyncio.sleep(0.02)


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


@pytest.fixture
def vllm(tmp_path: Path) -> str:
    """Path of a command that takes vLLM's arguments."""
    command = tmp_path / "vllm"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STAND_IN}" "$@"\n')
    command.chmod(0o755)
    return str(command)


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Callable[[], list[int]]]:
    """The ids of the stand-in's processes; whatever of them is left is ended."""

    def read() -> list[int]:
        path = tmp_path / "pids"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    yield read
    for pid in filter(alive, read()):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def new_server(vllm: str, port: int, tmp_path: Path) -> Callable[..., VllmServer]:
    def make(
        *, environment: dict[str, str] | None = None, start_timeout_s: float = LIMIT_S, **more: Any
    ) -> VllmServer:
        progress: Callable[[StartProgress], None] | None = more.pop("on_progress", None)
        options = VllmOptions(
            **{"model": "tiny", "port": port, "executable": vllm, **more},
            environment={"STAND_IN_PIDS": str(tmp_path / "pids"), **(environment or {})},
        )
        return VllmServer(
            "gpu-1",
            options,
            log=tmp_path / "logs" / "gpu-1.log",
            start_timeout_s=start_timeout_s,
            on_progress=progress,
        )

    return make


def ask(text: str = "How many singers?", tokens: int = 8) -> Prompt:
    return Prompt("judge", (Message("user", text),), max_output_tokens=tokens)


# -- the command line ------------------------------------------------------------------------------


def test_the_command_line_says_what_the_pool_says_and_always_asks_for_priorities():
    options = VllmOptions(
        model="/models/llama",
        served_model_name="llama",
        host="0.0.0.0",
        port=8001,
        tensor_parallel_size=4,
        quantization="fp8",
        max_num_seqs=64,
        max_model_len=8192,
        shutdown_timeout_s=90,
        extra_arguments=("--enable-prefix-caching", "--gpu-memory-utilization=0.95"),
        api_key=KEY,
    )
    words = options.command()
    assert words[:3] == ["vllm", "serve", "/models/llama"]
    for name, value in (
        ("--served-model-name", "llama"),
        ("--host", "0.0.0.0"),
        ("--port", "8001"),
        ("--tensor-parallel-size", "4"),
        ("--quantization", "fp8"),
        ("--max-num-seqs", "64"),
        ("--max-model-len", "8192"),
        ("--shutdown-timeout", "90"),
        ("--scheduling-policy", "priority"),
    ):
        assert words[words.index(name) + 1] == value
    for flag in (
        "--enable-per-request-metrics",
        "--enable-server-load-tracking",
        "--enable-prompt-tokens-details",
    ):
        assert flag in words
    assert words[-2:] == ["--enable-prefix-caching", "--gpu-memory-utilization=0.95"]
    assert options.url == f"http://{socket.gethostname()}:8001"


def test_what_is_left_out_is_left_to_vllm():
    words = VllmOptions(model="tiny", port=8000).command()
    assert not {"--quantization", "--max-model-len"} & set(words)
    assert words[words.index("--served-model-name") + 1] == "tiny"


def test_the_key_is_in_the_environment_and_on_no_command_line():
    options = VllmOptions(model="tiny", port=8000, api_key=KEY, environment={"HF_HOME": "/hub"})
    secret = KEY.get_secret_value()
    assert secret not in " ".join(options.command())
    assert secret not in repr(options)
    environment = options.process_environment(
        {
            "PATH": "/bin",
            "HEXPREFECT_STORE": "postgresql://me:hunter2@db/store",
            "PREFECT_API_KEY": "pnu_secret",
            "PYTHONPATH": "/ours",
        }
    )
    assert environment == {
        "PATH": "/bin",
        "HF_HOME": "/hub",
        "PYTHONUNBUFFERED": "1",
        "VLLM_API_KEY": secret,
    }


@pytest.mark.parametrize("argument", ["--api-key", "--api-key=sk-typed", "--port", "--host=::"])
def test_what_has_a_place_of_its_own_is_no_extra_argument(argument: str):
    with pytest.raises(CallerMistake, match="may not be among the extra arguments") as refused:
        VllmOptions(model="tiny", port=8000, extra_arguments=(argument, "value"))
    assert "sk-typed" not in str(refused.value)
    assert refused.value.remedy


# -- the log ---------------------------------------------------------------------------------------


def test_the_start_is_read_from_the_log_and_never_goes_back():
    log = (
        "INFO Resolved architecture: LlamaForCausalLM\n"
        "INFO Starting to load model meta-llama/Llama-3.1-70B-Instruct...\n"
        "\rLoading safetensors checkpoint shards:   0% Completed | 0/30"
        "\rLoading safetensors checkpoint shards:  40% Completed | 12/30"
        "\rLoading safetensors checkpoint shards: 100% Completed | 30/30\n"
        "INFO Loading weights took 61.21 seconds\n"
        "INFO GPU KV cache size: 97,392 tokens\n"
        "\rCapturing CUDA graphs: 50%|#####     | 33/67\n"
        "INFO init engine (profile, create kv cache, warmup model) took 41.30 seconds\n"
        "INFO Starting to load model once more\n"
    )
    fractions = []
    for end in range(len(log)):
        progress = start_progress(log[:end], elapsed_s=1.0)
        if not fractions or progress.fraction != fractions[-1]:
            fractions.append(progress.fraction)
    assert fractions == sorted(fractions)
    assert fractions[0] == 0.0
    assert len(fractions) >= 7
    assert start_progress(log, elapsed_s=1.0).doing == "the engine is warm"
    half = start_progress(log[: log.index("100%")], elapsed_s=1.0)
    assert half.doing == "loading the weights, 40 %"
    assert start_progress("nothing that is known", elapsed_s=1.0).doing == "starting"


def test_the_last_lines_of_a_log_are_those_that_say_something():
    log = "first\n\n\rbar 1%\rbar 99%\n  \nlast\n"
    assert last_lines(log) == "first\nbar 99%\nlast"
    assert last_lines(log, 1) == "last"
    assert last_lines("") == ""


# -- its life --------------------------------------------------------------------------------------


async def test_it_starts_answers_with_its_key_and_tells_its_capacity(new_server, pids):
    told: list[StartProgress] = []
    server = new_server(api_key=KEY, max_num_seqs=2, max_model_len=4096, on_progress=told.append)
    async with server, InstanceClient() as client:
        completion = await client.complete(server.endpoint, ask(), timeout_s=LIMIT_S, priority=3)
        assert completion.text == "SELECT 1"
        assert await read_capacity(server.endpoint) == Capacity(4096, 16_384)
        without = Endpoint("gpu-1", server.endpoint.url, "tiny")
        with pytest.raises(InstanceRefused):
            await client.complete(without, ask(), timeout_s=LIMIT_S)
        assert not any(KEY.get_secret_value() in said_to(pid) for pid in [server.pid, *pids()])
    assert told
    assert [progress.fraction for progress in told] == sorted(p.fraction for p in told)
    assert not any(map(alive, pids()))


async def test_what_does_not_answer_has_no_capacity_to_tell(port):
    assert await read_capacity(Endpoint("gone", f"http://127.0.0.1:{port}", "m")) == Capacity()


@pytest.mark.parametrize("stray", ["0", "1"])
@pytest.mark.parametrize("hangs", ["", "end"])
async def test_stopping_leaves_no_process(new_server, pids, stray, hangs):
    server = new_server(environment={"STAND_IN_STRAY": stray, "STAND_IN_HANGS": hangs})
    await server.start()
    guardian = server.pid
    assert all(map(alive, [guardian, *pids()]))
    assert len(pids()) == 2
    await server.stop(grace_s=0.5 if hangs else LIMIT_S)
    assert not any(map(alive, [guardian, *pids()]))
    await server.stop(grace_s=1.0)


@pytest.mark.parametrize("killed", [0, 1], ids=["server", "engine"])
async def test_its_death_is_reported_with_its_last_words_and_its_other_process_ends(
    new_server, pids, killed
):
    server = new_server(environment={"STAND_IN_STRAY": "1"})
    await server.start()
    os.kill(pids()[killed], signal.SIGKILL)
    async with asyncio.timeout(LIMIT_S):
        ended = await server.ended()
    assert ended.instance == "gpu-1"
    assert "Its last words" in str(ended)
    assert ("EngineCore died" in str(ended)) == (killed == 1)
    assert not any(map(alive, pids()))


async def test_a_death_at_the_start_says_why(new_server, pids):
    server = new_server(environment={"STAND_IN_FAILS": "memory"}, api_key=KEY)
    with pytest.raises(InstanceStartFailed) as failed:
        await server.start()
    assert "ended with status 1" in str(failed.value)
    assert "No available memory for the cache blocks" in str(failed.value)
    assert str(server.log) in str(failed.value)
    assert not any(map(alive, pids()))


async def test_a_start_that_takes_too_long_is_ended(new_server, pids):
    server = new_server(environment={"STAND_IN_HANGS": "start"}, start_timeout_s=3.0)
    with pytest.raises(InstanceStartFailed, match="did not answer within 3 s"):
        await server.start()
    assert not any(map(alive, pids()))


async def test_a_start_that_is_cancelled_leaves_nothing(new_server, pids):
    server = new_server(environment={"STAND_IN_HANGS": "start"})
    starting = asyncio.create_task(server.start())
    await until(pids)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not any(map(alive, pids()))


async def test_a_taken_port_is_found_before_anything_is_loaded(new_server, pids, port):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(InstanceStartFailed, match="cannot be listened on") as failed:
            await new_server().start()
    assert "launch.port" in str(failed.value)
    assert pids() == []


async def test_a_missing_command_says_how_to_get_it(new_server):
    with pytest.raises(InstanceStartFailed, match=r"pip install hexprefect\[vllm\]"):
        await new_server(executable="no-such-vllm").start()


async def test_the_log_of_the_time_before_is_kept(new_server):
    for _ in range(2):
        async with new_server() as server:
            log = server.log
    previous = log.with_name("gpu-1.log.previous")
    assert "startup complete" in log.read_text()
    assert "startup complete" in previous.read_text()


# -- the guardian ----------------------------------------------------------------------------------

LAUNCHER = """
import asyncio, sys
from pathlib import Path
from hexprefect.instances.launched import VllmOptions, VllmServer

async def main():
    options = VllmOptions(
        model="tiny", port=int(sys.argv[1]), executable=sys.argv[2],
        environment={"STAND_IN_PIDS": sys.argv[3], "STAND_IN_STRAY": "1"},
    )
    server = VllmServer("gpu-1", options, log=Path(sys.argv[3] + ".log"))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("victim", ["launcher", "guardian"])
async def test_nothing_stays_when_the_launcher_or_the_guardian_is_killed(
    vllm, port, pids, tmp_path, victim
):
    """Also what has left the process group, when the guardian lives to see it."""
    launcher = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LAUNCHER, str(port), vllm, str(tmp_path / "pids")),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert launcher.stdout is not None
        guardian = int(await launcher.stdout.readline())
        server, engine = pids()
        assert all(map(alive, (guardian, server, engine)))
        os.kill(launcher.pid if victim == "launcher" else guardian, signal.SIGKILL)
        await until(lambda: not alive(guardian) and not alive(server))
        if victim == "launcher":
            await until(lambda: not alive(engine))
    finally:
        if launcher.returncode is None:
            launcher.kill()
        await launcher.wait()


async def test_a_killed_guardian_is_noticed_and_its_group_ends(new_server, pids):
    server = new_server()
    await server.start()
    os.kill(server.pid, signal.SIGKILL)
    async with asyncio.timeout(LIMIT_S):
        await server.ended()
    await until(lambda: not any(map(alive, pids())))


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["/bin/sh", "-c", "exit 7"], 7),
        (["/bin/sh", "-c", "kill -9 $$"], 137),
        (["/no/such/command"], 127),
    ],
)
def test_the_guardian_passes_the_status_on(command: list[str], status: int):
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(GUARDIAN), *command], stdin=subprocess.PIPE
    ) as guardian:
        assert guardian.wait(timeout=LIMIT_S) == status
