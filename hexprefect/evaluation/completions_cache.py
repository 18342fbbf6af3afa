"""Completions on disk: a run in which one stage changed pays for that stage only."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from hexprefect.completion import Complete, Completion, Prompt

_MARK = "from_cache"
_FIELDS = {item.name for item in fields(Completion)}


class CachedCompletions:
    """Completes prompts from a folder, and by `complete` what is not there yet.

    A completion from the folder tells the tokens and seconds that it cost when it was made. Several
    processes may share a folder.

    Args:
        complete: serves what is not in the folder.
        folder: made when it is missing.
        model: names the model that `complete` asks; its completions are of no other.
    """

    def __init__(self, complete: Complete, folder: Path, model: str) -> None:
        self.complete = complete
        self.folder = folder
        self.model = model
        self.hits = 0
        self.misses = 0

    async def __call__(self, prompt: Prompt) -> Completion:
        """Serve a call.

        Raises:
            As `complete`; a failure is not kept.
        """
        path = self._path(prompt)
        known = await asyncio.to_thread(_read, path)
        if known is not None:
            self.hits += 1
            return known
        completion = await self.complete(prompt)
        self.misses += 1
        await asyncio.to_thread(_write, path, completion)
        return completion

    def _path(self, prompt: Prompt) -> Path:
        asked = {
            "model": self.model,
            "messages": [[item.role, item.content] for item in prompt.messages],
            "max_output_tokens": prompt.max_output_tokens,
            "temperature": prompt.temperature,
            "seed": prompt.seed,
            "response_format": prompt.response_format,
        }
        text = json.dumps(asked, sort_keys=True, ensure_ascii=False)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return self.folder / digest[:2] / f"{digest[2:40]}.json"


def is_from_cache(completion: Completion) -> bool:
    """Whether a completion was read from a folder and cost nothing now."""
    return bool(completion.extra.get(_MARK))


def _read(path: Path) -> Completion | None:
    """None when it is not there, or was not written whole."""
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        kept["extra"] = {**kept.get("extra", {}), _MARK: True}
        return Completion(**{name: value for name, value in kept.items() if name in _FIELDS})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _write(path: Path, completion: Completion) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{uuid.uuid4().hex}.tmp")
    unfinished.write_text(
        json.dumps(asdict(completion), ensure_ascii=False, default=str), encoding="utf-8"
    )
    unfinished.replace(path)
