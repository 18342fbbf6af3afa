"""The bodies of answers, field for field as vLLM 0.32 writes them."""

from __future__ import annotations

import time
from collections.abc import Sequence as Several
from typing import Any

from hexprefect.instances.emulator.blocks import BLOCK_TOKENS
from hexprefect.instances.emulator.content import Answer
from hexprefect.instances.emulator.engine import Sequence
from hexprefect.instances.emulator.instance import Timing
from hexprefect.instances.emulator.protocol import Generation

VLLM_VERSION = "0.32.0"
"""The version whose behaviour is emulated."""

FINGERPRINT = f"vllm-{VLLM_VERSION}-emulated"

Generated = tuple[Answer, Timing, Sequence]


def whole(
    generation: Generation, request_id: str, model: str, generated: Several[Generated]
) -> dict[str, Any]:
    """A whole answer, with one choice for each sequence that was generated."""
    sequences = [sequence for _, _, sequence in generated]
    choices = [_choice(generation, index, one[0]) for index, one in enumerate(generated)]
    # Times are of one sequence: vLLM tells none where there are several.
    metrics = None if len(generated) > 1 else timing_fields(*generated[0][1:])
    if metrics is not None:
        metrics["speculative_decoding"] = None
    body = {
        "id": request_id,
        "object": "chat.completion" if generation.chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": {
            **usage(generation, sequences),
            "prompt_tokens_details": {
                "created_cache_tokens": None,
                **_cache(generation, sequences[0]),
                "multimodal_tokens": None,
            },
            "completion_tokens_details": None,
        },
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": metrics,
    }
    if generation.chat:
        body |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
    return body


def _choice(generation: Generation, index: int, answer: Answer) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "logprobs": None,
        "finish_reason": answer.finish_reason,
        "stop_reason": None,
        "token_ids": None,
        "routed_experts": None,
    }
    if generation.chat:
        absent = ("refusal", "annotations", "audio", "function_call", "reasoning")
        message = {"role": "assistant", "content": answer.text, **dict.fromkeys(absent)}
        return {**choice, "message": message}
    return {**choice, "text": answer.text, "prompt_logprobs": None, "prompt_token_ids": None}


def opening_event(generation: Generation, request_id: str, model: str) -> dict[str, Any]:
    """The first event of a streamed chat, which says who speaks."""
    choice = {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    event = _event(generation, request_id, model, [choice])
    return {**event, "prompt_token_ids": None, "prompt_text": None}


def text_event(
    generation: Generation, request_id: str, model: str, text: str, finish_reason: str | None
) -> dict[str, Any]:
    """A piece of text; the last one has the reason why it ends."""
    choice: dict[str, Any] = {
        "index": 0,
        "logprobs": None,
        "finish_reason": finish_reason,
        "token_ids": None,
    }
    if not generation.chat:
        choice |= {"text": text, "stop_reason": None, "prompt_token_ids": None}
        return _event(generation, request_id, model, [choice])
    choice["delta"] = {"content": text}
    if finish_reason is None:
        return _event(generation, request_id, model, [choice])
    choice["stop_reason"] = None
    event = _event(generation, request_id, model, [choice])
    # On the last event that there is.
    return event if generation.include_usage else {**event, "system_fingerprint": FINGERPRINT}


def usage_event(
    generation: Generation, request_id: str, model: str, sequence: Sequence, timing: Timing
) -> dict[str, Any]:
    """The last event, where usage was asked for."""
    return {
        **_event(generation, request_id, model, []),
        "system_fingerprint": FINGERPRINT,
        "usage": {
            **usage(generation, [sequence]),
            "prompt_tokens_details": _cache(generation, sequence),
        },
        "metrics": timing_fields(timing, sequence),
    }


def _event(
    generation: Generation, request_id: str, model: str, choices: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "id": request_id,
        "object": "chat.completion.chunk" if generation.chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": choices,
    }


def usage(generation: Generation, sequences: Several[Sequence]) -> dict[str, int]:
    """How many tokens came in and went out."""
    generated = sum(sequence.output_tokens for sequence in sequences)
    return {
        "prompt_tokens": generation.prompt_tokens,
        "total_tokens": generation.prompt_tokens + generated,
        "completion_tokens": generated,
    }


def _cache(generation: Generation, sequence: Sequence) -> dict[str, int]:
    found = {"cached_tokens": sequence.cached_tokens}
    if not generation.chat:
        return found
    full = generation.prompt_tokens - generation.prompt_tokens % BLOCK_TOKENS
    return {**found, "created_cache_tokens": max(0, full - sequence.cached_tokens)}


def timing_fields(timing: Timing, sequence: Sequence) -> dict[str, Any]:
    """vLLM's `metrics` of one answer."""
    gaps = max(1, sequence.output_tokens - 1)
    generating = timing.prefill_s + timing.decode_s
    return {
        "time_to_first_token_ms": 1000 * timing.first_token_s,
        "generation_time_ms": 1000 * timing.decode_s,
        "queue_time_ms": 1000 * timing.queue_s,
        "mean_itl_ms": 1000 * timing.decode_s / gaps,
        "tokens_per_second": sequence.output_tokens / generating if generating > 0 else 0.0,
    }


def model_list(model: str, *, max_model_len: int, created: int) -> dict[str, Any]:
    """The body of `/v1/models`."""
    permission = {
        "id": "modelperm-emulated",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": model,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [permission],
    }
    return {"object": "list", "data": [card]}
