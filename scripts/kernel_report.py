#!/usr/bin/env python3
"""Registers, spills and shared memory of every CUDA kernel, and instructions a number of the hot loops, as tables.

    scripts/kernel_report.py [--nvcc NVCC] [--arch sm_75 sm_80 ...] [--output docs/benchmarks/cuda_kernels.md]
    scripts/kernel_report.py --check [--nvcc NVCC] [--log build/cuda.log] [--output docs/benchmarks/cuda_kernels.md]

Compiles each source of kernels/cuda with `-Xptxas -v` and reads what ptxas says. Needs nvcc, no GPU.
--check writes nothing: it fails where the table is not what the sources give, for the architectures that the table has
(and the log, where there is one).
With --log it reads what ptxas said when the build in that log compiled them, which was made anew with
SPILLWAY_PTXAS_VERBOSE=ON (scripts/build takes it from the environment), and compiles again only what has hot loops.
Another release of nvcc than the table's may use other registers, so then kernels and spills must be the same.
Loops are read from the machine code of sm_90 by nvdisasm, which comes with CUDA's toolkit and with the Python packages
nvidia-cuda-nvdisasm (its folder nvidia/cu13/bin) and triton (backends/nvidia/bin); where there is none they are left as
they stand.
"""

import argparse
import difflib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

LOOPS_HEAD = "## Hot loops"
LOOPS_ARCH = "sm_90"
WIDEN_BF16 = r"IMAD\.U32 R\d+, R\d+, 0x10000"  # As this nvcc shifts by 16
# Source, kernel, what is counted, how many of it a lane has in one pass, the instruction that the loop has most of, and
# one that no other such loop has.
HOT_LOOPS = (
    ("attention_decode.cu", "split_kernel<1, Wide<__nv_bfloat16, 16> >", "bf16 number of a cached key", 32, "FFMA", "SHFL"),
    ("attention_decode.cu", "split_kernel<1, Wide<__nv_bfloat16, 16> >", "bf16 number of a cached value", 32, "FFMA", "LDS R"),
    ("attention_decode.cu", "q4_split_kernel<1, 2>", "4-bit number of a cached key", 64, "HMMA", "FFMA"),
    ("attention_decode.cu", "q4_split_kernel<1, 2>", "4-bit number of a cached value", 128, "HMMA", "LDSM"),
    ("attention_decode.cu", "split_kernel<1, AnyRows>", "4-bit number of a cached key, other head sizes", 4, "I2FP", "LDG"),
    ("attention_decode.cu", "split_kernel<1, AnyRows>", "4-bit number of a cached value, other head sizes", 4, "I2FP", "LDS R"),
    ("attention_tiles.cu", "column_sums_kernel<__nv_bfloat16, 128>", "16 x 8 x 16 product (HMMA)", 64, "HMMA", ""),
    ("expand.cu", "expand_kernel<4, 64, __nv_bfloat16, true>", "4-bit weight to bf16", 8, "SHFL", ""),
    ("linear_quant.cu", "quant_kernel<4, 64, __nv_bfloat16, 1>", "4-bit weight by one row", 32, "FFMA", ""),
)

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLAGS = ["-O3", "-std=c++20", "--expt-relaxed-constexpr", "-Wno-deprecated-gpu-targets", "-Xptxas", "-v", "-cubin"]


