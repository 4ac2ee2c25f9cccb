#!/usr/bin/env python3
"""Registers, spills and shared memory of every CUDA kernel, as a table.

    scripts/kernel_report.py [--nvcc NVCC] [--arch sm_75 sm_80 ...] [--output docs/benchmarks/cuda_kernels.md]
    scripts/kernel_report.py --check [--nvcc NVCC] [--output docs/benchmarks/cuda_kernels.md]

Compiles each source of kernels/cuda with `-Xptxas -v` and reads what ptxas says. Needs nvcc, no GPU.
--check writes nothing: it fails where the table is not what the sources give, for the architectures that the table has.
Another release of nvcc than the table's may use other registers, so then kernels and spills must be the same.
"""

import argparse
import difflib
import pathlib
import re
import shutil
import subprocess
import sys
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


def without_registers(line):
    """A row of the table with its kernel and spills only."""
    return re.sub(r"\b\d+(, spills \d+)? \|", r"-\1 |", line)


def difference(report, found):
    """Lines of a diff from the report to what was found; none where it is as it should be."""
    written, fresh = report.splitlines(), found.splitlines()
    release = re.compile(r"nvcc ([\d.]+)")
    if release.search(report)[1] != release.search(found)[1]:
        written, fresh = ([without_registers(line) for line in lines if line.startswith("| ")] for lines in (written, fresh))
    return list(difflib.unified_diff(written, fresh, "the report", "the sources", lineterm="", n=0))


def report_of(nvcc, archs):
    """The report for these architectures, and how many kernels it has."""
    sources = sorted((ROOT / "kernels/cuda").glob("*.cu"))
    jobs = [(source, arch) for source in sources for arch in archs]
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(lambda job: compile_verbose(nvcc, *job), jobs))
    rows = {}
    for (source, arch), text in zip(jobs, texts):
        found = list(parse(text))
        for name, (_, registers, spilled, shared) in zip(readable([kernel[0] for kernel in found]), found):
            rows.setdefault((source.name, name), {})[arch] = (registers, spilled, shared)
    version = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    release = re.search(r"release ([\d.]+)", version)[1]
    lines = [
        "# CUDA kernels: registers and spills",
        "",
        f"`scripts/kernel_report.py`, nvcc {release}, `-O3`. Registers of a thread; bytes spilled (stores and loads) where there",
        "are any; static shared memory of a block (what a launch asks for besides is in the sources). None of these kernels'",
        "speed has been measured yet: they have run in emulation only.",
        "",
        "| source | kernel | " + " | ".join(archs) + " | static shared |",
        "|---|---|" + "---:|" * (len(archs) + 1),
    ]
    for (source, name), by_arch in rows.items():
        cells = []
        for arch in archs:
            registers, spilled, shared = by_arch[arch]
            cells.append(f"{registers}" + (f", spills {spilled}" if spilled else ""))
        lines.append(f"| {source} | `{name}` | " + " | ".join(cells) + f" | {shared} |")
    return "\n".join(lines) + "\n", len(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--arch", nargs="+", default=["sm_75", "sm_80", "sm_86", "sm_89", "sm_90"])
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/benchmarks/cuda_kernels.md")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if not args.check:
        text, kernels = report_of(args.nvcc, args.arch)
        args.output.write_text(text)
        print(f"{kernels} kernels: {args.output}")
        return
    report = args.output.read_text()
    archs = re.search(r"^\| source \| kernel \| (.*) \| static shared \|$", report, re.MULTILINE)[1].split(" | ")
    text, kernels = report_of(args.nvcc, archs)
    if lines := difference(report, text):
        print("\n".join(lines), file=sys.stderr)
        sys.exit(f"{args.output} is not what the kernels are now; scripts/kernel_report.py writes it anew")
    print(f"{kernels} kernels for {', '.join(archs)}: {args.output} is current")


if __name__ == "__main__":
    main()
