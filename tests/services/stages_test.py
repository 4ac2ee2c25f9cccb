"""A model on several ranks (`--stages`) under Open MPI's mpirun, all on this machine: the tokens of one process, whatever
the number of ranks, the cuts, the tiers and the KV rule; ranks that are killed; errors that name the rank.

STAGES_KILLS: how often each rank is killed (10, as in CI).
"""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))
from server import DEMO, SPILLWAY  # noqa: E402

KILLS = int(os.environ.get("STAGES_KILLS", "10"))
# All ranks on one machine, more than it has cores; root is what containers have.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader,tcp"]
# Every rank of a test's runs plans for the same memory, whatever else the machine does.
ENGINE = ["--host-memory", "1GiB", "--threads", "1"]
SHARING = ["--host-memory", "1GiB", "--threads", "2"]  # Of two ranks each


def processes(word):
    """Of the ranks of a run that has this word in its command line: {rank: pid}."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            if command[0] == os.fsencode(SPILLWAY) and os.fsencode(word) in command:
                variables = (entry / "environ").read_bytes()
                found[int(re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", variables)[1])] = int(entry.name)
        except (OSError, ValueError, TypeError, IndexError):
            pass  # No process, or one that is ending
    return found


class Stages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.environment = {**os.environ, "SPILLWAY_CACHE": str(cls.folder / "cache"),
                           "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
        cls.environment.pop("SPILLWAY_CONFIG", None)
        cls.input = cls.folder / "prompts.jsonl"
        draw = random.Random(3)
        with open(cls.input, "w") as file:
            for number in range(60):
                body = {"prompt": [draw.randrange(5, 200) for _ in range(draw.choice((1, 7, 30, 100)))],
                        "max_tokens": draw.choice((1, 5, 20)), "temperature": draw.choice((0, 0.8)), "ignore_eos": True,
                        "logprobs": draw.choice((None, 2))}
                file.write(json.dumps({"custom_id": f"row-{number}", "method": "POST", "url": "/v1/completions",
                                       "body": body}) + "\n")

    def command(self, ranks, *words):
        return [*(map(str, [*MPIRUN, "-np", ranks] if ranks > 1 else [])), str(SPILLWAY), *map(str, words),
                *(["--stages", str(ranks)] if ranks > 1 else [])]

    def run_ranks(self, ranks, *words, status=0):
        done = subprocess.run(self.command(ranks, *words), env=self.environment, capture_output=True, text=True, timeout=300)
        if status is not None:
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def results(self, path):
        found = {}
        for line in path.read_text().splitlines():
            result = json.loads(line)
            result["response"]["body"].pop("created")
            found[result["custom_id"]] = result["response"]["body"]
        return found

    def batch(self, ranks, *flags, name="out", engine=ENGINE):
        output = self.folder / f"{name}-{ranks}.jsonl"
        self.run_ranks(ranks, "batch", DEMO, "--input", self.input, "--output", output, "--overwrite", *engine, *flags)
        return self.results(output)

    def nothing_left(self, word):
        end = time.monotonic() + 10
        while processes(word) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(processes(word), {})

    def test_tokens_are_those_of_one_process(self):
        for flags in ((), ("--block", "4"), ("--kv-rule", "h2o"), ("--kv-rule", "window", "--kv-recent", "16"),
                      ("--kv-rule", "snap"), ("--kv-format", "q4"), ("--format", "q8"), ("--format", "q4"),
                      ("--draft", "ngram"), ("--prefill-tokens", "32"),
                      ("--weights", "0,0,100", "--kv", "50,0,50", "--activations", "50,0,50")):
            with self.subTest(flags):
                one = self.batch(1, *flags)
                self.assertEqual(len(one), 60)
                for ranks in (2, 4):
                    self.assertEqual(self.batch(ranks, *flags), one)

    def test_bench_says_in_json_what_it_knows(self):
        flags = ("bench", DEMO, "--json", "--sequences", "4", "--prompt-tokens", "16", "--new-tokens", "8")
        found = json.loads(self.run_ranks(2, *flags, *ENGINE).stdout)
        one = json.loads(self.run_ranks(1, *flags, *ENGINE).stdout)
        # Members of docs/USER_GUIDE.md, "bench"; null where rank 0 alone does not know.
        for member in ("model", "plan", "prompt_tokens", "new_tokens", "sequences", "prefill_seconds", "decode_seconds",
                       "total_seconds", "prefill_tokens_per_second", "decode_tokens_per_second", "tokens_per_second"):
            self.assertIn(member, one)
            self.assertIsNotNone(found[member], member)
        for member in ("peak_device_bytes", "peak_host_bytes", "disk_bytes_read", "disk_bytes_written", "bytes_by_tier",
                       "bound", "efficiency", "efficiency_of_kernels", "predicted_tokens_per_second", "hardware"):
            self.assertIn(member, one)
            self.assertIn(member, found)
        self.assertAlmostEqual(found["decode_tokens_per_second"], 4 * 7 / found["decode_seconds"], 3)
        block = ("--block", "2", "--kv", "100,0,0", "--decode-steps", "3")
        refused = self.run_ranks(2, *flags, *ENGINE, *block, status=2)
        self.assertIn("--decode-steps is for one block: 2 of the 4 sequences fit", refused.stderr)

    def test_stages_of_ranks_that_share_their_layers(self):
        for flags in ((), ("--kv-rule", "h2o", "--draft", "ngram"),
                      ("--weights", "0,0,100", "--kv", "50,0,50", "--activations", "50,0,50")):
            with self.subTest(flags):
                one = self.batch(1, *flags)
                for stages in (2, 4):
                    self.assertEqual(self.batch(stages, "--ranks", "2", *flags, engine=SHARING), one)

    def test_the_run_has_the_status_of_rank_0(self):
        output = self.folder / "status.jsonl"
        words = ["batch", DEMO, "--input", self.input, "--output", output, *ENGINE]
        self.run_ranks(2, *words, "--dry-run")
        self.run_ranks(2, *words)
        self.run_ranks(2, *words, "--resume")  # Nothing is left to do.
        self.run_ranks(2, *words, status=2)  # There is an output.

    def test_any_cut(self):
        one = self.batch(1)
        for cut in ("1,4", "4,1"):
            self.assertEqual(self.batch(2, "--stage-layers", cut), one)

    def test_a_rank_that_is_killed_ends_the_run_which_resumes(self):
        whole = self.batch(1)
        draw = random.Random(4)
        for ranks, killed in [(2, rank) for rank in range(2)] + [(4, rank) for rank in range(4)]:
            for kill in range(KILLS if ranks == 2 else (KILLS + 1) // 2):
                with self.subTest(ranks=ranks, killed=killed, kill=kill):
                    output = self.folder / f"killed-{ranks}-{killed}-{kill}.jsonl"
                    words = ["batch", DEMO, "--input", self.input, "--output", output, *ENGINE]
                    run = subprocess.Popen(self.command(ranks, *words), env=self.environment, stdout=subprocess.DEVNULL,
                                           stderr=subprocess.PIPE, text=True, start_new_session=True)
                    end = time.monotonic() + 30
                    while killed not in processes(output) and run.poll() is None and time.monotonic() < end:
                        time.sleep(0.005)
                    time.sleep(draw.uniform(0, 1.2))
                    if pid := processes(output).get(killed):
                        try:
                            os.kill(pid, signal.SIGKILL)
                        except ProcessLookupError:
                            pass
                    began = time.monotonic()
                    _, errors = run.communicate(timeout=60)
                    if run.returncode != 0:
                        self.assertLess(time.monotonic() - began, 10)
                        # mpirun names it, and the signal; or, while MPI is set up, the end of another
                        # that misses it, if it sees this one first.
                        self.assertRegex(errors, rf"rank {killed}|returned\s+a non-zero exit code")
                    self.nothing_left(output)
                    if not output.exists():
                        self.run_ranks(ranks, *words, "--resume")
                    self.assertEqual(self.results(output), whole)

    def test_a_run_goes_on_with_another_number_of_ranks(self):
        whole = self.batch(1)
        output = self.folder / "moved.jsonl"
        words = ["batch", DEMO, "--input", self.input, "--output", output, *ENGINE]
        run = subprocess.Popen(self.command(2, *words), env=self.environment, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(0.8)
        for pid in processes(output).values():
            os.kill(pid, signal.SIGKILL)
        run.wait()
        self.run_ranks(1, *words, *(() if output.exists() else ("--resume",)), status=None)
        self.assertEqual(self.results(output), whole)

    def test_serve(self):
        socket = self.folder / "serve.sock"
        log = self.folder / "serve.log"
        with open(log, "w") as file:
            server = subprocess.Popen(self.command(2, "serve", DEMO, "--port", "0", "--socket", socket, *ENGINE),
                                      env=self.environment, stdout=file, stderr=file, start_new_session=True)
        try:
            end = time.monotonic() + 60
            while not (found := re.search(r"http://[^ ]*:\d+", log.read_text())) and time.monotonic() < end:
                time.sleep(0.05)
            url = found[0]
            while time.monotonic() < end:
                try:
                    urllib.request.urlopen(url + "/health")
                    break
                except OSError:
                    time.sleep(0.05)
            body = {"model": "demo", "prompt": "Emma was", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
            request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
            text = json.load(urllib.request.urlopen(request))["choices"][0]["text"]
            alone = self.run_ranks(1, "generate", DEMO, "--prompt", "Emma was", "--max-tokens", "12", "--temperature", "0",
                                   "--ignore-eos", *ENGINE)
            self.assertIn(text.strip(), alone.stdout)
            ranks = processes(socket)
            self.assertEqual(set(ranks), {0, 1})
            # A server that has nothing to do lets the processor rest: MPI's own waits would not.
            ticks = [sum(map(int, pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
                     for pid in ranks.values()]
            time.sleep(3)
            later = [sum(map(int, pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
                     for pid in ranks.values()]
            for before, after in zip(ticks, later):
                self.assertLess((after - before) / os.sysconf("SC_CLK_TCK"), 0.6)
            os.kill(ranks[0], signal.SIGTERM)
            self.assertEqual(server.wait(30), 0, log.read_text())
        finally:
            server.kill()
        self.nothing_left(socket)

    def test_errors_name_what_and_where(self):
        def error_of(command, status=2):
            done = subprocess.run(list(map(str, command)), env=self.environment, capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, status, done.stderr)
            return done.stderr

        bench = [SPILLWAY, "bench", DEMO, "--new-tokens", "4", "--sequences", "2"]
        self.assertIn("start it with mpirun -np 2", error_of([*bench, "--stages", "2"]))
        self.assertIn("add --stages 2", error_of([*MPIRUN, "-np", "2", *bench]))
        self.assertIn("there are 3 processes", error_of([*MPIRUN, "-np", "3", *bench, "--stages", "2"]))
        self.assertIn("--stage-layers has 9 layers, and the model has 5",
                      error_of([*MPIRUN, "-np", "2", *bench, "--stages", "2", "--stage-layers", "4,5"]))
        self.assertIn("6 is more than the model's 5 layers",
                      error_of([*MPIRUN, "-np", "6", *bench, "--stages", "6", "--host-memory", "1GiB"]))
        two = [*MPIRUN, "-np", "1", *bench, "--stages", "2"]
        other_flags = error_of([*two, ":", "-np", "1", *bench, "--stages", "2", "--kv-format", "f32"])
        self.assertRegex(other_flags, r"rank 1 \(.*\) was given other flags: .*--kv-format f32")
        no_memory = error_of([*two, ":", "-np", "1", *bench, "--stages", "2", "--host-memory", "64MiB"], 3)
        self.assertRegex(no_memory, r"rank 1 \(.*\): .*host-memory")
        copy = self.folder / "other"
        shutil.copytree(DEMO, copy)
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, "_note": "another model"}))
        other_model = [SPILLWAY, "bench", copy, *bench[3:], "--stages", "2"]
        self.assertRegex(error_of([*two, ":", "-np", "1", *other_model]), r"rank 1 \(.*\) has another model")
        absent = [SPILLWAY, "bench", self.folder / "absent", *bench[3:], "--stages", "2"]
        self.assertRegex(error_of([*two, ":", "-np", "1", *absent]), r"rank 1 \(.*\): .*absent")
        self.assertIn("--prefix-cache does not go with --stages",
                      error_of([SPILLWAY, "batch", DEMO, "--input", self.input, "--output", self.folder / "never", "--stages", "2",
                                "--prefix-cache", "1GiB"]))
        self.assertIn("for serve, batch and bench", error_of([SPILLWAY, "generate", DEMO, "--prompt", "x", "--stages", "2"]))
        # An error of rank 0 alone, before the model is opened, ends the others, too.
        self.assertIn("absent.jsonl", error_of([*MPIRUN, "-np", "2", SPILLWAY, "batch", DEMO, "--input",
                                                self.folder / "absent.jsonl", "--output", self.folder / "never", "--stages", "2"]))


if __name__ == "__main__":
    if shutil.which("mpirun") is None:
        print("Skipped: mpirun is not installed (Debian: openmpi-bin)", file=sys.stderr)
        sys.exit(77)
    unittest.main(verbosity=2)
