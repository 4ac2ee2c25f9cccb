#!/usr/bin/env python3
"""What the queue in PostgreSQL costs: the same rows by `spillway batch` and by one `spillway work`, in turn.

    scripts/bench_queue.py --database URL [--model configs/demo] [--rows 20000] [--repeats 5] [-- ENGINE FLAGS]

Prints the tokens/s of each pair of runs and the median of their ratios; loading the model and handing the rows in do not
count, on either side. Also the processor time of each, and of PostgreSQL where it is on this machine: its work then takes
from the worker's, and is in both figures.
"""
import argparse
import glob
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def write_rows(path, rows, new_tokens):
    words = "the of a house that river stands under old stones and nobody knows its name".split()
    with open(path, "w") as file:
        for row in range(rows):
            prompt = " ".join(words[(row * 7 + index * (1 + row % 5)) % len(words)] for index in range(8 + row % 32))
            file.write(json.dumps({"custom_id": f"r{row}", "body": {
                "prompt": f"{row} {prompt}", "max_tokens": new_tokens // 2 + row % new_tokens, "ignore_eos": True}}) + "\n")


def seconds_of(text):
    """"1 min 5 s" or "65.2 s" in seconds."""
    units = {"h": 3600, "min": 60, "s": 1}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+) (h|min|s)\b", text))


def tokens_per_second(text, first):
    found = re.search(first + r" (.*?): .*?(\d+) generated", text)
    return int(found[2]) / seconds_of(found[1])


def postgres_seconds():
    """Processor time of all processes of PostgreSQL on this machine so far, those that have ended included."""
    ticks = 0
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as file:
                text = file.read()
        except OSError:
            continue
        if "(postgres)" in text:
            ticks += sum(int(field) for field in text.rsplit(")", 1)[1].split()[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", required=True)
    parser.add_argument("--spillway", default=ROOT / "build/release/spillway", type=pathlib.Path)
    parser.add_argument("--model", default=str(ROOT / "configs/demo"))
    parser.add_argument("--rows", type=int, default=20000)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("engine", nargs="*")
    args = parser.parse_args()
    environment = {**os.environ, "SPILLWAY_DATABASE": args.database}
    name = pathlib.Path(args.model).name

    def run(*words):
        done = subprocess.run([args.spillway, *map(str, words)], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        return done

    ratios, shares = [], []
    with tempfile.TemporaryDirectory() as folder:
        rows, output = pathlib.Path(folder) / "rows.jsonl", pathlib.Path(folder) / "out.jsonl"
        write_rows(rows, args.rows, args.new_tokens)
        for repeat in range(args.repeats):
            def batch():
                before = children_seconds()
                text = run("batch", args.model, "--input", rows, "--output", output, "--overwrite", "--progress", "none",
                           *args.engine).stderr
                return tokens_per_second(text, "Done in"), children_seconds() - before

            def queue():
                job = run("queue", "submit", "--input", rows, "--model", name, "--force").stdout.split()[-1]
                time.sleep(1)
                before, database = children_seconds(), postgres_seconds()
                text = run("work", args.model, "--until-done", *args.engine).stderr
                own = children_seconds() - before
                time.sleep(0.5)
                database = postgres_seconds() - database
                run("queue", "delete", "--job", job)
                return tokens_per_second(text, "Worked"), own, database

            # Who runs first changes, as the machine may.
            if repeat % 2:
                by_queue, own, database = queue()
                by_batch, batch_seconds = batch()
            else:
                by_batch, batch_seconds = batch()
                by_queue, own, database = queue()
            ratios.append(by_queue / by_batch)
            shares.append(database / (own + database))
            print(f"batch {by_batch:8.1f} tokens/s, {batch_seconds:5.1f} s of processors; queue {by_queue:8.1f} tokens/s, "
                  f"{own:5.1f} s and {database:4.2f} s of PostgreSQL; ratio {ratios[-1]:.3f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f} (from {min(ratios):.3f} to {max(ratios):.3f}); PostgreSQL's share of the processor "
          f"time {statistics.median(shares):.3f}")


if __name__ == "__main__":
    main()
