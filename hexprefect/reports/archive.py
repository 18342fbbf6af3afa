"""The nights of a report, in a folder: documents, results, kept SQL, and who has got what.

    <root>/<report>/pins.json
    <root>/<report>/2026-11-30/report.html, report.md, outcome.json, results/<item>.csv …

Files are replaced whole. One run of a night at a time holds its lock.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hexprefect.errors import CallerMistake
from hexprefect.reports.outcome import ItemOutcome, ReportOutcome
from hexprefect.reports.pinning import Pin

OUTCOME = "outcome.json"
DOCUMENT = "report.html"


class NightIsRunning(CallerMistake):
    """Another run of the same report and night is at work."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Of one report.

    Args:
        folder: of the report; made when something is written.
    """

    folder: Path

    @classmethod
    def of(cls, root: str | Path, name: str) -> Archive:
        """The archive of the report of this name."""
        return cls(Path(root).absolute() / name)

    def night(self, date: datetime.date) -> NightFolder:
        """The folder of one night."""
        return NightFolder(self.folder / date.isoformat())

    def dates(self) -> list[datetime.date]:
        """The nights that have an outcome, oldest first."""
        found = []
        for outcome in self.folder.glob(f"*/{OUTCOME}"):
            with contextlib.suppress(ValueError):
                found.append(datetime.date.fromisoformat(outcome.parent.name))
        return sorted(found)

    def before(self, date: datetime.date) -> ReportOutcome | None:
        """The newest outcome of an earlier night."""
        earlier = [known for known in self.dates() if known < date]
        return self.night(earlier[-1]).outcome() if earlier else None

    def pins(self) -> dict[str, Pin]:
        """The kept SQL by the items' keys."""
        known = _read(self.folder / "pins.json") or {}
        return {key: Pin.from_record(record) for key, record in known.items()}

    def keep_pins(self, pins: Mapping[str, Pin]) -> None:
        """Replace the kept SQL."""
        _write(self.folder / "pins.json", {key: pin.as_record() for key, pin in pins.items()})


@dataclass(frozen=True, slots=True)
class NightFolder:
    """One night of a report."""

    folder: Path

    @property
    def document(self) -> Path:
        """The HTML file."""
        return self.folder / DOCUMENT

    @contextlib.contextmanager
    def locked(self, lock: str = ".lock") -> Iterator[None]:
        """For the time of one run; the lock ends with the process that holds it.

        Args:
            lock: the lock's file: one for running the night, another for sending what it brought.

        Raises:
            NightIsRunning: another run holds it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / lock).open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise NightIsRunning(
                    f"The night {self.folder.name} of this report is being run already.",
                    remedy="Wait for that run; running a night again is safe afterwards.",
                ) from error
            yield

    def outcome(self) -> ReportOutcome | None:
        """What an earlier run of the night brought."""
        record = _read(self.folder / OUTCOME)
        return None if record is None else ReportOutcome.from_record(record)

    def keep_outcome(self, outcome: ReportOutcome) -> None:
        """Replace it; what was kept of single items is no longer needed then."""
        _write(self.folder / OUTCOME, outcome.as_record())
        for file in (self.folder / "items").glob("*.json"):
            file.unlink(missing_ok=True)

    def kept_items(self) -> dict[str, ItemOutcome]:
        """Items that runs of this night have answered, also one that was killed half-way."""
        known = self.outcome()
        items = {} if known is None else {item.key: item for item in known.items}
        for file in sorted((self.folder / "items").glob("*.json")):
            record = _read(file)
            if record is not None:
                items[file.stem] = ItemOutcome.from_record(record)
        return items

    def keep_item(self, outcome: ItemOutcome) -> None:
        """Keep one item as it ends."""
        _write(self.folder / "items" / f"{outcome.key}.json", outcome.as_record())

    def write(self, name: str, content: bytes) -> Path:
        """Replace one file of the night, for example `results/orders.csv`."""
        path = self.folder / name
        _replace(path, content)
        return path

    def remove_results(self, keep: set[Path]) -> None:
        """Remove results of an earlier run that this one does not have."""
        for file in (self.folder / "results").glob("*"):
            if file not in keep:
                file.unlink(missing_ok=True)

    def delivered(self) -> dict[str, str]:
        """Digest of the document that each recipient has got."""
        return _read(self.folder / "delivered.json") or {}

    def keep_delivered(self, recipient: str, digest: str) -> None:
        """Note that a recipient has got the document of this digest."""
        _write(self.folder / "delivered.json", {**self.delivered(), recipient: digest})


def _read(path: Path) -> Any:
    """A file's JSON; None when there is none, or what is there is not whole."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def _write(path: Path, value: Any) -> None:
    _replace(path, json.dumps(value, indent=1).encode())


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    number, partial = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
