"""`spillway serve` as a child process, for scripts that measure it over HTTP."""

import contextlib
import re
import subprocess


@contextlib.contextmanager
def serving(spillway, model, *flags, log=None):
    """`with serving(binary, model, *flags) as (url, pid):` a server on a free port, stopped at the end.
    `log`: an open file for what it writes to stderr; None: ours."""
    command = [spillway.resolve(), "serve", model, "--port", "0", *flags]
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=log,
                               text=True)
    try:
        for line in process.stdout:
            if match := re.search(r"http://\S+", line):
                yield match[0].rstrip("/"), process.pid
                return
        raise SystemExit(f"spillway serve ended with status {process.wait()} before it listened; its log says why")
    finally:
        process.terminate()
        process.wait()
