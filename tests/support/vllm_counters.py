"""vLLM's own counters in this process, as far as an abort must leave them alone."""

from importlib import import_module

WATCHED = (
    "vllm:time_to_first_token_seconds_count",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_inference_time_seconds_sum",
    "vllm:request_success_total",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:prompt_tokens_total",
)
"""Never counted up by vLLM for our aborts."""


def counters() -> dict[str, float]:
    """What vLLM has counted so far, by name and labels."""
    registry = import_module("prometheus_client").REGISTRY
    found = {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name in WATCHED
    }
    assert len(found) >= len(WATCHED)
    return found
