"""API keys come from Prefect's Secret blocks or the environment, and reach only the instance."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from prefect import flow
from prefect.blocks.system import Secret

from hexprefect.errors import HexprefectError
from hexprefect.orchestration.llm_task import current_request, llm_task
from hexprefect.orchestration.secrets import resolve_secret
from hexprefect.orchestration.task_runner import HexgenTaskRunner
from tests.orchestration.bench import Fleet, SeenByPrefect, prompt_of


@llm_task(stage="ask")
async def ask(text: str) -> str:
    return (await current_request().complete(prompt_of(text))).text


async def test_an_instances_key_is_read_from_its_block(
    fleet: Fleet, seen_by_prefect: SeenByPrefect
) -> None:
    name = f"gpu-key-{uuid4().hex[:8]}"
    await Secret(value="sk-from-block").save(name)  # type: ignore[misc]
    instance = fleet.add("a", api_key_block=name)

    @flow(task_runner=HexgenTaskRunner())
    async def asking() -> Any:
        return await ask.submit("x")

    assert await asking() == "echo x"
    assert instance.keys == ["Bearer sk-from-block"]
    assert b"sk-from-block" not in fleet.dump()


async def test_a_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_KEY", "sk-env")
    secret = await resolve_secret("env:GPU_KEY")
    assert secret.get_secret_value() == "sk-env"
    assert "sk-env" not in repr(secret)


async def test_a_missing_key_is_named_with_the_remedy(
    fleet: Fleet, seen_by_prefect: SeenByPrefect
) -> None:
    fleet.add("a", api_key_block="lost-key")

    @flow(task_runner=HexgenTaskRunner())
    async def asking() -> None:
        await ask.submit("x")

    with pytest.raises(HexprefectError, match=r"'lost-key' cannot be loaded.*type Secret"):
        await asking()
    with pytest.raises(HexprefectError, match="env:NOWHERE"):
        await resolve_secret("env:NOWHERE")
    assert (fleet.occupied(), fleet.violations()) == (0, [])
