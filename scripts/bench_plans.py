#!/usr/bin/env python3
"""Whether the plan that is found by itself is as fast as the best of a grid that is really run.

    scripts/bench_plans.py --spillway build/release/spillway [--budgets 1.5GiB,3GiB,5GiB] [--output docs/benchmarks/data/plans]

For each budget of host memory: `spillway bench` once with every block, share of the weights and share of the KV cache of the
grid (what does not fit says so at once), and once without flags, which runs the plan of the search. Then the fastest of the
grid and the plan in turn, --repeats times; their medians are compared, since the disk changes by the minute. Random weights.
Needs a profile (`spillway profile`, just before) and a quiet machine; half an hour.
"""

import argparse
import itertools
import json
import shlex
import statistics
import sys
import time
from pathlib import Path

from bench_peers import machine
from bench_predicted import dummy_bench

INFEASIBLE = 3  # Exit status


def run(options, budget, flags):
    """The result of one bench; None where the placement does not fit."""
    flags = ["--host-memory", budget, *shlex.split(options.workload), *flags]
    status, result = dummy_bench(options, options.shape, flags)
    if status not in (0, INFEASIBLE):
        raise SystemExit(f"bench {options.shape} {shlex.join(flags)}: {result}")
    return result if status == 0 else None


def place(result):
    """Block and shares of a result, for people."""
    plan = result["plan"]

    def shares(kind):
        return ",".join(str(share) for share in plan[kind])

    return f"block {plan['block']}, weights {shares('weights')}, KV {shares('kv')}"


def compare(options, budget):
    """The grid, the plan, and the better of both again in turn."""
    grid = []
    for block, weights, kv in itertools.product(options.blocks, options.shares, options.shares):
        flags = ["--block", str(block), "--weights", f"{100 - weights},0,{weights}", "--kv", f"{100 - kv},0,{kv}"]
        result = run(options, budget, flags)
        if result is not None:
            grid.append((result["tokens_per_second"], flags, result))
            print(f"{budget}: {place(result)}: {grid[-1][0]:.2f} tokens/s", flush=True)
    if not grid:
        raise SystemExit(f"nothing of the grid fits {budget}")
    grid.sort(key=lambda row: -row[0])
    rivals = [[] for _ in grid[: options.rivals]]
    found = []
    for _ in range(options.repeats):
        result = run(options, budget, [])
        if result is None:
            raise SystemExit(f"the plan found for {budget} does not fit, though {shlex.join(grid[0][1])} does")
        if result["predicted_tokens_per_second"] is None:
            raise SystemExit("bench found no plan: run `spillway profile` first")
        found.append(result)
        for speeds, (_, flags, _) in zip(rivals, grid):
            again = run(options, budget, flags)
            if again is not None:
                speeds.append(again["tokens_per_second"])
    ours = statistics.median(result["tokens_per_second"] for result in found)
    best, best_row = max((statistics.median(speeds), i) for i, speeds in enumerate(rivals) if speeds)
    row = {
        "budget": budget,
        "grid": [{"flags": flags, "tokens_per_second": speed} for speed, flags, _ in grid],
        "plan": found[0]["plan"],
        "plan_runs": [result["tokens_per_second"] for result in found],
        "best_flags": grid[best_row][1],
        "best_runs": rivals[best_row],
        "ratio": ours / best,
    }
    line = f"| {budget} | {len(grid)} | {place(grid[best_row][2])} | {best:.2f} | {place(found[0])} | {ours:.2f} | {ours / best:.2f} |"
    print(line, flush=True)
    return row, line


def main():
    """Every budget, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spillway", type=Path, required=True, help="the spillway binary")
    parser.add_argument("--shape", default="opt-1.3b")
    parser.add_argument("--workload", default="--format bf16 --sequences 32 --prompt-tokens 32 --new-tokens 32")
    parser.add_argument("--budgets", default="1.5GiB,3GiB,5GiB")
    parser.add_argument("--blocks", default="8,16,32", help="sequences, comma-separated")
    parser.add_argument("--shares", default="0,50,100", help="per cent on disk, of weights and of the cache")
    parser.add_argument("--rivals", type=int, default=2, help="how many of the grid's fastest run again")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--disk-dir", type=Path, help="where scratch files lie")
    parser.add_argument("--output", type=Path, help="writes OUTPUT.md and OUTPUT.json")
    options = parser.parse_args()
    options.blocks = [int(block) for block in options.blocks.split(",")]
    options.shares = [int(share) for share in options.shares.split(",")]
    head = [
        f"{options.shape}, `{options.workload}`; {machine()}; {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC.",
        "",
        "| budget | grid | its fastest | tokens/s | the plan found | tokens/s | of the fastest |",
        "|---|---:|---|---:|---|---:|---:|",
    ]
    rows = [compare(options, budget) for budget in options.budgets.split(",")]
    table = "\n".join(head + [line for _, line in rows]) + "\n"
    print(table)
    if options.output:
        options.output.with_suffix(".md").write_text(table)
        report = {"machine": machine(), "workload": options.workload, "rows": [row for row, _ in rows]}
        options.output.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    if any(row["ratio"] < 0.95 for row, _ in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
