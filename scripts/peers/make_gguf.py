"""Writes a Llama checkpoint (safetensors in bfloat16, no tokenizer) as a GGUF file, for llama.cpp.

python make_gguf.py DIRECTORY FILE.gguf

The matrices stay bfloat16, norms become float32. llama.cpp rotates pairs of neighbouring numbers, so that rows of the query
and key matrices are put in its order. Needs PyPI's gguf, torch and safetensors.
"""

import json
import math
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors import safe_open

LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def name_of(name):
    """GGUF's name of a tensor of transformers' LlamaForCausalLM."""
    base = name.removesuffix(".weight")
    if base in OTHERS:
        return OTHERS[base] + ".weight"
    _, _, layer, rest = base.split(".", 3)
    return f"blk.{layer}.{LAYER[rest]}.weight"


def in_pairs(rows, heads):
    """Rows of a query or key matrix: number i and i + size / 2 of each head become neighbours."""
    size = rows.shape[0] // heads
    return rows.reshape(heads, 2, size // 2, -1).swapaxes(1, 2).reshape(rows.shape).contiguous()


def frequency_factors(config):
    """What llama.cpp divides the rotary frequencies by (rope_type llama3), or None."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return None
    if kind != "llama3":
        raise SystemExit(f"rope_type {kind} is not written")
    size = config["head_dim"]
    theta = rope.get("rope_theta", config.get("rope_theta"))
    low, high, old = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    factors = []
    for i in range(0, size, 2):
        length = 2 * math.pi * theta ** (i / size)
        smooth = min(1.0, max(0.0, (old / length - low) / (high - low)))
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def main():
    """Header first, then one tensor after another, so that memory holds one at a time."""
    directory, target = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((directory / "config.json").read_text())
    if config["model_type"] != "llama":
        raise SystemExit(f"{directory}: of the family {config['model_type']}; only llama is written")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    rope = config.get("rope_parameters") or {}
    partial = target.with_name(target.name + ".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(rope.get("rope_theta", config.get("rope_theta")))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("none")
    tensors = []
    for path in sorted(directory.glob("*.safetensors")):
        file = safe_open(path, "pt")
        tensors += [(name, file) for name in file.keys()]
    factors = frequency_factors(config)
    if factors is not None:
        writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes)
    for name, file in tensors:
        shape = file.get_slice(name).get_shape()
        count = math.prod(shape)
        if len(shape) == 1:
            writer.add_tensor_info(name_of(name), shape, np.dtype(np.float32), 4 * count)
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor_info(name_of(name), shape, np.dtype(np.uint16), 2 * count, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if factors is not None:
        writer.write_tensor_data(factors)
    for name, file in tensors:
        rows = file.get_tensor(name)
        if rows.dim() == 1:
            writer.write_tensor_data(rows.float().numpy())
            continue
        if ".q_proj." in name or ".k_proj." in name:
            rows = in_pairs(rows, heads if ".q_proj." in name else kv_heads)
        writer.write_tensor_data(rows.view(torch.int16).numpy().view(np.uint16))
    writer.close()
    partial.rename(target)


main()
