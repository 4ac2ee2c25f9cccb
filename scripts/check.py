#!/usr/bin/env python3
"""Checks the house rules that a program can check; prints `file:line: reason`, exits 1 on any.

    scripts/check            every rule
    scripts/check RULE...    only these; scripts/check --list names them
    scripts/check --fix      lets clang-format rewrite what it would complain about, then checks

The standard library of Python 3 is enough. What compiled once is remembered under build/check/.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINES_MAX = 600

TOP_LEVEL = {
    "kernels", "policy", "offload", "scheduler", "server", "configs", "tests", "scripts", "docs", "deploy",
    "CMakeLists.txt", "CMakePresets.json", "CONTRIBUTING.md", "LICENSE", "README.md",
}

# Every folder of sources, and the folders (or single files) whose headers it may include besides its
# own. An arrow points down: check_layers refuses a row that closes a circle.
KERNELS = {"kernels/base", "kernels/sampling", "kernels", "kernels/ranks"}
MODELS = KERNELS | {"policy", "offload/io", "offload/model_file", "offload"}
ENGINE = MODELS | {"scheduler/engine", "scheduler/stages", "scheduler", "scheduler/planning"}
HTTP = {"kernels/base", "server", "server/http"}
API = HTTP | {"policy", "scheduler", "server/tokenizer", "server/chat", "server/api"}
COMMAND = ENGINE | API | {"server/stages", "server/batches", "server/client", "server/web", "server/cli/flags", "server/cli/common"}
LAYERS = {
    "kernels/base": set(),
    "kernels/sampling": {"kernels/base"},
    "kernels": {"kernels/base", "kernels/sampling"},
    "kernels/cpu": {"kernels/base", "kernels"},
    "kernels/cuda": {"kernels/base", "kernels", "kernels/ranks"},
    "kernels/dispatch": {"kernels/base", "kernels", "kernels/cpu", "kernels/cuda", "kernels/ranks"},
    "kernels/measure": {"kernels/base", "kernels", "kernels/cpu"},
    "kernels/ranks": {"kernels/base", "kernels"},
    "policy": {"kernels/base"},
    "policy/simulation": {"kernels/base", "policy"},
    "policy/flexgen": {"kernels/base", "policy", "policy/simulation"},
    "offload/io": {"kernels/base", "kernels"},
    "offload/model_file": {"kernels/base", "kernels", "offload/io"},
    "offload/convert": {"kernels/base", "offload/io", "offload/model_file"},
    "offload": MODELS | {"offload/convert", "policy/flexgen"},
    "scheduler/engine": MODELS | {"scheduler/request.h"},
    "scheduler/stages": MODELS | {"scheduler/engine"},
    "scheduler": MODELS | {"scheduler/engine", "scheduler/stages"},
    "scheduler/planning": MODELS | {"scheduler/engine", "scheduler/stages", "scheduler"},
    "server/tokenizer": {"kernels/base"},
    "server/chat": {"kernels/base"},
    "server": ENGINE | {"offload/convert", "server/tokenizer", "server/chat"},
    "server/stages": ENGINE | {"server", "server/tokenizer", "server/chat"},
    "server/http": HTTP,
    "server/api": API,
    "server/client": HTTP | {"offload/io", "server/client"},
    "server/web": {"kernels/base", "server/http", "server/web"},
    "server/batches": API | {"offload/io", "server/batches"},
    "server/queue": API | {"server/batches", "server/queue"},
    "server/cli/flags": {"kernels/base", "policy", "scheduler/planning", "server"},
    "server/cli/common": COMMAND,
    "server/cli/batch": COMMAND,
    "server/cli/bench": COMMAND | {"kernels/measure", "server/cli/batch"},
    "server/cli/cache": COMMAND,
    "server/cli/convert": COMMAND | {"offload/convert"},
    "server/cli/eval": COMMAND,
    "server/cli/generate": COMMAND,
    "server/cli/inspect": COMMAND | {"offload/convert"},
    "server/cli/plan": COMMAND | {"policy/simulation", "policy/flexgen", "server/cli/batch",
                                  "server/cli/bench"},
    "server/cli/profile": COMMAND | {"kernels/measure"},
    "server/cli/queue": COMMAND | {"server/queue", "server/cli/batch"},
    "server/cli/serve": COMMAND,
    "server/cli/work": COMMAND | {"server/queue", "server/cli/batch", "server/cli/queue", "server/cli/serve"},
    "server/cli": COMMAND | {f"server/cli/{command}" for command in (
        "batch", "bench", "cache", "convert", "eval", "generate", "inspect", "plan", "profile", "queue",
        "serve", "work")},
}

# External headers, and the folders that may include them. What is not named may go anywhere.
LIBRARIES = [
    (re.compile(r"(cuda|cublas|nccl|nvtx|cooperative_groups)"), "CUDA", ["kernels/cuda"]),
    (re.compile(r"hwy/"), "arithmetic library", ["kernels"]),
    (re.compile(r"nlohmann/"), "JSON", ["kernels/base", "policy", "offload", "scheduler/planning",
                                       "server"]),
    (re.compile(r"CLI/"), "CLI11", ["server"]),
    (re.compile(r"boost/(asio|beast)"), "socket library", ["server"]),
    (re.compile(r"prometheus/"), "metrics library", ["server"]),
    (re.compile(r"unicode/"), "ICU", ["server/tokenizer", "server/chat"]),
    (re.compile(r"oniguruma"), "regular expressions", ["server/tokenizer"]),
    (re.compile(r"sqlite3"), "SQLite", ["scheduler", "server"]),
    (re.compile(r"mpi\.h"), "MPI", ["kernels/ranks"]),
    (re.compile(r"libpq"), "PostgreSQL", ["server/queue"]),
    (re.compile(r"liburing"), "io_uring", ["offload"]),
    (re.compile(r"coin/"), "linear programs", ["policy"]),
]
HEAVY = re.compile(r"nlohmann/json\.hpp|CLI/|boost/beast|boost/asio|spdlog/|sqlite3|libpq|oneapi/|coin/")

INCLUDE = re.compile(r'\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)')
CUDA_CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif)\b.*(CUDA|NVCC)", re.IGNORECASE)


def repository_files():
    """Tracked files and new ones that git does not ignore, as paths from the root."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others",
         "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted({f for f in listing.split("\0") if f and (ROOT / f).is_file()})


