#!/usr/bin/env python3
"""Golden distributions for the sampler: what is left of a row of logits after all sampling rules.

The rules are transformers' own LogitsProcessors, in vLLM's order:

    logit bias -> repetition penalty -> frequency and presence penalty -> temperature -> min-p -> top-k -> top-p

Repetition penalty counts prompt and generated tokens; frequency and presence penalty (OpenAI's; transformers has
none) count generated tokens only: logits -= frequency * count + presence * (count > 0). Temperature 0 is greedy: all
the probability on the best token after bias and penalties. Everything is computed in float64 from float32 logits, and
cases whose outcome hangs on rounding (a threshold within 1e-4 of a probability) are drawn again.

    python make_sampling_golden.py --output tests/golden/sampling.json
"""

import argparse
import json
from pathlib import Path

import torch
import transformers
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

VOCAB = 50
MARGIN = 1e-4
NEUTRAL = dict(
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    logit_bias={},
)


def distribution(logits, prompt, output, rules):
    """(probabilities, margin): the distribution that is sampled, and how far it is from another outcome."""
    scores = logits.double().clone()[None]
    margin = 1.0
    for token, bias in rules["logit_bias"].items():
        scores[0, int(token)] += bias
    if rules["repetition_penalty"] != 1.0 and prompt + output:
        scores = RepetitionPenaltyLogitsProcessor(rules["repetition_penalty"])(torch.tensor([prompt + output]), scores)
    counts = torch.bincount(torch.tensor(output, dtype=torch.long), minlength=VOCAB).double()
    scores = scores - rules["frequency_penalty"] * counts - rules["presence_penalty"] * (counts > 0)
    if rules["temperature"] == 0:
        probabilities = torch.zeros(VOCAB, dtype=torch.float64)
        probabilities[scores[0].argmax()] = 1
        best = scores[0].topk(2).values
        return probabilities, (best[0] - best[1]).item()
    if rules["temperature"] != 1.0:
        scores = TemperatureLogitsWarper(float(rules["temperature"]))(None, scores)
    if rules["min_p"] > 0:
        before = scores.softmax(-1)[0]
        margin = min(margin, (before - rules["min_p"] * before.max()).abs().min().item())
        scores = MinPLogitsWarper(rules["min_p"])(None, scores)
    if 0 < rules["top_k"] < VOCAB:
        scores = TopKLogitsWarper(rules["top_k"])(None, scores)
    if rules["top_p"] < 1.0:
        ascending = scores.softmax(-1)[0].sort().values.cumsum(0)
        margin = min(margin, (ascending - (1 - rules["top_p"])).abs().min().item())
        scores = TopPLogitsWarper(rules["top_p"])(None, scores)
    return scores.softmax(-1)[0], margin


