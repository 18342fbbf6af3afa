"""A report file read and checked: every mistake with its line and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hexprefect.errors import CallerMistake
from hexprefect.reports.file import Chart, ColumnCheck, Expectation, Item, Recipient, Report, slug
from hexprefect.reports.parameters import find_mistakes

Place = tuple[str | int, ...]

_MOST_PROBLEMS = 20
_FIELDS: Mapping[str, tuple[type[BaseModel], ...]] = {
    "items": (Item,),
    "expect": (Expectation,),
    "checks": (ColumnCheck,),
    "chart": (Chart,),
    "recipients": (Recipient,),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a report file."""

    line: int | None
    """Counted from 1; None where the whole file is meant."""
    place: str
    """For example `items.2.chart.kind`, items counted from 1."""
    problem: str
    remedy: str

    def __str__(self) -> str:
        where = f"line {self.line}, " if self.line is not None else ""
        return f"{where}{self.place}: {self.problem} {self.remedy}".rstrip()


class ReportMistake(CallerMistake):
    """A report file that cannot be used.

    Args:
        file: as it was given.
        problems: every mistake that was found, in the order of the file.
    """

    def __init__(self, file: str, problems: tuple[Problem, ...]) -> None:
        lines = "".join(f"\n- {problem}" for problem in problems[:_MOST_PROBLEMS])
        super().__init__(f"The report {file} cannot be used:{lines}")
        self.file = file
        self.problems = problems


