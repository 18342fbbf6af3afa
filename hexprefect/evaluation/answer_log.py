"""The folder of a run: every finished question one line, so that a second run goes on."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hexprefect.errors import CallerMistake
from hexprefect.evaluation.configuration import DATABASES
from hexprefect.evaluation.records import QuestionRecord

ANSWERS = "answers.jsonl"
CONFIGURATION = "configuration.json"


class AnswerLog:
    """The records of a run in `answers.jsonl`, appended and flushed as questions finish.

    Args:
        folder: made when it is missing; None keeps the records in memory only.
        configuration: all that an answer or its verdict depends on.

    Raises:
        CallerMistake: the folder holds a run with another configuration, or what is no record.
    """

    def __init__(self, folder: Path | None, configuration: Mapping[str, Any]) -> None:
        self.folder = folder
        self.records: dict[str, QuestionRecord] = {}
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CallerMistake(
                f"The folder {folder} cannot be made: {error.strerror}.", remedy="Name another."
            ) from error
        _check_configuration(folder, json.loads(json.dumps(configuration, default=str)))
        self.records, torn = _read(folder / ANSWERS)
        if torn:
            # A process was ended while it wrote this line: its question is asked again.
            with (folder / ANSWERS).open("r+b") as file:
                file.truncate(file.seek(0, io.SEEK_END) - len(torn))

    def keep(self, record: QuestionRecord) -> None:
        """Append one record; a last line whose end is missing is ended first."""
        self.records[record.id] = record
        if self.folder is None:
            return
        with (self.folder / ANSWERS).open("a+b") as file:
            end = file.seek(0, io.SEEK_END)
            is_open = False
            if end:
                file.seek(end - 1)
                is_open = file.read(1) != b"\n"
            line = record.model_dump_json(exclude_defaults=True).encode()
            file.write((b"\n" if is_open else b"") + line + b"\n")
            file.flush()


def read_run(folder: Path) -> tuple[dict[str, QuestionRecord], dict[str, Any]]:
    """The records of a run by the ids of their questions, and its configuration.

    Raises:
        CallerMistake: there is no run in this folder, or what is no record.
    """
    records, _ = _read(folder / ANSWERS)
    if not records:
        raise CallerMistake(
            f"{folder} holds no evaluation.", remedy="Name the folder that --out was given."
        )
    try:
        configuration: dict[str, Any] = json.loads((folder / CONFIGURATION).read_text("utf-8"))
    except (OSError, ValueError):
        configuration = {}
    return records, configuration


def _check_configuration(folder: Path, configuration: dict[str, Any]) -> None:
    path = folder / CONFIGURATION
    try:
        known = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if (folder / ANSWERS).exists():
            raise CallerMistake(
                f"{folder} holds answers without their {CONFIGURATION}.",
                remedy="Choose another folder with --out.",
            ) from None
        _write(path, configuration)
        return
    except ValueError:
        known = None
    if not isinstance(known, dict):
        raise _other_run(f"{folder} holds a run with another configuration: all of it changed.")
    if known.get("version") != configuration.get("version"):
        raise _other_run(
            f"{folder} holds a run whose records are of version {known.get('version')}, and this "
            f"is version {configuration.get('version')}: they are not judged alike."
        )
    theirs, ours = known.get(DATABASES) or {}, configuration.get(DATABASES) or {}
    # A run that is widened may come to databases that it has not asked before.
    before = {**known, DATABASES: {**ours, **theirs}}
    now = {**configuration, DATABASES: {**theirs, **ours}}
    if names := _differing(before, now):
        raise _other_run(
            f"{folder} holds a run with another configuration: {', '.join(names)} changed."
        )
    if set(ours) - set(theirs):
        _write(path, now)


def _other_run(problem: str) -> CallerMistake:
    return CallerMistake(
        problem,
        remedy="Choose another folder with --out, or remove this one to begin anew. "
        "With --completions-cache the calls that stay the same cost nothing again.",
    )


def _write(path: Path, configuration: Mapping[str, Any]) -> None:
    """As a whole or not at all: half of one would be another run's."""
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(configuration, indent=2) + "\n", "utf-8")
    unfinished.replace(path)


def _differing(known: Mapping[str, Any], wanted: Mapping[str, Any], above: str = "") -> list[str]:
    found = []
    for name in sorted(set(known) | set(wanted)):
        old, new = known.get(name), wanted.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _differing(old, new, f"{above}{name}.")
        elif old != new:
            found.append(f"{above}{name}")
    return found


def _read(path: Path) -> tuple[dict[str, QuestionRecord], bytes]:
    """The records of a file, and what stands behind them of a line that was never finished.

    Raises:
        CallerMistake: a line is no record; it is named.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}, b""
    # Parted as bytes: a text has line breaks of its own, and a line may end within a character.
    *lines, last = content.split(b"\n")
    if last and not _is_json(last):
        torn = last
    else:
        lines, torn = [*lines, last], b""
    records = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = QuestionRecord.model_validate_json(line)
        except ValidationError as error:
            raise CallerMistake(
                f"{path}, line {number}, is no record of this version: {error.errors()[0]['msg']}.",
                remedy="Choose another folder with --out, or remove the line to have its question "
                "asked again.",
            ) from error
        records[record.id] = record
    return records, torn


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
