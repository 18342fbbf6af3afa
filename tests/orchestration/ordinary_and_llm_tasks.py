"""Small tasks of every kind, for the tests of the task runner."""

from __future__ import annotations

from typing import Any

from prefect import task

from hexprefect.orchestration.llm_task import (
    current_request,
    llm_task,
)
from tests.orchestration.bench import prompt_of


@task
async def double(number: int) -> int:
    return 2 * number


@task
def double_in_thread(number: int) -> int:
    return 2 * number


@llm_task(stage="ask")
async def ask(text: object) -> str:
    return (await current_request().complete(prompt_of(str(text)))).text


@llm_task(stage="ask")
def ask_in_thread(text: object) -> str:
    return current_request().complete_blocking(prompt_of(str(text))).text


@task
async def fail(text: str) -> str:
    raise LookupError(text)


@llm_task(stage="ask")
async def fail_on_instance(text: str) -> str:
    await current_request().complete(prompt_of(text))
    raise LookupError(text)


@task
async def pass_on(value: Any, *, other: Any = None) -> Any:
    return value