FILES = repository_files()
CODE = [f for f in FILES if f.endswith((".h", ".cc", ".cu", ".cuh"))]
HEADERS = [f for f in CODE if f.endswith(".h")]


def lines_of(name):
    return (ROOT / name).read_text(encoding="utf-8", errors="replace").splitlines()


def includes_of(name):
    """(line number, project header or None, external header or None) of every include."""
    for number, line in enumerate(lines_of(name), 1):
        if match := INCLUDE.match(line):
            yield number, match[1], match[2]


def folder_of(path):
    return path.rpartition("/")[0]


def circle_of_layers():
    """Folders whose rows in LAYERS lead back to where they began, or None. Files do not count."""
    done = set()

    def visit(folder, path):
        if folder in path:
            return path[path.index(folder):] + [folder]
        if folder in done:
            return None
        for below in sorted(LAYERS[folder] & LAYERS.keys() - {folder}):
            if circle := visit(below, path + [folder]):
                return circle
        done.add(folder)
        return None

    return next(filter(None, (visit(folder, []) for folder in LAYERS)), None)


def in_parallel(work, items):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [error for errors in pool.map(work, items) for error in errors]


def check_format():
    """clang-format has nothing to change."""
    def one(name):
        run = subprocess.run(["clang-format", "--dry-run", "--Werror", name], cwd=ROOT,
                             capture_output=True, text=True)
        if run.returncode == 0:
            return []
        found = re.search(r":(\d+):\d+: error:", run.stderr)
        return [(name, int(found[1]) if found else 1, "clang-format would change this line")]
    return in_parallel(one, CODE)


