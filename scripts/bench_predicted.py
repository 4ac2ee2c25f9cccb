#!/usr/bin/env python3
"""How far the cost model is from this machine: predicted beside measured tokens/s, one `spillway bench` for each configuration.

    scripts/bench_predicted.py --spillway build/release/spillway [--disk-dir DIR] [--only REGEX] [--output docs/benchmarks/data/predicted]

Runs `spillway profile` first and again after every few rows, since shared machines change by the hour: each row is predicted
before it runs, by a profile some minutes old. Needs a quiet machine for about 15 minutes, and 20 GB of disk for opt-6.7b.
Random weights. With --output writes OUTPUT.md and OUTPUT.json.
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


ROWS_PER_PROFILE = 4


def spillway(options, *arguments):
    """One command: its exit status, and its output or last message."""
    command = [options.spillway, *arguments]
    if options.disk_dir:
        command += ["--disk-dir", options.disk_dir]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return done.returncode, (done.stderr.strip().splitlines() or ["no message"])[-1]
    return 0, done.stdout


def dummy_bench(options, model, flags):
    """One `spillway bench` with random weights: its exit status, and its result or last message."""
    status, text = spillway(options, "bench", model, "--dummy-weights", "--json", *flags)
    return status, json.loads(text) if status == 0 else text


def profile(options):
    """Measures the machine anew: bytes per second of its memory and of 2 MiB reads from its disk."""
    status, text = spillway(options, "profile", "--json")
    if status != 0:
        raise SystemExit(f"spillway profile: {text}")
    found = json.loads(text)
    reads = {(one["block_bytes"], one["depth"]): one["bytes_per_second"]["value"] for one in found["disk"]["read"]}
    return {
        "memory_bytes_per_second": found["compute"]["memory_read_bytes_per_second"]["value"],
        "disk_read_bytes_per_second": reads.get((2 << 20, 32), 0),
    }


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
    wanted = [one for one in CONFIGURATIONS if re.search(options.only, " ".join(one))]
    for number, (model, flags) in enumerate(wanted):
        if number % ROWS_PER_PROFILE == 0:
            rates = profile(options)
        status, result = dummy_bench(options, model, shlex.split(flags))
        if status != 0:
            lines.append(f"| {model} `{flags}` | failed: {result} | | | |")
        else:
            if result["predicted_tokens_per_second"] is None:
                raise SystemExit("bench predicts nothing: it found no profile where `spillway profile` left one")
            measured, predicted = result["tokens_per_second"], result["predicted_tokens_per_second"]
            ratios.append(measured / predicted)
            rows.append({"model": model, "flags": flags, "profile": rates, "result": result})
            lines.append(
                f"| {model} `{flags}` | {measured:.3g} | {predicted:.3g} | {ratios[-1]:.2f} | {result['efficiency']:.2f} |"
            )
        print(lines[-1], flush=True)
    if not ratios:
        sys.exit("nothing was measured")
    off = [abs(1 / ratio - 1) for ratio in ratios]  # Of what was measured
    near = sum(one <= 0.15 for one in off)
    lines += [
        "",
        f"Predicted within 15 % of measured: {near} of {len(ratios)}, the worst {100 * max(off):.0f} % off; measured / "
        f"predicted {statistics.median(ratios):.2f} in the median, {min(ratios):.2f} to {max(ratios):.2f}; {machine()}; {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC.",
    ]
    print(lines[-1])
    if options.output:
        options.output.with_suffix(".md").write_text("\n".join(lines) + "\n")
        options.output.with_suffix(".json").write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
