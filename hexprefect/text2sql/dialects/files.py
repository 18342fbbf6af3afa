"""The state of a database that is a file."""

from __future__ import annotations

from pathlib import Path


def file_state(path: Path) -> str:
    """Changes whenever a file is written or another takes its place; empty without the file."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return ""
    return f"{state.st_ino}:{state.st_size}:{state.st_mtime_ns}"


def file_identity(path: Path) -> str:
    """Changes when another file takes the place of one, not when it is written; empty without."""
    try:
        state = path.stat()
    except OSError:
        return ""
    return f"{state.st_dev}:{state.st_ino}"
