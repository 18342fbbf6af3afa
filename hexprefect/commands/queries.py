"""`hexprefect queries`: what was asked, what came of it, and why it went where it went."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from hexprefect.commands.fleet import open_store
from hexprefect.commands.output import Json, StoreUrl, out, print_json
from hexprefect.store.views import decisions_of, query_record, recent_queries, stage_records

app = typer.Typer(no_args_is_help=True, help="What was asked, and what came of it.")


@app.command("list")
def list_queries(
    most: Annotated[
        int, typer.Option("--most", "-n", min=1, max=100_000, help="How many, newest first.")
    ] = 20,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Show the newest queries."""
    with open_store(store, as_json=as_json) as opened:
        records = opened.read(lambda connection: recent_queries(connection, most=most))
    if as_json:
        print_json({"queries": records})
        return
    table = Table("query", "arrived", "state", "time", "SLO", "tenant", "database", "question")
    for record in records:
        ended = record["ended_at"]
        table.add_row(
            record["id"],
            datetime.fromtimestamp(record["arrived_at"]).strftime("%d %b %H:%M:%S"),
            record["state"],
            f"{ended - record['arrived_at']:.1f} s" if ended else "",
            f"{record['slo_s']:.0f} s",
            record["tenant"],
            record["database"],
            (record["question"] or "")[:60],
        )
    out.print(table if records else "No queries yet.")


@app.command("show")
def show_query(
    query: Annotated[str, typer.Argument(help="Id of the query, which is its flow run's id.")],
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Show one query: its answer, where each LLM call ran, and the scores behind each dispatch.

    Under `weighed` is what dispatch took for the cost of the call on an instance: its duration
    there, `t_comp`, and the delays that it causes and suffers beside those that run there. In JSON
    each of the `scores` is a list: instance, weighed, t_queue (both in seconds), score.
    """
    with open_store(store, as_json=as_json) as opened:
        record = opened.read(lambda connection: query_record(connection, query))
        decisions = opened.read(lambda connection: decisions_of(connection, query))
    if as_json:
        print_json(_as_json(record, decisions))
        return
    print_answer(record.get("answer") or _bare(record))
    table = Table("stage", "why", "instance", "weighed", "t_queue", "score", title="Decisions")
    for decision in decisions:
        chosen = decision["record"]
        for score in chosen.scores:
            mark = "→ " if score.instance == chosen.instance else "  "
            table.add_row(
                decision["stage"],
                decision["why"],
                mark + score.instance,
                f"{score.completion_s:.3f} s",
                f"{score.queue_delay_s:.3f} s",
                f"{score.score:.4f}",
            )
    out.print(table)


def print_answer(record: dict[str, Any]) -> None:
    """An answer record, for people."""
    out.print(Text(record["question"] or "", "bold"), soft_wrap=True)
    if record["sql"]:
        out.print(Syntax(record["sql"], "sql", word_wrap=True, background_color="default"))
    if record["error"]:
        _print_after("No answer:", "red", record["error"])
    elif record["columns"]:
        out.print(_rows_table(record))
    if record["stages"]:
        out.print(_stages_table(record))
    if record["elapsed_s"] is not None and record["slo_s"] is not None:
        met = ("met", "green") if record["met_slo"] else ("missed", "red")
        took = f"{record['elapsed_s']:.1f} s of {record['slo_s']:.0f} s: SLO "
        out.print(Text.assemble(took, met, "."))
    for warning in record["warnings"]:
        _print_after("Warning:", "yellow", warning)
    for dropped in record["dropped_work"]:
        _print_after("Dropped:", "yellow", dropped)


def _print_after(word: str, style: str, text: str) -> None:
    out.print(Text.assemble((word, style), f" {text}"), soft_wrap=True)


def _rows_table(record: dict[str, Any], most: int = 50) -> Table:
    count = len(record["rows"])
    more = count > most or record["truncated"]
    caption = f"the first {min(count, most)} rows" if more else None
    table = Table(*(str(column) for column in record["columns"]), caption=caption)
    for row in record["rows"][:most]:
        table.add_row(*("NULL" if value is None else str(value) for value in row))
    return table


def _stages_table(record: dict[str, Any]) -> Table:
    table = Table(
        "stage",
        "branch",
        "instance",
        "waited",
        "ran",
        "tokens in",
        "out",
        "attempt",
        title="Stages",
    )
    for stage in record["stages"]:
        table.add_row(
            stage["stage"],
            stage["branch"] or "",
            stage["instance"] or "",
            _seconds(stage["waited_s"]),
            _seconds(stage["ran_s"]),
            str(stage["input_tokens"] or ""),
            str(stage["output_tokens"] or ""),
            str(stage["attempt"]),
        )
    return table


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def _bare(record: dict[str, Any]) -> dict[str, Any]:
    """A query that has no answer record: it runs, was lost, or is somebody else's flow."""
    ended = record["ended_at"]
    return {
        "question": record["question"],
        "sql": record["sql"],
        "error": record["reason"],
        "columns": [],
        "rows": [],
        "truncated": False,
        "stages": stage_records(record),
        "elapsed_s": ended - record["arrived_at"] if ended else None,
        "slo_s": record["slo_s"],
        "met_slo": bool(ended and ended <= record["deadline"] and record["state"] == "answered"),
        "warnings": [],
        "dropped_work": record["dropped_work"],
    }


def _as_json(record: dict[str, Any], decisions: list[dict[str, Any]]) -> dict[str, Any]:
    shown = {key: value for key, value in record.items() if key != "requests"}
    return {
        **shown,
        "stages": stage_records(record),
        "decisions": [
            {**decision, "record": decision["record"].as_record()} for decision in decisions
        ],
    }
