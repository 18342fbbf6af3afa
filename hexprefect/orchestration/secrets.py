"""API keys of instances, from Prefect's Secret blocks or from the environment."""

from __future__ import annotations

from typing import Any

from prefect.blocks.system import Secret
from pydantic import SecretStr

from hexprefect.errors import HexprefectError
from hexprefect.queue.values import environment_secret


async def resolve_secret(name: str) -> SecretStr:
    """The secret that an instance's `api_key_block` names.

    Args:
        name: of a Prefect Secret block, or `env:VARIABLE`.

    Raises:
        HexprefectError: when there is none; the message names it and never shows a value.
    """
    if name.startswith("env:"):
        return await environment_secret(name)
    try:
        block: Any = await Secret.aload(name)
    except ValueError as error:
        raise HexprefectError(
            f"The API key block {name!r} cannot be loaded.",
            remedy="Create it in Prefect under Blocks, type Secret.",
        ) from error
    value = block.get()
    return value if isinstance(value, SecretStr) else SecretStr(str(value))
