"""How much a vLLM server holds, as it tells itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from hexprefect.instances.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Capacity:
    """Limits of one server; None where it does not tell."""

    context_tokens: int | None = None
    """Longest prompt and answer together, in tokens."""
    kv_tokens: int | None = None
    """Tokens that fit into its KV memory, all requests together."""


async def read_capacity(endpoint: Endpoint, *, timeout_s: float = 5.0) -> Capacity:
    """Ask a server that runs. What it does not tell, or not in time, stays unknown."""
    async with httpx.AsyncClient(
        headers=endpoint.headers(), timeout=timeout_s, trust_env=False
    ) as http:
        try:
            models = (await http.get(endpoint.route("/v1/models"))).json()
            context_tokens = _context_tokens(models, endpoint.model)
        except (httpx.HTTPError, ValueError):
            context_tokens = None
        try:
            kv_tokens = _kv_tokens((await http.get(endpoint.route("/metrics"))).text)
        except (httpx.HTTPError, ValueError):
            kv_tokens = None
    return Capacity(context_tokens, kv_tokens)


def _context_tokens(models: Any, name: str) -> int | None:
    cards = models.get("data") if isinstance(models, dict) else None
    for card in cards if isinstance(cards, list) else ():
        length = card.get("max_model_len") if isinstance(card, dict) else None
        if isinstance(length, int) and card.get("id") == name:
            return length
    return None


def _kv_tokens(metrics: str) -> int | None:
    """Blocks times their size, from the labels of `vllm:cache_config_info`, engines summed."""
    tokens = 0
    for family in text_string_to_metric_families(metrics):
        if family.name != "vllm:cache_config_info":
            continue
        for sample in family.samples:
            blocks, size = (
                sample.labels.get(label, "") for label in ("num_gpu_blocks", "block_size")
            )
            if blocks.isdigit() and size.isdigit():
                tokens += int(blocks) * int(size)
    return tokens or None
