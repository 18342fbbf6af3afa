"""An emulated instance's Prometheus metrics, under vLLM's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hexprefect.instances.emulator.blocks import BLOCK_TOKENS
from hexprefect.instances.emulator.engine import Engine, Sequence

if TYPE_CHECKING:
    from hexprefect.instances.emulator.instance import Timing

_SECONDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0)


class InstanceMetrics:
    """The counts and histograms of one instance; the gauges are read from its engine when asked."""

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model, "engine": "0"}
        self._running = self._gauge("num_requests_running", "Number of requests in execution.")
        self._waiting = self._gauge("num_requests_waiting", "Number of requests that wait.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 is 100 percent.")
        self._tell_memory(engine)
        self._counters = {
            name: self._counter(name, text)
            for name, text in (
                ("prefix_cache_queries", "Prefix cache queries, in tokens."),
                ("prefix_cache_hits", "Prefix cache hits, in tokens."),
                ("num_preemptions", "Number of preemptions."),
                ("prompt_tokens", "Number of prefill tokens processed."),
                ("generation_tokens", "Number of generation tokens processed."),
            )
        }
        self._told = dict.fromkeys(self._counters, 0)
        self._success = self._counter("request_success", "Requests that finished.")
        self._histograms = {
            name: self._histogram(name, _SECONDS)
            for name in (
                "request_queue_time_seconds",
                "request_prefill_time_seconds",
                "request_decode_time_seconds",
                "request_inference_time_seconds",
                "e2e_request_latency_seconds",
            )
        }
        self._first_token = self._histogram("time_to_first_token_seconds", _FIRST_TOKEN)
        self._between_tokens = self._histogram("inter_token_latency_seconds", _FIRST_TOKEN)

    def finished(self, sequence: Sequence, timing: Timing) -> None:
        """Count one request."""
        self._success.inc()
        for name, seconds in (
            ("request_queue_time_seconds", timing.queue_s),
            ("request_prefill_time_seconds", timing.prefill_s),
            ("request_decode_time_seconds", timing.decode_s),
            ("request_inference_time_seconds", timing.prefill_s + timing.decode_s),
            ("e2e_request_latency_seconds", timing.whole_s),
        ):
            self._histograms[name].observe(seconds)
        self._first_token.observe(timing.first_token_s)
        if sequence.generated > 1:
            self._between_tokens.observe(timing.decode_s / (sequence.generated - 1))

    def text(self) -> bytes:
        """The exposition, as `/metrics` gives it."""
        engine = self._engine
        self._running.set(engine.running)
        self._waiting.set(engine.waiting)
        self._kv_usage.set(engine.kv_usage)
        counted = engine.counters
        totals = {
            "prefix_cache_queries": counted.prefix_queries,
            "prefix_cache_hits": counted.prefix_hits,
            "num_preemptions": counted.preemptions,
            "prompt_tokens": counted.prompt_tokens,
            "generation_tokens": counted.generation_tokens,
        }
        for name, total in totals.items():
            self._counters[name].inc(total - self._told[name])
        self._told = totals
        return generate_latest(self._registry)

    def _tell_memory(self, engine: Engine) -> None:
        """vLLM tells the size of its KV memory in the labels of a gauge that is always 1."""
        labels = {
            "engine": "0",
            "block_size": str(BLOCK_TOKENS),
            "num_gpu_blocks": str(engine.blocks.total),
            "kv_cache_size_tokens": str(engine.blocks.total * BLOCK_TOKENS),
            "enable_prefix_caching": str(engine.options.prefix_caching),
        }
        text = "Information of the LLMEngine CacheConfig"
        told = Gauge("vllm:cache_config_info", text, list(labels), registry=self._registry)
        told.labels(**labels).set(1)

    def _gauge(self, name: str, text: str) -> Gauge:
        metric = Gauge(f"vllm:{name}", text, list(self._labels), registry=self._registry)
        return metric.labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        metric = Counter(f"vllm:{name}", text, list(self._labels), registry=self._registry)
        return metric.labels(**self._labels)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        metric = Histogram(
            f"vllm:{name}",
            f"Histogram of {name.replace('_', ' ')}.",
            list(self._labels),
            buckets=buckets,
            registry=self._registry,
        )
        return metric.labels(**self._labels)
