"""`hexprefect instances` and `hexprefect tenants`: who serves, and who asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table
from sqlalchemy import make_url

from hexprefect.commands.output import Json, StoreUrl, errors_for_people, out, print_json
from hexprefect.commands.store import existing, store_faults, url_of
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.profiles import default_profile
from hexprefect.store import InstanceSpec, InstanceView, Store
from hexprefect.store import fleet as move_fleet
from hexprefect.store import queries as move_queries
from hexprefect.store.opening import open_current
from hexprefect.store.values import InstanceState
from hexprefect.store.views import instance_views, tenant_records
from hexprefect.urls import holds_secret, shown_url

instances = typer.Typer(no_args_is_help=True, help="The model instances that serve requests.")
tenants = typer.Typer(no_args_is_help=True, help="Whose queries they are.")

Name = Annotated[str, typer.Argument(help="Name of the instance.")]


@contextmanager
def open_store(given: str | None, *, as_json: bool) -> Iterator[Store]:
    """The store of a command."""
    with errors_for_people(as_json=as_json), store_faults(url := url_of(given)):
        store = open_current(existing(url))
        try:
            yield store
        finally:
            store.close()


@instances.command("list")
def list_instances(store: StoreUrl = None, as_json: Json = False) -> None:
    """Show every instance: its state, what runs and waits there, and how much work that is."""
    with open_store(store, as_json=as_json) as opened:
        views = opened.read(instance_views)
    if as_json:
        print_json({"instances": [_record(view) for view in views.values()]})
        return
    table = Table(
        *("instance", "pool", "state", "running", "waiting", "backlog", "others", "model", "reason")
    )
    for view in views.values():
        capacity = view.spec.admission_depth or view.spec.slots
        table.add_row(
            view.spec.name,
            view.spec.pool,
            view.state,
            f"{view.occupied}/{capacity}",
            str(view.waiting),
            f"{view.backlog_s:.1f} s",
            str(view.foreign_running + view.foreign_waiting or ""),
            view.spec.model,
            view.reason or "",
        )
    out.print(table if views else "No instances. Add one with `hexprefect instances add`.")


@instances.command("add")
def add_instance(
    name: Name,
    url: Annotated[str, typer.Option(help="Base URL of an OpenAI-compatible server.")],
    model: Annotated[str, typer.Option(help="The model's name as the server knows it.")] = "",
    profile: Annotated[str, typer.Option(help="Hardware profile, for example a100.")] = "a100",
    slots: Annotated[int, typer.Option(min=1, help="Requests the server runs at once.")] = 1,
    depth: Annotated[
        int | None, typer.Option(min=1, help="Requests given to it at once; the slots by default.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens one request may have, input and output.")
    ] = None,
    speaks: Annotated[str, typer.Option(help="vllm, llama.cpp or openai.")] = "openai",
    api_key: Annotated[
        str | None, typer.Option(help="Name of a Prefect Secret block, or env:VARIABLE.")
    ] = None,
    learn_profile: Annotated[
        bool,
        typer.Option(
            "--learn-profile/--no-learn-profile", help="Correct the profile by what finishes."
        ),
    ] = True,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Enter a running server as an instance, or change the description of one."""
    with open_store(store, as_json=as_json) as opened:
        endpoint = Endpoint(name=name, url=url, model=model)
        spec = InstanceSpec(
            name=name,
            url=endpoint.url,
            model=model,
            profile=default_profile(profile),
            slots=slots,
            admission_depth=depth,
            context_tokens=context,
            speaks=_dialect(speaks),
            api_key_block=api_key,
            learn_profile=learn_profile,
        )
        changed = opened.transact(lambda tx: move_fleet.enter_instance(tx, spec))
    _say(as_json, instance=name, changed=changed, message="entered" if changed else "unchanged")


@instances.command("drain")
def drain_instance(name: Name, store: StoreUrl = None, as_json: Json = False) -> None:
    """Give an instance no new requests; its queue moves to the others, what runs there ends."""
    _set_state(name, "draining", store, as_json)


@instances.command("resume")
def resume_instance(name: Name, store: StoreUrl = None, as_json: Json = False) -> None:
    """Let a drained, suspect or dead instance serve again."""
    _set_state(name, "alive", store, as_json)


@instances.command("remove")
def remove_instance(name: Name, store: StoreUrl = None, as_json: Json = False) -> None:
    """Forget an instance that never served a request; drain one that has."""
    with open_store(store, as_json=as_json) as opened:
        removed = opened.transact(lambda tx: move_fleet.remove_instance(tx, name))
    message = "removed" if removed else "drains; it has served requests and is kept for history"
    _say(as_json, instance=name, removed=removed, message=message)


@tenants.command("list")
def list_tenants(store: StoreUrl = None, as_json: Json = False) -> None:
    """Show every tenant."""
    with open_store(store, as_json=as_json) as opened:
        records = opened.read(tenant_records)
    if as_json:
        print_json({"tenants": records})
        return
    table = Table("tenant", "enabled", "default SLO")
    for record in records:
        slo = record["default_slo_s"]
        table.add_row(
            record["name"], "yes" if record["enabled"] else "no", f"{slo:.0f} s" if slo else ""
        )
    out.print(table)


@tenants.command("add")
def add_tenant(
    name: Annotated[str, typer.Argument(help="Name of the tenant.")],
    slo: Annotated[float | None, typer.Option(help="Default SLO in seconds.")] = None,
    enabled: Annotated[bool, typer.Option("--enabled/--disabled")] = True,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Enter a tenant, or change its settings."""
    with open_store(store, as_json=as_json) as opened:
        if slo is not None:
            move_queries.check_slo(slo)
        opened.transact(
            lambda tx: move_queries.add_tenant(tx, name, default_slo_s=slo, enabled=enabled)
        )
    _say(as_json, tenant=name, message="entered")


def _set_state(name: str, state: InstanceState, store: str | None, as_json: bool) -> None:
    with open_store(store, as_json=as_json) as opened:
        opened.transact(
            lambda tx: move_fleet.set_instance_state(tx, name, state, reason="by an operator")
        )
    _say(as_json, instance=name, state=state, message=f"is {state}")


def _say(as_json: bool, *, message: str, **record: Any) -> None:
    if as_json:
        print_json({**record, "message": message})
    else:
        out.print(f"{next(iter(record.values()))}: {message}.")


def _dialect(speaks: str) -> Any:
    if speaks not in ("vllm", "llama.cpp", "openai"):
        raise typer.BadParameter(f"{speaks!r} is not one of vllm, llama.cpp, openai")
    return speaks


def _record(view: InstanceView) -> dict[str, Any]:
    record = asdict(view)
    record["held_prefixes"] = len(view.held_prefixes)
    spec, url = record.pop("spec"), make_url(view.spec.url)
    if holds_secret(url):
        spec["url"] = shown_url(url)
    return {**spec, **record}
