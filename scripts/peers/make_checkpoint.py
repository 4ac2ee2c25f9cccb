"""Writes a random checkpoint of OPT, or of the family that the shape names, in bfloat16: config.json and safetensors; no tokenizer, all are asked with ids.

Beside it, in DIRECTORY-tokenizer, lies a tokenizer whose token N is "tN", for the converter that cannot do without.

python make_checkpoint.py DIRECTORY '{"hidden_size": ..., "layers": ..., "heads": ..., "ffn": ..., "vocab": ...}'
python make_checkpoint.py DIRECTORY '{"family": "llama", "vocab": ..., and fields of its config.json}'
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, OPTConfig
from word_tokenizer import write_tokenizer


def config_of(shape):
    """transformers' config of a shape."""
    family = shape.pop("family", "opt")
    if family != "opt":
        vocab = shape.pop("vocab")
        return AutoConfig.for_model(family, vocab_size=vocab, bos_token_id=1, eos_token_id=2, **shape)
    return OPTConfig(
        hidden_size=shape["hidden_size"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        ffn_dim=shape["ffn"],
        vocab_size=shape["vocab"],
        max_position_embeddings=2048,
        word_embed_proj_dim=shape["hidden_size"],
    )


def main():
    """Makes the model from seed 0 and saves it; the directory appears only when complete."""
    directory, shape = Path(sys.argv[1]), json.loads(sys.argv[2])
    vocab = shape["vocab"]
    config = config_of(shape)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)  # from the start: opt-6.7b in float32 would take 27 GB
    model = AutoModelForCausalLM.from_config(config)
    partial = directory.with_name(directory.name + ".partial")
    model.save_pretrained(partial, max_shard_size="4GB")
    write_tokenizer(directory.with_name(directory.name + "-tokenizer"), vocab)
    partial.rename(directory)


main()
