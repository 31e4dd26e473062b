"""The hooks in the engine process, and what their bodies use of vLLM there, as rows.

E1 are methods that vLLM's utility RPC reaches by name; E2 watch the scheduler's transitions, none
of them on a per-token path (hooks.md 2.1, hooks-verified.md C1). The rows are the same for every
family but for the scheduler's waiting containers, of which each family takes one set.
"""

from nnrp_sched_patches.hook import Hook, HookForm
from nnrp_sched_patches.seam import Seam, SeamKind

_ENGINE_CORE = "vllm.v1.engine.core"
_MESSAGES = "vllm.v1.engine"
_SCHEDULER = "vllm.v1.core.sched.scheduler"
_OUTPUT = "vllm.v1.core.sched.output"
_QUEUE = "vllm.v1.core.sched.request_queue"
_REQUEST = "vllm.v1.request"

_METHODS = {
    "hello": "hello:engine_hello",
    "abort": "enginecore:engine_abort",
    "state": "enginecore:engine_state",
    "queue": "enginecore:engine_queue_depths",
    "set_priority": "enginecore:engine_set_priority",
    "poll": "enginecore:engine_poll",
    "tell": "enginecore:engine_tell",
}
"""Bodies of `EngineCore.nnrp_*`."""

_TRANSITIONS = {
    "add_request": ("request",),
    "schedule": (),
    "finish_requests": ("request_ids", "finished_status"),
    "_free_request": ("request",),
}
"""Methods of the scheduler that the watch is around, with the parameters it reads."""

SCHEDULER = f"{_SCHEDULER}.Scheduler"
"""The class that they are hooked in."""

WATCHED = tuple(_TRANSITIONS)
"""Their names."""

_ASYNC_SCHEDULER = "vllm.v1.core.sched.async_scheduler"


def _set_by(module: str, owner: str, *names: str) -> tuple[Seam, ...]:
    """Attributes that a class's constructor sets."""
    return tuple(Seam(module, f"{owner}.{name}", SeamKind.INSTANCE_ATTRIBUTE) for name in names)


def _fields(module: str, owner: str, *names: str) -> tuple[Seam, ...]:
    """Names that a class itself holds: fields of a struct, members of an enum."""
    return tuple(Seam(module, f"{owner}.{name}", SeamKind.ATTRIBUTE) for name in names)


ENGINE_HOOKS = (
    *(
        Hook(
            name=f"E1.{method}",
            form=HookForm.ADDED,
            seam=Seam(_ENGINE_CORE, f"EngineCore.nnrp_{method}", SeamKind.ABSENT),
            body=f"nnrp_sched_patches.{body}",
        )
        for method, body in _METHODS.items()
    ),
    *(
        Hook(
            name=f"E2.{method.strip('_')}",
            form=HookForm.AROUND,
            seam=Seam(_SCHEDULER, f"Scheduler.{method}", SeamKind.FUNCTION, parameters),
            body=f"nnrp_sched_patches.scheduler_watch:watch_{method.strip('_')}",
        )
        for method, parameters in _TRANSITIONS.items()
    ),
)

ENGINE_RELIED_ON = (
    Seam(_ENGINE_CORE, "EngineCore", SeamKind.CLASS),
    *_set_by(_ENGINE_CORE, "EngineCore", "vllm_config", "scheduler", "batch_queue_size", "step_fn"),
    Seam(
        _ENGINE_CORE,
        "EngineCoreProc._handle_client_request",
        SeamKind.FUNCTION,
        ("request_type", "request"),
    ),
    Seam(
        _ENGINE_CORE,
        "EngineCoreProc._invoke_utility_method",
        SeamKind.FUNCTION,
        ("get_result", "enqueue_output"),
    ),
    Seam(_ENGINE_CORE, "EngineCoreProc.output_queue", SeamKind.INSTANCE_ATTRIBUTE),
    Seam(_SCHEDULER, "Scheduler", SeamKind.CLASS),
    # The one for asynchronous scheduling inherits what is hooked in its base.
    Seam(_ASYNC_SCHEDULER, "AsyncScheduler", SeamKind.CLASS),
    *(
        Seam(_ASYNC_SCHEDULER, f"AsyncScheduler.{method}", SeamKind.ABSENT)
        for method in _TRANSITIONS
    ),
    *_fields("vllm.config.vllm", "VllmConfig", "scheduler_config"),
    *_fields("vllm.config.scheduler", "SchedulerConfig", "policy"),
    *_set_by(_SCHEDULER, "Scheduler", "policy", "requests", "running", "kv_cache_manager"),
    Seam("vllm.v1.core.kv_cache_manager", "KVCacheManager.usage", SeamKind.PROPERTY),
    Seam(_QUEUE, "RequestQueue.add_request", SeamKind.FUNCTION, ("request",)),
    Seam(_QUEUE, "RequestQueue.remove_requests", SeamKind.FUNCTION, ("requests",)),
    Seam(_QUEUE, "RequestQueue.__iter__", SeamKind.FUNCTION),
    Seam(_QUEUE, "RequestQueue.__len__", SeamKind.FUNCTION),
    *_fields(
        _OUTPUT,
        "SchedulerOutput",
        "scheduled_new_reqs",
        "scheduled_cached_reqs",
        "preempted_req_ids",
        "total_num_scheduled_tokens",
    ),
    *_fields(_OUTPUT, "CachedRequestData", "resumed_req_ids"),
    *_fields(_OUTPUT, "NewRequestData", "req_id"),
    *_set_by(
        _REQUEST, "Request", "request_id", "client_index", "priority", "status", "num_prompt_tokens"
    ),
    Seam(_REQUEST, "Request.num_output_tokens", SeamKind.PROPERTY),
    # The order of a priority queue.
    Seam(_REQUEST, "Request.__lt__", SeamKind.FUNCTION, ("other",)),
    *_fields(_REQUEST, "RequestStatus", "WAITING", "RUNNING", "PREEMPTED", "FINISHED_ABORTED"),
    *_fields(
        _MESSAGES,
        "EngineCoreOutput",
        "request_id",
        "new_token_ids",
        "finish_reason",
        "stop_reason",
    ),
    *_fields(_MESSAGES, "EngineCoreOutputs", "outputs", "finished_requests"),
    *_fields(_MESSAGES, "FinishReason", "ABORT"),
)

KV_HOLDING_CONTAINERS = _set_by(
    _SCHEDULER, "Scheduler", "waiting", "kv_holding_waiting", "deferred_waiting"
)
"""Where requests wait from 0.31 on."""

SKIPPED_CONTAINERS = _set_by(_SCHEDULER, "Scheduler", "waiting", "skipped_waiting")
"""Where requests wait up to 0.30."""