def check_layers():
    """Includes go downwards only, start at the root and name files that exist."""
    errors = []
    if circle := circle_of_layers():
        errors.append(("scripts/check.py", 1, "LAYERS has a circle: " + " -> ".join(circle)))
    for name in CODE:
        own = folder_of(name)
        if not name.startswith("tests/") and own not in LAYERS:
            errors.append((name, 1, f"scripts/check.py has no row of LAYERS for {own}"))
            continue
        for number, target, _ in includes_of(name):
            if target is None:
                continue
            if not (ROOT / target).is_file():
                errors.append((name, number, f"there is no {target}; includes start at the root"))
            elif own not in LAYERS:
                continue
            elif folder_of(target) != own and not {folder_of(target), target} & LAYERS[own]:
                errors.append((name, number, f"{own} may not include {target}"))
    return errors


def check_libraries():
    """External libraries stay in the folders that own them; heavy ones out of our headers."""
    errors = []
    for name in CODE:
        if name.startswith("tests/"):
            continue
        for number, _, target in includes_of(name):
            if target is None:
                continue
            for pattern, what, folders in LIBRARIES:
                if pattern.match(target) and not name.startswith(tuple(f + "/" for f in folders)):
                    errors.append((name, number, f"{what} ({target}) only in {', '.join(folders)}"))
            # The HTTP server's own headers name sockets and timers; nobody above includes them.
            inside = name.startswith("server/http/") and target.startswith("boost/asio/")
            if name.endswith(".h") and HEAVY.match(target) and not inside:
                errors.append((name, number, f"{target} belongs in a .cc file, not in a header"))
    return errors


def check_hardware():
    """No preprocessor condition on CUDA above kernels/."""
    return [(name, number, "a condition on CUDA outside kernels/; use the seam in kernels/device.h")
            for name in CODE if not name.startswith("kernels/")
            for number, line in enumerate(lines_of(name), 1) if CUDA_CONDITION.match(line)]


def check_length():
    """No source file is longer than 600 lines."""
    sources = CODE + [f for f in FILES if f.endswith((".py", ".sh", ".cmake"))
                      or (f.startswith("scripts/") and "." not in f)]
    return [(name, LINES_MAX + 1, f"{count} lines, {LINES_MAX} at most: one file is one idea")
            for name in sources if (count := len(lines_of(name))) > LINES_MAX]


def check_names():
    """File names are snake_case; the top level holds only what the design names."""
    errors = []
    for top in sorted({f.split("/")[0] for f in FILES}):
        if top not in TOP_LEVEL and not top.startswith("."):
            errors.append((top, 1, "not a top-level name of the design"))
    for name in CODE:
        if not re.fullmatch(r"[a-z0-9_]+\.(h|cc|cu|cuh)", name.split("/")[-1]):
            errors.append((name, 1, "file names are lower_case_with_underscores"))
    return errors


def check_tests():
    """Every test and fuzz target is built, tests have namespaces of their own, fuzz targets a corpus."""
    recipe = (ROOT / "tests/CMakeLists.txt").read_text()
    rooms = re.search(r"foreach\(room ([^)]*)\)", recipe)[1].split()
    errors, namespaces = [], {}
    for name in FILES:
        folder, _, base = name.rpartition("/")
        if not folder.startswith("tests"):
            continue
        if base.endswith("_test.cc"):  # Several are one translation unit
            found = re.findall(r"^namespace (spillway::[\w:]+) \{$", (ROOT / name).read_text(), re.MULTILINE)
            if len(found) != 1 or found[0] in namespaces:
                errors.append((name, 1, "put all of it into one namespace, of this file alone: spillway::NAME_test"
                               + (f", not that of {namespaces[found[0]]}" if len(found) == 1 else "")))
            else:
                namespaces[found[0]] = name
        mirrored = folder.removeprefix("tests/")
        if base.endswith("_test.cc") and mirrored.split("/")[0] not in rooms:
            errors.append((name, 1, f"not built: tests/CMakeLists.txt has no room for {folder}"))
        elif base.endswith("_test.cc") and mirrored not in {"endtoend", *LAYERS}:
            errors.append((name, 1, f"tests/ mirrors the folders, and there is no {mirrored}"))
        elif base.endswith(".cc") and not base.endswith("_test.cc") and \
                folder not in {"tests/support", "tests/fuzz", "tests/bench", "tests/sim"}:
            errors.append((name, 1, "not built: name it *_test.cc or move it to tests/support"))
        if base.startswith("fz_") and base.endswith(".cc"):
            corpus = f"{folder}/corpus/{base[3:-3]}/"
            if not any(f.startswith(corpus) for f in FILES):
                errors.append((name, 1, f"no seed in {corpus}"))
    return errors


