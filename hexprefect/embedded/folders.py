"""Where the embedded stack keeps its state."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Folders:
    """The state of one embedded stack. Deleting it loses its history and nothing else."""

    state: Path

    @property
    def prefect_home(self) -> Path:
        """Prefect's database and profiles."""
        return self.state / "prefect"

    @property
    def logs(self) -> Path:
        """One log a process."""
        return self.state / "logs"

    @property
    def store_url(self) -> str:
        """Of the store."""
        return f"sqlite:///{self.state / 'store.sqlite'}"


def default_folders() -> Folders:
    """`HEXPREFECT_STATE`, or a folder in the user's state folder."""
    given = os.environ.get("HEXPREFECT_STATE")
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return Folders(Path(given).absolute() if given else home / "hexprefect")
