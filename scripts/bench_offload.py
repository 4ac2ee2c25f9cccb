#!/usr/bin/env python3
"""Models larger than memory: Spillway beside transformers + accelerate, and beside the disk itself.

    scripts/bench_offload.py peers  --work DIR --spillway build/release/spillway --output docs/benchmarks/data/offload-peers
    scripts/bench_offload.py stream --work DIR --spillway build/release/spillway --file MODEL.spill

peers   One random opt-6.7b checkpoint for all, each system in a memory control group of 9 GiB that counts the page cache.
        accelerate, in bfloat16 or in float32, whichever the CPU multiplies faster: a prefill and a few decode steps are measured, the other steps projected from them (each is a pass over
        the weights; the table says so). Spillway runs to its end: bf16, 8-bit and 4-bit weights (these also by 8-bit
        products) on the same block, then bf16 with larger blocks (--best-sequences), since a pass over the weights costs the same for
        32 sequences as for 300. With --llama-cpp, llama.cpp's llama-batched-bench in the same group: bf16, which its mmap
        reads again in every step, Q4_0, and Q4_0 with one sequence; Spillway then runs one sequence, too (Llama shapes).
        With --repeats, all systems in turns, and the run of the median; with --decode-steps, Spillway and llama.cpp, too,
        measure some steps and have the others projected.
stream  The rate at which Spillway streams weights, alternating with fio (io_uring, O_DIRECT, 1 MiB, depth 32) on the same
        file, so that both see the same disk.

Environments, checkpoint and packed files stay under --work (opt-6.7b: 45 GB with torch) and are made once.
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import bench_peers
from bench_peers import RUNNERS, last_error, machine, run_logged

sys.path.insert(0, str(RUNNERS))
from memory_group import MemoryGroup, forget_pages  # noqa: E402

GIB = 1 << 30


class NoGroup:
    """Stands in for a MemoryGroup with --no-group."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def prefix(self):
        """Nothing in front."""
        return []

    def peak_bytes(self):
        """Unknown."""
        return None

    def about(self):
        """For the record."""
        return "no limit"


