"""Writes a random OPT checkpoint in bfloat16: config.json and safetensors; no tokenizer, all are asked with ids.

Beside it, in DIRECTORY-tokenizer, lies a tokenizer whose token N is "tN", for the converter that cannot do without.

python make_checkpoint.py DIRECTORY '{"hidden_size": ..., "layers": ..., "heads": ..., "ffn": ..., "vocab": ...}'
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import OPTConfig, OPTForCausalLM


def write_tokenizer(directory, vocab):
    """A tokenizer of the words "t0", "t1", ..."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocab)}, unk_token="t3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    special = {"bos_token": "t2", "eos_token": "t2", "unk_token": "t3", "pad_token": "t1"}
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special})
    )
    (directory / "special_tokens_map.json").write_text(json.dumps(special))


def main():
    """Makes the model from seed 0 and saves it; the directory appears only when complete."""
    directory, shape = Path(sys.argv[1]), json.loads(sys.argv[2])
    config = OPTConfig(
        hidden_size=shape["hidden_size"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        ffn_dim=shape["ffn"],
        vocab_size=shape["vocab"],
        max_position_embeddings=2048,
        word_embed_proj_dim=shape["hidden_size"],
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)  # from the start: opt-6.7b in float32 would take 27 GB
    model = OPTForCausalLM(config)
    partial = directory.with_name(directory.name + ".partial")
    model.save_pretrained(partial, max_shard_size="4GB")
    write_tokenizer(directory.with_name(directory.name + "-tokenizer"), shape["vocab"])
    partial.rename(directory)


main()
