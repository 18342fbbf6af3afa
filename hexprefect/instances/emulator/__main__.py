"""`python -m hexprefect.instances.emulator`: emulated instances until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from hexprefect.errors import CallerMistake, HexprefectError
from hexprefect.instances.client import InstanceClient
from hexprefect.instances.emulator.content import Behind, Content, Filler, Replay
from hexprefect.instances.emulator.engine import EngineOptions
from hexprefect.instances.emulator.server import Emulator
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.profiles import hardware_names

_PARENT_CHECK_S = 0.5

API_KEY_VARIABLE = "HEXPREFECT_EMULATOR_API_KEY"

Announce = Callable[[Sequence[Emulator]], AbstractAsyncContextManager[None]]
"""Entered once all of them listen, left before they stop."""


_MOST_INSTANCES = 256
"""Of one hardware: each is a server on a port of its own."""


def read_cluster(text: str) -> dict[str, int]:
    """Read `a100:2,a6000:1,l40s`.

    Raises:
        CallerMistake: the text is something else.
    """
    cluster: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.strip().partition(":")
        is_count = (count or "1").isdecimal() and len(count) <= len(str(_MOST_INSTANCES))
        if not name or not is_count or not 1 <= int(count or "1") <= _MOST_INSTANCES:
            raise CallerMistake(
                f"The cluster {text!r} cannot be read.",
                remedy=f"Write it as a100:2,l40s:1, with counts from 1 to {_MOST_INSTANCES}.",
            )
        cluster[name] = cluster.get(name, 0) + int(count or 1)
    return cluster


def whole_number(least: int, most: int = 10**9) -> Callable[[str], int]:
    """An option's type: a whole number from `least` to `most`."""

    def number(text: str) -> int:
        value = int(text) if len(text) < 20 else most + 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least} to {most}")
        return value

    return number


def emulator_parser(
    prog: str = "python -m hexprefect.instances.emulator",
) -> argparse.ArgumentParser:
    """The options of emulated instances; others may add their own."""
    parser = argparse.ArgumentParser(prog=prog, description=main.__doc__)
    add = parser.add_argument
    add("--profile", default="a100", help=f"hardware, one of {', '.join(hardware_names())}")
    add("--cluster", help="a whole fleet instead, for example a100:2,l40s:1, on free ports")
    add("--port", type=whole_number(0, 65_535), default=0, help="0 (default): any free one")
    add("--model", default="emulated", help="the model's name")
    add("--name", help="the instance's name; default: the profile's")
    add("--time-scale", type=float, default=1.0, help="times faster than life (default 1)")
    add("--max-num-seqs", type=whole_number(1), default=256, help="sequences at once (default 256)")
    add(
        "--max-num-batched-tokens",
        type=whole_number(1),
        default=2048,
        help="tokens a step (default 2048)",
    )
    add("--max-num-queued-reqs", type=whole_number(1), help="requests at once before a 503")
    add(
        "--max-model-len",
        type=whole_number(1),
        default=32_768,
        help="tokens a sequence (default 32768)",
    )
    add("--kv-tokens", type=whole_number(1), help="KV memory in tokens; default: the profile's")
    add("--scheduling-policy", choices=("priority", "fcfs"), default="priority")
    add("--no-prefix-caching", action="store_true")
    add("--fault", default="none", help="hang, error, error@0.1, refuse, die, slow:3, …")
    add(
        "--output-tokens",
        type=whole_number(1),
        help="length of the filler; default: what is asked for",
    )
    add("--replay", metavar="FILE", help='recorded answers, lines of {"prompt": …, "answer": …}')
    add("--behind", metavar="URL", help="a real llama.cpp server that gives the answers")
    add(
        "--with-parent",
        type=int,
        nargs="?",
        const=os.getppid(),
        metavar="PID",
        help="end when the parent process has ended",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve emulated vLLM instances until SIGTERM. Prints a JSON line for each that listens."""
    return serve(emulator_parser().parse_args(arguments))


def serve(options: argparse.Namespace, *, announce: Announce | None = None) -> int:
    """Serve as `emulator_parser` was told, until SIGTERM; returns the exit code."""
    # The API key is taken from the environment: a command line can be read by all.
    try:
        asyncio.run(_serve(options, os.environ.get(API_KEY_VARIABLE), announce))
    except HexprefectError as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 2
    return 0


async def _serve(
    options: argparse.Namespace, api_key: str | None, announce: Announce | None
) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, ended.set)
    async with AsyncExitStack() as stack:
        content = await _content(options, stack)
        emulators = _emulators(options, content, api_key)
        for emulator in emulators:
            endpoint = await stack.enter_async_context(emulator)
            told = {"name": endpoint.name, "url": endpoint.url, "model": endpoint.model}
            print(json.dumps(told), flush=True)
        if announce is not None:
            await stack.enter_async_context(announce(emulators))
        while not ended.is_set():
            try:
                await asyncio.wait_for(ended.wait(), _PARENT_CHECK_S)
            except TimeoutError:
                if options.with_parent is not None and os.getppid() != options.with_parent:
                    return


def _emulators(
    options: argparse.Namespace, content: Content, api_key: str | None
) -> list[Emulator]:
    if options.cluster:
        if options.port or options.name:
            raise CallerMistake(
                "A cluster has neither one port nor one name.",
                remedy="Leave --port and --name out: each instance takes a free port, and is "
                "called by its hardware and a number.",
            )
        names = [
            (hardware, f"{hardware}-{number}")
            for hardware, count in read_cluster(options.cluster).items()
            for number in range(count)
        ]
        port = 0
    else:
        names, port = [(options.profile, options.name)], options.port
    engine = EngineOptions(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        scheduling_policy=options.scheduling_policy,
        prefix_caching=not options.no_prefix_caching,
    )
    return [
        Emulator(
            hardware,
            name=name,
            port=port,
            model=options.model,
            time_scale=options.time_scale,
            kv_tokens=options.kv_tokens,
            max_model_len=options.max_model_len,
            content=content,
            options=engine,
            api_key=api_key,
            fault=options.fault,
            max_num_queued_reqs=options.max_num_queued_reqs,
        )
        for hardware, name in names
    ]


async def _content(options: argparse.Namespace, stack: AsyncExitStack) -> Content:
    if options.replay:
        return Replay.read(options.replay)
    if options.behind:
        client = await stack.enter_async_context(InstanceClient())
        endpoint = Endpoint("behind", options.behind, options.model, speaks="llama.cpp")
        return Behind(client, endpoint)
    return Filler(options.output_tokens)


if __name__ == "__main__":
    sys.exit(main())