class Offload(bench_peers.Bench):
    """Environments, checkpoint and packed files of bench_peers.py, and the runs inside a group."""

    def __init__(self, options):
        super().__init__(options)
        self.offload = self.work / "offload"
        self.about_group = None

    def packed(self, model_format):
        """The checkpoint as a .spill file in a format, made on first use."""
        target = self.work / "models" / f"{self.options.shape}-{model_format}.spill"
        if not target.exists():
            self.say(f"packing {target.name}")
            log = self.logs / f"convert-{model_format}.log"
            log.unlink(missing_ok=True)
            command = [self.options.spillway.resolve(), "convert", self.model, target, "--format", model_format]
            if run_logged(command, log, 3600) != 0:
                raise RuntimeError(f"convert failed: {last_error(log)}")
        return target

    def limited(self, name, command, model, env=None):
        """Runs a command inside a fresh group with none of the model in the page cache; returns the group's peak."""
        log = self.logs / f"{name}.log"
        log.unlink(missing_ok=True)
        forget_pages(model)
        with MemoryGroup(self.options.group_bytes) if self.options.group else NoGroup() as group:
            self.about_group = group.about()
            status = run_logged([*group.prefix(), *command], log, self.options.time_limit, env)
            peak = group.peak_bytes()
        if status is None:
            raise RuntimeError(f"no end within {self.options.time_limit} s")
        if status != 0:
            raise RuntimeError(f"exit status {status}: {last_error(log)} ({log})")
        return peak

    def accelerate(self):
        """The peer: a prefill and some decode steps, the rest projected."""
        options = self.options
        self.install("accelerate")
        shutil.rmtree(self.offload, ignore_errors=True)
        self.offload.mkdir(parents=True)
        result = self.work / "result-accelerate.json"
        result.unlink(missing_ok=True)
        command = [self.python("accelerate"), RUNNERS / "run_accelerate.py", "--model", self.model]
        command += ["--memory-bytes", options.accelerate_memory_bytes, "--offload", self.offload]
        command += ["--prompts", options.prompts, "--prompt-tokens", options.prompt_tokens]
        command += ["--steps", options.steps, "--threads", options.threads, "--result", result]
        env = {"OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
        try:
            peak = self.limited("accelerate", command, self.model, env)
        finally:
            shutil.rmtree(self.offload, ignore_errors=True)
        found = json.loads(result.read_text())
        step = statistics.median(found["step_seconds"])
        total = found["prefill_seconds"] + (options.new_tokens - 1) * step
        return {
            "system": "transformers + accelerate",
            "version": found["version"],
            "format": {"bfloat16": "bf16", "float32": "f32"}[found["dtype"]],
            "sequences": options.prompts,
            "prefill_seconds": found["prefill_seconds"],
            "step_seconds": step,
            "total_seconds": total,
            "tokens_per_second": options.prompts * options.new_tokens / total,
            "projected": f"{len(found['step_seconds'])} of {options.new_tokens - 1} decode steps measured",
            "peak_group_bytes": peak,
            "detail": found,
        }

    def gguf(self, kind):
        """The checkpoint as a GGUF file, BF16 or quantised by llama-quantize, made on first use."""
        target = self.work / "models" / f"{self.options.shape}-{kind}.gguf"
        if target.exists():
            return target
        if kind == "BF16":
            self.install("gguf")
            command = [self.python("gguf"), RUNNERS / "make_gguf.py", self.model, target]
        else:
            command = [self.options.llama_cpp / "llama-quantize", self.gguf("BF16"), target, kind, self.options.threads]
        self.say(f"making {target.name}")
        log = self.logs / f"gguf-{kind}.log"
        log.unlink(missing_ok=True)
        if run_logged(command, log, 3600) != 0:
            target.unlink(missing_ok=True)
            raise RuntimeError(f"no {target.name}: {last_error(log)} ({log})")
        return target

    def steps_measured(self):
        """The decode steps that Spillway and llama.cpp measure."""
        steps = self.options.new_tokens - 1
        return min(self.options.decode_steps or steps, steps)

    def projected(self):
        """The table's remark about projected decode steps; empty: all are measured."""
        steps = self.options.new_tokens - 1
        measured = self.steps_measured()
        return f"{measured} of {steps} decode steps measured" if measured < steps else ""

    def llama_cpp(self, kind, sequences):
        """llama.cpp's own benchmark of equal prompts that decode together."""
        options = self.options
        model = self.gguf(kind)
        name = f"llama.cpp-{kind}-{sequences}"
        result = self.work / f"result-{name}.jsonl"
        positions = sequences * (options.prompt_tokens + options.new_tokens)
        command = [options.llama_cpp / "llama-batched-bench", "-m", model, "-c", positions, "-b", "2048", "-ub", "512"]
        # It decodes a step for each token: its prompts end without one.
        steps = options.new_tokens if not self.projected() else self.steps_measured()
        command += ["-npp", options.prompt_tokens, "-ntg", steps, "-npl", sequences]
        command += ["-t", options.threads, "-tb", options.threads, "--output-format", "jsonl"]
        line = " ".join(shlex.quote(str(c)) for c in command) + f" > {shlex.quote(str(result))}"
        peak = self.limited(name, ["sh", "-c", line], model)
        rows = [json.loads(line) for line in result.read_text().splitlines() if line.startswith("{")]
        if not rows:
            raise RuntimeError(f"no result in {result}")
        found = rows[-1]
        self.say(f"{name}: {found['speed_tg']:.2f} tokens/s in decode")
        step = found["t_tg"] / steps
        total = found["t_pp"] + options.new_tokens * step
        return {
            "system": "llama.cpp" + (f", {sequences} sequence" if sequences == 1 else ""),
            "version": options.llama_cpp_version,
            "format": kind,
            "sequences": sequences,
            "prefill_seconds": found["t_pp"],
            "step_seconds": step,
            "total_seconds": total,
            "tokens_per_second": sequences * options.new_tokens / total,
            "efficiency": None,
            "projected": self.projected(),
            "peak_group_bytes": peak,
            "detail": found,
        }

    def spillway(self, name, model_format, sequences, extra=()):
        """A whole run of `spillway bench` on the packed checkpoint."""
        options = self.options
        model = self.packed(model_format)
        log = self.logs / f"{name}.log"
        result = self.work / f"result-{name}.json"
        command = [options.spillway.resolve(), "bench", model, "--json", "--sequences", sequences]
        command += ["--prompt-tokens", options.prompt_tokens, "--new-tokens", options.new_tokens]
        command += ["--host-memory", options.host_memory_bytes, "--disk-dir", self.work, "--threads", options.threads]
        if self.projected():
            command += ["--decode-steps", self.steps_measured()]
        # The shell keeps stdout (the result) apart from stderr (the log).
        line = " ".join(shlex.quote(str(c)) for c in [*command, *extra]) + f" > {shlex.quote(str(result))}"
        peak = self.limited(name, ["sh", "-c", line], model)
        found = json.loads(result.read_text())
        steps = max(1, options.new_tokens - 1)
        self.say(f"{name}: {found['tokens_per_second']:.2f} tokens/s ({log.name})")
        return {
            "system": f"Spillway, {sequences} sequence{'s' * (sequences > 1)}" if sequences != options.prompts else "Spillway",
            "version": found["plan"]["kv_format"] + " KV",
            "format": model_format + (" by 8-bit products" if found["plan"].get("quantized_compute") == "int8" else ""),
            "sequences": sequences,
            "prefill_seconds": found["prefill_seconds"],
            "step_seconds": found["decode_seconds"] / steps,
            "total_seconds": found["total_seconds"],
            "tokens_per_second": found["tokens_per_second"],
            "efficiency": found["efficiency"],
            "bound": found["bound"]["resource"],
            "projected": self.projected(),
            "peak_group_bytes": peak,
            "detail": found,
        }

    def fio(self):
        """Bytes per second that fio reads from the file, for a few seconds."""
        command = ["fio", "--name=read", f"--filename={self.options.file}", "--rw=read", "--direct=1", "--bs=1M"]
        command += ["--ioengine=io_uring", "--iodepth=32", "--readonly", "--time_based"]
        command += [f"--runtime={self.options.fio_seconds}", "--output-format=json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"fio failed: {done.stderr.strip() or done.stdout.strip()[:300]}")
        # fio may print notes before the object.
        return json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]["bw_bytes"]

    def streamed(self):
        """Bytes per second that Spillway reads in its decode sweeps, and what it says of them."""
        options = self.options
        command = [options.spillway.resolve(), "bench", options.file, "--json", "--prompt-tokens", options.prompt_tokens]
        command += ["--sequences", options.sequences, "--new-tokens", options.sweeps]
        command += ["--host-memory", options.host_memory_bytes, "--disk-dir", self.work, "--threads", options.threads]
        done = subprocess.run(
            [str(c) for c in command] + shlex.split(options.spillway_args), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"spillway bench failed: {done.stderr.strip()[-400:]}")
        found = json.loads(done.stdout)
        decode = found["time_by_cause"]["decode"]
        if decode["disk_bytes_read"] == 0:
            raise SystemExit("spillway read nothing from disk: the model fits the budget; lower --host-memory-gib")
        return decode["disk_bytes_read"] / decode["seconds"], found


def gib(count):
    """Bytes for people."""
    return f"{count / GIB:.2f}" if count else "?"


def markdown(rows, head):
    """The table that people read; `times` is against the first row."""
    lines = [
        head,
        "",
        "| system | weights | prefill s | decode step s | total s | tokens/s | times | peak of the group, GiB | |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    base = rows[0].get("tokens_per_second")
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['system']} | failed: {row['failed'].replace('|', '/')} | | | | | | | |")
            continue
        times = f"{row['tokens_per_second'] / base:.2f}" if base else ""
        notes = [f"projected: {row['projected']}"] if row["projected"] else []
        if row.get("efficiency") is not None:
            notes.append(f"efficiency {row['efficiency']:.2f} ({row['bound']})")
        if len(row.get("turns", [])) > 1:
            notes.append("turns: " + ", ".join(f"{turn:.2f}" for turn in row["turns"]))
        note = "; ".join(notes)
        cells = [row["system"], row["format"], f"{row['prefill_seconds']:.1f}", f"{row['step_seconds']:.2f}"]
        cells += [f"{row['total_seconds']:.1f}", f"{row['tokens_per_second']:.2f}", times]
        lines.append("| " + " | ".join([*cells, gib(row["peak_group_bytes"]), note]) + " |")
    return "\n".join(lines) + "\n"


def median_rows(turns):
    """Of each system the run of the median tokens/s (the lower middle one), with every turn's; a failure stays one."""
    rows = []
    for runs in zip(*turns):
        failed = [row for row in runs if "failed" in row]
        in_order = sorted((row for row in runs if "failed" not in row), key=lambda row: row["tokens_per_second"])
        rates = [row["tokens_per_second"] for row in runs if "failed" not in row]
        rows.append(failed[0] if failed else in_order[(len(in_order) - 1) // 2] | {"turns": rates})
    return rows


def peers(bench, options):
    """Every system in turn; a failure becomes a row."""
    try:
        bench.make_model()
    except RuntimeError as reason:
        raise SystemExit(str(reason)) from None
    runs = [("accelerate", bench.accelerate)] if not options.skip_accelerate else []
    if options.llama_cpp:
        for kind, sequences in [("BF16", options.prompts), ("Q4_0", options.prompts), ("Q4_0", 1)]:
            runs.append((f"llama.cpp-{kind}-{sequences}", lambda k=kind, n=sequences: bench.llama_cpp(k, n)))
    if options.spillway:
        extra = shlex.split(options.spillway_args)
        best = ["--kv-format", options.best_kv_format] if options.best_kv_format else []
        for name, model_format, sequences, own in [
            ("spillway-bf16", "bf16", options.prompts, []),
            ("spillway-q8", "q8", options.prompts, ["--quantized-compute", "int8"]),
            ("spillway-q4", "q4", options.prompts, ["--quantized-compute", "float"]),
            ("spillway-q4-int8", "q4", options.prompts, ["--quantized-compute", "int8"]),
            *([("spillway-q4-int8-1", "q4", 1, ["--quantized-compute", "int8"])] if options.llama_cpp else []),
            *((f"spillway-best-{n}", "bf16", n, best) for n in options.best_sequences),
        ]:
            flags = [*extra, *own]
            runs.append((name, lambda n=name, f=model_format, s=sequences, e=flags: bench.spillway(n, f, s, e)))
    if not runs:
        raise SystemExit("nothing to run: --spillway is missing and accelerate is skipped")
    if options.only:
        names = [name for name, _ in runs]
        runs = [(name, run) for name, run in runs if any(name.startswith(start) for start in options.only)]
        if not runs:
            raise SystemExit(f"nothing to run: --only names no system; there are {', '.join(names)}")
    rows = median_rows([bench.rows_of(runs) for _ in range(options.repeats)])
    head = (
        f"Random {options.shape} (the same checkpoint for all), prompts of {options.prompt_tokens} tokens, {options.new_tokens} "
        f"new tokens each, greedy, {options.prompts} sequences unless a row says otherwise, inside {gib(options.group_bytes)} GiB "
        f"that count the page cache ({bench.about_group}); {machine()}; {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC."
    )
    table = markdown(rows, head)
    print(table)
    if options.output:
        options.output.with_suffix(".md").write_text(table)
        options.output.with_suffix(".json").write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    if any("failed" in row for row in rows):
        sys.exit(1)


def stream(bench, options):
    """fio, Spillway, fio, Spillway, ..., fio: each Spillway run is held against the mean of its two neighbours."""
    if not shutil.which("fio"):
        raise SystemExit("fio is not installed; scripts/setup names the package")
    disk = [bench.fio()]
    shares = []
    for turn in range(options.repeats):
        rate, found = bench.streamed()
        disk.append(bench.fio())
        here = (disk[-2] + disk[-1]) / 2
        shares.append(rate / here)
        print(
            f"#{turn + 1}: spillway {rate / 1e9:.3f} GB/s, fio {disk[-2] / 1e9:.3f} before and {disk[-1] / 1e9:.3f} after: "
            f"{100 * shares[-1]:.1f} %; efficiency {found['efficiency']:.2f} ({found['bound']['resource']}), "
            f"compute {found['time_by_cause']['decode']['compute_seconds']:.1f} of "
            f"{found['time_by_cause']['decode']['seconds']:.1f} s",
            flush=True,
        )
    print(f"median of {options.repeats}: {100 * statistics.median(shares):.1f} % of fio; {machine()}")


def parse_arguments():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--work", type=Path, required=True, help="environments, models, logs; outside the tree")
    common.add_argument("--spillway", type=Path, help="the spillway binary")
    common.add_argument("--spillway-args", default="", help="more flags for `spillway bench`")
    common.add_argument("--host-memory-gib", type=float, default=8, help="Spillway's budget, inside the group's limit")
    common.add_argument("--threads", type=int, default=os.cpu_count())
    mode = modes.add_parser("peers", parents=[common], help="Spillway beside accelerate in a memory control group")
    mode.add_argument("--shape", choices=bench_peers.SHAPES, default="opt-6.7b")
    mode.add_argument("--prompts", type=int, default=32)
    mode.add_argument("--prompt-tokens", type=int, default=64)
    mode.add_argument("--new-tokens", type=int, default=64)
    mode.add_argument("--steps", type=int, default=3, help="decode steps of accelerate to measure")
    mode.add_argument("--decode-steps", type=int, default=0, help="of Spillway and llama.cpp to measure; 0: all")
    mode.add_argument("--repeats", type=int, default=1, help="turns over all systems; the table has medians")
    mode.add_argument("--only", action="append", help="a system, or the beginning of its name; may be repeated")
    mode.add_argument("--group-gib", type=float, default=9)
    mode.add_argument("--no-group", dest="group", action="store_false", help="no memory limit: not comparable")
    mode.add_argument("--accelerate-memory-gib", type=float, default=6.5, help="of its weights in memory")
    mode.add_argument("--skip-accelerate", action="store_true")
    mode.add_argument("--llama-cpp", type=Path, help="folder with llama-batched-bench and llama-quantize: measured, too")
    mode.add_argument("--llama-cpp-version", default="", help="for the record")
    mode.add_argument("--best-sequences", default="160,320", help="larger blocks for Spillway's best, comma-separated")
    mode.add_argument("--best-kv-format", default="", help="of these blocks; default: the weights'")
    mode.add_argument("--time-limit", type=int, default=7200, help="seconds for one run")
    mode.add_argument("--output", type=Path, help="writes OUTPUT.md and OUTPUT.json")
    mode = modes.add_parser("stream", parents=[common], help="weights streamed from disk beside fio")
    mode.add_argument("--file", type=Path, required=True, help="a .spill file larger than the budget")
    mode.add_argument("--sequences", type=int, default=1, help="1: the disk alone decides")
    mode.add_argument("--prompt-tokens", type=int, default=1)
    mode.add_argument("--sweeps", type=int, default=8)
    mode.add_argument("--fio-seconds", type=int, default=6)
    mode.add_argument("--repeats", type=int, default=3)
    mode.set_defaults(shape="opt-6.7b")
    options = parser.parse_args()
    options.host_memory_bytes = int(options.host_memory_gib * GIB)
    if options.mode == "stream":
        if not options.spillway:
            parser.error("--spillway is needed")
        return options
    options.group_bytes = int(options.group_gib * GIB)
    options.accelerate_memory_bytes = int(options.accelerate_memory_gib * GIB)
    if options.repeats < 1:
        parser.error("--repeats must be 1 or more")
    if options.decode_steps < 0:
        parser.error("--decode-steps must be 1 or more, or 0 for all")
    options.best_sequences = [int(n) for n in options.best_sequences.split(",") if n]
    return options


def main():
    """Runs one of the two modes."""
    options = parse_arguments()
    bench = Offload(options)
    if options.mode == "stream":
        stream(bench, options)
    else:
        peers(bench, options)


if __name__ == "__main__":
    main()
