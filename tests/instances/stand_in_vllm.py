"""A command that behaves like `vllm serve`, for machines without one: `stand_in_vllm.py serve …`.

It takes vLLM's arguments, says in its log what vLLM says, keeps a child process as vLLM keeps its
engine (which, as vLLM's, survives the death of its parent), and serves hexprefect's emulator. What
goes wrong is told by variables of its environment:

STAND_IN_FAILS=memory   it ends at its start, as when there is not enough memory
STAND_IN_HANGS=start    it never gets to answer
STAND_IN_HANGS=end      it ignores SIGTERM
STAND_IN_STRAY=1        its engine leaves its process group
STAND_IN_PIDS=FILE      its ids and that of its engine are appended to FILE
STAND_IN_SCALE=N        it is N times faster than an A100
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hexprefect.instances.emulator import Computed, Emulator, EngineOptions, Generation

ENGINE = [sys.executable, "-c", "import time; time.sleep(600)  # VLLM::EngineCore"]


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    say("Resolved architecture: LlamaForCausalLM")
    if os.environ.get("STAND_IN_FAILS") == "memory":
        print("Traceback (most recent call last):", file=sys.stderr)
        print("ValueError: No available memory for the cache blocks.", file=sys.stderr, flush=True)
        return 1
    stray = os.environ.get("STAND_IN_STRAY") == "1"
    engine = subprocess.Popen(ENGINE, start_new_session=stray)
    if pids := os.environ.get("STAND_IN_PIDS"):
        with Path(pids).open("a") as file:
            file.write(f"{os.getpid()} {engine.pid}\n")
    say("Starting to load model " + options.model)
    say("Loading safetensors checkpoint shards:  50% Completed | 1/2")
    if os.environ.get("STAND_IN_HANGS") == "start":
        time.sleep(600)
    say("Loading weights took 0.01 seconds")
    say("GPU KV cache size: 16,384 tokens")
    status = asyncio.run(serve(options, engine))
    engine.kill()
    engine.wait()
    return status


def say(line: str) -> None:
    print(f"(APIServer pid={os.getpid()}) INFO {line}", flush=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="vllm")
    parser.add_argument("serve", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--quantization")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--shutdown-timeout", type=int, default=0)
    parser.add_argument("--scheduling-policy", choices=["fcfs", "priority"], default="fcfs")
    for flag in (
        "--enable-per-request-metrics",
        "--enable-server-load-tracking",
        "--enable-prompt-tokens-details",
        "--disable-uvicorn-access-log",
        "--enable-prefix-caching",
    ):
        parser.add_argument(flag, action="store_true")
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace, engine: subprocess.Popen[bytes]) -> int:
    ended = asyncio.Event()
    if os.environ.get("STAND_IN_HANGS") != "end":
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    emulator = Emulator(
        "a100",
        port=options.port,
        model=options.served_model_name,
        max_model_len=options.max_model_len,
        kv_tokens=16_384,
        time_scale=float(os.environ.get("STAND_IN_SCALE", "50")),
        api_key=os.environ.get("VLLM_API_KEY"),
        content=Computed(answer),
        options=EngineOptions(
            max_num_seqs=options.max_num_seqs, scheduling_policy=options.scheduling_policy
        ),
    )
    async with emulator:
        say("Application startup complete.")
        while not ended.is_set():
            if engine.poll() is not None:
                # As vLLM: what runs fails, health says so, and a moment later the server is gone.
                await emulator.set_fault("engine-death")
                await asyncio.sleep(1.0)
                print("ERROR EngineCore died unexpectedly.", file=sys.stderr, flush=True)
                return 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), 0.05)
    return 0


def answer(generation: Generation) -> str:
    """Long where it is asked to be long."""
    asked = str(generation.messages[-1].get("content"))
    return "word " * 2000 if "at length" in asked else "SELECT 1"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