ROOMS = ("kernels", "offload", "policy", "scheduler", "server")
UNTESTED = "tests/untested.txt"


def alternatives(pattern):
    """a/{b,c}.cc as [a/b.cc, a/c.cc]."""
    found = re.search(r"\{([^}]*)\}", pattern)
    if not found:
        return [pattern]
    return [pattern[:found.start()] + one + pattern[found.end():] for one in found[1].split(",")]


def check_mirror():
    """Every source X.cc has a test X_test.cc in its room, or a line in tests/untested.txt."""
    def room_and_stem(name, suffix):
        return name.split("/")[0], name.split("/")[-1].removesuffix(suffix)

    tested = {room_and_stem(name.removeprefix("tests/"), "_test.cc")
              for name in FILES if name.startswith("tests/") and name.endswith("_test.cc")}
    sources = {name for name in CODE if name.split("/")[0] in ROOMS
               and name.endswith((".cc", ".cu"))}
    untested = {name for name in sources if room_and_stem(name, name[-3:]) not in tested}
    errors, listed = [], set()
    for number, line in enumerate(lines_of(UNTESTED), 1):
        if not line or line.startswith("#"):
            continue
        entry = re.fullmatch(r"(\S+) (tests/\S+): \S.*", line)
        if not entry:
            errors.append((UNTESTED, number, "a line is 'SOURCES TEST: how it covers them'"))
            continue
        if entry[2] not in FILES:
            errors.append((UNTESTED, number, f"there is no {entry[2]}"))
        for name in alternatives(entry[1]):
            if name not in sources:
                errors.append((UNTESTED, number, f"take it out: there is no source {name}"))
            elif name not in untested:
                errors.append((UNTESTED, number, f"take it out: {name} has a test of its name"))
            elif name in listed:
                errors.append((UNTESTED, number, f"{name} has a line already"))
            listed.add(name)
    return errors + [(name, 1, f"no test of its name in tests/{name.split('/')[0]}, and no line in "
                               f"{UNTESTED}") for name in sorted(untested - listed)]


def header_key(name):
    """Changes when the header, or any project header it reaches, changes."""
    seen, queue = set(), [name]
    while queue:
        header = queue.pop()
        if header not in seen and (ROOT / header).is_file():
            seen.add(header)
            queue += [target for _, target, _ in includes_of(header) if target]
    digest = hashlib.sha256()
    for header in sorted(seen):
        digest.update(header.encode() + b"\0" + (ROOT / header).read_bytes())
    return digest.hexdigest()


def needs_toolkit(name):
    """Whether a header is for a compiler that finds CUDA's or MPI's."""
    return name.endswith(".cuh") or any(
        external and any(pattern.match(external) for pattern, library, _ in LIBRARIES if library in ("CUDA", "MPI"))
        for _, _, external in includes_of(name))


