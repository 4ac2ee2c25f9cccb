#!/usr/bin/env python3
"""What NVIDIA's kvpress keeps and scores by SnapKV (PyPI: kvpress 0.5.5): tests/golden/snap_kvpress.json.

    python scripts/oracle/make_snap_golden.py

SnapKVPress.score() is run as it is on the attention of a made-up prompt (softmax of q k / sqrt(head size), in float32);
what stays is its top scores, as ScorerPress chooses. Numbers come from the generator of make_h2o_authors_golden.py, which
the test repeats; the file has the positions that stay and the scores of those before the window of queries. Cases are such
that no order of summation turns the choice: what goes and what stays lie GAP_MIN of a score apart.
"""

import argparse
import json
import math
from pathlib import Path
from types import SimpleNamespace

import torch
from kvpress import SnapKVPress
from make_h2o_authors_golden import numbers

GAP_MIN = 1e-4
# heads, KV heads, head size, heavy, recent, prompt: the window of queries is 64 (32 below 256 tokens), and is kept
CASES = (
    (2, 2, 16, 40, 8, 100),
    (4, 2, 8, 60, 20, 150),
    (3, 1, 16, 45, 32, 255),
    (4, 1, 8, 70, 10, 256),
    (2, 1, 32, 96, 40, 300),
)


def run(case, seed):
    """Positions that stay, scores before the window, the closest decision; each by KV head."""
    heads, kv_heads, size, heavy, recent, prompt = case
    window = 32 if prompt < 256 else 64
    rows = torch.tensor(numbers(seed, prompt * (heads + 2 * kv_heads) * size)).view(prompt, heads + 2 * kv_heads, size)
    query, key, value = (part.transpose(0, 1).unsqueeze(0) for part in rows.split([heads, kv_heads, kv_heads], dim=1))
    logits = query @ key.repeat_interleave(heads // kv_heads, dim=1).transpose(2, 3) / math.sqrt(size)
    logits += torch.full((prompt, prompt), -math.inf).triu(1)
    attentions = torch.softmax(logits, dim=-1, dtype=torch.float32)
    module = SimpleNamespace(config=SimpleNamespace(num_attention_heads=heads, num_key_value_heads=kv_heads))
    scores = SnapKVPress(window_size=window).score(module, torch.zeros(1, prompt, 1), key, value, attentions, {})[0]
    stays = scores.topk(heavy + recent, dim=-1).indices.sort(dim=-1).values
    before = scores[:, : prompt - window]
    ordered = before.sort(dim=-1, descending=True).values
    best = heavy + recent - window
    gap = float(((ordered[:, best - 1] - ordered[:, best]) / ordered[:, best]).min())
    return stays.tolist(), [[float(f"{float(score):.7g}") for score in head] for head in before], gap


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", type=Path, default=Path(__file__).parents[2] / "tests/golden")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = []
    for case in CASES:
        for seed in range(1, 1000):
            positions, scores, gap = run(case, seed)
            if gap >= GAP_MIN:
                break
        else:
            raise SystemExit(f"no seed leaves {GAP_MIN} between what stays and what goes: {case}")
        names = ("heads", "kv_heads", "head_size", "heavy", "recent", "prompt")
        cases.append(dict(zip(names, case)) | {"seed": seed, "positions": positions, "scores": scores})
    path = options.golden / "snap_kvpress.json"
    path.write_text("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
