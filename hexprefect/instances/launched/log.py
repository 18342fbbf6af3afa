"""What a server's log says: its last lines, and how far a start has come."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

LAST_LINES = 20
_TAIL_BYTES = 64 * 1024
_LINE_LIMIT = 400

_SHARDS = re.compile(r"Loading .*checkpoint shards:\s+(\d+)% Completed")
_CAPTURE = re.compile(r"Capturing .*?(\d+)%")
_MILESTONES: tuple[tuple[re.Pattern[str], float, str], ...] = (
    (re.compile(r"Initializing a V1 LLM engine|Resolved architecture"), 0.05, "reading the model"),
    (re.compile(r"Starting to load model|Loading weights from"), 0.1, "loading the weights"),
    (re.compile(r"Loading weights took|Model loading took"), 0.6, "weights are loaded"),
    (re.compile(r"torch\.compile takes|Compiling a graph"), 0.65, "compiling"),
    (re.compile(r"KV cache size|# (?:GPU|CPU) blocks"), 0.75, "memory is reserved"),
    (re.compile(r"init engine .*took"), 0.9, "the engine is warm"),
    (re.compile(r"Starting vLLM (?:API )?server|Started server process"), 0.95, "opening its port"),
)


@dataclass(frozen=True, slots=True)
class StartProgress:
    """How far a start has come.

    Args:
        elapsed_s: seconds since the process was started.
        fraction: 0 to 1, from what the log has said so far; it does not go back.
        doing: in words.
        last_line: the log's last line.
    """

    elapsed_s: float
    fraction: float
    doing: str
    last_line: str


def start_progress(log: str, *, elapsed_s: float) -> StartProgress:
    """Read the log of a server that is starting. What it does not know it passes over."""
    fraction, doing = 0.0, "starting"
    for line in log.splitlines():
        for pattern, reached, words in _MILESTONES:
            if reached > fraction and pattern.search(line):
                fraction, doing = reached, words
        for pattern, start, end, words in (
            (_SHARDS, 0.1, 0.6, "loading the weights"),
            (_CAPTURE, 0.75, 0.9, "capturing graphs"),
        ):
            if found := pattern.search(line):
                reached = start + (end - start) * min(100, int(found.group(1))) / 100
                if reached > fraction:
                    fraction, doing = reached, f"{words}, {found.group(1)} %"
    last = last_lines(log, 1)
    return StartProgress(elapsed_s, fraction, doing, last)


def last_lines(log: str, number: int = LAST_LINES) -> str:
    """The last lines that say something. Of a progress bar, only its last state."""
    lines = (line.rstrip().rpartition("\r")[2] for line in log.split("\n"))
    said = [line[:_LINE_LIMIT] for line in lines if line.strip()]
    return "\n".join(said[-number:])


def read_tail(path: Path) -> str:
    """The end of a log file; empty where there is none."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - _TAIL_BYTES))
            return log.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
