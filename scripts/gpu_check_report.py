#!/usr/bin/env python3
"""What scripts/gpu_check.sh makes of its results; the standard library is enough.

    gpu_check_report.py bench NAME RUN.json         one line about a run of `spillway bench --json`
    gpu_check_report.py times NAME FULL.json H2O.json   ... about two runs beside each other
    gpu_check_report.py ops TRACE                   the time of each op, stream by stream, in a trace of Spillway's
    gpu_check_report.py runs-on ARCHS CAPABILITY    whether CMake's list ("75-real;90") has code for a GPU ("9.0")
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


def op_name(event):
    """An op with the rows that it had: a decode step's is another matter than a prompt's."""
    rows = event.get("args", {}).get("rows")
    return event["name"] if rows is None else f"{event['name']}, {rows} rows"


def ops_table(events, most=60):
    """What each op took in a trace: a table of at most so many lines."""
    tracks, spans, rows = {}, {}, {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "thread_name":
            tracks[event["tid"]] = event["args"]["name"]
        if event["ph"] == "X":
            spans.setdefault(event["tid"], []).append(event)
    busy, begin, end = {}, None, None
    for tid, of in spans.items():
        track = tracks.get(tid, str(tid))
        for event in of:
            row = rows.setdefault((track, op_name(event)), [0, 0.0, 0])
            row[0] += 1
            row[1] += event["dur"]
            row[2] += event.get("args", {}).get("bytes", 0)
            busy[track] = busy.get(track, 0.0) + event["dur"]
            begin = event["ts"] if begin is None else min(begin, event["ts"])
            end = max(end or 0, event["ts"] + event["dur"])
    if not rows:
        raise SystemExit("the trace has no spans")
    lines = [f"{'stream':38} {'op':28} {'calls':>8} {'ms':>10} {'us a call':>10} {'of stream':>9} {'of run':>7} {'GB/s':>8}"]
    ordered = sorted(rows.items(), key=lambda row: (row[0][0] != "compute", -row[1][1]))
    for (track, name), (calls, total, moved) in ordered[:most]:
        rate = f"{moved / total / 1e3:8.1f}" if moved and total else f"{'':8}"
        lines.append(
            f"{track[:38]:38} {name[:28]:28} {calls:8} {total / 1e3:10.2f} {total / calls:10.1f} "
            f"{total / (busy[track] or 1):9.1%} {total / ((end - begin) or 1):7.1%} {rate}"
        )
    if len(ordered) > most:
        lines.append(f"... and {len(ordered) - most} more kinds, {sum(row[1][1] for row in ordered[most:]) / 1e3:.2f} ms")
    return lines


def runs_on(architectures, capability):
    """Whether one of CMake's architectures has machine code, or PTX, for a GPU."""
    major, minor = (int(part) for part in capability.strip().split("."))
    for entry in architectures.split(";"):
        number, _, kind = entry.partition("-")
        digits = int("".join(c for c in number if c.isdigit()))
        has_major, has_minor = divmod(digits, 10)
        if kind != "virtual" and has_major == major and has_minor <= minor:
            return True
        # PTX is in an entry without a kind, too, and is compiled for what is newer.
        if kind != "real" and not number.endswith("a") and (has_major, has_minor) <= (major, minor):
            return True
    return False


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
        if kind == "trace" and result == "passed":
            step["ops"] = (folder / f"{name.removesuffix('-ops')}.ops.txt").read_text().splitlines()
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
    elif what == "ops" and len(arguments) == 1:
        print("\n".join(ops_table(json.loads(pathlib.Path(arguments[0]).read_text())["traceEvents"])))
    elif what == "runs-on" and len(arguments) == 2:
        sys.exit(0 if runs_on(*arguments) else 1)
    elif what == "table" and len(arguments) == 1:
        folder = pathlib.Path(arguments[0])
        found = results(folder)
        (folder / "results.json").write_text(json.dumps(found, indent=1) + "\n")
        print("\n".join(table(found["steps"])))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
