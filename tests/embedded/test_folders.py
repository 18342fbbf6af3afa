"""One folder is the state of one stack at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexprefect.embedded.folders import Folders
from hexprefect.embedded.stack import embedded_stack
from hexprefect.errors import CallerMistake


async def test_a_second_stack_in_the_same_folder_is_refused_before_it_starts_anything(
    tmp_path: Path,
) -> None:
    folders = Folders(tmp_path / "state")
    told: list[str] = []
    with folders.of_one_stack():
        with pytest.raises(CallerMistake, match=r"running in .* already"):
            async with embedded_stack(folders, model="1.5B", tell=told.append):
                pass
        with Folders(tmp_path / "another").of_one_stack():
            pass
    assert told == []
    with folders.of_one_stack():
        pass
