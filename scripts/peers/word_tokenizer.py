"""A tokenizer of the words "t0", "t1", ..., for what cannot do without one, though all are asked with ids."""

import json


def write_tokenizer(directory, vocab):
    """Token N is "tN"; needs no library."""
    directory.mkdir(parents=True, exist_ok=True)
    special = {"bos_token": "t2", "eos_token": "t2", "unk_token": "t3", "pad_token": "t1"}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {f"t{i}": i for i in range(vocab)}, "unk_token": special["unk_token"]},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special})
    )
    (directory / "special_tokens_map.json").write_text(json.dumps(special))