def case_list():
    """(name, rules that differ from neutral, width of the logits). Widths vary from flat to peaked."""
    cases = [("neutral", {}, 2.0), ("neutral, flat", {}, 0.1), ("neutral, peaked", {}, 12.0)]
    cases += [(f"temperature {t}", {"temperature": t}, 2.0) for t in (0, 0.1, 0.5, 0.7, 1.3, 2.0)]
    cases += [(f"top_k {k}", {"top_k": k}, 2.0) for k in (1, 2, 5, 49, 50, 1000)]
    cases += [(f"top_p {p}", {"top_p": p}, 2.0) for p in (0.01, 0.3, 0.5, 0.9, 0.95, 0.999)]
    cases += [(f"min_p {p}", {"min_p": p}, 2.0) for p in (0.01, 0.05, 0.2, 0.9, 1.0)]
    cases += [(f"repetition_penalty {p}", {"repetition_penalty": p}, 2.0) for p in (0.8, 1.05, 1.2, 2.0)]
    cases += [(f"presence_penalty {p}", {"presence_penalty": p}, 2.0) for p in (-2.0, 0.5, 2.0)]
    cases += [(f"frequency_penalty {p}", {"frequency_penalty": p}, 2.0) for p in (-2.0, 0.5, 2.0)]
    cases += [
        ("presence and frequency", {"presence_penalty": 0.6, "frequency_penalty": 0.4}, 2.0),
        ("all three penalties", {"repetition_penalty": 1.3, "presence_penalty": 0.6, "frequency_penalty": 0.4}, 3.0),
        ("bias up and down", {"logit_bias": {"3": 5.0, "7": -100.0, "11": -1.5}}, 2.0),
        (
            "bias before repetition penalty",
            {"logit_bias": {"0": 4.0, "1": -4.0, "2": 0.5, "5": 1.0}, "repetition_penalty": 1.5},
            2.0,
        ),
        ("bias makes greedy choose", {"temperature": 0, "logit_bias": {"20": 100.0}}, 2.0),
        ("penalties before greedy", {"temperature": 0, "repetition_penalty": 1.8, "frequency_penalty": 1.0}, 1.0),
        ("greedy ignores top_p, top_k, min_p", {"temperature": 0, "top_k": 5, "top_p": 0.5, "min_p": 0.3}, 2.0),
        ("temperature then top_p", {"temperature": 0.6, "top_p": 0.9}, 2.0),
        ("high temperature then top_p", {"temperature": 1.8, "top_p": 0.8}, 2.0),
        ("temperature then min_p", {"temperature": 1.5, "min_p": 0.1}, 2.0),
        ("top_k then top_p", {"top_k": 10, "top_p": 0.8}, 2.0),
        ("top_k then top_p, flat", {"top_k": 20, "top_p": 0.5}, 0.3),
        ("min_p then top_k", {"min_p": 0.02, "top_k": 6}, 2.0),
        ("min_p then top_p", {"min_p": 0.05, "top_p": 0.7}, 1.0),
        ("temperature, min_p, top_k, top_p", {"temperature": 1.4, "min_p": 0.03, "top_k": 15, "top_p": 0.85}, 2.0),
        ("usual chat settings", {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "presence_penalty": 1.5}, 2.5),
        (
            "everything",
            {
                "temperature": 0.9,
                "top_k": 25,
                "top_p": 0.92,
                "min_p": 0.01,
                "repetition_penalty": 1.15,
                "presence_penalty": 0.3,
                "frequency_penalty": 0.2,
                "logit_bias": {"4": 2.0, "9": -3.0},
            },
            2.0,
        ),
        (
            "everything, peaked",
            {
                "temperature": 1.2,
                "top_k": 30,
                "top_p": 0.97,
                "min_p": 0.001,
                "repetition_penalty": 0.9,
                "presence_penalty": -0.3,
                "frequency_penalty": 0.7,
                "logit_bias": {"1": 1.0, "48": 6.0},
            },
            3.0,
        ),
    ]
    return cases


def number(value):
    """A float with 9 significant digits; zero stays short."""
    return 0 if value == 0 else float(f"{value:.9g}")


def draw(generator, width):
    """Logits, prompt and generated tokens of one case; tokens repeat and overlap, so that counting matters."""
    logits = (width * torch.randn(VOCAB, generator=generator)).float()
    prompt = torch.randint(0, VOCAB, (12,), generator=generator).tolist() + [0, 1, 5]
    output = torch.randint(0, VOCAB, (8,), generator=generator).tolist() + [2, 2, 5, 7, 7, 7]
    top = logits.topk(4).indices.tolist()
    return logits, prompt + top[:1], output + [top[1], top[1], top[2]]


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parents[2] / "tests" / "golden" / "sampling.json"
    parser.add_argument("--output", type=Path, default=default)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(arguments.seed)
    lines = []
    for name, changes, width in case_list():
        rules = {**NEUTRAL, **changes}
        for _ in range(1000):
            logits, prompt, output = draw(generator, width)
            logits = torch.tensor([number(v) for v in logits.tolist()], dtype=torch.float32)
            probabilities, margin = distribution(logits, prompt, output, rules)
            if margin > MARGIN or rules["min_p"] == 1.0:  # min_p 1: the best token is the threshold itself
                break
        else:
            raise SystemExit(f"{name}: every draw hangs on rounding")
        lines.append(
            json.dumps(
                {
                    "name": name,
                    **rules,
                    "prompt": prompt,
                    "output": output,
                    "logits": [number(v) for v in logits.tolist()],
                    "probabilities": [number(v) for v in probabilities.tolist()],
                },
                separators=(",", ":"),
            )
        )
    head = json.dumps({"vocab": VOCAB, "seed": arguments.seed, "transformers": transformers.__version__})[:-1]
    text = head + ',\n"cases": [\n' + ",\n".join(lines) + "\n]}\n"
    json.loads(text)
    arguments.output.write_text(text)
    print(f"{len(lines)} cases, {len(text)} bytes")


if __name__ == "__main__":
    main()
