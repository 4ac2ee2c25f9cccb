#!/usr/bin/env python3
"""What scripts/gpu_check.sh makes of its results; the standard library is enough.

    gpu_check_report.py bench NAME RUN.json         one line about a run of `spillway bench --json`
    gpu_check_report.py times NAME FULL.json H2O.json   ... about two runs beside each other
    gpu_check_report.py table DIR                   all steps: a table, and DIR/results.json

DIR has steps.tsv (name, kind, result, seconds, detail of every step) and about.tsv (name and value), NAME.json
of every benchmark that passed, and profile.json.
"""

import json
import pathlib
import sys

GIB = 1 << 30
COLUMNS = ("step", "result", "seconds", "tokens/s", "predicted", "decode/s", "prefill/s", "efficiency", "bound", "link used",
           "device GiB", "")


def figures(run):
    """What is worth a column of a run of `spillway bench --json`; None: not of this device, or not known."""
    rates, decode = run["hardware"], run["time_by_cause"]["decode"]
    up, measured = rates["host_to_device_bytes_per_second"], run["measured"]
    streamed = decode["host_to_device_bytes"] / decode["seconds"] if decode["seconds"] else 0
    return {
        "tokens_per_second": run["tokens_per_second"],
        "predicted_tokens_per_second": run["predicted_tokens_per_second"],
        "decode_tokens_per_second": run["decode_tokens_per_second"],
        "prefill_tokens_per_second": run["prefill_tokens_per_second"],
        "efficiency": run["efficiency"],
        "decode_efficiency": run["decode_efficiency"],
        "prefill_efficiency": run["prefill_efficiency"],
        "bound": run["bound"]["resource"],
        "link_up_bytes_per_second": up or None,
        "link_down_bytes_per_second": rates["device_to_host_bytes_per_second"] or None,
        "link_used_in_decode": streamed / up if up else None,
        "peak_device_bytes": run["peak_device_bytes"],
        "attention": run["plan"].get("attention"),  # A CPU has no choice.
        "sequences": run["sequences"],
        "prompt_tokens": run["prompt_tokens"],
        "new_tokens": run["new_tokens"],
        "projected_from_steps": measured["decode_steps"] if measured else None,
    }


def bench_line(name, run):
    """A run in a line."""
    has = figures(run)
    projected = f", projected from {has['projected_from_steps']} decode steps" if has["projected_from_steps"] else ""
    line = f"{name}: {has['tokens_per_second']:.1f} tokens/s{projected}, {has['sequences']} sequences of "
    line += f"{has['prompt_tokens']} + {has['new_tokens']}, decode {has['decode_tokens_per_second']:.1f}, "
    line += f"prefill {has['prefill_tokens_per_second']:.0f}, efficiency {has['efficiency']:.2f} "
    line += f"(decode {has['decode_efficiency']:.2f}, prefill {has['prefill_efficiency']:.2f}; bound: {has['bound']})"
    if has["predicted_tokens_per_second"]:
        line += f", predicted {has['predicted_tokens_per_second']:.1f}"
    if has["link_up_bytes_per_second"]:
        line += f", link {has['link_up_bytes_per_second'] / 1e9:.1f} GB/s up, of which decode used "
        line += f"{has['link_used_in_decode']:.0%}, {has['link_down_bytes_per_second'] / 1e9:.1f} down, device taken "
        line += f"{has['peak_device_bytes'] / GIB:.1f} GiB, attention on the {has['attention']}"
    return line


def times_line(name, full, h2o):
    """What H2O is worth."""
    times = h2o["tokens_per_second"] / full["tokens_per_second"]
    projected = " (projected)" if full["projected"] or h2o["projected"] else ""
    return f"{name}: h2o, 20 % of the cache, has {times:.2f} times the tokens/s of the full cache{projected}"


def pairs(path):
    """Lines of fields between tabs."""
    return [line.split("\t") for line in path.read_text().splitlines() if line]


def results(folder):
    """Everything that was found out, as one object."""
    steps = []
    for name, kind, result, seconds, detail in pairs(folder / "steps.tsv"):
        step = {"name": name, "kind": kind, "result": result, "seconds": int(seconds), "detail": detail}
        if kind == "bench" and result == "passed":
            step["figures"] = figures(json.loads((folder / f"{name}.json").read_text()))
        steps.append(step)
    passed = all(step["result"] in ("passed", "skipped") for step in steps)
    try:
        profile = json.loads((folder / "profile.json").read_text())
    except (OSError, ValueError):
        profile = None
    return {"version": 1, **dict(pairs(folder / "about.tsv")), "passed": passed, "steps": steps, "profile": profile}


def cells(step):
    """A step's row."""
    row = [step["name"], step["result"], str(step["seconds"])]
    has = step.get("figures")
    if not has:
        return [*row, *[""] * 8, step["detail"].replace("|", "/")]

    def number(name, form, scale=1):
        return format(has[name] / scale, form) if has[name] else ""

    row += [number("tokens_per_second", ".1f"), number("predicted_tokens_per_second", ".1f")]
    row += [number("decode_tokens_per_second", ".1f"), number("prefill_tokens_per_second", ".0f")]
    row += [number("efficiency", ".2f"), has["bound"], number("link_used_in_decode", ".0%")]
    row += [number("peak_device_bytes", ".1f", GIB)]
    projected = has["projected_from_steps"]
    return [*row, f"projected from {projected} decode steps" if projected else ""]


def table(steps):
    """The steps as Markdown, in columns."""
    rows = [list(COLUMNS)] + [cells(step) for step in steps]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    widths[-1] = len(COLUMNS[-1])  # Nothing stands behind it.
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def main():
    """Command line."""
    what, *arguments = sys.argv[1:] or [""]
    if what == "bench" and len(arguments) == 2:
        print(bench_line(arguments[0], json.loads(pathlib.Path(arguments[1]).read_text())))
    elif what == "times" and len(arguments) == 3:
        print(times_line(arguments[0], *(json.loads(pathlib.Path(path).read_text()) for path in arguments[1:])))
    elif what == "table" and len(arguments) == 1:
        folder = pathlib.Path(arguments[0])
        found = results(folder)
        (folder / "results.json").write_text(json.dumps(found, indent=1) + "\n")
        print("\n".join(table(found["steps"])))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