def check_headers():
    """Every header compiles alone."""
    compiler = os.environ.get("CXX", "g++")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    store = ROOT / "build/check/headers.json"
    try:
        good = set(json.loads(store.read_text()))
    except (OSError, ValueError):
        good = set()
    keys = {name: hashlib.sha256((version + header_key(name)).encode()).hexdigest()
            for name in HEADERS if not needs_toolkit(name)}

    def one(name):
        if keys[name] in good:
            return []
        run = subprocess.run(
            [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
             "-I.", '-DSPILLWAY_VERSION="check"', '-DSPILLWAY_SOURCE_DIR="."', "-x", "c++", "-"],
            cwd=ROOT, capture_output=True, text=True, input=f'#include "{name}"\n')
        if run.returncode == 0:
            good.add(keys[name])
            return []
        lines = run.stderr.splitlines()
        first = next((line for line in lines if "error:" in line), lines[0] if lines else "?")
        found = re.match(re.escape(name) + r":(\d+)", first)
        return [(name, int(found[1]) if found else 1, f"does not compile alone: {first}")]

    errors = in_parallel(one, keys)
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_text(json.dumps(sorted(good & set(keys.values()))))
    return errors


def check_documents():
    """Paths that documents name exist. In CONTRIBUTING an x stands for the new thing's name."""
    named = re.compile(
        r"`((?:kernels|policy|offload|scheduler|server|tests|scripts|docs|configs)/[\w./-]+)`")
    placeholder = re.compile(r"(?:^|[/_])x(?:[./_-]|$)|NAME")
    errors = []
    for name in (f for f in FILES if f.endswith(".md")):
        if name.endswith("history.md"):  # It tells of files that are gone.
            continue
        for number, line in enumerate(lines_of(name), 1):
            for path in named.findall(line):
                if not placeholder.search(path) and not (ROOT / path).exists():
                    errors.append((name, number, f"there is no {path}"))
    return errors


KERNEL_REPORT = "docs/benchmarks/cuda_kernels.md"


def check_kernels():
    """Every CUDA kernel stands in the report of registers and spills, and no other does."""
    declared = {}
    for name in (f for f in CODE if f.startswith("kernels/cuda/") and f.endswith(".cu")):
        for found in re.finditer(r"__global__.*?\b(\w+_kernel)\(", (ROOT / name).read_text(), re.DOTALL):
            declared[name.rpartition("/")[2], found[1]] = name
    lines = lines_of(KERNEL_REPORT)
    rows = [(number, row) for number, line in enumerate(lines, 1)
            if (row := re.match(r"\| (\w+\.cu) \| `(\w+)", line))]
    reported = {row.group(1, 2) for _, row in rows}
    errors = [(name, 1, f"{kernel} is not in {KERNEL_REPORT}; scripts/kernel_report.py writes it anew")
              for (source, kernel), name in declared.items() if (source, kernel) not in reported]
    return errors + [(KERNEL_REPORT, number, f"{row[1]} has no {row[2]}; scripts/kernel_report.py writes it anew")
                     for number, row in rows if row.group(1, 2) not in declared]


RULES = {
    "format": check_format,
    "layers": check_layers,
    "libraries": check_libraries,
    "hardware": check_hardware,
    "length": check_length,
    "names": check_names,
    "tests": check_tests,
    "mirror": check_mirror,
    "documents": check_documents,
    "kernels": check_kernels,
    "headers": check_headers,
}


def main(arguments):
    if "--list" in arguments:
        for name, rule in RULES.items():
            print(f"{name:10} {rule.__doc__}")
        return 0
    if "--fix" in arguments:
        arguments.remove("--fix")
        subprocess.run(["clang-format", "-i", *CODE], cwd=ROOT, check=True)
    if unknown := [name for name in arguments if name not in RULES]:
        print(f"no rule {unknown[0]}; rules: {', '.join(RULES)}", file=sys.stderr)
        return 2
    wanted = arguments or list(RULES)
    errors = [error for name in wanted for error in RULES[name]()]
    for name, number, reason in errors:
        print(f"{name}:{number}: {reason}")
    if errors:
        print(f"check: {len(errors)} rule(s) broken")
        return 1
    print(f"check: {len(CODE)} source files keep {len(wanted)} rules ({', '.join(wanted)})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
