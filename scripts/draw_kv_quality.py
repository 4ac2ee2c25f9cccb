#!/usr/bin/env python3
"""Draw what a smaller KV cache costs in perplexity: full, h2o and window, budget against perplexity.

    python scripts/draw_kv_quality.py --spillway build/release/spillway --text FILE --output docs/benchmarks/data/kv_quality MODEL

Runs `spillway eval` once (all rules see the same windows; what follows each prompt is scored token by token through
the decode path) and writes OUTPUT.svg and OUTPUT.json. A json given with --from is drawn again without a run. Needs
matplotlib (PyPI, or Debian's python3-matplotlib).
"""

import argparse
import json
import subprocess
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

BUDGETS = [60, 40, 20, 10, 4]
STYLES = {"h2o": ("o-", "#0b6e99", "h2o: half heavy hitters, half recent"), "window": ("s--", "#c4623f", "window: recent")}


def evaluate(options):
    """One run of `spillway eval` with every budget."""
    command = [options.spillway, "eval", options.model, "--text", options.text, "--json"]
    command += ["--context", options.context, "--prompt-tokens", options.prompt_tokens, "--windows", options.windows]
    command += ["--kv-budgets", ",".join(str(budget) for budget in BUDGETS), *options.spillway_args.split()]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"spillway eval failed with status {done.returncode}")
    found = json.loads(done.stdout)
    found["text"] = Path(options.text).name
    return found


def draw(found, target):
    """Both rules beside the full cache."""
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    axes.axhline(found["perplexity"], color="#444444", linewidth=1, label=f"full: {found['perplexity']:.2f}")
    for rule, (style, colour, label) in STYLES.items():
        points = [(b["percent"], b["perplexity"]) for b in found["budgets"] if b["kv_rule"] == rule]
        points = [(100, found["perplexity"]), *points]
        axes.plot(*zip(*points), style, color=colour, label=label, markersize=5)
    axes.set_xscale("log")
    axes.invert_xaxis()
    ticks = [100, *BUDGETS]
    axes.set_xticks(ticks, [f"{tick} %" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(f"KV cache kept, of {found['context']} positions")
    axes.set_ylabel("perplexity")
    axes.set_title(f"{found['model']}, {found['text']}: {found['tokens']} tokens behind prompts of {found['prompt_tokens']}")
    axes.grid(axis="y", color="#dddddd")
    axes.legend(frameon=False)
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
