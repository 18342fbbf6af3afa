"""Where the embedded stack keeps its state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hexprefect.settings import state_folder


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
    """In the state folder of the settings."""
    return Folders(state_folder())
