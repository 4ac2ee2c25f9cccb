#!/usr/bin/env python3
"""How far the cost model is from this machine: predicted beside measured tokens/s, one `spillway bench` for each configuration.

    scripts/bench_predicted.py --spillway build/release/spillway [--disk-dir DIR] [--only REGEX] [--output docs/predicted]

Needs a profile (`spillway profile`, once) and a quiet machine; about ten minutes, and 20 GB of disk for opt-6.7b. Random
weights. With --output writes OUTPUT.md and OUTPUT.json.
"""

import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench_peers import machine

# Model, flags: resident and streamed, small and large blocks, KV on disk, both compressions.
CONFIGURATIONS = [
    ("opt-1.3b", "--format bf16 --sequences 16 --prompt-tokens 128 --new-tokens 32"),
    ("opt-1.3b", "--format bf16 --sequences 4 --prompt-tokens 128 --new-tokens 64"),
    ("opt-1.3b", "--format bf16 --sequences 96 --prompt-tokens 32 --new-tokens 48"),
    ("opt-1.3b", "--format bf16 --sequences 16 --prompt-tokens 64 --new-tokens 32 --weights 70,0,30 --host-memory 4GiB"),
    ("opt-1.3b", "--format bf16 --sequences 16 --prompt-tokens 64 --new-tokens 32 --weights 40,0,60 --host-memory 4GiB"),
    ("opt-1.3b", "--format bf16 --sequences 16 --prompt-tokens 64 --new-tokens 32 --weights 0,0,100 --host-memory 4GiB"),
    ("opt-1.3b", "--format bf16 --sequences 2 --prompt-tokens 32 --new-tokens 24 --weights 0,0,100 --host-memory 4GiB"),
    ("opt-1.3b", "--format bf16 --sequences 16 --prompt-tokens 64 --new-tokens 32 --kv 0,0,100 --host-memory 5GiB"),
    (
        "opt-1.3b",
        "--format bf16 --sequences 32 --prompt-tokens 256 --new-tokens 64 --kv-rule h2o --kv-heavy 0.1 --kv-recent 0.1",
    ),
    ("opt-1.3b", "--format q4 --sequences 16 --prompt-tokens 128 --new-tokens 32"),
    ("opt-1.3b", "--format q4 --sequences 4 --prompt-tokens 32 --new-tokens 64"),
    ("opt-6.7b", "--format bf16 --sequences 16 --prompt-tokens 32 --new-tokens 16 --weights 40,0,60 --host-memory 9GiB"),
    ("opt-6.7b", "--format q4 --sequences 16 --prompt-tokens 32 --new-tokens 24"),
]


def dummy_bench(options, model, flags):
    """One `spillway bench` with random weights: its exit status, and its result or last message."""
    command = [options.spillway, "bench", model, "--dummy-weights", "--json", *flags]
    if options.disk_dir:
        command += ["--disk-dir", options.disk_dir]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return done.returncode, (done.stderr.strip().splitlines() or ["no message"])[-1]
    return 0, json.loads(done.stdout)


def main():
    """Runs every configuration and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spillway", type=Path, required=True, help="the spillway binary")
    parser.add_argument("--disk-dir", type=Path, help="where scratch files lie")
    parser.add_argument("--only", default="", help="configurations that match this regular expression")
    parser.add_argument("--output", type=Path, help="writes OUTPUT.md and OUTPUT.json")
    options = parser.parse_args()
    lines = ["| | measured tokens/s | predicted | measured / predicted | efficiency |", "|---|---:|---:|---:|---:|"]
    rows, ratios = [], []
    for model, flags in CONFIGURATIONS:
        if not re.search(options.only, f"{model} {flags}"):
            continue
        status, result = dummy_bench(options, model, shlex.split(flags))
        if status != 0:
            lines.append(f"| {model} `{flags}` | failed: {result} | | | |")
        else:
            if result["predicted_tokens_per_second"] is None:
                raise SystemExit("bench predicts nothing: run `spillway profile` first")
            measured, predicted = result["tokens_per_second"], result["predicted_tokens_per_second"]
            ratios.append(measured / predicted)
            rows.append({"model": model, "flags": flags, "result": result})
            lines.append(
                f"| {model} `{flags}` | {measured:.3g} | {predicted:.3g} | {ratios[-1]:.2f} | {result['efficiency']:.2f} |"
            )
        print(lines[-1], flush=True)
    if not ratios:
        sys.exit("nothing was measured")
    near = sum(1 / 1.15 <= ratio <= 1.15 for ratio in ratios)
    lines += [
        "",
        f"Within 15 %: {near} of {len(ratios)}; median {statistics.median(ratios):.2f}, from {min(ratios):.2f} to "
        f"{max(ratios):.2f}; {machine()}; {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC.",
    ]
    print(lines[-1])
    if options.output:
        options.output.with_suffix(".md").write_text("\n".join(lines) + "\n")
        options.output.with_suffix(".json").write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
