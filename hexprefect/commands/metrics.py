"""`hexprefect metrics`: the fleet's figures for Prometheus."""

from __future__ import annotations

import threading
from dataclasses import asdict
from importlib.resources import files
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from rich.table import Table

from hexprefect.commands.fleet import open_store
from hexprefect.commands.output import Json, StoreUrl, err, out, print_json
from hexprefect.errors import CallerMistake
from hexprefect.observability.metrics import METRICS, FleetMetrics


def metrics_command(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where /metrics is served; 0 takes a free port.")
    ] = 9464,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for other machines.")
    ] = "127.0.0.1",
    once: Annotated[
        bool, typer.Option("--once", help="Print the figures once, and serve nothing.")
    ] = False,
    names: Annotated[
        bool, typer.Option("--names", help="List every metric and what it means.")
    ] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Print the Grafana dashboard, to be imported there.")
    ] = False,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Serve the fleet's figures for Prometheus until Ctrl-C.

    One exporter for a store is enough: it reads what all processes have written, at each scrape.
    """
    if dashboard:
        typer.echo(dashboard_json(), nl=False)
        return
    if names:
        _list_names(as_json=as_json)
        return
    with open_store(store, as_json=as_json) as opened:
        registry = CollectorRegistry()
        FleetMetrics(opened, registry)
        if once:
            _print_once(registry, as_json=as_json)
            return
        try:
            server, thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise CallerMistake(
                f"Nothing can be served at {host}, port {port}: {error.strerror}.",
                remedy="Choose another with --host or --port; port 0 takes a free one.",
            ) from error
        err.print(
            f"http://{host}:{server.server_port}/metrics   Ctrl-C ends it.",
            highlight=False,
            soft_wrap=True,
        )
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            err.print("Interrupted.")
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def dashboard_json() -> str:
    """The dashboard that is shipped."""
    source = files("hexprefect.observability").joinpath("grafana.json")
    return source.read_text(encoding="utf-8")


def _print_once(registry: CollectorRegistry, *, as_json: bool) -> None:
    if not as_json:
        typer.echo(generate_latest(registry).decode(), nl=False)
        return
    samples = [
        {"name": sample.name, "labels": sample.labels, "value": sample.value}
        for family in registry.collect()
        for sample in family.samples
    ]
    print_json({"samples": samples})


def _list_names(*, as_json: bool) -> None:
    if as_json:
        print_json({"metrics": [asdict(metric) for metric in METRICS]})
        return
    table = Table("metric", "kind", "labels", "meaning")
    for metric in METRICS:
        table.add_row(metric.name, metric.kind, ", ".join(metric.labels), metric.meaning)
    out.print(table)
