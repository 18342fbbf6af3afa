"""Parse a command of the docs by the program's own command line, without running it.

Each function raises `Mistyped` with what the program would say.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Sequence
from typing import Any

import typer.main
import yaml

from tests.docs.commands_in_docs import REPOSITORY, Command


class Mistyped(Exception):
    """A command of the docs that the program does not take."""


def parse(command: Command) -> None:
    """By the program that it names.

    Raises:
        Mistyped: also for a program that nobody has said how to parse.
    """
    program, *arguments = command.words
    if program not in _PARSERS:
        raise Mistyped(f"{program} is no program that the docs may name: parsing.py knows none")
    _PARSERS[program](arguments, command.fenced)


def _hexprefect(arguments: Sequence[str], complete: bool) -> None:
    from hexprefect.cli import app

    command: Any = typer.main.get_command(app)
    context: Any = None
    rest = list(arguments)
    names = ["hexprefect"]
    while hasattr(command, "commands"):
        if not rest:
            if complete:
                raise Mistyped(f"{' '.join(names)}: which command?")
            return
        name = rest.pop(0)
        if name not in command.commands:
            raise Mistyped(f"{' '.join(names)} has no command {name!r}")
        command = command.commands[name]
        names.append(name)
    if names[-1] == "emulate":
        _emulate(rest)
        return
    if not complete and not rest:
        return
    try:
        context = command.make_context(" ".join(names), rest)
    except Exception as error:
        if not complete and type(error).__name__ == "MissingParameter":
            return
        message = getattr(error, "message", None) or str(error)
        raise Mistyped(f"{' '.join(names)}: {message}") from error
    finally:
        if context is not None:
            context.close()


def _emulate(arguments: Sequence[str]) -> None:
    from hexprefect.instances.emulator.__main__ import emulator_parser

    parser = emulator_parser("hexprefect emulate")
    # What `commands/emulate.py` adds; its own test holds these two.
    parser.add_argument("--no-pools", action="store_true")
    parser.add_argument("--store")
    try:
        parser.parse_args(arguments)
    except SystemExit as ended:
        if ended.code:
            raise Mistyped(f"hexprefect emulate {' '.join(arguments)}") from None


def _prefect(arguments: Sequence[str], complete: bool) -> None:
    import cyclopts
    from prefect.cli._app import _app

    rest = [word for word in arguments if word not in ("--no-prompt", "--prompt")]
    try:
        function, bound, *_ = _app.parse_args(rest, exit_on_error=False, print_error=False)
    except cyclopts.MissingArgumentError:
        if complete:
            raise Mistyped(f"prefect {' '.join(rest)}: an argument is missing") from None
        return
    except cyclopts.CycloptsError as error:
        if not complete and "requires an argument" in str(error):
            return
        raise Mistyped(f"prefect {' '.join(rest)}: {error}") from error
    if rest[:2] == ["deployment", "run"] and function.__name__ == "run":
        _deployment_run(bound.arguments["name"], bound.arguments.get("params") or [])


def _deployment_run(name: str, parameters: Sequence[str]) -> None:
    """The deployment is one of ours, and its flow has these parameters."""
    from prefect.utilities.importtools import import_object

    deployments = {}
    for file in ("prefect.yaml", "prefect.fleet.yaml"):
        for deployment in yaml.safe_load((REPOSITORY / file).read_text())["deployments"]:
            module, function = deployment["entrypoint"].split(".py:")
            flow = import_object(f"hexprefect.{module.replace('/', '.')}.{function}")
            deployments[f"{flow.name}/{deployment['name']}"] = flow
    if name not in deployments:
        raise Mistyped(f"there is no deployment {name}, but {', '.join(sorted(deployments))}")
    known = deployments[name].parameters.properties
    for parameter in parameters:
        key, equals, _ = parameter.partition("=")
        if not equals or key not in known:
            raise Mistyped(f"{name} has no parameter {key!r}, but {', '.join(known)}")


def _make(arguments: Sequence[str], complete: bool) -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    variables = set(re.findall(r"\$[({]([A-Z]+)[)},]", makefile)) | set(
        re.findall(r"\$\(if \$\(([A-Z]+)\)", makefile)
    )
    wanted = [word for word in arguments if "=" not in word]
    for word in arguments:
        name, equals, _ = word.partition("=")
        if equals and name not in variables:
            raise Mistyped(f"the Makefile has no variable {name}")
    for target in wanted:
        if target not in targets:
            raise Mistyped(f"the Makefile has no target {target!r}")
    if complete and not wanted:
        raise Mistyped("make what?")


def _pytest(arguments: Sequence[str], complete: bool) -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    markers = {line.split(":")[0] for line in settings["tool"]["pytest"]["ini_options"]["markers"]}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in ("-s", "-q", "-x"):
            continue
        if word == "-m":
            named = set(re.findall(r"\w+", rest.pop(0))) - {"not", "and", "or"}
            if named - markers:
                raise Mistyped(f"there is no marker {named - markers}")
        elif word == "-k":
            rest.pop(0)
        elif word.startswith("-") or not (REPOSITORY / word.split("::")[0]).exists():
            raise Mistyped(f"pytest: there is no {word}")


def _pip(arguments: Sequence[str], complete: bool) -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    if not arguments or arguments[0] != "install":
        raise Mistyped("of pip, the docs need install alone")
    for package in arguments[1:]:
        extras = re.fullmatch(r"hexprefect\[([\w,]+)\]", package)
        if extras is None:
            raise Mistyped(f"pip install {package}: only extras of hexprefect")
        missing = set(extras[1].split(",")) - set(settings["project"]["optional-dependencies"])
        if missing:
            raise Mistyped(f"there is no extra {missing}")


def _python(arguments: Sequence[str], complete: bool) -> None:
    if arguments[0] == "-c":
        ast.parse(arguments[1])
    elif not (REPOSITORY / arguments[0]).is_file():
        raise Mistyped(f"there is no {arguments[0]}")


def _vllm(arguments: Sequence[str], complete: bool) -> None:
    """By the options that a launched server is started with, which were checked with real vLLM."""
    source = (REPOSITORY / "hexprefect/instances/launched/command.py").read_text(encoding="utf-8")
    for word in arguments:
        if word.startswith("--") and f'"{word}"' not in source:
            raise Mistyped(f"vllm serve {word} is no option that our launched servers use")


def _git(arguments: Sequence[str], complete: bool) -> None:
    if not arguments or arguments[0] != "clone" or len(arguments) != 3:
        raise Mistyped("of git, the docs need clone ADDRESS FOLDER alone")


def _cd(arguments: Sequence[str], complete: bool) -> None:
    if len(arguments) != 1:
        raise Mistyped("cd where?")


_PARSERS: dict[str, Callable[[Sequence[str], bool], None]] = {
    "hexprefect": _hexprefect,
    "prefect": _prefect,
    "make": _make,
    "pytest": _pytest,
    "pip": _pip,
    "python": _python,
    "vllm": _vllm,
    "git": _git,
    "cd": _cd,
}
