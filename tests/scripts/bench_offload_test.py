#!/usr/bin/env python3
"""scripts/bench_offload.py peers: turns, medians and projections, with llama.cpp and Spillway made up for that."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))
import bench_offload  # noqa: E402  (the path comes first)

# Prompts take 10 s, and a step of decode 1 s in the first turn, 3 s in the second, 2 s in the third.
LLAMA = """#!/usr/bin/env python3
import json, os, sys
with open(os.environ["CALLS"], "a") as calls:
    print("llama", *sys.argv[1:], file=calls)
if "-BF16" not in sys.argv[sys.argv.index("-m") + 1]:
    sys.exit("no memory for that")
turn = sum(line.startswith("llama") and "-BF16" in line for line in open(os.environ["CALLS"]))
steps = int(sys.argv[sys.argv.index("-ntg") + 1])
print("a line of its log")
print(json.dumps({"t_pp": 10.0, "t_tg": steps * [1.0, 3.0, 2.0][turn - 1], "speed_tg": 1.0}))
"""

SPILLWAY = """#!/usr/bin/env python3
import json, os, sys
with open(os.environ["CALLS"], "a") as calls:
    print("spillway", *sys.argv[1:], file=calls)
print(json.dumps({
    "efficiency": 0.75, "bound": {"resource": "disk read"}, "plan": {"kv_format": "bf16"}, "tokens_per_second": 50.0,
    "prefill_seconds": 2.0, "decode_seconds": 15.0, "total_seconds": 17.0}))
"""


class Medians(unittest.TestCase):
    """Of turns over systems."""

    def test_the_row_of_a_system_is_its_run_of_the_median_rate(self):
        turns = [[{"tokens_per_second": rate, "total_seconds": 1 / rate}] for rate in (3.0, 1.0, 2.0)]
        (row,) = bench_offload.median_rows(turns)
        self.assertEqual(row, {"tokens_per_second": 2.0, "total_seconds": 0.5, "turns": [3.0, 1.0, 2.0]})
        # Of an even number the lower one.
        self.assertEqual(bench_offload.median_rows(turns[:2])[0]["tokens_per_second"], 1.0)

    def test_a_system_that_failed_in_one_turn_has_failed(self):
        turns = [[{"tokens_per_second": 3.0}, {"tokens_per_second": 1.0}], [{"system": "a", "failed": "why"}, {"tokens_per_second": 1.0}]]
        first, second = bench_offload.median_rows(turns)
        self.assertEqual(first["failed"], "why")
        self.assertEqual(second["turns"], [1.0, 1.0])


class Rehearsal(unittest.TestCase):
    """The whole script beside a llama.cpp that is made up."""

    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        for name, text in (("llama-batched-bench", LLAMA), ("spillway", SPILLWAY)):
            (self.root / name).write_text(text)
            (self.root / name).chmod(0o755)
        models = self.root / "work/models"
        (models / "small").mkdir(parents=True)
        (models / "small/config.json").touch()
        for name in ("BF16.gguf", "Q4_0.gguf", "bf16.spill", "q4.spill"):
            (models / f"small-{name}").touch()

    def run_script(self, *flags):
        command = [sys.executable, "-B", SCRIPTS / "bench_offload.py", "peers", "--work", self.root / "work", "--no-group"]
        command += ["--shape", "small", "--spillway", self.root / "spillway", "--llama-cpp", self.root, "--skip-accelerate"]
        command += ["--best-sequences", "", "--prompts", "4", "--new-tokens", "16", "--output", self.root / "table", *flags]
        env = dict(os.environ, CALLS=str(self.root / "calls"))
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)

    def test_systems_take_turns_and_some_steps_stand_for_all(self):
        run = self.run_script("--repeats", "3", "--decode-steps", "5", "--only", "llama.cpp-BF16", "--only", "spillway-bf16")
        self.assertEqual(run.returncode, 0, run.stderr)
        calls = (self.root / "calls").read_text().splitlines()
        self.assertEqual([line.split()[0] for line in calls], ["llama", "spillway"] * 3)
        self.assertIn("-ntg 5 ", calls[0])
        self.assertIn("--decode-steps 5", calls[1])
        theirs, ours = json.loads((self.root / "table.json").read_text())["rows"]
        # 16 steps of 2 s behind 10 s of prompts, in the middle turn.
        self.assertEqual((theirs["total_seconds"], theirs["step_seconds"]), (42.0, 2.0))
        self.assertEqual(theirs["tokens_per_second"], 4 * 16 / 42)
        self.assertEqual(theirs["turns"], [4 * 16 / total for total in (26, 58, 42)])
        self.assertEqual((ours["step_seconds"], ours["turns"]), (1.0, [50.0] * 3))
        for row in (theirs, ours):
            self.assertEqual(row["projected"], "5 of 15 decode steps measured")
        self.assertIn("projected: 5 of 15 decode steps measured; efficiency 0.75 (disk read); turns: 50.00", run.stdout)

    def test_all_steps_run_unless_asked_and_a_failure_is_a_row(self):
        run = self.run_script("--only", "llama.cpp")
        self.assertEqual(run.returncode, 1, run.stderr)
        calls = (self.root / "calls").read_text()
        self.assertIn("-ntg 16 ", calls)
        self.assertNotIn("spillway", calls)
        found, failed, alone = json.loads((self.root / "table.json").read_text())["rows"]
        self.assertEqual((found["total_seconds"], found["projected"]), (26.0, ""))
        for row in (failed, alone):
            self.assertIn("no memory for that", row["failed"])

    def test_a_name_that_no_system_has_is_refused(self):
        run = self.run_script("--only", "vllm")
        self.assertEqual(run.returncode, 1)
        self.assertIn("nothing to run: --only names no system", run.stderr)


if __name__ == "__main__":
    unittest.main()
