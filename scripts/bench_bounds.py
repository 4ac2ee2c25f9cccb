#!/usr/bin/env python3
"""Both bounds of every benchmark run that is kept in docs/benchmarks/data, as a table in Markdown.

    python3 scripts/bench_bounds.py > docs/benchmarks/bounds.md

Two figures were called the efficiency of a run: the sum of each sweep's slowest resource over the
run's time, and (nowhere) the slowest resource's total over it. Only the second is a time that no
schedule can beat. A run that took less than a bound shows that a rate in it was too low, and is
marked: its efficiency says nothing.
"""

import argparse
import json
import pathlib
import sys

BEATEN = 1.02  # As `bench` has it: noise of the measurement

HEAD = """# Both bounds of the runs that are kept here

Written by `python3 scripts/bench_bounds.py > docs/benchmarks/bounds.md`, from the figures in [data/](data/).

*Sweep by sweep* adds up the slowest resource of every sweep: what the tables of these pages call `bound`, up to 2026-11-23. A
schedule that reads for the next sweep during this one can beat it. *Any schedule* is the slowest resource's total over the whole run. Both
are by the rates of that day: products as our kernels or oneDNN reached them alone, memory read in one order, the disk asked in one way. By
the peaks of the hardware, as `bench` has them now, no efficiency here would be higher, and those of 4-bit weights would be much lower. *Invalid*: the run took less
than the bound, so one of these rates was too low.
"""


def runs_of(figures):
    """Each object in some figures that has a bound of both kinds."""
    if isinstance(figures, dict):
        if isinstance(figures.get("bound"), dict) and "seconds_any_schedule" in figures["bound"]:
            yield figures
        for value in figures.values():
            yield from runs_of(value)
    elif isinstance(figures, list):
        for value in figures:
            yield from runs_of(value)


def seconds_of(run):
    """What was measured: of a run that was cut short, without what was projected."""
    measured = run.get("measured")
    return measured["total_seconds"] if measured else run["total_seconds"]


def share(bound, seconds):
    value = bound / seconds
    return f"{value:.2f}" + (", invalid" if value > BEATEN else "")


def row_of(run):
    bound, seconds, plan = run["bound"], seconds_of(run), run.get("plan", {})
    disk = "".join(f", {what} {plan[what][2]} % on disk" for what in ("weights", "kv") if what in plan and plan[what][2])
    rule = plan.get("kv_rule", "full")
    rule = rule if isinstance(rule, str) else rule.get("rule", "full")
    what = f"{run['model']} {plan.get('format', '')}, {run['sequences']} x ({run['prompt_tokens']} + {run['new_tokens']})"
    what += disk + ("" if rule == "full" else f", {rule}")
    return (f"| {what} | {seconds:.1f} | {bound['seconds']:.1f} | {share(bound['seconds'], seconds)} "
            f"| {bound['seconds_any_schedule']:.1f} | {share(bound['seconds_any_schedule'], seconds)} | {bound['resource']} |")


def table_of(path):
    rows = [row_of(run) for run in runs_of(json.loads(path.read_text()))]
    if not rows:
        return ""
    head = ["| run | seconds | sweep by sweep | efficiency | any schedule | efficiency | slowest resource |",
            "|---|---:|---:|---:|---:|---:|---|"]
    return "\n".join([f"\n## {path.name}\n"] + head + rows) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = pathlib.Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "data"
    arguments.add_argument("--figures", type=pathlib.Path, default=default, help="the folder with the JSON files")
    folder = arguments.parse_args().figures
    sys.stdout.write(HEAD + "".join(table_of(path) for path in sorted(folder.glob("*.json"))))


if __name__ == "__main__":
    main()
