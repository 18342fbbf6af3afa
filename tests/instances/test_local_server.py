"""A real llama.cpp server, launched, asked and ended. The smallest model, the smallest work."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from hexprefect.completion import Message, Prompt
from hexprefect.instances.client import InstanceClient
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.errors import InstanceStartFailed, InstanceUnavailable, PromptRejected
from hexprefect.instances.local_model import ensure_model
from hexprefect.instances.local_server import LocalServer

pytest.importorskip("xllamacpp", reason="the local extra is not installed")


def gone(pid: int) -> bool:
    """Whether no such process runs (a zombie no longer does)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(20):
        while not gone(pid):  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.1)


async def until_running(client: InstanceClient, endpoint: Endpoint, count: int) -> None:
    async with asyncio.timeout(60):
        while (await client.load(endpoint)).running != count:  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.05)


async def test_a_file_that_is_no_model_fails_with_the_servers_last_words(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"not a model")
    server = LocalServer("local-1", bad)
    with pytest.raises(InstanceStartFailed, match=r"(?s)local-1.*status 1.*load") as caught:
        await server.start()
    assert str(bad) in str(caught.value)


async def test_a_server_that_stays_silent_is_given_up_and_ended(tmp_path: Path) -> None:
    server = LocalServer("local-1", tmp_path / "any.gguf", start_timeout_s=0.5)
    server._command[:] = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(InstanceStartFailed, match="did not answer"):
        await server.start()
    with pytest.raises(InstanceStartFailed, match="not running"):
        _ = server.pid


@pytest.mark.model
async def test_it_answers_caches_rejects_and_ends() -> None:
    model = await asyncio.to_thread(ensure_model, "0.5B")
    prompt = Prompt("judge", (Message("user", "Say yes."),), max_output_tokens=2)
    server = LocalServer("local-1", model, slots=2, context_tokens=256)
    async with InstanceClient() as client:
        async with server as endpoint:
            pid = server.pid
            first = await client.complete(endpoint, prompt, timeout_s=120)
            again = await client.stream(endpoint, prompt, timeout_s=120)
            assert first.text == again.text != ""
            assert first.output_tokens == 2
            assert again.cached_tokens > 0, "the prompt cache is on"
            assert again.extra["time_to_first_token_s"] > 0

            # 300 tokens would fit the whole context of 512, were it not divided among two slots.
            long = Prompt("judge", (Message("user", "no " * 300),), max_output_tokens=2)
            with pytest.raises(PromptRejected) as caught:
                await client.complete(endpoint, long, timeout_s=120)
            assert caught.value.too_long
            assert caught.value.n_ctx == 256

            endless = Prompt("judge", (Message("user", "Count."),), max_output_tokens=200)
            call = asyncio.create_task(client.complete(endpoint, endless, timeout_s=120))
            await until_running(client, endpoint, 1)
            call.cancel()
            await until_running(client, endpoint, 0)
        assert gone(pid)
        with pytest.raises(InstanceUnavailable):
            await client.complete(endpoint, prompt, timeout_s=5)


@pytest.mark.model
async def test_it_leaves_with_its_parent() -> None:
    model = await asyncio.to_thread(ensure_model, "0.5B")
    program = (
        "import asyncio, sys\n"
        "from hexprefect.instances.local_server import LocalServer\n"
        "async def main():\n"
        f"    server = LocalServer('local-1', {str(model)!r}, context_tokens=256)\n"
        "    await server.start()\n"
        "    print(server.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert parent.stdout is not None
        async with asyncio.timeout(120):
            pid = int(await parent.stdout.readline())
        assert not gone(pid)
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        await parent.wait()
    await until_gone(pid)
