"""What vLLM does itself, by version, as data: for the compatibility page.

Each row says in which versions, and by which place in the source; test_seam_tables.py holds every
row against the source of every version (hooks.md 1.1 to 1.3 and 2.0).
"""

from msgspec import Struct
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from nnrp_sched_patches.seam import Seam, SeamKind

_ASYNC_LLM = "vllm.v1.engine.async_llm"
_ADD_REQUEST = "AsyncLLM.add_request"
_EVERY = ">=0.18"


class NativeFeature(Struct, frozen=True):
    """Something that needs no patch."""

    what: str
    versions: str
    """A version specifier: there in these, absent in all others."""
    seam: Seam
    """The place in the source that shows it."""

    def in_version(self, version: Version) -> bool:
        """Whether a version has it, judged by its base version."""
        return Version(version.base_version) in SpecifierSet(self.versions)


def _on_submit(parameter: str) -> Seam:
    return Seam(_ASYNC_LLM, _ADD_REQUEST, SeamKind.ASYNC_FUNCTION, (parameter,))


NATIVE = (
    NativeFeature(
        "abort by id, without an answer from the engine",
        _EVERY,
        Seam(_ASYNC_LLM, "AsyncLLM.abort", SeamKind.ASYNC_FUNCTION, ("request_id", "internal")),
    ),
    NativeFeature("a request's priority, at its submit only", _EVERY, _on_submit("priority")),
    NativeFeature("trace headers with a request", _EVERY, _on_submit("trace_headers")),
    NativeFeature(
        "a span for a request that finished, when OTLP is configured",
        _EVERY,
        Seam("vllm.v1.engine.output_processor", "OutputProcessor.do_tracing", SeamKind.FUNCTION),
    ),
    NativeFeature(
        "queued, scheduled and preempted times, told with the request's next output",
        _EVERY,
        Seam("vllm.v1.engine", "EngineCoreEventType.PREEMPTED", SeamKind.ATTRIBUTE),
    ),
    NativeFeature(
        "calls into the engine process (the utility RPC that our channel uses)",
        _EVERY,
        Seam(
            "vllm.v1.engine.core_client",
            "AsyncMPClient.call_utility_async",
            SeamKind.ASYNC_FUNCTION,
            ("method",),
        ),
    ),
    NativeFeature(
        "pausing and resuming all generation",
        _EVERY,
        Seam(_ASYNC_LLM, "AsyncLLM.pause_generation", SeamKind.ASYNC_FUNCTION),
    ),
    NativeFeature(
        "plugins that add HTTP endpoints",
        ">=0.26",
        Seam("vllm.plugins", "load_endpoint_plugins", SeamKind.FUNCTION),
    ),
    NativeFeature(
        "refusing requests above a bound of queued ones",
        ">=0.29",
        Seam(_ASYNC_LLM, "AsyncLLM.check_admission", SeamKind.FUNCTION),
    ),
    NativeFeature("a session id with a request", ">=0.29", _on_submit("session_id")),
    NativeFeature("hints for the KV cache with a request", ">=0.31", _on_submit("kv_hints")),
    NativeFeature(
        "asking the scheduler whether it has a request",
        ">=0.33",
        Seam("vllm.v1.core.sched.scheduler", "Scheduler.has_request", SeamKind.FUNCTION),
    ),
    NativeFeature(
        "chat chunks as objects, before they are made into text",
        ">=0.33",
        Seam(
            "vllm.entrypoints.openai.chat_completion.serving",
            "OpenAIServingChat.chat_completion_stream_generator_raw",
            SeamKind.ASYNC_GENERATOR,
        ),
    ),
)
