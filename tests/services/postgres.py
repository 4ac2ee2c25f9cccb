"""A PostgreSQL of a test's own: in a temporary folder, on a Unix socket, gone with the test."""

import glob
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import tempfile
import time


def programs():
    """The folder of initdb and postgres (Debian keeps it out of PATH); None: they are not installed."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
    return pathlib.Path(found[-1]).parent if found else None


class Postgres:
    """Runs as the user postgres where the test is root, which PostgreSQL refuses to be."""

    def __init__(self):
        self.bin = programs()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="spillway-pg-"))
        self.as_other = []
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self.as_other = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        self.process = None
        # What is lost with this machine need not reach its disk; the order of writes stays.
        done = subprocess.run([*self.as_other, self.bin / "initdb", "--no-sync", "--auth=trust", "--username=spillway",
                               f"--pgdata={self.folder}/data"], capture_output=True, text=True, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        self.url = f"postgresql:///postgres?host={self.folder}&user=spillway"
        self.start()

    def start(self, *settings):
        death = ["setpriv", "--pdeathsig", "QUIT"]
        command = [*self.as_other, *(["--pdeathsig", "QUIT"] if self.as_other else []), *([] if self.as_other else death),
                   self.bin / "postgres", "-D", self.folder / "data", "-k", self.folder, "-c", "listen_addresses=",
                   "-c", "max_connections=60", *settings]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, start_new_session=True)
        end = time.monotonic() + 60
        while subprocess.run([self.bin / "pg_isready", "-q", "-h", self.folder]).returncode != 0:
            assert self.process.poll() is None and time.monotonic() < end, (self.folder / "log").read_text()
            time.sleep(0.05)

    def stop(self, how=signal.SIGQUIT):
        """SIGQUIT is a crash: nothing is finished, and the next start recovers."""
        self.process.send_signal(how)
        self.process.wait()

    def restart(self):
        self.stop()
        self.start()

    def hang(self, seconds):
        """All its processes stop, as if the network swallowed every byte."""
        everyone = [self.process.pid]
        listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True)
        everyone += [int(pid) for pid in listing.stdout.split()]
        for pid in everyone:
            send(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in everyone:
            send(pid, signal.SIGCONT)

    def sql(self, text):
        done = subprocess.run([self.bin / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self.url, "-c", text],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def close(self):
        if self.process and self.process.poll() is None:
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def send(pid, what):
    try:
        os.kill(pid, what)
    except ProcessLookupError:
        pass
