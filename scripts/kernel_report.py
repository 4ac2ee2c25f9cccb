#!/usr/bin/env python3
"""Registers, spills and shared memory of every CUDA kernel, as a table.

    scripts/kernel_report.py [--nvcc NVCC] [--arch sm_75 sm_80 sm_90] [--output docs/benchmarks/cuda_kernels.md]

Compiles each source of kernels/cuda with `-Xptxas -v` and reads what ptxas says. Needs nvcc, no GPU.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLAGS = ["-O3", "-std=c++20", "--expt-relaxed-constexpr", "-Wno-deprecated-gpu-targets", "-Xptxas", "-v", "-c"]


def compile_verbose(nvcc, source, arch):
    """Compile one source for one architecture; return what ptxas prints."""
    command = [nvcc, *FLAGS, f"-arch={arch}", f"-I{ROOT}", str(source), "-o", "/dev/null"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr


def readable(names):
    """Demangle kernel names; keep name and template arguments."""
    plain = subprocess.run(["c++filt"], input="\n".join(names), check=True, capture_output=True, text=True).stdout
    short = []
    for name in plain.splitlines():
        name = name.replace("(anonymous namespace)::", "").replace("spillway::cuda::", "")
        short.append(re.sub(r"^void ", "", name.split("(")[0]))
    return short


def parse(text):
    """Yield (mangled name, registers, spilled bytes, static shared bytes) of each kernel."""
    blocks = re.split(r"Compiling entry function '", text)[1:]
    for block in blocks:
        spills = [int(number) for number in re.findall(r"(\d+) bytes spill (?:stores|loads)", block)[:2]]
        shared = re.search(r"(\d+) bytes smem", block)
        registers = re.search(r"Used (\d+) registers", block)
        yield block.split("'")[0], int(registers[1]), sum(spills), int(shared[1]) if shared else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--arch", nargs="+", default=["sm_75", "sm_80", "sm_90"])
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/benchmarks/cuda_kernels.md")
    args = parser.parse_args()
    sources = sorted((ROOT / "kernels/cuda").glob("*.cu"))
    jobs = [(source, arch) for source in sources for arch in args.arch]
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(lambda job: compile_verbose(args.nvcc, *job), jobs))
    rows = {}
    for (source, arch), text in zip(jobs, texts):
        found = list(parse(text))
        for name, (_, registers, spilled, shared) in zip(readable([kernel[0] for kernel in found]), found):
            rows.setdefault((source.name, name), {})[arch] = (registers, spilled, shared)
    version = subprocess.run([args.nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    release = re.search(r"release ([\d.]+)", version)[1]
    lines = [
        "# CUDA kernels: registers and spills",
        "",
        f"`scripts/kernel_report.py`, nvcc {release}, `-O3`. Registers of a thread; bytes spilled (stores and loads) where there",
        "are any; static shared memory of a block (what a launch asks for besides is in the sources). None of these kernels'",
        "speed has been measured yet: they have run in emulation only.",
        "",
        "| source | kernel | " + " | ".join(args.arch) + " | static shared |",
        "|---|---|" + "---:|" * (len(args.arch) + 1),
    ]
    for (source, name), by_arch in rows.items():
        cells = []
        for arch in args.arch:
            registers, spilled, shared = by_arch[arch]
            cells.append(f"{registers}" + (f", spills {spilled}" if spilled else ""))
        lines.append(f"| {source} | `{name}` | " + " | ".join(cells) + f" | {shared} |")
    args.output.write_text("\n".join(lines) + "\n")
    print(f"{len(rows)} kernels: {args.output}")


if __name__ == "__main__":
    main()
