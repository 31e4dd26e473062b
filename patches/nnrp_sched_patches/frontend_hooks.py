"""The hooks in vLLM's frontend process, and what their bodies use of vLLM there, as rows.

F1 to F5 of hooks.md 1.4, and F7 for vLLM's own aborts; the same for every family: these places have
kept name and parameters from 0.18 on (hooks.md 1.2, 1.3).
"""

from nnrp_sched_patches.hook import Hook, HookForm
from nnrp_sched_patches.seam import Seam, SeamKind

_ASYNC_LLM = "vllm.v1.engine.async_llm"
_ENGINE = "vllm.v1.engine"
_PROCESSOR = "vllm.v1.engine.output_processor"
_BODIES = "nnrp_sched_patches.frontend"


def _processor(name: str, hook: str, *parameters: str) -> Hook:
    return Hook(
        name=hook,
        form=HookForm.AROUND,
        seam=Seam(_PROCESSOR, f"OutputProcessor.{name}", SeamKind.FUNCTION, parameters),
        body=f"{_BODIES}:{name}",
    )


FRONTEND_HOOKS = (
    Hook(
        name="F1",
        form=HookForm.AFTER,
        seam=Seam(_ASYNC_LLM, "AsyncLLM.__init__", SeamKind.FUNCTION, ("vllm_config",)),
        body="nnrp_sched_patches.hello:register_engine",
    ),
    Hook(
        name="F2",
        form=HookForm.AROUND_ASYNC,
        seam=Seam(
            _ASYNC_LLM,
            "AsyncLLM.add_request",
            SeamKind.ASYNC_FUNCTION,
            ("request_id", "trace_headers"),
        ),
        body=f"{_BODIES}:admission",
    ),
    _processor("add_request", "F3", "request", "prompt", "parent_req", "request_index", "queue"),
    _processor("process_outputs", "F4", "engine_core_outputs", "engine_core_timestamp"),
    _processor("abort_requests", "F5", "request_ids", "internal"),
    Hook(
        name="F7",
        form=HookForm.BEFORE_ASYNC,
        seam=Seam(
            _ASYNC_LLM, "AsyncLLM.abort", SeamKind.ASYNC_FUNCTION, ("request_id", "internal")
        ),
        body="nnrp_sched_patches.vllm_aborts:receipt_first",
    ),
)

FRONTEND_RELIED_ON = (
    Seam(
        "vllm.v1.engine.core_client",
        "AsyncMPClient.call_utility_async",
        SeamKind.ASYNC_FUNCTION,
        ("method",),
    ),
    *(
        Seam("vllm.v1.engine.core_client", f"AsyncMPClient.{name}", SeamKind.INSTANCE_ATTRIBUTE)
        for name in ("client_count", "client_index")
    ),
    Seam(_ASYNC_LLM, "AsyncLLM.engine_core", SeamKind.INSTANCE_ATTRIBUTE),
    Seam(_ASYNC_LLM, "AsyncLLM.output_handler", SeamKind.INSTANCE_ATTRIBUTE),
    Seam(_ASYNC_LLM, "AsyncLLM.output_processor", SeamKind.INSTANCE_ATTRIBUTE),
    Seam(_ASYNC_LLM, "AsyncLLM.errored", SeamKind.PROPERTY),
    Seam(_ASYNC_LLM, "AsyncLLM.observability_config", SeamKind.INSTANCE_ATTRIBUTE),
    Seam(
        "vllm.config.observability",
        "ObservabilityConfig.otlp_traces_endpoint",
        SeamKind.ATTRIBUTE,
    ),
    *(
        Seam(_PROCESSOR, f"OutputProcessor.{name}", SeamKind.INSTANCE_ATTRIBUTE)
        for name in ("request_states", "parent_requests", "external_req_ids")
    ),
    *(
        Seam(_PROCESSOR, f"RequestState.{name}", SeamKind.INSTANCE_ATTRIBUTE)
        for name in ("detokenizer", "parent_req")
    ),
    Seam(_PROCESSOR, "OutputProcessorOutput.reqs_to_abort", SeamKind.ATTRIBUTE),
    Seam(
        "vllm.v1.engine.parallel_sampling",
        "ParentRequest.child_requests",
        SeamKind.ATTRIBUTE,
    ),
    *(
        Seam(_ENGINE, f"EngineCoreRequest.{name}", SeamKind.ATTRIBUTE)
        for name in ("request_id", "external_req_id", "priority")
    ),
    *(
        Seam(_ENGINE, f"EngineCoreOutput.{name}", SeamKind.ATTRIBUTE)
        for name in ("request_id", "new_token_ids", "finish_reason", "stop_reason", "events")
    ),
    *(
        Seam(_ENGINE, f"EngineCoreEvent.{name}", SeamKind.ATTRIBUTE)
        for name in ("type", "timestamp")
    ),
    # By these a start is refused that the hooks would not see all of.
    *(
        Seam("vllm.engine.arg_utils", f"EngineArgs.{name}", SeamKind.ATTRIBUTE)
        for name in ("scheduler_cls", "data_parallel_size")
    ),
    *(
        Seam(_ENGINE, f"EngineCoreEventType.{name}", SeamKind.ATTRIBUTE)
        for name in ("QUEUED", "SCHEDULED", "PREEMPTED")
    ),
)
