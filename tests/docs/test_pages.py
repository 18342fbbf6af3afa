"""What the pages point to is there: files, pictures, sections, and every page from the README."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.commands_in_docs import REPOSITORY, pages

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_REFERENCE = re.compile(r"^\[([^\]]+)\]: (\S+)$", re.MULTILINE)
_USED_REFERENCE = re.compile(r"\]\[([^\]]+)\]")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_FILE_IN_PROSE = re.compile(r"`((?:tests|hexprefect|flows|docs)/[\w/.-]+\.\w+)`")


def prose(page: Path) -> str:
    return _CODE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> Iterator[str]:
    """As the usual renderers make them of headings."""
    for heading in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_link_to_a_file_of_ours_leads_somewhere(page: Path) -> None:
    text = prose(page)
    targets = [*_LINK.findall(text), *(target for _, target in _REFERENCE.findall(text))]
    missing = []
    for target in targets:
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        if not found.exists() or (anchor and anchor not in set(anchors(found))):
            missing.append(target)
    assert missing == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_file_of_ours_that_is_named_is_there(page: Path) -> None:
    named = _FILE_IN_PROSE.findall(page.read_text(encoding="utf-8"))
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


def test_every_page_is_in_the_readmes_list() -> None:
    listed = set(_LINK.findall((REPOSITORY / "README.md").read_text(encoding="utf-8")))
    top = {f"docs/{page.name}" for page in pages() if page.parent.name == "docs"}
    assert sorted(top - listed) == []


def test_the_comparison_defines_every_address_that_it_uses_and_uses_each() -> None:
    text = prose(REPOSITORY / "docs" / "compared.md")
    defined = {name for name, _ in _REFERENCE.findall(text)}
    used = set(_USED_REFERENCE.findall(text))
    assert used == defined


def test_every_row_of_the_comparison_says_something_of_everybody() -> None:
    tables = re.findall(
        r"((?:^\|.*\|\n)+)",
        (REPOSITORY / "docs" / "compared.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(tables) == 3
    for table in tables:
        head, _, *rows = [line.strip("|").split(" | ") for line in table.splitlines()]
        for row in rows:
            assert len(row) == len(head), row
            assert all(cell.strip() for cell in row), row


def test_what_we_claim_to_do_is_linked_to_a_test() -> None:
    """A cell of ours either says that we do not, or what we are, or links to what shows it."""
    without = []
    for line in (REPOSITORY / "docs" / "compared.md").read_text(encoding="utf-8").splitlines():
        cells = line.strip("|").split(" | ")
        if len(cells) < 4 or set(line) <= set("|- ") or cells[1].strip() == "hexprefect":
            continue
        ours = cells[1].strip()
        if "](../tests/" not in ours and not ours.startswith("no") and ours != SPREADS:
            without.append(ours)
    assert without == []


SPREADS = "LLM calls over model servers; other tasks run in the process"
