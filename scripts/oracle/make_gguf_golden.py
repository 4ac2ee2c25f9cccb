#!/usr/bin/env python3
"""Golden files for the reader of GGUF files, by PyPI's gguf and transformers.

    python make_gguf_golden.py --output tests/golden/gguf

blocks.json   random blocks of every quantised format that is read, and the float32 numbers (as little-endian hex) that
              gguf.quants.dequantize makes of them
merges.json   a SentencePiece vocabulary with scores, and the merges that transformers' GGUF reader derives from it
small.gguf    a file by gguf.GGUFWriter: a Llama of a few tensors with its tokenizer
small.json    what transformers' AutoConfig says of small.gguf (the members that GGUF carries), and the numbers of its
              tensors by Hugging Face's names, in the file's order of rows
"""

import argparse
import json
import os
import warnings
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
QUANTISED = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
# Where the float16 scales of a block lie.
SCALES = dict(Q8_0=[0], Q4_0=[0], Q4_1=[0, 2], Q5_0=[0], Q5_1=[0, 2], Q4_K=[0, 2], Q5_K=[0, 2], Q6_K=[208])
HIDDEN, LAYERS, HEADS, KV_HEADS, MLP, VOCAB = 256, 1, 4, 2, 64, 40
CONFIG = ["model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
          "intermediate_size", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta",
          "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"]


def random_blocks(rng, name, count):
    """Blocks of random bytes with scales of sane size: normal, subnormal, negative and zero."""
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in SCALES[name]:
        scales = rng.normal(0, 0.05, count).astype(np.float16)
        scales[:3] = [0, 3e-7, 1.5]
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(count, 2)
    return blocks


def write_blocks(rng, path):
    golden = {}
    for name in QUANTISED:
        blocks = random_blocks(rng, name, 4 if name.endswith("K") else 8)
        numbers = dequantize(blocks, gguf.GGMLQuantizationType[name])
        golden[name] = {"blocks": blocks.tobytes().hex(), "numbers": numbers.astype("<f4").tobytes().hex()}
    path.write_text(json.dumps(golden, indent=1) + "\n")


def write_merges(rng, path):
    from transformers.integrations.ggml import GGUFTokenizerSkeleton

    letters = list("abc") + ["▁", "é", "ß", "😀"]
    pieces = ["<unk>", "<s>", "</s>", *letters]
    while len(pieces) < 120:
        piece = "".join(rng.choice(pieces[3:], 2))
        if piece not in pieces and len(piece) < 9:
            pieces.append(piece)
    # Some scores are equal, as in vocabularies that were put together by hand.
    scores = [float(-(i // 3)) for i in range(len(pieces))]
    merges = GGUFTokenizerSkeleton({"tokens": pieces, "scores": scores}).merges
    path.write_text(json.dumps({"pieces": pieces, "scores": scores, "merges": merges}, ensure_ascii=False) + "\n")


def small_tensors(rng):
    """(GGUF's name, Hugging Face's name, format, rows, columns); one row is a vector."""
    layer, hf = "blk.0.", "model.layers.0."
    return [
        ("token_embd.weight", "model.embed_tokens.weight", "Q8_0", VOCAB, HIDDEN),
        ("output_norm.weight", "model.norm.weight", "F32", 1, HIDDEN),
        (layer + "attn_norm.weight", hf + "input_layernorm.weight", "F32", 1, HIDDEN),
        (layer + "attn_q.weight", hf + "self_attn.q_proj.weight", "Q4_K", 16, HIDDEN),
        (layer + "attn_k.weight", hf + "self_attn.k_proj.weight", "Q6_K", 8, HIDDEN),
        (layer + "attn_v.weight", hf + "self_attn.v_proj.weight", "F16", 8, HIDDEN),
        (layer + "ffn_down.weight", hf + "mlp.down_proj.weight", "BF16", 8, 64),
    ]


def write_small(rng, path):
    from transformers import AutoConfig

    writer = gguf.GGUFWriter(path / "small.gguf", "llama")
    writer.add_name("Small")
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(10)), *(f"▁t{i}" for i in range(VOCAB - 13))]
    writer.add_token_list(tokens)
    writer.add_token_scores([float(-i) for i in range(VOCAB)])
    writer.add_token_types([2, 3, 3, *[6] * 10, *[1] * (VOCAB - 13)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    numbers = {}
    for name, hf, kind, rows, columns in small_tensors(rng):
        quantised = gguf.GGMLQuantizationType[kind]
        if kind in QUANTISED:
            elements, _ = gguf.GGML_QUANT_SIZES[quantised]
            data = random_blocks(rng, kind, rows * columns // elements).reshape(rows, -1)
            writer.add_tensor(name, data, raw_dtype=quantised)
        else:
            data = gguf.quants.quantize(rng.normal(0, 1, (rows, columns)).astype(np.float32), quantised)
            data = data[0] if rows == 1 else data
            writer.add_tensor(name, data, raw_dtype=quantised if kind == "BF16" else None)
        numbers[hf] = dequantize(data, quantised).astype(np.float64).ravel()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = AutoConfig.from_pretrained(path, gguf_file="small.gguf")
    golden = {"config": {key: getattr(config, key) for key in CONFIG},
              "sums": {name: [float(values.sum()), float(np.abs(values).sum()), *values[[0, 7, -1]].tolist()]
                       for name, values in numbers.items()}}
    (path / "small.json").write_text(json.dumps(golden, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    write_blocks(np.random.default_rng(1), output / "blocks.json")
    write_merges(np.random.default_rng(2), output / "merges.json")
    write_small(np.random.default_rng(3), output)


if __name__ == "__main__":
    main()
