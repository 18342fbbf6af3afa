"""What all commands share: exit codes, errors for people and for programs, one JSON object."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from hexprefect.errors import HexprefectError

T = TypeVar("T")

ANSWERED = 0
FAILED = 1
CALLERS_MISTAKE = 2
NO_ANSWER = 3

# What is printed comes from databases, servers and models: a `[/x]` or a `:100:` in it is a text.
out = Console(markup=False, emoji=False)
"""For results."""

err = Console(stderr=True, markup=False, emoji=False)
"""For progress and errors: standard output stays clean for results."""

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")
]

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="HEXPREFECT_STORE",
        help="URL of the store: sqlite:////path or postgresql://…",
        show_envvar=True,
    ),
]


def print_json(value: Any) -> None:
    """One JSON value on standard output."""
    # Whole or not at all: half an object would be worse than none.
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str, allow_nan=False)
    sys.stdout.write(f"{text}\n")


@contextmanager
def errors_for_people(*, as_json: bool = False) -> Iterator[None]:
    """Turn this project's errors into a message and exit code 2; a traceback is for bugs."""
    try:
        yield
    except HexprefectError as error:
        fail(str(error), code=CALLERS_MISTAKE, as_json=as_json)


def fail(message: str, *, code: int, as_json: bool = False) -> NoReturn:
    """End the command with a message."""
    if as_json:
        print_json({"error": message})
    else:
        err.print(Text.assemble(("Error:", "red"), f" {message}"), highlight=False)
    raise typer.Exit(code)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; Ctrl-C and SIGTERM cancel it, so that what it holds is freed."""

    async def cancellable() -> T:
        task = asyncio.ensure_future(coroutine)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            return await task
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        err.print("Interrupted.")
        raise typer.Exit(130) from None
