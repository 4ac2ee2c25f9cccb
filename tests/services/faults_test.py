"""Batches on a disk and a clock that go wrong: a full disk, EIO for a second, wrong checksums, a read-only store, a clock
that jumps. `spillway batch`, and batches of `spillway serve`: every row is that of an undisturbed run, none is lost, none is
there twice, and what the program says is true.

The faults are those of tests/support/faulty_disk.cc, preloaded. The weights lie on disk, so that every sweep reads them.
"""

import contextlib
import errno
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))
from server import DEMO, SPILLWAY  # noqa: E402

LIBRARY = os.environ.get("FAULTY_DISK_LIBRARY", "")
PATIENCE = 120
ROWS = 200
WAL_WITH_ROWS = 30_000  # Bytes; without a row the journal's has 20,632.
DAY = 24 * 3600
LINES = "".join(json.dumps({"custom_id": f"l{number}", "method": "POST", "url": "/v1/completions", "body": {
    "prompt": f"Chapter {number}", "max_tokens": 40 + number % 40, "temperature": 1, "seed": number}}) + "\n"
    for number in range(ROWS))


def texts(output):
    """(custom_id, text) of every line of an output file, in its order."""
    rows = [json.loads(line) for line in output.splitlines()]
    return [(row["custom_id"], row["response"]["body"]["choices"][0]["text"]) for row in rows]


def eventually(condition, text):
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, text
        time.sleep(0.05)
    return value


