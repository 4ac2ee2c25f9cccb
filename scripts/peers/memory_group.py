"""A memory control group that counts the page cache: what offloading is measured in.

Without one, "weights on disk" are read from the page cache and nothing is offloaded at all. Works with control groups of
version 1 and 2 where this process may make one below or beside its own, and with systemd-run; else makes() says why not.
"""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


class MemoryGroup:
    """`with MemoryGroup(bytes) as group:` then run `group.prefix() + command`; afterwards group.peak_bytes()."""

    def __init__(self, limit_bytes):
        self.limit = limit_bytes
        self.directory = None  # of the group; None: systemd-run makes one for each command
        self.version = None

    def __enter__(self):
        reasons = []
        for attempt in (self._version_1, self._version_2, self._systemd):
            try:
                attempt()
                return self
            except OSError as reason:
                reasons.append(f"{attempt.__doc__} {reason}")
        raise SystemExit(
            f"no memory control group of {self.limit >> 20} MiB can be made here:\n  "
            + "\n  ".join(reasons)
            + "\nRun as root, or in a login session of systemd; --no-group measures without a limit (not comparable)."
        )

    def __exit__(self, *_):
        if self.directory:
            try:
                self.directory.rmdir()
            except OSError:
                pass  # a process of the run still sits in it; the kernel keeps the group until it ends

    @staticmethod
    def _own(controller):
        """Where this process is in a hierarchy ('' is version 2)."""
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(",") if controller else controllers == "":
                return path.lstrip("/")
        raise OSError(f"no {controller or 'unified'} hierarchy")

    def _version_1(self):
        """version 1:"""
        parent = ROOT / "memory" / self._own("memory")
        self.directory = self._make(parent, "memory.limit_in_bytes")
        self.version = 1
        swap = self.directory / "memory.memsw.limit_in_bytes"
        if swap.exists():  # no escape into swap
            swap.write_text(str(self.limit))

    def _version_2(self):
        """version 2:"""
        own = ROOT / self._own("")
        # A group with processes may not hand controllers to children: beside ours, not below.
        parent = own if own == ROOT else own.parent
        if "memory" not in (parent / "cgroup.subtree_control").read_text().split():
            raise OSError(f"{parent} does not hand the memory controller on")
        self.directory = self._make(parent, "memory.max")
        self.version = 2
        swap = self.directory / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")

    def _make(self, parent, limit_file):
        directory = parent / f"spillway-bench-{os.getpid()}"
        directory.mkdir()
        try:
            (directory / limit_file).write_text(str(self.limit))
        except OSError:
            directory.rmdir()
            raise
        return directory

    def _systemd(self):
        """systemd-run:"""
        if not shutil.which("systemd-run") or not Path("/run/systemd/system").exists():
            raise OSError("systemd does not run here")
        trial = subprocess.run([*self._systemd_run(), "true"], capture_output=True, text=True, check=False)
        if trial.returncode != 0:
            raise OSError(trial.stderr.strip())

    def _systemd_run(self):
        user = [] if os.geteuid() == 0 else ["--user"]
        limits = ["-p", f"MemoryMax={self.limit}", "-p", "MemorySwapMax=0"]
        return ["systemd-run", *user, "--scope", "--quiet", "--collect", *limits, "--"]

    def prefix(self):
        """What to put in front of a command so that it and its children count in the group."""
        if self.directory is None:
            return self._systemd_run()
        return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.directory)]

    def peak_bytes(self):
        """The most the group held, page cache included; None where the kernel does not say."""
        name = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}.get(self.version)
        try:
            return int((self.directory / name).read_text()) if name else None
        except OSError:
            return None

    def about(self):
        """For the record."""
        return f"control group version {self.version}" if self.directory else "systemd-run --scope"


def forget_pages(directory):
    """Drops the files' clean pages from the page cache, which else would serve a run without being charged to its group."""
    os.sync()
    for path in Path(directory).rglob("*") if Path(directory).is_dir() else [Path(directory)]:
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
