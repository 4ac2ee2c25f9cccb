#!/usr/bin/env python3
"""What `spillway eval` has to say of the demo model, by the reference implementation of the KV rules.

    python scripts/oracle/make_eval_golden.py        # configs/demo/heldout.jsonl -> tests/golden/eval.json

The file is taken as plain text, as `eval --text` does. Each window is the bos token and CONTEXT - 1 tokens of the text;
the first PROMPT_TOKENS are a prompt, the others are scored one by one. float32, the cache too.
"""

import json
import math
import sys
from pathlib import Path

import tokenizers
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from h2o_reference import KV_FORMATS, Head, Opt, Rule  # noqa: E402

CONTEXT, PROMPT_TOKENS, WINDOWS = 200, 120, 2
BOS = 2
RULES = [Rule(), Rule("h2o", 0.1, 0.1), Rule("window", recent=0.2), Rule("window", recent=0.2, sink=4),
         Rule("h2o", 0.1, 0.1, ratio_of="prompt")]


@torch.no_grad()
def nats_of(model, window, rule):
    """Negative log-likelihood of what follows the prompt."""
    budget = rule.budget(PROMPT_TOKENS, CONTEXT - PROMPT_TOKENS)
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    caches = [[Head(rule.kind == "h2o", budget, KV_FORMATS["f32"]) for _ in range(heads)] for _ in range(layers)]
    logits, nats = model.run(window[:PROMPT_TOKENS], 0, caches), 0.0
    for position in range(PROMPT_TOKENS, CONTEXT):
        nats -= float(torch.log_softmax(logits, 0)[window[position]])
        logits = model.run([window[position]], position, caches)
    return nats


def main():
    """Write every rule's perplexity."""
    demo = ROOT / "configs/demo"
    tokenizer = tokenizers.Tokenizer.from_file(str(demo / "tokenizer.json"))
    ids = tokenizer.encode((demo / "heldout.jsonl").read_text("utf-8"), add_special_tokens=False).ids
    step = CONTEXT - 1
    windows = [[BOS, *ids[at * step : (at + 1) * step]] for at in range(WINDOWS)]
    scored = [window[PROMPT_TOKENS:] for window in windows]
    size = sum(len(tokenizer.decode(part).encode()) for part in scored)
    tokens = sum(map(len, scored))
    model = Opt(demo)
    found = []
    for rule in RULES:
        nats = sum(nats_of(model, window, rule) for window in windows)
        found.append({"rule": rule.kind, "heavy": rule.heavy, "recent": rule.recent, "sink": rule.sink,
                      "ratio_of": rule.ratio_of, "perplexity": math.exp(nats / tokens),
                      "bits_per_byte": nats / math.log(2) / size})
        print(found[-1], flush=True)
    golden = {"transformers": transformers.__version__, "torch": torch.__version__, "context": CONTEXT,
              "prompt_tokens": PROMPT_TOKENS, "windows": WINDOWS, "tokens": tokens, "rules": found}
    (ROOT / "tests/golden/eval.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
