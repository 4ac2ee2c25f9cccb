"""`spillway queue` and `spillway work` with a real PostgreSQL: a pile of rows that eight workers share while workers are
killed, the database crashes and the network hangs; every row has exactly one result, equal to that of `spillway batch`.

QUEUE_ROWS, QUEUE_KILLS: how many of them (40,000 and 40, as in CI; 100,000 and 100 take minutes more).
"""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from postgres import Postgres, programs  # noqa: E402
from server import DEMO, SPILLWAY  # noqa: E402

ROWS = int(os.environ.get("QUEUE_ROWS", "40000"))
KILLS = int(os.environ.get("QUEUE_KILLS", "40"))
RESTARTS = 5
WORKERS = 8
PATIENCE = 120
# Eight workers share this machine; their blocks are alike, so that none plans for all of it.
ENGINE = ["--threads", "1", "--host-memory", "1GiB", "--block", "32"]


def row(number, **body):
    # Prompts of two lengths and answers of several, greedy ones and samples.
    prompt = f"Row {number}: the" if number % 3 else f"Row {number} " + "of the very long kind " * (number % 5)
    return {"custom_id": f"r{number}", "body": {"prompt": prompt, "max_tokens": 1 + number % 7,
                                                "temperature": number % 2, **body}}


def write_rows(path, rows):
    with open(path, "w") as file:
        for each in rows:
            file.write((each if isinstance(each, str) else json.dumps(each)) + "\n")


def results(path):
    """Lines of an output, without the times in them."""
    lines = []
    with open(path) as file:
        for line in file:
            line = json.loads(line)
            if isinstance(line["response"]["body"], dict):
                line["response"]["body"].pop("created", None)
                # What was found cached depends on what ran before.
                (line["response"]["body"].get("usage") or {}).pop("prompt_tokens_details", None)
            lines.append(line)
    return lines


