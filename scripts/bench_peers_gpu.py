#!/usr/bin/env python3
"""One GPU under one cap: Spillway beside transformers + accelerate, FlexGen and FlexGen's H2O fork; one table, one run.

    scripts/bench_peers_gpu.py --work DIR --spillway build/cuda/spillway --host-memory-gib 200 --output docs/benchmarks/data/gpu-peers \\
        [--flexgen FLEXGEN_DIR --flexgen-python PYTHON] [--h2o H2O_DIR/h2o_flexgen --h2o-python PYTHON]

The same shape, random weights, prompt and output lengths, greedy, float16. Every system gets --gpu-gib of GPU memory: torch's
own cap for the peers, --device-memory for Spillway. tokens/s is generated tokens over prefill and decode together, without
loading and warm-up. FlexGen and its fork are run from checkouts, with an interpreter that has what they need; without
--flexgen-policy and --h2o-policy they run what their authors published for opt-30b on 16 GB. accelerate gets
the largest batch that runs, halved from --sequences until one does; a few of its decode steps are measured and the others
projected from them, as its row says. Spillway profiles the machine, then runs --sequences as it places them by itself, and
again with the fork's H2O.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import bench_peers
from bench_peers import RUNNERS, last_error, machine, run_logged
from peers.word_tokenizer import write_tokenizer

GB = 10**9
GIB = 1 << 30
bench_peers.SHAPES["opt-30b"] = dict(hidden_size=7168, layers=48, heads=56, ffn=28672, vocab=50272)
# Batch x batches, then per cent of weights, cache and activations on GPU and CPU.
FLEXGEN_POLICY, H2O_POLICY = "48x3 20,80,0,100,0,100", "3x15 20,80,0,100,0,100"
FLEXGEN_LOG = re.compile(r"peak gpu mem: ([\d.]+) GB|(prefill|decode|total) latency: ([\d.]+) s|projected: (\w+)")


def parse_policy(text):
    """'48x3 20,80,0,100,0,100' as (batch, batches, the six percentages, whether the CPU attends to its part of the cache).

    With " copied" behind it, that part is copied to the GPU instead.
    """
    sizes, percent, *copied = text.split()
    batch, batches = (int(part) for part in sizes.split("x"))
    percent = percent.split(",")
    if len(percent) != 6 or copied not in ([], ["copied"]):
        raise ValueError("a policy has six percentages, and nothing or 'copied' behind them")
    return batch, batches, percent, not copied


def flex_opt(checkout):
    """FlexGen's program; its folder's name is newer than the paper's."""
    for folder in ("flexllmgen", "flexgen"):
        if (checkout / folder / "flex_opt.py").exists():
            return checkout / folder / "flex_opt.py"
    return None


def parse_flexgen(text):
    """What FlexGen's benchmark logs, in seconds and bytes; KeyError when something is missing."""
    found = {}
    for peak, phase, seconds, projected in FLEXGEN_LOG.findall(text):
        if peak:
            found["peak"] = float(peak) * GIB  # FlexGen's GB is 2^30.
        elif phase:
            found[phase] = float(seconds)
        else:
            found["projected"] = projected not in ("False", "None")  # Or why: how far it was cut short.
    return {key: found[key] for key in ("prefill", "decode", "total", "peak", "projected")}


