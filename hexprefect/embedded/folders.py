"""Where the embedded stack keeps its state."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hexprefect.errors import CallerMistake
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

    @contextmanager
    def of_one_stack(self) -> Iterator[None]:
        """For the time that a stack runs; the lock ends with the process that holds it.

        Two of them would share Prefect's database and the instances' names: the one that stops
        first would declare the instances of the other dead.

        Raises:
            CallerMistake: another stack runs in this folder.
        """
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / ".stack.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CallerMistake(
                    f"A stack is running in {self.state} already.",
                    remedy="Ask that one, stop it, or give this one a folder of its own: --state.",
                ) from error
            yield


def default_folders() -> Folders:
    """In the state folder of the settings."""
    return Folders(state_folder())
