"""The API page is what the docstrings say now, and every public name has one."""

from __future__ import annotations

import importlib
import inspect

import pytest

from docs import write_api
from tests.docs.commands_in_docs import REPOSITORY


def test_the_page_is_current() -> None:
    written = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
    assert written == write_api.page(), "the page is not what the source says: run `make api`"


@pytest.mark.parametrize("module", write_api.MODULES)
def test_every_public_name_is_documented(module: str) -> None:
    loaded = importlib.import_module(module)
    things = {name: getattr(loaded, name) for name in loaded.__all__}
    functions = {name: thing for name, thing in things.items() if inspect.isroutine(thing)}
    assert [name for name, thing in functions.items() if not inspect.getdoc(thing)] == []


def test_the_sections_of_a_docstring_become_lists() -> None:
    arguments = "Args:\n    one: what it\n        means.\n    two: more."
    said = f"One thing.\n\n{arguments}\n\nRaises:\n    E: then."
    assert write_api.sections(said).split("\n") == [
        "One thing.", "", "**Args:**", "", "- `one`: what it means.", "- `two`: more.", "",
        "**Raises:**", "", "- `E`: then.", "",
    ]  # fmt: skip


def test_annotations_are_written_without_quotation_marks_and_defaults_with_theirs() -> None:
    def shown(a: int, *, b: str = "x") -> str:
        return b * a

    assert write_api.wrapped("shown", shown) == "shown(a: int, *, b: str = 'x') -> str"
