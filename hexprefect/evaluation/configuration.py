"""All that the answers of a run and their verdicts depend on, so that two runs are not mixed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from hexprefect.evaluation.execution import ExecutionLimits

RECORD_VERSION = 2
"""Raised when verdicts or records change their meaning: then no run of before is gone on with."""


DATABASES = "databases"
"""Where the fingerprints of the databases stand: those of questions that are added are added."""


def configuration(
    *,
    questions: Path,
    databases: Mapping[str, str],
    source: Mapping[str, Any],
    limits: ExecutionLimits,
) -> dict[str, Any]:
    """What must be the same for a run to be gone on with.

    Which questions of the file were chosen is not in it: a run may be widened.

    Args:
        questions: the file of questions.
        databases: fingerprints of the databases of the questions that are asked.
        source: of the answers.
        limits: of the statements that are compared.
    """
    return {
        "version": RECORD_VERSION,
        "questions": digest_of(questions),
        DATABASES: dict(databases),
        "source": dict(source),
        "limits": asdict(limits),
    }


def digest_of(path: Path) -> str:
    """Of a file's bytes, short."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def agent_fingerprint() -> str:
    """Of the agent's code and prompts, the guard's and the engines' code with it."""
    digest = hashlib.sha256()
    for name, content in sorted(_sources(resources.files("hexprefect.text2sql"))):
        digest.update(f"{name}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _sources(folder: Traversable, above: str = "") -> list[tuple[str, bytes]]:
    found = []
    for entry in folder.iterdir():
        name = f"{above}/{entry.name}"
        if entry.is_dir():
            found += _sources(entry, name)
        elif name.endswith((".py", ".md")):
            found.append((name, entry.read_bytes()))
    return found