def compile_verbose(nvcc, source, arch, folder):
    """Compile one source for one architecture into a folder; return what ptxas prints."""
    command = [nvcc, *FLAGS, f"-arch={arch}", f"-I{ROOT}", str(source), "-o", f"{folder}/{source.name}.{arch}.cubin"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr


class Loop(list):
    """Instructions; of those that branch within it, where to."""

    def __init__(self, code, targets, first, last):
        super().__init__(code[first:last])
        self.targets = {at - first: to - first for at, to in targets.items() if first <= at < last and first <= to < last}

    def way(self, marker):
        """How many instructions a pass has on the way through most of those that match; of such ways, the shortest."""
        best = [None] * len(self) + [(0, 0)]  # From each instruction on: matches, and minus the instructions
        for at in reversed(range(len(self))):
            instruction = self[at]
            if re.search(r"\bCALL\b", instruction):
                continue  # A rare case's: what it costs is elsewhere.
            # The last one closes the loop; a jump that depends on nothing has one way.
            after = [at + 1] if at + 1 == len(self) or not re.match("BRA `", instruction) else []
            if self.targets.get(at, 0) > at:
                after.append(self.targets[at])
            if found := [best[to] for to in after if best[to]]:
                matches, negative = max(found)
                best[at] = (matches + bool(re.search(marker, instruction)), negative - 1)
        return -best[0][1]


def loops_of(listing):
    """(mangled kernel, [each innermost Loop]) of what nvdisasm prints."""
    for text in re.split(r"^\.text\.", listing, flags=re.MULTILINE)[1:]:
        labels, code = {}, []
        for line in text.splitlines()[1:]:
            if label := re.match(r"(\.L_x_\d+):", line):
                labels[label[1]] = len(code)
            elif instruction := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*);", line):
                code.append(instruction[1])
        spans = []
        for last, instruction in enumerate(code):
            target = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", instruction)
            if target and labels.get(target[1], last) < last:
                spans.append((labels[target[1]], last + 1))
        inner = [a for a in spans if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in spans)]
        jumps = ((at, re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", instruction)) for at, instruction in enumerate(code))
        targets = {at: labels[jump[1]] for at, jump in jumps if jump and jump[1] in labels}
        yield text.split(":")[0], [Loop(code, targets, first, last) for first, last in inner]


def count_loops(nvdisasm, folder):
    """Rows of the hot loops: source, kernel, what, instructions of a pass, of a number."""
    rows = []
    for source, kernel, what, each, marker, beside in HOT_LOOPS:
        cubin = f"{folder}/{source}.{LOOPS_ARCH}.cubin"
        listing = subprocess.run([nvdisasm, "-c", cubin], check=True, capture_output=True, text=True).stdout
        found = list(loops_of(listing))
        named = dict(zip(readable([name for name, _ in found]), (loops for _, loops in found)))
        if not named.get(kernel):
            sys.exit(f"{source} has no loop in {kernel} for the table of hot loops, only {', '.join(named)}")
        loops = [loop for loop in named[kernel] if any(re.search(rf"\b{beside}", instruction) for instruction in loop)]
        hot = max(loops, key=lambda loop: sum(bool(re.search(marker, instruction)) for instruction in loop))
        passed = hot.way(marker)
        rows.append(f"| {source} | `{kernel}` | {what} | {each} | {passed} | {passed / each:.1f} |")
    return rows


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


def without_columns(report, left_out):
    """The report without these architectures' columns of its table of registers."""
    first, loops = parts_of(report)
    lines, columns = first.splitlines(), []
    for at, line in enumerate(lines):
        cells = line.split("|")
        if line.startswith("| source |"):
            columns = [column for column, cell in enumerate(cells) if cell.strip() in left_out]
        if line.startswith("|"):
            lines[at] = "|".join(cell for column, cell in enumerate(cells) if column not in columns)
    return "\n".join(lines) + "\n" + loops


def difference(report, found):
    """Lines of a diff from the report to what was found; none where it is as it should be."""
    written, fresh = report.splitlines(), found.splitlines()
    release = re.compile(r"nvcc ([\d.]+)")
    if release.search(report)[1] != release.search(found)[1]:
        written, fresh = ([without_registers(line) for line in lines if line.startswith("| ")] for lines in (written, fresh))
    return list(difflib.unified_diff(written, fresh, "the report", "the sources", lineterm="", n=0))


def loops_section(rows):
    """The table of hot loops."""
    return [
        "",
        LOOPS_HEAD,
        "",
        f"Instructions of a thread in one pass of the innermost loop, from the machine code of {LOOPS_ARCH}; where it branches by",
        "format, on that format's way.",
        "",
        "| source | kernel | what | of it in a pass | instructions of a pass | of one |",
        "|---|---|---|---:|---:|---:|",
        *rows,
    ]


def texts_of(log):
    """What ptxas said of each (source's name, architecture) in the log of a build by ninja."""
    texts = {}
    for source, text in re.findall(r"^\[\d+/\d+\] Building CUDA object \S*?([^/\s]+\.cu)\.o\n((?:(?!\[\d+/).*\n)*)", log, re.MULTILINE):
        for block in text.split("ptxas info    : Compiling entry function ")[1:]:
            name, arch = re.match(r"'([^']+)' for '([^']+)'", block).groups()
            texts[source, arch] = texts.get((source, arch), "") + f"Compiling entry function '{name}'" + block
    return texts


def report_of(nvcc, archs, nvdisasm=None, log=None):
    """The report for these architectures, and how many kernels it has; with hot loops where there is nvdisasm.

    Where there is a build's log (a path), registers are read from there.
    """
    with tempfile.TemporaryDirectory() as folder:
        return report_in(folder, nvcc, archs, nvdisasm, log)


def report_in(folder, nvcc, archs, nvdisasm, log):
    """The same, compiled in a folder."""
    sources = sorted((ROOT / "kernels/cuda").glob("*.cu"))
    jobs = [(source, arch) for source in sources for arch in archs]
    again = jobs
    if log:
        said = texts_of(log.read_text())
        if not said:
            sys.exit(f"{log} says nothing of ptxas: build anew with SPILLWAY_PTXAS_VERBOSE=ON in the environment")
        looped = {row[0] for row in HOT_LOOPS} if nvdisasm else set()
        again = [(source, arch) for source, arch in jobs if arch == LOOPS_ARCH and source.name in looped]
    with ThreadPoolExecutor(2) as pool:
        compiled = list(pool.map(lambda job: compile_verbose(nvcc, *job, folder), again))
    texts = [said.get((source.name, arch), "") for source, arch in jobs] if log else compiled
    rows = {}
    for (source, arch), text in zip(jobs, texts):
        found = list(parse(text))
        for name, (_, registers, spilled, shared) in zip(readable([kernel[0] for kernel in found]), found):
            rows.setdefault((source.name, name), {})[arch] = (registers, spilled, shared)
    for (source, name), by_arch in rows.items():
        if lacking := [arch for arch in archs if arch not in by_arch]:
            sys.exit(f"{source}, {name}: nothing for {', '.join(lacking)}" + (f"; {log} is not of a whole build" if log else ""))
    version = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    release = re.search(r"release ([\d.]+)", version)[1]
    lines = [
        "# CUDA kernels: registers and spills",
        "",
        f"`scripts/kernel_report.py`, nvcc {release}, `-O3`. Registers of a thread; bytes spilled (stores and loads) where there",
        "are any; static shared memory of a block (what a launch asks for besides is in the sources). What they reach on an",
        "H200: [gpu-h200.md](gpu-h200.md).",
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
    if nvdisasm and LOOPS_ARCH in archs:
        lines += loops_section(count_loops(nvdisasm, folder))
    return "\n".join(lines) + "\n", len(rows)


def parts_of(report):
    """A report's first part, and its hot loops, or nothing."""
    first, head, loops = report.partition(f"\n{LOOPS_HEAD}\n")
    return first, head + loops


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--arch", nargs="+", default=["sm_75", "sm_80", "sm_86", "sm_89", "sm_90"])
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/benchmarks/cuda_kernels.md")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--log", type=pathlib.Path)
    parser.add_argument("--nvdisasm", default=shutil.which("nvdisasm"))
    args = parser.parse_args()
    if not args.check:
        text, kernels = report_of(args.nvcc, args.arch, args.nvdisasm, args.log)
        if not parts_of(text)[1] and args.output.exists():
            text = parts_of(text)[0] + parts_of(args.output.read_text())[1]
        args.output.write_text(text)
        print(f"{kernels} kernels: {args.output}")
        return
    report = args.output.read_text()
    archs = re.search(r"^\| source \| kernel \| (.*) \| static shared \|$", report, re.MULTILINE)[1].split(" | ")
    if args.log:  # A build may be for some of them.
        built = {arch for _, arch in texts_of(args.log.read_text())}
        report = without_columns(report, [arch for arch in archs if built and arch not in built])
        archs = [arch for arch in archs if arch in built] or archs
    text, kernels = report_of(args.nvcc, archs, args.nvdisasm, args.log)
    if not parts_of(text)[1]:  # Nothing here can say what the loops are.
        report = parts_of(report)[0]
    if lines := difference(report, text):
        print("\n".join(lines), file=sys.stderr)
        sys.exit(f"{args.output} is not what the kernels are now; scripts/kernel_report.py writes it anew")
    print(f"{kernels} kernels for {', '.join(archs)}: {args.output} is current")


if __name__ == "__main__":
    main()
