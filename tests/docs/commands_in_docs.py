"""The commands that the docs tell people to type, read out of the pages.

Commands stand in fenced blocks (`sh`, `bash`, `console`, or no language where the line begins with
a program we know) and in the prose, between backticks. Lines may be continued with a backslash, end
in a comment, set variables in front, and send their output to a file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

PROGRAMS = frozenset({"hexprefect", "prefect", "make", "pytest", "pip", "python", "vllm"})
"""What a block without a language, or a span between backticks, must begin with to be a command."""

SHELL_LANGUAGES = frozenset({"sh", "bash", "console"})

_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_ASSIGNMENT = re.compile(r"^[A-Z_]+=")


@dataclass(frozen=True, slots=True)
class Command:
    """One command of one page.

    Attributes:
        page: the file, from the repository's root.
        line: its first line there, from 1.
        text: as it stands there, on one line if it fits one.
        fenced: whether it stands in a block; a span in the prose may name a command without all of
            its arguments.
    """

    page: str
    line: int
    text: str
    fenced: bool

    @property
    def words(self) -> tuple[str, ...]:
        """Program and arguments, without comment, variables in front, and redirection."""
        words = shlex.split(self.text, comments=True)
        while words and _ASSIGNMENT.match(words[0]):
            words.pop(0)
        if ">" in words:
            words = words[: words.index(">")]
        # What stands in square brackets is an option that may be left out; it must exist, too.
        words = [re.sub(r"^\[(-.*)\]$", r"\1", word) for word in words]
        # A single letter stands for a number.
        words = [re.sub(r"^[A-Z]$", "4096", word) for word in words]
        return (Path(words[0]).name, *words[1:]) if words else ()

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def pages() -> list[Path]:
    """Every page that people read."""
    top = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md")]
    return [*top, *sorted((REPOSITORY / "docs").rglob("*.md"))]


def commands_of(page: Path) -> list[Command]:
    """Every command of a page, in its order."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(REPOSITORY).as_posix()

    def line_of(position: int) -> int:
        return text.count("\n", 0, position) + 1

    found: list[Command] = []
    for fence in _FENCE.finditer(text):
        for offset, command in _statements(fence[2]):
            if fence[1] in SHELL_LANGUAGES or (not fence[1] and _first_word(command) in PROGRAMS):
                found.append(Command(name, line_of(fence.start(2)) + offset, command, True))
    prose = _FENCE.sub(lambda fence: re.sub(r"[^\n]", " ", fence[0]), text)
    for span in _SPAN.finditer(prose):
        command = " ".join(span[1].split())
        if " " in command and _first_word(command) in PROGRAMS:
            found.append(Command(name, line_of(span.start()), command, False))
    return sorted(found, key=lambda command: command.line)


def all_commands() -> list[Command]:
    """Every command of every page."""
    return [command for page in pages() for command in commands_of(page)]


def _first_word(command: str) -> str:
    words = command.split()
    while words and _ASSIGNMENT.match(words[0]):
        words.pop(0)
    return Path(words[0]).name if words else ""


def _statements(block: str) -> Iterator[tuple[int, str]]:
    """The commands of a block with their line in it: a backslash and an open quote go on."""
    pending, start = "", 0
    for number, raw in enumerate(block.splitlines()):
        if not pending:
            if not raw.strip() or raw.strip().startswith("#"):
                continue
            start = number
        pending += raw.strip().removeprefix("$ ") if not pending else raw
        if pending.endswith("\\"):
            pending = pending[:-1].rstrip()
            continue
        try:
            shlex.split(pending, comments=True)
        except ValueError:  # A quotation that goes on.
            pending += "\n"
            continue
        yield start, pending
        pending = ""
    if pending:
        yield start, pending
