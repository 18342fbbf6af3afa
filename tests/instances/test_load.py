"""A server's metrics tell what others ask of it."""

from __future__ import annotations

from hexprefect.instances.load import InstanceLoad, read_load

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 64.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 1.0
"""
LLAMA = """\
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 2
"""


def test_vllms_engines_are_summed() -> None:
    assert read_load(VLLM) == InstanceLoad(5, 7, 0.5, 100.0, 64.0, 1)


def test_llama_cpp_tells_less() -> None:
    assert read_load(LLAMA) == InstanceLoad(running=1, waiting=2)


def test_a_server_that_tells_nothing_is_not_taken_to_be_idle() -> None:
    assert read_load("").running is None


def test_a_gauge_that_was_never_set_tells_nothing() -> None:
    assert read_load("vllm:num_requests_running NaN\n").running is None
    assert read_load("vllm:num_requests_running +Inf\n").running is None
