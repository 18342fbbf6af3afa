"""Where the answers of `hexprefect eval` come from, as its options say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from hexprefect.commands.evaluate_stack import Stack
from hexprefect.completion import Complete
from hexprefect.embedded.in_process import configured_api_url
from hexprefect.errors import CallerMistake
from hexprefect.evaluation.completions_cache import CachedCompletions
from hexprefect.evaluation.configuration import agent_fingerprint, digest_of
from hexprefect.evaluation.instances_client import LeastBusy, endpoints_at
from hexprefect.evaluation.predictions import read_predictions
from hexprefect.evaluation.questions import GoldQuestion
from hexprefect.evaluation.sources import Agent, AnswerSource, Predictions
from hexprefect.instances.client import InstanceClient
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.local_model import ensure_model_async, find_model
from hexprefect.instances.local_server import LocalServer
from hexprefect.settings import settings
from hexprefect.store import Store, StoreUnavailable
from hexprefect.store.views import instance_views
from hexprefect.text2sql import AgentOptions
from hexprefect.urls import shown_url

_CONTEXT_TOKENS = 8192
"""Of a local server, a request: the schema's budget, the question and the answer fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the command line says of the source; exactly one of the first four is given.

    Raises:
        CallerMistake: none is given, or several are.
    """

    predictions: Path | None = None
    instances: tuple[str, ...] = ()
    """URLs of servers of one model."""
    model: str | None = None
    """Name of a local model."""
    stack: bool = False
    agent: AgentOptions
    model_name: str | None = None
    """Of the servers, where they offer several."""
    threads: int = 1
    """Of the local model's server."""
    at_once: int = 1
    """Requests that it serves at the same time."""
    cache: Path | None = None
    """Folder of completions."""
    call_timeout_s: float = 600.0
    store: str | None = None
    """Of the stack, as the next two."""
    tenant: str = "default"
    slo_s: float | None = None

    def __post_init__(self) -> None:
        given = {
            "--predictions": self.predictions is not None,
            "--instance": bool(self.instances),
            "--model": self.model is not None,
            "--stack": self.stack,
        }
        named = [name for name, is_given in given.items() if is_given]
        if len(named) != 1:
            raise CallerMistake(
                f"Answers come from {' and '.join(named) or 'nowhere'}.",
                remedy=f"Give exactly one of {', '.join(given)}.",
            )


def agent_options(given: Sequence[str]) -> AgentOptions:
    """Options of the agent, written `name=value`.

    Raises:
        CallerMistake: there is no such option, or its value is out of range.
    """
    known = [item.name for item in fields(AgentOptions)]
    values: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or name not in known:
            raise CallerMistake(
                f"The agent has no option {text!r}.",
                remedy=f"Write name=value with one of: {', '.join(known)}.",
            )
        values[name] = value
    try:
        return TypeAdapter(AgentOptions).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CallerMistake(f"The agent's option {where}: {first['msg']}.") from error


@asynccontextmanager
async def open_source(
    options: SourceOptions, questions: Sequence[GoldQuestion]
) -> AsyncIterator[tuple[AnswerSource, dict[str, Any]]]:
    """What answers, and all that its answers depend on; what it started ends with the context.

    Args:
        options: which source.
        questions: all of the file, which a file of predictions may count.

    Raises:
        CallerMistake: the predictions cannot be read, no Prefect server is configured, or the
            servers do not agree on a model, or the store of the stack cannot be read.
        ModelUnavailable, InstanceStartFailed: of the local model.
    """
    if options.predictions is not None:
        statements = read_predictions(options.predictions, questions)
        described: dict[str, Any] = {
            "predictions": digest_of(options.predictions),
            "guard": agent_fingerprint(),
        }
        yield Predictions(statements), described
    elif options.stack:
        if configured_api_url() is None:
            raise CallerMistake(
                "No Prefect server is configured.",
                remedy="Set PREFECT_API_URL, or run the agent here with --instance or --model.",
            )
        stack = Stack(store_url=options.store, tenant=options.tenant, slo_s=options.slo_s)
        asked = {"tenant": options.tenant, "slo_s": options.slo_s}
        described = {
            "stack": {**asked, "models": await _models_of(options.store)},
            "agent": agent_fingerprint(),
        }
        yield stack, described
    else:
        async with _agent(options) as (agent, model):
            described = {
                "model": model,
                "options": asdict(options.agent),
                "agent": agent_fingerprint(),
            }
            yield agent, described


async def _models_of(store_url: str | None) -> list[str]:
    """The models of a stack's instances, whatever state each is in now."""
    url = store_url or settings().store.get_secret_value()
    store = Store(url)
    try:
        views = await store.read_async(instance_views)
    except (SQLAlchemyError, StoreUnavailable) as error:
        shown = shown_url(make_url(url))
        raise CallerMistake(
            f"The store {shown} cannot be read: {type(error).__name__}.",
            remedy="Name that of the deployment with --store.",
        ) from error
    finally:
        store.close()
    return sorted({view.spec.model for view in views.values()})


@asynccontextmanager
async def _agent(options: SourceOptions) -> AsyncIterator[tuple[Agent, str]]:
    """The agent, and the name of its model."""
    async with InstanceClient() as client, _endpoints(client, options) as endpoints:
        name = endpoints[0].model
        complete: Complete = LeastBusy(client, endpoints, timeout_s=options.call_timeout_s)
        if options.cache is not None:
            complete = CachedCompletions(complete, options.cache, name)
        async with Agent(complete, options.agent) as agent:
            yield agent, name


@asynccontextmanager
async def _endpoints(
    client: InstanceClient, options: SourceOptions
) -> AsyncIterator[tuple[Endpoint, ...]]:
    if options.model is None:
        yield await endpoints_at(client, options.instances, model=options.model_name)
        return
    model = find_model(options.model)
    server = LocalServer(
        "local",
        await ensure_model_async(model),
        threads=options.threads,
        slots=options.at_once,
        context_tokens=_CONTEXT_TOKENS,
        model_name=model.model_name,
    )
    async with server as endpoint:
        yield (endpoint,)
