#!/usr/bin/env python3
"""Draw what a smaller KV cache costs in perplexity: every rule, budget against perplexity.

    python scripts/draw_kv_quality.py --spillway build/release/spillway --text FILE --output docs/benchmarks/data/NAME MODEL

Runs `spillway eval` twice, without protected positions and with the first four (all rules see the same windows; what
follows each prompt is scored token by token through the decode path), and writes OUTPUT.svg and OUTPUT.json. A json
given with --from is drawn again without a run. Needs matplotlib (PyPI, or Debian's python3-matplotlib).
"""

import argparse
import json
import subprocess
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

BUDGETS = [60, 40, 20, 10, 4]
# The rule that `spillway eval` is to compare beside h2o and window, and the positions that all of them protect.
RUNS = [("snap", 0), ("random", 4)]
STYLES = {
    ("h2o", 0): ("o-", "#0b6e99", "h2o: half heavy hitters, half recent"),
    ("h2o", 4): ("o:", "#0b6e99", "h2o, first 4 protected"),
    ("snap", 0): ("^-", "#6a3d9a", "snap: chosen by the prompt's last queries"),
    ("window", 4): ("s-", "#c4623f", "window: recent and first 4"),
    ("random", 4): ("d-", "#777777", "random, first 4 protected"),
    ("window", 0): ("s:", "#c4623f", "window: recent alone"),
}
ABOUT = ["model", "windows", "tokens", "context", "prompt_tokens", "format", "kv_format"]


def run(options, rule, keep):
    """What `spillway eval` prints of every budget."""
    command = [options.spillway, "eval", options.model, "--text", options.text, "--json"]
    command += ["--context", options.context, "--prompt-tokens", options.prompt_tokens, "--windows", options.windows]
    command += ["--kv-budgets", ",".join(str(budget) for budget in BUDGETS), "--kv-rule", rule]
    command += (["--kv-keep", keep] if keep else []) + options.spillway_args.split()
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"spillway eval failed with status {done.returncode}")
    return json.loads(done.stdout)


def evaluate(options):
    """Both runs as one."""
    found = {"text": Path(options.text).name, "budgets": []}
    for rule, keep in RUNS:
        one = run(options, rule, keep)
        found.update({name: one[name] for name in ABOUT}, perplexity=one["perplexity_full"])
        found["budgets"] += [{**budget, "kv_keep": keep} for budget in one["budgets"]]
    return found


def draw(found, target):
    """Every rule that was run, beside the full cache."""
    full = found["perplexity"]
    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    axes.axhline(full, color="#444444", linewidth=1, label=f"full: {full:.2f}")
    for (rule, keep), (style, colour, label) in STYLES.items():
        of_rule = [b for b in found["budgets"] if b["kv_rule"] == rule and b.get("kv_keep", 0) == keep]
        points = [(100, full), *((b["percent"], b["perplexity"]) for b in of_rule)]
        if of_rule:
            axes.plot(*zip(*points), style, color=colour, label=label, markersize=5)
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.set_xticks([100, *BUDGETS], [f"{tick} %" for tick in [100, *BUDGETS]])
    axes.minorticks_off()
    # Rules differ by a few per cent at one end and by factors at the other.
    axes.set_yscale("log")
    most = max(b["perplexity"] for b in found["budgets"])
    ticks = [step * 10**power for power in range(6) for step in (1, 1.5, 2, 2.5, 3, 4, 6, 8)]
    ticks = [tick for tick in ticks if full * 0.9 < tick < most * 1.1]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.set_xlabel(f"KV cache kept, of {found['context']} positions")
    axes.set_ylabel("perplexity")
    axes.set_title(f"{found['model']}, {found['text']}: {found['tokens']} tokens behind prompts of {found['prompt_tokens']}", fontsize=10)
    axes.grid(axis="y", color="#dddddd")
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(target, metadata={"Date": None})


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="MODEL of `spillway eval`")
    parser.add_argument("--spillway", type=Path, default=Path("build/release/spillway"))
    parser.add_argument("--text", help="a UTF-8 text")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--windows", type=int, default=0, help="at most; 0: the whole text")
    parser.add_argument("--spillway-args", default="", help="more flags for `spillway eval`")
    parser.add_argument("--from", dest="source", type=Path, help="a json of an earlier run")
    parser.add_argument("--output", type=Path, required=True, help="without suffix")
    options = parser.parse_args()
    if options.source is None and not (options.model and options.text):
        parser.error("MODEL and --text, or --from, are needed")
    found = json.loads(options.source.read_text()) if options.source else evaluate(options)
    options.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    draw(found, options.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