def read_report(path: str | Path) -> Report:
    """Read and check a report file.

    Returns:
        The report; its `name` is the file's where the file gives none.

    Raises:
        ReportMistake: it is missing, not YAML, or says something that makes no sense.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise _mistake(file, None, f"It cannot be read: {why}.", "Check its path.") from error
    content, lines = _load(file, text)
    if not isinstance(content, dict):
        raise _mistake(
            file, 1, "It is not a mapping.", "Begin with `title:`, `database:` and `items:`."
        )
    try:
        report = Report.model_validate(content)
    except ValidationError as error:
        problems = _problems(error.errors(), lines)
        raise ReportMistake(str(file), _in_order(problems)) from error
    problems = [
        Problem(_line_of(place, lines), _shown(place), problem, remedy)
        for place, problem, remedy in find_mistakes(report)
    ]
    if problems:
        raise ReportMistake(str(file), _in_order(problems))
    if report.name is None:
        report = report.model_copy(update={"name": slug(file.stem)})
    return report


def _load(file: Path, text: str) -> tuple[Any, dict[Place, int]]:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, {}
        lines = dict(_lines(file, node, (), ()))
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        problem = f"It is not YAML: {error.problem or error.context}."
        raise _mistake(file, line, problem, _yaml_remedy(text, mark)) from error
    except yaml.YAMLError as error:
        raise _mistake(file, None, f"It is not YAML: {error}.", "Check its characters.") from error
    except RecursionError as error:
        raise _mistake(file, None, "It is nested too deeply.", "Flatten it.") from error
    except (ValueError, ArithmeticError) as error:
        # Of a number or a date: YAML makes them of what looks like one.
        problem = f"It holds something that looks like a date or a number and is none: {error}."
        raise _mistake(file, None, problem, "Put quotes around it, or correct it.") from error
    finally:
        loader.dispose()


def _yaml_remedy(text: str, mark: Any) -> str:
    line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
    if "{{" in line:
        return 'A value that begins with {{ must stand in quotes: "{{ yesterday }}".'
    if "\t" in line:
        return "Indent with spaces: YAML allows no tabs."
    return "Check indentation, quotes and colons there; a text with `: ` in it needs quotes."


def _lines(
    file: Path, node: yaml.Node, place: Place, above: tuple[int, ...]
) -> Iterator[tuple[Place, int]]:
    """The line of every value, by its place; keys that stand twice and cycles are refused."""
    if id(node) in above:
        raise _mistake(file, node.start_mark.line + 1, "It contains itself.", "Remove the alias.")
    above = (*above, id(node))
    yield place, node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        for index, entry in enumerate(node.value):
            yield from _lines(file, entry, (*place, index), above)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in seen:
                problem = f"{name!r} stands here and in line {seen[name]}."
                raise _mistake(file, line, problem, "Keep one of them.")
            seen[name] = line
            yield from _lines(file, value, (*place, name), above)
            yield (*place, name), line


def _problems(entries: list[ErrorDetails], lines: Mapping[Place, int]) -> list[Problem]:
    """Of what pydantic says; a name that was misspelt is not missing besides, and a list of which
    an entry is wrong is not too short."""
    misspelt = {
        (*entry["loc"][:-1], near)
        for entry in entries
        if entry["type"] == "extra_forbidden" and (near := _near(entry["loc"]))
    }
    return [
        _problem(entry, lines)
        for entry in entries
        if (entry["type"] != "missing" or entry["loc"] not in misspelt)
        and (entry["type"] != "too_short" or not _has_wrong_entries(entry, entries))
    ]


def _has_wrong_entries(entry: ErrorDetails, entries: list[ErrorDetails]) -> bool:
    place = entry["loc"]
    return any(other["loc"][: len(place)] == place != other["loc"] for other in entries)


def _problem(entry: ErrorDetails, lines: Mapping[Place, int]) -> Problem:
    place = tuple(entry["loc"])
    name = str(place[-1]) if place else ""
    match entry["type"]:
        case "missing":
            return Problem(
                _line_of(place[:-1], lines),
                _shown(place),
                f"{name!r} is missing.",
                f"Add `{name}: …`.",
            )
        case "too_short":
            return Problem(
                _line_of(place, lines), _shown(place), f"{name!r} is empty.", "Give it an entry."
            )
        case "extra_forbidden":
            near = _near(place)
            known = ", ".join(_known_fields(place))
            remedy = f"Did you mean {near!r}?" if near else f"Known here: {known}."
            return Problem(
                _line_of(place, lines), _shown(place), f"{name!r} is not known here.", remedy
            )
        case "string_pattern_mismatch":
            problem = f"{entry['input']!r} is not of the form that is wanted."
            return Problem(_line_of(place, lines), _shown(place), problem, _form_of(place))
    said = entry["msg"].removeprefix("Value error, ")
    problem, _, remedy = said.partition(": ")
    given = entry["input"]
    if entry["type"] != "value_error" and isinstance(given, str | int | float):
        problem = f"{problem} (it is {given!r})"
    return Problem(
        _line_of(place, lines),
        _shown(place),
        f"{problem[:1].upper()}{problem[1:]}.",
        f"{remedy[:1].upper()}{remedy[1:]}." if remedy else "",
    )


def _form_of(place: Place) -> str:
    match place[-1]:
        case "ready_by":
            return 'Write a time of day, for example "06:00".'
        case "block":
            return "Write TYPE/NAME of a notification block, for example slack-webhook/shop-team."
        case "name":
            return "Use small letters, digits, - and _."
    return "Names of parameters have small letters, digits and _."


def _near(place: Place) -> str | None:
    """The known name that a name was probably meant to be."""
    found = difflib.get_close_matches(str(place[-1]), tuple(_known_fields(place)), n=1)
    return found[0] if found else None


def _known_fields(place: Place) -> Iterator[str]:
    inside = next((part for part in reversed(place[:-1]) if part in _FIELDS), None)
    if "rows" in place[:-1]:
        yield from ("min", "max")
        return
    models = _FIELDS[inside] if isinstance(inside, str) else (Report,)
    for model in models:
        yield from model.model_fields


def _line_of(place: Place, lines: Mapping[Place, int]) -> int | None:
    """Of the place, or of the nearest thing around it: unions add parts of their own to a place."""
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place)


def _shown(place: Place) -> str:
    names = [str(part + 1) if isinstance(part, int) else part for part in place]
    return ".".join(names) or "file"


def _in_order(problems: list[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(problems, key=lambda problem: problem.line or 0))


def _mistake(file: Path, line: int | None, problem: str, remedy: str) -> ReportMistake:
    return ReportMistake(str(file), (Problem(line, "file", problem, remedy),))