class Faulty(unittest.TestCase):
    """A folder with the lines, a cache folder, and the file of the faults."""

    @classmethod
    def setUpClass(cls):
        cls.shared = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.environment = {**os.environ, "SPILLWAY_CACHE": str(cls.shared / "cache")}
        (cls.shared / "lines.jsonl").write_text(LINES)
        # Undisturbed, and the weights are packed once.
        done = subprocess.run(cls.batch_command(cls.shared / "plain.jsonl"), env=cls.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        cls.plain = texts((cls.shared / "plain.jsonl").read_text())
        assert [name for name, _ in cls.plain] == [f"l{number}" for number in range(ROWS)]

    @classmethod
    def batch_command(cls, output, *flags):
        return [str(part) for part in (SPILLWAY, "batch", DEMO, "--input", cls.shared / "lines.jsonl", "--output", output,
                                       "--weights", "0,0,100", "--block", "16", *flags)]

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.control = self.folder / "faults"
        self.works()

    def faults(self, *lines):
        """Sets the faults: (kind, number, part of a path)."""
        new = self.folder / "new"
        new.write_text("".join(f"{kind} {number} {part}\n" for kind, number, part in lines))
        new.rename(self.control)

    def works(self):
        self.faults()

    def preloaded(self):
        return {**self.environment, "LD_PRELOAD": LIBRARY, "FAULTY_DISK": str(self.control)}


class BatchFaults(Faulty):
    """`spillway batch`."""

    def run_through(self, fault, until=None):
        """A run with this fault, from when some of its lines are safe, to its end, or until a second after it has said
        `until`: its status and what it says."""
        self.output = self.folder / "out.jsonl"
        log = self.folder / "log"
        with open(log, "w") as said:
            process = subprocess.Popen(self.batch_command(self.output), env=self.preloaded(), stderr=said)
        self.addCleanup(process.kill)
        kept = self.folder / "out.jsonl.journal-wal"
        eventually(lambda: process.poll() is not None or (kept.exists() and kept.stat().st_size > WAL_WITH_ROWS), "no line is kept")
        self.assertIsNone(process.poll(), log.read_text())
        self.faults(fault)
        if until is None:
            process.wait(5 * PATIENCE)
        else:
            eventually(lambda: until in log.read_text(), f"the run does not say: {until}")
            time.sleep(1)
        self.works()
        return process.wait(5 * PATIENCE), log.read_text()

    def assert_same_rows(self):
        self.assertEqual(texts(self.output.read_text()), self.plain)
        self.assertEqual([path.name for path in self.folder.glob("out*")], ["out.jsonl"])

    def resume(self, safe, synced_or_not=False):
        """Goes on, with as many lines as were said to be safe."""
        self.assertGreater(safe, 0)
        done = subprocess.run([*self.batch_command(self.output), "--resume"], env=self.preloaded(), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        there = int(re.search(rf"Resuming: (\d+) of {ROWS} ", done.stderr)[1])
        # A commit that was written but not synced may be there.
        self.assertGreaterEqual(there, safe) if synced_or_not else self.assertEqual(there, safe)
        self.assert_same_rows()

    def assert_pauses(self, fault, why):
        """The run ends, says why and how many lines are safe, and one with --resume computes only the rest."""
        status, said = self.run_through(fault)
        self.assertEqual(status, 1, said)
        last = said.splitlines()[-1]
        self.assertIn(why, last)
        self.assertIn("continue with the same command and --resume", last)
        self.assertFalse(self.output.exists())
        self.resume(int(re.search(r"(\d+) finished lines are safe", last)[1]), synced_or_not=fault[0] == "sync")

    def assert_goes_on(self, fault, why):
        status, said = self.run_through(fault, until=why)
        self.assertEqual(status, 0, said)
        self.assertIn("run again in", said)
        self.assert_same_rows()

    def test_disk_full(self):
        self.assert_pauses(("write", errno.ENOSPC, "out.jsonl"), "full")

    def test_journal_cannot_be_synced(self):
        self.assert_pauses(("sync", errno.EIO, "out.jsonl"), "I/O error")

    def test_journal_becomes_read_only(self):
        self.assert_pauses(("write", errno.EROFS, "out.jsonl"), "out.jsonl.journal")

    def test_disk_full_for_the_output(self):
        status, said = self.run_through(("write", errno.ENOSPC, ".tmp"))
        self.assertEqual(status, 1, said)
        self.assertIn("No space left on device", said)
        self.assertFalse(self.output.exists())
        self.resume(ROWS)

    def test_weights_fail_for_a_second(self):
        self.assert_goes_on(("read", errno.EIO, ".spill"), "Input/output error")

    def test_wrong_checksum_for_a_second(self):
        self.assert_goes_on(("flip", 3_000_000, ".spill"), "does not match its checksum")

    def test_read_only_from_the_start(self):
        self.output = self.folder / "out.jsonl"
        self.faults(("open", errno.EROFS, "out.jsonl"))
        done = subprocess.run(self.batch_command(self.output), env=self.preloaded(), capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("out.jsonl", done.stderr.splitlines()[-1])
        self.works()
        done = subprocess.run(self.batch_command(self.output), env=self.preloaded(), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_same_rows()

    def test_clock_jumps(self):
        status, said = self.run_through(("clock", 30 * DAY, "-"), until="")  # There, and a second later back
        self.assertEqual(status, 0, said)
        self.assert_same_rows()


class ServeFaults(Faulty):
    """Batches of `spillway serve`."""

    def setUp(self):
        super().setUp()
        self.store = self.folder / "batches"
        log = open(self.folder / "log", "w+")
        command = [str(part) for part in (SPILLWAY, "serve", DEMO, "--port", "0", "--batch-dir", self.store,
                                          "--weights", "0,0,100", "--block", "16")]
        self.process = subprocess.Popen(command, env=self.preloaded(), stdout=subprocess.PIPE, stderr=log, text=True)
        self.addCleanup(log.close)
        self.addCleanup(self.process.stdout.close)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.terminate)
        self.url = re.search(r"http://\S+", next(line for line in self.process.stdout if "http" in line))[0].rstrip("/")
        eventually(lambda: self.ask("GET", "/health")[0] == 200, "the server does not get ready")

    def ask(self, method, path, body=None, content_type="application/json"):
        """(status, body as JSON, or as bytes)"""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        request = urllib.request.Request(self.url + path, data=data, method=method, headers={"Content-Type": content_type})
        try:
            with contextlib.closing(urllib.request.urlopen(request, timeout=PATIENCE)) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with contextlib.closing(error):
                status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def upload(self):
        return self.ask("POST", "/v1/files", (
            b'--b0\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b0\r\nContent-Disposition: form-data; '
            b'name="file"; filename="b.jsonl"\r\n\r\n' + LINES.encode() + b"\r\n--b0--\r\n"), "multipart/form-data; boundary=b0")

    def begin(self, window="none"):
        """A batch of which some lines are safe."""
        status, file = self.upload()
        self.assertEqual(status, 200, file)
        status, batch = self.ask("POST", "/v1/batches", {"input_file_id": file["id"], "endpoint": "/v1/completions",
                                                         "completion_window": window})
        self.assertEqual(status, 200, batch)
        kept = self.store / f"{batch['id']}.journal-wal"
        eventually(lambda: kept.exists() and kept.stat().st_size > WAL_WITH_ROWS, "no line is kept")
        return batch["id"]

    def batch(self, name):
        status, batch = self.ask("GET", f"/v1/batches/{name}")
        self.assertEqual(status, 200, batch)
        return batch

    def answers(self, batch):
        status, text = self.ask("GET", f"/v1/files/{batch['output_file_id']}/content")
        self.assertEqual(status, 200)
        return texts(text.decode())

    def assert_completes(self, name):
        batch = eventually(lambda: (now := self.batch(name))["status"] in ("completed", "failed", "expired") and now,
                           f"{name} does not end")
        self.assertEqual(batch["status"], "completed", batch)
        self.assertEqual(batch["request_counts"], {"total": ROWS, "completed": ROWS, "failed": 0})
        self.assertIsNone(batch["error_file_id"])
        self.assertEqual(self.answers(batch), self.plain)
        return batch

    def assert_said(self, why):
        """The fault has been met; it ends a second later."""
        eventually(lambda: why in (self.folder / "log").read_text(), f"the server does not say: {why}")
        time.sleep(1)
        self.works()

    def assert_interactive(self):
        status, answer = self.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 3, "temperature": 0})
        self.assertEqual(status, 200, answer)

    def assert_waits(self, fault, why):
        """The batch waits and says why, requests are answered meanwhile, and then it goes on."""
        name = self.begin()
        self.faults(fault)
        detail = eventually(lambda: self.batch(name).get("x_status_detail"), "the batch does not say that it waits")
        self.assertIn("waiting after", detail)
        self.assertIn(why, detail)
        self.assert_interactive()
        self.assertEqual(self.batch(name)["status"], "in_progress")
        self.works()
        self.assertFalse(self.assert_completes(name).get("x_status_detail"))

    def test_journal_disk_full(self):
        self.assert_waits(("write", errno.ENOSPC, ".journal"), "full")

    def test_journal_cannot_be_synced(self):
        self.assert_waits(("sync", errno.EIO, ".journal"), "I/O error")

    def test_journal_becomes_read_only(self):
        self.assert_waits(("write", errno.EROFS, ".journal"), ".journal")

    def test_results_find_the_disk_full(self):
        name = self.begin()
        self.faults(("write", errno.ENOSPC, "/files/"))
        eventually(lambda: self.batch(name).get("x_status_detail"), "the batch does not say that it waits")
        self.assertEqual(self.batch(name)["status"], "finalizing")
        self.assert_interactive()
        self.works()
        self.assert_completes(name)

    def test_weights_fail_for_a_second(self):
        name = self.begin()
        self.faults(("read", errno.EIO, ".spill"))
        status, answer = self.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 3})
        self.assertEqual(status, 500, answer)
        self.assert_said("Input/output error")
        self.assert_completes(name)
        self.assert_interactive()

    def test_wrong_checksum_for_a_second(self):
        name = self.begin()
        self.faults(("flip", 3_000_000, ".spill"))
        self.assert_said("does not match its checksum")
        self.assert_completes(name)
        self.assert_interactive()

    def test_store_takes_nothing(self):
        for fault in [("write", errno.ENOSPC, str(self.store)), ("open", errno.EROFS, str(self.store)),
                      ("sync", errno.EIO, str(self.store))]:
            with self.subTest(fault=fault):
                before = sorted(path.name for path in (self.store / "files").iterdir())
                self.faults(fault)
                status, answer = self.upload()
                self.assertEqual((status, answer["error"]["code"]), (507, "storage_failed"))
                self.assert_interactive()
                self.works()
                self.assertEqual(self.ask("GET", "/v1/files")[1]["data"], [])
                self.assertEqual(sorted(path.name for path in (self.store / "files").iterdir()), before)
        self.assert_completes(self.begin())

    def test_clock_jumps(self):
        name = self.begin()
        for jump in (20 * 3600, -20 * 3600, 0, -400 * DAY):
            self.faults(("clock", jump, "-"))
            time.sleep(0.5)
        self.assertEqual(self.batch(name)["status"], "in_progress")
        batch = self.assert_completes(name)
        times = [batch[f"{state}_at"] for state in ("created", "in_progress", "finalizing", "completed")]
        self.assertEqual(times, sorted(times))

    def test_clock_jumps_beyond_the_window(self):
        name = self.begin("24h")
        self.faults(("clock", 2 * DAY, "-"))
        batch = eventually(lambda: (now := self.batch(name))["status"] == "expired" and now, "the batch does not expire")
        status, text = self.ask("GET", f"/v1/files/{batch['error_file_id']}/content")
        self.assertEqual(status, 200)
        missing = [json.loads(line) for line in text.splitlines()]
        self.assertEqual({row["error"]["code"] for row in missing}, {"batch_expired"})
        done = dict(self.answers(batch))
        self.assertEqual(len(done), batch["request_counts"]["completed"])
        self.assertEqual(sorted([*done, *(row["custom_id"] for row in missing)]), sorted(name for name, _ in self.plain))
        self.assertEqual(done, {name: text for name, text in self.plain if name in done})


if __name__ == "__main__":
    if not os.path.exists(LIBRARY):
        print("SKIPPED: FAULTY_DISK_LIBRARY names no library", file=sys.stderr)
        sys.exit(77)
    unittest.main()