class GpuBench(bench_peers.Bench):
    """Environments and checkpoint of bench_peers.py; each method is a row of the table."""

    def python(self, environment):
        """The interpreter that --python names has everything."""
        return self.options.python or super().python(environment)

    def install(self, name):
        """Nothing where --python names an interpreter: then no package index is needed."""
        if not self.options.python:
            super().install(name)

    def row(self, system, sequences, prefill, total, peak, note, detail):
        """The figures of one system; tokens/s from the same formula for all."""
        tokens = sequences * self.options.new_tokens
        return {
            "system": system,
            "sequences": sequences,
            "prefill_seconds": prefill,
            "decode_seconds": total - prefill,
            "tokens_per_second": tokens / total,
            "gpu_peak_bytes": peak,
            "note": note,
            "detail": detail,
        }

    def logged(self, name, command, env=None):
        """Runs a command; returns its log; raises RuntimeError with the reason."""
        log = self.logs / f"{name}.log"
        log.unlink(missing_ok=True)
        status = run_logged(command, log, self.options.time_limit, env)
        if status is None:
            raise RuntimeError(f"no end within {self.options.time_limit} s")
        if status != 0:
            raise RuntimeError(f"exit status {status}: {last_error(log)} ({log.name})")
        return log.read_text(errors="replace")

    def accelerate(self):
        """The largest batch that runs."""
        self.make_model()
        self.install("accelerate")
        sequences, reason = self.options.sequences, None
        while sequences > 0:
            try:
                return self.accelerate_batch(sequences)
            except RuntimeError as failed:
                reason = failed
                if "out of memory" not in str(failed):
                    break
                self.say(f"accelerate: {sequences} sequences are too many")
                sequences //= 2
        raise reason

    def accelerate_batch(self, sequences):
        """A prefill and some decode steps; the rest projected."""
        options = self.options
        shape = bench_peers.SHAPES[options.shape]
        positions = options.prompt_tokens + options.new_tokens
        cache = 4 * positions * shape["layers"] * shape["hidden_size"] * sequences  # keys and values, 2 bytes each
        # The cache stays on the GPU, written anew in each step; a layer's activations come on top.
        weights = options.gpu_bytes - int(1.5 * cache) - 2 * GB
        if weights <= GB:
            raise RuntimeError(f"out of memory by the cache of {sequences} sequences alone")
        offload, result = self.work / "offload", self.work / "result-accelerate-gpu.json"
        shutil.rmtree(offload, ignore_errors=True)
        offload.mkdir(parents=True)
        result.unlink(missing_ok=True)
        command = [self.python("accelerate"), RUNNERS / "run_accelerate.py", "--model", self.model]
        command += ["--memory-bytes", options.host_bytes, "--offload", offload, "--prompts", sequences]
        command += ["--gpu-bytes", options.gpu_bytes, "--gpu-weight-bytes", weights, "--threads", options.threads]
        command += ["--prompt-tokens", options.prompt_tokens, "--steps", options.steps, "--result", result]
        try:
            self.logged("accelerate-gpu", command, {"HF_HUB_OFFLINE": "1"})
        finally:
            shutil.rmtree(offload, ignore_errors=True)
        found = json.loads(result.read_text())
        total = found["prefill_seconds"] + (options.new_tokens - 1) * statistics.median(found["step_seconds"])
        note = f"projected from {len(found['step_seconds'])} of {options.new_tokens - 1} decode steps"
        return self.row(
            "transformers + accelerate", sequences, found["prefill_seconds"], total, found["gpu_peak_bytes"], note, found
        )

    def flexgen(self, name, checkout, python, policy, extra=()):
        """FlexGen's flex_opt.py with dummy weights."""
        options = self.options
        batch, batches, percent, cpu_attends = parse_policy(policy)
        offload = self.work / "offload"
        shutil.rmtree(offload, ignore_errors=True)
        offload.mkdir(parents=True)
        log = self.work / f"result-{name}.log"
        log.unlink(missing_ok=True)
        tokenizer = self.model.with_name(self.model.name + "-tokenizer")
        write_tokenizer(tokenizer, bench_peers.SHAPES[options.shape]["vocab"])
        command = [python, RUNNERS / "run_flexgen.py", options.gpu_bytes, tokenizer, flex_opt(checkout)]
        command += ["--model", f"facebook/{options.shape}", "--path", "_DUMMY_", "--offload-dir", offload]
        command += ["--prompt-len", options.prompt_tokens, "--gen-len", options.new_tokens, "--percent", *percent]
        command += ["--gpu-batch-size", batch, "--num-gpu-batches", batches, "--log-file", log, *extra]
        command += ["--cpu-cache-compute"] if cpu_attends else []
        try:
            self.logged(name, command, {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(checkout)})
        finally:
            shutil.rmtree(offload, ignore_errors=True)
        try:
            found = parse_flexgen(log.read_text())
        except KeyError as missing:
            raise RuntimeError(f"{log.name} does not say {missing}") from None
        note = f"policy {policy}" + (", projected" if found["projected"] else "")
        return self.row(name, batch * batches, found["prefill"], found["total"], found["peak"], note, found)

    def spillway_env(self):
        """A cache of its own, in which the runs find the profile."""
        return {"SPILLWAY_CACHE": str(self.work / "cache")}

    def profile(self):
        """What this machine can do, by which Spillway plans; without it its rows say so. The profile, None without."""
        options = self.options
        result = self.work / "profile.json"
        result.unlink(missing_ok=True)
        command = [options.spillway.resolve(), "profile", "--device", "cuda", "--disk-dir", self.work]
        command += ["--threads", options.threads, "--output", result]
        self.say("Spillway: measuring the machine")
        try:
            self.logged("profile", command, self.spillway_env())
            return json.loads(result.read_text())
        except (RuntimeError, OSError, ValueError) as reason:
            self.say(f"no profile: {reason}")
            return None

    def spillway(self, name, extra=()):
        """`spillway bench` with random weights of the shape."""
        options = self.options
        command = [options.spillway.resolve(), "bench", options.shape, "--dummy-weights", "--json", "--device", "cuda"]
        command += ["--format", "f16", "--device-memory", options.gpu_bytes, "--host-memory", options.host_bytes]
        command += ["--sequences", options.sequences, "--prompt-tokens", options.prompt_tokens]
        command += ["--new-tokens", options.new_tokens, "--disk-dir", self.work, "--threads", options.threads]
        command += [*extra, *shlex.split(options.spillway_args)]
        result = self.work / f"result-{name}.json"
        # The shell keeps stdout (the result) apart from stderr (the log).
        line = " ".join(shlex.quote(str(part)) for part in command) + f" > {shlex.quote(str(result))}"
        self.logged(name, ["sh", "-c", line], self.spillway_env())
        found = json.loads(result.read_text())
        note = f"efficiency {found['efficiency']:.2f} ({found['bound']['resource']})"
        note += f", attention on the {found['plan']['attention']}"
        predicted = found["predicted_tokens_per_second"]
        note += f", predicted {predicted:.2f}" if predicted else ", placed without a profile"
        if found["projected"]:
            note += f", projected from {found['measured']['decode_steps']} decode steps"
        prefill, total, peak = found["prefill_seconds"], found["total_seconds"], found["peak_device_bytes"]
        return self.row(name, options.sequences, prefill, total, peak, note, found)

    def runs(self):
        """(name, function) of every row, in order."""
        options = self.options
        chosen = []
        if not options.skip_accelerate:
            chosen.append(("transformers + accelerate", self.accelerate))
        if options.flexgen:
            for i, policy in enumerate(options.flexgen_policy or [FLEXGEN_POLICY]):
                name = "FlexGen" if i == 0 else f"FlexGen {i + 1}"
                chosen.append((name, partial(self.flexgen, name, options.flexgen, options.flexgen_python, policy)))
        if options.h2o:
            for i, policy in enumerate(options.h2o_policy or [H2O_POLICY]):
                name = "FlexGen, H2O fork" if i == 0 else f"FlexGen, H2O fork {i + 1}"
                peer = (options.h2o, options.h2o_python, policy, ["--hh-ratio", "0.1", "--hh-all"])
                chosen.append((name, partial(self.flexgen, name, *peer)))
        if options.spillway:
            h2o = ["--kv-rule", "h2o", "--kv-heavy", "0.1", "--kv-recent", "0.1", "--kv-ratio-of", "prompt"]
            chosen.append(("Spillway", partial(self.spillway, "Spillway")))
            chosen.append(("Spillway, H2O 0.1 + 0.1", partial(self.spillway, "Spillway, H2O 0.1 + 0.1", h2o)))
        return chosen


