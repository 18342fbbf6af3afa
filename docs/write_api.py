"""Write docs/api.md from the docstrings of the public names: `make api`."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "api.md"

MODULES = {
    "hexprefect": "The scheduler in flows of your own.",
    "hexprefect.blocks": "Block types.",
    "hexprefect.queue": "The queue without Prefect.",
    "hexprefect.text2sql": "The agent, given something that completes a prompt.",
    "hexprefect.store": "The store: what is read and moved, and the laws.",
    "hexprefect.scheduling": "The decisions, as pure functions.",
    "hexprefect.simulator": "Traces in, reports out.",
}
"""Module → what it is for. Its public names are those of its `__all__`."""

FLOWS = (
    "text2sql.ask",
    "ask_many.ask_many",
    "sql_report.sql_report",
    "fleet_report.fleet_report",
    "tune_alpha.tune_alpha",
    "tune_alpha.watch_alpha",
    "learn_profiles.learn_profiles",
    "serve_instance.serve_instance",
)

SECTIONS = "Args|Returns|Raises|Yields|Attributes|Example|Examples"

HEAD = """\
# API

Every public name, from its docstring. `make api` writes this page; a test holds it to the source.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for module, purpose in MODULES.items():
        parts.append(f"## {module}\n\n{purpose}\n")
        loaded = importlib.import_module(module)
        for name in sorted(loaded.__all__, key=str.lower):
            parts.extend(entry(name, getattr(loaded, name)))
    parts.append("## Flows\n\nOf `hexprefect.flows`; each is deployed by `prefect.yaml`.\n")
    for flow in FLOWS:
        module, name = flow.split(".")
        loaded = importlib.import_module(f"hexprefect.flows.{module}")
        parts.extend(entry(flow, getattr(loaded, name).fn))
    text = "\n".join(parts)
    # One empty line between paragraphs; examples keep theirs.
    outside = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    outside[::2] = [re.sub(r"\n{3,}", "\n\n", part) for part in outside[::2]]
    return "".join(outside).rstrip() + "\n"


def entry(name: str, thing: Any) -> Iterator[str]:
    """A name: its signature where it has one of its own, its docstring, its public methods."""
    yield f"### {name}\n"
    if callable(thing):
        yield f"```text\n{wrapped(name.split('.')[-1], thing)}\n```\n"
    yield documented(thing)
    if inspect.isclass(thing):
        for method, function in methods(thing):
            yield f"- `{method}{signature(function, without_self=True)}`: {summary(function)}"
        yield ""


def methods(thing: type[Any]) -> Iterator[tuple[str, Any]]:
    """Public methods that the class itself defines and documents, by name."""
    for name, member in sorted(vars(thing).items()):
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield name, function


def wrapped(name: str, thing: Any) -> str:
    """The signature on one line, or a parameter a line."""
    line = name + signature(thing)
    if len(line) <= 100:
        return line
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return line
    lines = []
    starred = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            lines.append("*")
        starred = starred or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        lines.append(plain(str(parameter)))
    inside = "".join(f"    {written},\n" for written in lines)
    returned = line.rpartition(" -> ")[1:] if ") -> " in line else ("", "")
    return f"{name}(\n{inside}){''.join(returned)}"


def signature(thing: Any, *, without_self: bool = False) -> str:
    """As it is written, without quotation marks around annotations."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    if without_self:
        kept = [p for name, p in found.parameters.items() if name not in ("self", "cls")]
        found = found.replace(parameters=kept)
    return plain(str(found))


def plain(text: str) -> str:
    """Without quotation marks, addresses and the modules of annotations."""
    text = re.sub(r"<(?:function|class|object) ?([^>]*?)(?: at 0x[0-9a-f]+)?>", r"\1", text)
    text = re.sub(r"\b(?:[a-z_0-9]+\.)+(?=[A-Z])", "", text)
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def documented(thing: Any) -> str:
    """The docstring; a value that has none of its own says what it is."""
    if not (inspect.isclass(thing) or callable(thing)):
        return f"A {type(thing).__name__}.\n"
    text = inspect.getdoc(thing) or ""
    if inspect.isclass(thing) and not (vars(thing).get("__doc__") or "").strip():
        text = ""
    if inspect.isclass(thing) and text.startswith(f"{thing.__name__}("):
        text = ""
    return sections(text) + "\n"


def sections(text: str) -> str:
    """Google's sections as lists, the rest as it is."""
    lines = []
    for block in re.split(rf"\n(?=(?:{SECTIONS}):\n)", text):
        head, _, rest = block.partition("\n")
        if re.fullmatch(r"(Args|Raises|Attributes):", head):
            items = re.split(r"\n(?=\S)", textwrap.dedent(rest).strip())
            split = (item.partition(":") for item in items)
            listed = [f"- `{name}`: {' '.join(said.split())}\n" for name, _, said in split]
            lines.append(f"**{head}**\n\n" + "".join(listed))
        elif re.fullmatch(r"\w+:", head):
            lines.append(f"**{head}**\n\n{textwrap.dedent(rest).strip()}\n")
        else:
            lines.append(block.rstrip() + "\n")
    return "\n".join(lines)


def summary(function: Any) -> str:
    """The first sentence of a docstring."""
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
