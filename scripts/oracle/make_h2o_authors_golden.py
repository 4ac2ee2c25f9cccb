#!/usr/bin/env python3
"""What the code of H2O's authors keeps and scores (github.com/FMInference/H2O, at ac75c2a): tests/golden/h2o_authors.json.

    git clone https://github.com/FMInference/H2O ../H2O
    python scripts/oracle/make_h2o_authors_golden.py --h2o ../H2O

H2OKVCache_LayerWise of h2o_hf/utils_real_drop/modify_llama.py is run as it is, after attention as that file computes it
(softmax of q k / sqrt(head size), in float32), over a prompt and some decode steps of made-up queries, keys and values.
Its fork of FlexGen (h2o_flexgen) is another rule and not what is compared: it drops the lightest of n heavy positions
before the one that leaves the recent window is among them.

Numbers come from a generator that the test repeats (numbers()); the file has the rows kept after the prompt and after
each step, as positions, and their scores. Cases are such that no order of summation turns a decision: what goes and what
stays lie GAP_MIN apart.
"""

import argparse
import importlib.util
import json
import math
from pathlib import Path

import torch

GAP_MIN = 1e-4
# heads, head size, heavy, recent, prompt, decode steps
CASES = (
    (2, 16, 4, 4, 24, 30),
    (3, 8, 1, 7, 9, 25),
    (2, 32, 9, 1, 40, 20),
    (2, 8, 5, 6, 5, 30),  # A prompt that fits
    (2, 16, 3, 2, 5, 12),  # One that just fits
)


def numbers(seed, count):
    """Multiples of 2^-14 from -2 to 2: the high bits of a linear congruential generator."""
    values = []
    for _ in range(count):
        seed = (1664525 * seed + 1013904223) % 2**32
        values.append((seed >> 16) / 2**14 - 2)
    return values


def run(cache, case, seed):
    """Positions and scores after the prompt and each step; the closest decision."""
    heads, size, heavy, recent, prompt, steps = case
    rows = torch.tensor(numbers(seed, (prompt + steps) * 3 * heads * size)).view(prompt + steps, 3, heads, size)
    query, key, value = (rows[:, i].transpose(0, 1).unsqueeze(0) for i in range(3))  # (1, heads, rows, size)
    past, positions, kept, gap = None, torch.arange(0).expand(heads, 0), [], math.inf
    for begin, end in [(0, prompt)] + [(t, t + 1) for t in range(prompt, prompt + steps)]:
        new = (key[:, :, begin:end], value[:, :, begin:end])
        past = new if past is None else tuple(torch.cat(both, dim=2) for both in zip(past, new))
        positions = torch.cat([positions, torch.arange(begin, end).expand(heads, end - begin)], dim=1)
        logits = query[:, :, begin:end] @ past[0].transpose(2, 3) / math.sqrt(size)
        if end - begin > 1:
            logits += torch.full((prompt, prompt), -math.inf).triu(1)
        weights = torch.softmax(logits, dim=-1, dtype=torch.float32)
        before = past[0]
        scores = weights.sum(0).sum(1)
        if cache.hh_score is not None:
            scores[:, :-1] += cache.hh_score
        past = cache(past, weights.clone())
        # Which rows it kept: keys are all different.
        same = (before[0].unsqueeze(2) == past[0][0].unsqueeze(1)).all(-1)  # (heads, before, after)
        assert torch.equal(same.sum(1), torch.ones(heads, past[0].shape[2], dtype=torch.int64))
        for head in range(heads):
            stays = same[head].any(1)
            if not stays.all():
                outside = positions[head] < end - recent
                gap = min(gap, float(scores[head][outside & stays].min() - scores[head][~stays].max()))
        positions = torch.stack([positions[head][same[head].any(1)] for head in range(heads)])
        kept.append({"positions": positions.tolist(), "scores": [[round(float(s), 6) for s in row] for row in cache.hh_score]})
    return kept, gap


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--h2o", type=Path, required=True, help="the authors' repository")
    parser.add_argument("--golden", type=Path, default=Path(__file__).parents[2] / "tests/golden")
    options = parser.parse_args()
    source = options.h2o / "h2o_hf/utils_real_drop/modify_llama.py"
    spec = importlib.util.spec_from_file_location("modify_llama", source)
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)

    cases = []
    for case in CASES:
        for seed in range(1, 1000):
            cache = theirs.H2OKVCache_LayerWise(hh_size=case[2], recent_size=case[3])
            kept, gap = run(cache, case, seed)
            if gap >= GAP_MIN:
                break
        else:
            raise SystemExit(f"no seed leaves {GAP_MIN} between what stays and what goes: {case}")
        names = ("heads", "head_size", "heavy", "recent", "prompt", "steps")
        cases.append(dict(zip(names, case)) | {"seed": seed, "kept": kept})
    path = options.golden / "h2o_authors.json"
    path.write_text("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
