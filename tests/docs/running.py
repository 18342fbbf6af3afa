"""How each command of the docs is run by the tests: the one table of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.docs.commands_in_docs import Command

Where = Literal["here", "slow", "dry", "live", "serving", "own", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Run:
    """How a command is run.

    Attributes:
        where: `here`, in this process against a small store (`test_commands.py`); `slow`, likewise,
            where tests marked slow run; `dry`, as `make --dry-run`; `live`, typed into a shell
            beside a Prefect server and emulated instances (`test_commands_live.py`, slow);
            `serving`, likewise, until it says `expect`, and then ended; `own`, a test or an
            installation that is its own run; `elsewhere`, in another test, because it is expensive.
        expect: what a serving command says when it serves.
        smaller: options that are added where it runs in this process, so that it takes seconds.
        test: for `elsewhere`, the file of that test,
        mentions: and words that it must contain.
    """

    where: Where
    expect: str = ""
    smaller: tuple[str, ...] = ()
    test: str = ""
    mentions: tuple[str, ...] = ()


_SMALL = ("--queries", "10", "--seeds", "1", "--cores", "1")
_QUICK = (
    *("--quick", "--no-workflow", "--queries", "20", "--seeds", "1", "--cores", "1"),
    *("--models", "llama-3.1-70b", "--policy", "rr-fcfs,hexprefect"),
)

_NEWCOMER = Run(
    "elsewhere", test="tests/docs/test_newcomer.py", mentions=("quickstart.md", "git clone")
)

RUNS: dict[str, Run] = {
    "hexprefect queries": Run("here"),
    "hexprefect instances": Run("here"),
    "hexprefect tenants add": Run("live"),
    "hexprefect tenants": Run("here"),
    "hexprefect policy": Run("here"),
    "hexprefect store": Run("here"),
    "hexprefect version": Run("here"),
    "hexprefect top --json": Run("here"),
    "hexprefect top --once": Run("here"),
    "hexprefect top": Run("serving", expect="α"),
    "hexprefect metrics --dashboard": Run("here"),
    "hexprefect metrics": Run("serving", expect="metrics"),
    "hexprefect automations events": Run("here"),
    "hexprefect automations apply": Run("live"),
    "hexprefect reports check": Run("here"),
    "hexprefect reports list": Run("here"),
    "hexprefect reports show": Run("live"),
    "hexprefect simulate": Run("here", smaller=_SMALL),
    "hexprefect tune": Run("here", smaller=_SMALL),
    "hexprefect reproduce": Run("slow", smaller=_QUICK),
    "hexprefect ask": Run("live"),
    "hexprefect pools": Run("live"),
    "hexprefect emulate": Run("serving", expect="http://127.0.0.1"),
    "hexprefect demo": Run(
        "elsewhere", test="tests/commands/test_command_line.py", mentions=("by_a_real_model",)
    ),
    "hexprefect up": Run(
        "elsewhere", test="tests/commands/test_command_line.py", mentions=("by_a_real_model",)
    ),
    "make": Run("dry"),
    "python": Run("here"),
    "pytest": Run("own"),
    "pip install": Run("own"),
    "prefect deploy": Run("live"),
    "prefect --no-prompt deploy": Run("live"),
    "prefect deployment run serve-instance/a100": Run(
        "elsewhere", test="tests/flows/test_serve_instance.py", mentions=("serve-instance/a100",)
    ),
    "prefect deployment run": Run("live"),
    "prefect work-pool create": Run("live"),
    "prefect worker start": Run("serving", expect="started"),
    "hexprefect eval": Run(
        "elsewhere", test="tests/commands/test_evaluate.py", mentions=('"eval"', '"--against"')
    ),
    "hexprefect eval-compare": Run(
        "elsewhere", test="tests/commands/test_evaluate.py", mentions=('"eval-compare"',)
    ),
    "git clone": _NEWCOMER,
    "cd": _NEWCOMER,
    "hexprefect mcp": Run(
        "elsewhere", test="tests/orchestration/test_mcp_server.py", mentions=('"mcp"', "--store")
    ),
    "vllm serve": Run(
        "elsewhere",
        test="tests/instances/test_vllm_server.py",
        mentions=('"--scheduling-policy", "priority"',),
    ),
}
"""What a command begins with → how it is run. The longest beginning that fits counts."""


def how(command: Command) -> Run | None:
    """How this command is run; None when nobody has said."""
    words = " ".join(command.words)
    fitting = [start for start in RUNS if f"{words} ".startswith(f"{start} ")]
    return RUNS[max(fitting, key=len)] if fitting else None


def unique(commands: list[Command], *where: Where) -> list[Command]:
    """Those that are run in one of these ways, once each, in the order of the docs."""
    seen: dict[tuple[str, ...], Command] = {}
    for command in commands:
        run = how(command)
        if run is not None and run.where in where:
            seen.setdefault(command.words, command)
    return list(seen.values())