class Queue(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.database = Postgres()
        cls.addClassCleanup(cls.database.close)
        cls.environment = {**os.environ, "SPILLWAY_CACHE": str(cls.folder / "cache"), "SPILLWAY_DATABASE": cls.database.url}
        cls.environment.pop("SPILLWAY_CONFIG", None)

    def run_spillway(self, *arguments, status=0):
        done = subprocess.run([SPILLWAY, *map(str, arguments)], env=self.environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def submit(self, path, *options):
        return self.run_spillway("queue", "submit", "--input", path, "--model", "demo", *options).stdout.split()[-1]

    def status(self, job):
        return json.loads(self.run_spillway("queue", "status", "--job", job, "--json").stdout)

    def start_worker(self, *options, log=None):
        with open(log or self.folder / "workers.log", "ab") as file:
            return subprocess.Popen([SPILLWAY, "work", DEMO, "--lease-seconds", "3", *ENGINE, *options],
                                    env=self.environment, stdout=file, stderr=file)

    def stop_worker(self, worker):
        worker.terminate()
        self.assertEqual(worker.wait(PATIENCE), 0)

    def eventually(self, condition, text):
        end = time.monotonic() + PATIENCE
        while not (value := condition()):
            self.assertLess(time.monotonic(), end, text)
            time.sleep(0.05)
        return value

    def batch(self, path):
        output = pathlib.Path(f"{path}.batch")
        self.run_spillway("batch", DEMO, "--input", path, "--output", output, "--host-memory", "4GiB")
        return results(output)

    def fetch(self, job, path, *options, status=0):
        output = pathlib.Path(f"{path}.{job}.fetched")
        self.run_spillway("queue", "fetch", "--job", job, "--output", output, *options, status=status)
        return results(output)

    def log_tail(self):
        return (self.folder / "workers.log").read_text()[-3000:]

    # ---- One worker ----------------------------------------------------------------------------------

    def test_equal_to_batch(self):
        path = self.folder / "equal.jsonl"
        long_line = json.dumps({"prompt": "x" * (1 << 20)})
        write_rows(path, [*map(row, range(50)), "no JSON", row(3), "", {"prompt": [5, 7], "max_tokens": 3, "n": 2},
                          {"messages": [{"role": "user", "content": "Hi"}]}, long_line, row(60, max_tokens=-1)])
        job = self.submit(path, "--seed", "7")
        self.run_spillway("work", DEMO, "--until-done", *ENGINE)
        output = pathlib.Path(f"{path}.batch")
        self.run_spillway("batch", DEMO, "--input", path, "--output", output, "--seed", "7")
        self.assertEqual(self.fetch(job, path), results(output))
        status = self.status(job)
        self.assertEqual((status["state"], status["finished"], status["rows"]), ("done", 56, 56))

    def test_same_file_is_one_job(self):
        path = self.folder / "same.jsonl"
        write_rows(path, map(row, range(5)))
        job = self.submit(path)
        self.assertEqual(self.submit(path), job)
        other = self.submit(path, "--seed", "1")
        forced = self.submit(path, "--force")
        self.assertEqual(len({job, other, forced}), 3)
        self.run_spillway("queue", "cancel", "--job", job)
        again = self.submit(path)
        self.assertNotEqual(again, job)
        for each in (other, forced, again):
            self.run_spillway("queue", "cancel", "--job", each)
        # What did not run says so, in the file's order.
        codes = [line["error"]["code"] for line in self.fetch(job, path, status=1)]
        self.assertEqual(codes, ["batch_cancelled"] * 5)

    def test_bad_input(self):
        path = self.folder / "bad.jsonl"
        write_rows(path, map(row, range(3)))
        job = self.submit(path)
        for arguments, status, text in [
            (["status", "--job", "987654"], 2, "there is no job 987654"),
            (["status"], 2, "--job is missing"),
            (["submit", "--input", path], 2, "--model is missing"),
            (["submit", "--input", self.folder / "none.jsonl", "--model", "demo"], 2, "none.jsonl"),
            (["fetch", "--job", job, "--output", self.folder / "x"], 1, "0 of 3 rows are done. Nothing was written"),
            (["dance"], 2, "dance"),
            (["list", "--database", "postgresql://u:topsecret@%zz/x"], 2, "cannot be read"),
            (["list", "--database", f"{self.database.url}&dbname=nowhere"], 2, "nowhere"),
            (["list", "--database", "postgresql://127.0.0.1:1/x?password=topsecret", "--retry-seconds", "0"], 1, "127.0.0.1"),
            (["delete", "--job", job], 1, "cancel it before"),
        ]:
            with self.subTest(arguments=arguments):
                done = self.run_spillway("queue", *arguments, status=status)
                self.assertIn(text, done.stderr)
                self.assertNotIn("topsecret", done.stdout + done.stderr)
        self.assertFalse((self.folder / "x").exists())
        self.run_spillway("queue", "cancel", "--job", job)
        self.run_spillway("queue", "delete", "--job", job)
        self.run_spillway("queue", "status", "--job", job, status=2)
        # A database that has no queue, and one of a newer version.
        self.database.sql("CREATE DATABASE empty")
        done = self.run_spillway("work", DEMO, "--database", self.database.url.replace("/postgres?", "/empty?"), status=2)
        self.assertIn("there is no queue in this database", done.stderr)
        self.database.sql("INSERT INTO spillway.schema_version VALUES (999)")
        try:
            done = self.run_spillway("queue", "list", status=3)
            self.assertIn("of version 999", done.stderr)
            self.run_spillway("work", DEMO, status=3)
        finally:
            self.database.sql("DELETE FROM spillway.schema_version WHERE version = 999")

    def test_only_workers_that_answer_alike(self):
        path = self.folder / "alike.jsonl"
        write_rows(path, map(row, range(4)))
        job = self.submit(path, "--kv-format", "q4")
        worker = self.start_worker()
        try:
            status = self.eventually(lambda: (s := self.status(job))["workers"] + s["workers_else"] and s, "no worker came")
            time.sleep(1.5)
            self.assertEqual(self.status(job)["finished"], 0)
            other = self.start_worker("--kv-format", "q4")
            self.eventually(lambda: self.status(job)["state"] == "done", "the right worker did not take it")
            self.stop_worker(other)
            text = self.run_spillway("queue", "status", "--job", job).stdout
            self.assertIn("/q4", text)
        finally:
            self.stop_worker(worker)
        self.assertEqual(status["state"], "queued")

    def test_named_format_is_that_of_the_weights(self):
        path = self.folder / "named.jsonl"
        write_rows(path, map(row, range(3)))
        job = self.submit(path, "--format", "q4")  # Its LM head is in q8.
        self.run_spillway("work", DEMO, "--until-done", "--format", "q4", *ENGINE)
        self.assertEqual(self.status(job)["state"], "done")
        self.fetch(job, path)

    def test_copies_of_a_model_answer_alike(self):
        copy = self.folder / "copy" / "demo"
        shutil.copytree(DEMO, copy)
        for path in copy.iterdir():
            os.utime(path, (1_700_000_000, 1_700_000_000))
        identities = []
        for number, model in enumerate([DEMO, copy]):
            path = self.folder / f"copies-{number}.jsonl"
            write_rows(path, map(row, range(3 + number)))
            job = self.submit(path)
            self.run_spillway("work", model, "--until-done", *ENGINE)
            identities.append(self.status(job)["identity"])
        self.assertEqual(*identities)

    def test_health_and_drain(self):
        path = self.folder / "drain.jsonl"
        write_rows(path, (row(number, max_tokens=200, ignore_eos=True) for number in range(2000)))
        job = self.submit(path)
        log = self.folder / "drain.log"
        worker = self.start_worker("--health-port", "0", "--drain-seconds", "0.5", log=log)
        url = self.eventually(lambda: next((line.split()[3][:-7] for line in log.read_text().splitlines()
                                            if "/health answers 503" in line), None), log)
        self.eventually(lambda: self.status(job)["claimed"] > 0, "nothing was claimed")
        self.assertEqual(json.load(urllib.request.urlopen(f"{url}/health"))["status"], "ok")
        self.assertIn("vllm:num_requests_running", urllib.request.urlopen(f"{url}/metrics").read().decode())
        self.stop_worker(worker)
        status = self.status(job)
        self.assertEqual(status["claimed"], 0, status)
        self.assertGreater(status["given_back"], 0, status)
        self.run_spillway("queue", "cancel", "--job", job)

    # ---- Many workers, and all that can go wrong -----------------------------------------------------

    def test_everything_dies(self):
        path = self.folder / "many.jsonl"
        write_rows(path, map(row, range(ROWS)))
        expected = self.batch(path)
        chance = random.Random(4)
        job = self.submit(path)
        workers = [self.start_worker() for _ in range(WORKERS)]
        done = threading.Event()
        faults = {"kills": 0}
        try:
            began = time.monotonic()
            restarts = [KILLS * (index + 1) // (RESTARTS + 1) for index in range(RESTARTS)]
            while not done.is_set():
                time.sleep(chance.uniform(0.1, 0.9))
                if faults["kills"] < KILLS:
                    at = chance.randrange(WORKERS)
                    workers[at].send_signal(signal.SIGKILL)
                    workers[at].wait()
                    workers[at] = self.start_worker()
                    faults["kills"] += 1
                    if faults["kills"] in restarts:
                        self.database.restart()
                    if faults["kills"] == KILLS // 2:
                        self.database.hang(5)  # Longer than a lease
                for at, worker in enumerate(workers):
                    self.assertIsNone(worker.poll(), f"worker {at} ended by itself:\n{self.log_tail()}")
                if faults["kills"] % 10 == 0:
                    status = self.status(job)
                    if status["state"] == "done":
                        done.set()
                self.assertLess(time.monotonic() - began, 1500, "not done in time")
            seconds = time.monotonic() - began
            for worker in workers:
                self.stop_worker(worker)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        print(f"{ROWS} rows, {faults['kills']} kills, {RESTARTS} crashes of the database: {seconds:.0f} s", file=sys.stderr)
        self.assertEqual(faults["kills"], KILLS, "the rows were done before all kills: there must be more of them")
        got = self.fetch(job, path)
        self.assertEqual(len(got), ROWS)
        wrong = [(a, b) for a, b in zip(expected, got) if a != b]
        self.assertEqual(wrong[:3], [])
        self.assertEqual(self.database.sql("SELECT count(*) FROM spillway.claims"), "0")


if __name__ == "__main__":
    if programs() is None:
        print("Skipped: PostgreSQL is not installed (Debian: postgresql)", file=sys.stderr)
        sys.exit(77)
    unittest.main(verbosity=2)
