"""`@llm_task`: a Prefect task whose body calls a language model through the shared queue."""

from __future__ import annotations

import hashlib
import inspect
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, cast, overload

from prefect import Task
from prefect.cache_policies import NO_CACHE

from hexprefect.completion import Prompt
from hexprefect.errors import HexprefectError
from hexprefect.orchestration.prefect_internals import hash_objects
from hexprefect.queue import QueuedRequest
from hexprefect.queue.query import fingerprint_of, size_of
from hexprefect.scheduling import RequestSize

P = ParamSpec("P")
R = TypeVar("R")

CHARACTERS_PER_TOKEN = 3.2

_current: ContextVar[QueuedRequest | None] = ContextVar("hexprefect-request", default=None)


class OutsideLlmTask(HexprefectError):
    """`current_request` was called where there is none."""


class LlmTask(Task[P, R]):
    """A task that waits for an instance before its body runs. Create it with `llm_task`."""

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        stage: str,
        input_tokens: Callable[[Mapping[str, Any]], int] | None = None,
        expected_output_tokens: float | None = None,
        **options: Any,
    ) -> None:
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise TypeError(f"LLM task {fn.__name__!r} is a generator: return its result instead.")
        # The store keeps results for restarts; Prefect keeps them too where it is asked to.
        if not (options.get("cache_key_fn") or options.get("result_storage_key")):
            options.setdefault("cache_policy", NO_CACHE)
        super().__init__(fn, **options)
        self.stage = stage
        self.input_tokens = input_tokens
        self.expected_output_tokens = expected_output_tokens

    def with_options(self, **options: Any) -> LlmTask[P, R]:
        """As Prefect's, with `stage`, `input_tokens` and `expected_output_tokens` besides."""
        own = {
            name: options.pop(name, getattr(self, name))
            for name in ("stage", "input_tokens", "expected_output_tokens")
        }
        if options.get("result_storage_key") and self.cache_policy == NO_CACHE:
            # With NO_CACHE, Prefect would ignore the key.
            options.setdefault("cache_policy", None)
        changed: Any = super().with_options(**options)
        # Prefect builds a plain `Task` whatever the class: it takes all options of its own version.
        changed.__class__ = type(self)
        for name, value in own.items():
            setattr(changed, name, value)
        return cast("LlmTask[P, R]", changed)

    def size(self, parameters: Mapping[str, Any]) -> RequestSize:
        """The request that a call with these (resolved) parameters is."""
        prompt = prompt_among(parameters)
        if prompt is not None:
            size = size_of(prompt)
            return RequestSize(
                input_tokens=size.input_tokens,
                output_tokens=self.expected_output_tokens or 0.0,
                prefix=size.prefix,
            )
        if self.input_tokens is not None:
            tokens = self.input_tokens(parameters)
        else:
            tokens = round(len(repr(sorted(parameters.items()))) / CHARACTERS_PER_TOKEN)
        return RequestSize(
            input_tokens=max(1, tokens), output_tokens=self.expected_output_tokens or 0.0
        )

    def fingerprint(self, parameters: Mapping[str, Any]) -> str:
        """The same for calls with the same parameters: finds a kept result after a restart.

        By content, as Prefect's own cache keys; parameters that cannot be hashed are like no other.
        """
        values = {
            name: fingerprint_of(value) if isinstance(value, Prompt) else value
            for name, value in sorted(parameters.items())
        }
        text = f"{self.task_key}:{self.name}:{hash_objects(values) or uuid.uuid4()}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def branch(self, parameters: Mapping[str, Any]) -> str | None:
        """The parallel chain of its query that the call is on, where its prompt tells."""
        prompt = prompt_among(parameters)
        return None if prompt is None else prompt.branch


@overload
def llm_task(fn: Callable[P, R], /, *, stage: str, **options: Any) -> LlmTask[P, R]: ...


@overload
def llm_task(
    *,
    stage: str,
    input_tokens: Callable[[Mapping[str, Any]], int] | None = None,
    expected_output_tokens: float | None = None,
    **options: Any,
) -> Callable[[Callable[P, R]], LlmTask[P, R]]: ...


def llm_task(fn: Callable[..., Any] | None = None, /, *, stage: str, **options: Any) -> Any:
    """Declare a task that calls a language model.

    In a flow with `HexgenTaskRunner`, a submitted call waits in the queue of the instance that it
    is dispatched to; its body runs when the instance takes it, and calls
    `await current_request().complete(prompt)`. It takes all options of `@task`, and:

    Args:
        stage: the kind of call, for example `judge`: predictions and budgets are kept per stage.
        input_tokens: counts the prompt's tokens from the parameters; not needed where one of them
            is a `Prompt`. By default their text is measured.
        expected_output_tokens: until finished requests of this stage tell better.

    Example:
        ```python
        @llm_task(stage="summary", retries=2)
        async def summarise(text: str) -> str:
            prompt = Prompt(stage="summary", messages=(Message("user", f"Summarise: {text}"),))
            return (await current_request().complete(prompt)).text


        @flow(task_runner=HexgenTaskRunner(slo_s=60))
        async def report(texts: list[str]):
            return [await future for future in summarise.map(texts)]
        ```
    """
    if fn is not None:
        return LlmTask(fn, stage=stage, **options)
    return lambda function: LlmTask(function, stage=stage, **options)


def prompt_among(parameters: Mapping[str, Any]) -> Prompt | None:
    """The one `Prompt` among a call's parameters, if there is exactly one."""
    prompts = [value for value in parameters.values() if isinstance(value, Prompt)]
    return prompts[0] if len(prompts) == 1 else None


def current_request() -> QueuedRequest:
    """The request of the LLM task that is running: where it runs, and `complete`.

    Raises:
        OutsideLlmTask: when no LLM task is running, or its flow has another task runner.
    """
    request = _current.get()
    if request is None:
        raise OutsideLlmTask(
            "There is no current request.",
            remedy="Call it in an @llm_task that was submitted in a flow with HexgenTaskRunner.",
        )
    return request


def set_current_request(request: QueuedRequest | None) -> None:
    """Used by the engine that runs the body."""
    _current.set(request)