def gpu_name():
    """The GPU and its driver, as nvidia-smi names them."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError) as reason:
        raise SystemExit(f"nvidia-smi names no GPU ({reason}); this benchmark needs one") from None


def markdown(rows, head):
    """The table that people read."""
    lines = [head, "", "| system | sequences | prefill s | decode s | tokens/s | GPU peak, GiB | |"]
    lines.append("|---|---:|---:|---:|---:|---:|---|")
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['system']} | | | | failed | | {row['failed'].replace('|', '/')} |")
            continue
        cells = [row["system"], str(row["sequences"]), f"{row['prefill_seconds']:.1f}", f"{row['decode_seconds']:.1f}"]
        cells += [f"{row['tokens_per_second']:.2f}", f"{row['gpu_peak_bytes'] / GIB:.2f}", row["note"]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def parse_arguments():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="environments, models, logs; outside the tree")
    parser.add_argument("--spillway", type=Path, help="a spillway binary built for CUDA")
    parser.add_argument("--spillway-args", default="", help="more flags for `spillway bench`")
    parser.add_argument("--shape", choices=("opt-6.7b", "opt-30b"), default="opt-6.7b")
    parser.add_argument("--gpu-gib", type=float, default=16 * GB / GIB, help="of GPU memory for each (default: 16 GB)")
    parser.add_argument("--host-memory-gib", type=float, required=True, help="of host memory for each")
    parser.add_argument("--sequences", type=int, default=144, help="FlexGen's are its policy's")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5, help="decode steps of accelerate to measure")
    parser.add_argument("--threads", type=int, default=0, help="0: one a core")
    for name in ("flexgen", "h2o"):
        parser.add_argument(f"--{name}", type=Path, help="a checkout, the folder above flex_opt.py's")
        parser.add_argument(f"--{name}-python", type=Path, default=Path(sys.executable), help="an interpreter for it")
        published = FLEXGEN_POLICY if name == "flexgen" else H2O_POLICY
        parser.add_argument(f"--{name}-policy", action="append", help=f"a row each; default: {published}")
    parser.add_argument("--skip-accelerate", action="store_true")
    parser.add_argument("--python", type=Path, help="has torch, transformers and accelerate; without it pip installs them")
    parser.add_argument("--time-limit", type=int, default=7200, help="seconds for one run")
    parser.add_argument("--output", type=Path, help="writes OUTPUT.md and OUTPUT.json")
    options = parser.parse_args()
    options.gpu_bytes, options.host_bytes = int(options.gpu_gib * GIB), int(options.host_memory_gib * GIB)
    options.threads = options.threads or len(os.sched_getaffinity(0))
    if options.python and not shutil.which(options.python):
        parser.error(f"--python {options.python}: there is no such program")
    for name in ("flexgen", "h2o"):
        checkout = getattr(options, name)
        if checkout and not flex_opt(checkout):
            parser.error(f"--{name} {checkout}: there is no flexgen/flex_opt.py or flexllmgen/flex_opt.py below it")
        try:
            for policy in getattr(options, f"{name}_policy") or []:
                parse_policy(policy)
        except ValueError as reason:
            parser.error(f"--{name}-policy: {reason}")
    return options


def main():
    """Every system in turn; a failure becomes a row."""
    options = parse_arguments()
    gpu = gpu_name()
    bench = GpuBench(options)
    profile = bench.profile() if options.spillway else None
    rows = bench.rows_of(bench.runs())
    if not rows:
        raise SystemExit("nothing to run: give --spillway, --flexgen or --h2o")
    head = (
        f"{gpu}, {options.gpu_bytes / GB:.1f} GB of its memory for each; host: {machine()}, "
        f"{options.host_memory_gib:.0f} GiB for each. Random {options.shape} in float16, prompts of "
        f"{options.prompt_tokens} tokens, {options.new_tokens} new ones each; {time.strftime('%Y-%m-%d')}."
    )
    text = markdown(rows, head)
    print(text, end="")
    if options.output:
        options.output.with_suffix(".md").write_text(text)
        options.output.with_suffix(".json").write_text(json.dumps({"about": head, "profile": profile, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
