#!/usr/bin/env python3
"""Greedy tokens of a GGUF file by Spillway and by transformers, both in float32.

    python compare_gguf.py MODEL.gguf --text FILE [--prompts 200] [--new-tokens 24] [--spillway build/release/spillway]

Prompts are runs of 3 to 40 tokens of the text. Where the answers part, the script says how far apart the two best
logits were at that step: a gap near rounding is a tie, anything else is a fault. Exit status 1: a fault.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

TIE = 1e-3  # distance of the two best logits below which either may win


def make_prompts(tokenizer, text, count):
    """`count` distinct runs of tokens of the text, of ragged lengths."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    generator = random.Random(1)
    prompts = []
    for _ in range(count):
        length = generator.randint(3, 40)
        start = generator.randrange(len(ids) - length)
        prompts.append(ids[start : start + length])
    return prompts


def ours(arguments, prompts):
    """Tokens by `spillway batch`, all prompts in one block."""
    with tempfile.TemporaryDirectory() as folder:
        rows, out = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        with open(rows, "w", encoding="utf-8") as file:
            for i, prompt in enumerate(prompts):
                body = {"prompt": prompt, "max_tokens": arguments.new_tokens, "temperature": 0, "ignore_eos": True}
                line = {"custom_id": str(i), "method": "POST", "url": "/v1/completions"}
                file.write(json.dumps({**line, "body": {**body, "return_token_ids": True}}) + "\n")
        command = [arguments.spillway, "batch", arguments.model, "--input", rows, "--output", out, "--format", "f32"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        answers = [json.loads(line) for line in open(out, encoding="utf-8")]
        return [answer["response"]["body"]["choices"][0]["token_ids"] for answer in answers]


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", required=True)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--spillway", default="build/release/spillway")
    arguments = parser.parse_args()
    path = Path(arguments.model)
    transformers.logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    text = open(arguments.text, encoding="utf-8").read()[:200000]
    prompts = make_prompts(tokenizer, text, arguments.prompts)
    found = ours(arguments, prompts)
    equal = ties = 0
    for i, prompt in enumerate(prompts):
        ids = torch.tensor([prompt + found[i]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
        expected = logits.argmax(-1).tolist()
        if expected == found[i]:
            equal += 1
            continue
        step = next(t for t, token in enumerate(expected) if token != found[i][t])
        gap = (logits[step].max() - logits[step][found[i][step]]).item()
        ties += gap < TIE
        print(f"prompt {i}: step {step}: {found[i][step]} for {expected[step]}, {gap:.2g} below the best", flush=True)
    print(f"{equal} of {len(prompts)} prompts have equal tokens, {ties} part at a tie of less than {TIE}")
    sys.exit(equal + ties < len(prompts))


if __name__ == "__main__":
    main()
