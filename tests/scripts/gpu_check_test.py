#!/usr/bin/env python3
"""scripts/gpu_check.sh on a machine made up for it: programs, GPU and sanitizer are scripts that answer."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import tarfile
import time
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"

# A test program: writes down how it was called, and passes unless its name is in $FAILING.
TEST_PROGRAM = """#!/bin/sh
echo "$(basename "$0") CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES SPILLWAY_TEST_CUDA=$SPILLWAY_TEST_CUDA $*" >> "$CALLS"
case " $FAILING " in *" $(basename "$0") "*) echo "1 FAILED"; exit 1;; esac
echo "All tests passed (12 assertions in 3 test cases)"
"""

SPILLWAY = """#!/usr/bin/env python3
import json, os, pathlib, sys, time
with open(os.environ["CALLS"], "a") as calls:
    print(*sys.argv, file=calls)
if sys.argv[1] == "--version":
    print("spillway 1.2.3")
elif sys.argv[1] == "profile":
    pathlib.Path(sys.argv[sys.argv.index("--output") + 1]).write_text('{"name": "made up"}')
    print("memory 5 GB/s")
else:
    if "bench" in os.environ.get("FAILING", "").split():
        sys.exit("no memory for that")
    own = "cuda" in sys.argv
    if "slow" in os.environ.get("FAILING", "").split():
        time.sleep(100)
    if "--trace" in sys.argv:
        pathlib.Path(sys.argv[sys.argv.index("--trace") + 1]).write_text(os.environ["TRACE"])
    print(json.dumps({
        "hardware": {"host_to_device_bytes_per_second": 20e9 * own, "device_to_host_bytes_per_second": 19e9 * own},
        "time_by_cause": {"decode": {"host_to_device_bytes": 10e9, "seconds": 1.0}},
        "plan": {"attention": "device"} if own else {}, "measured": None, "projected": False, "tokens_per_second": 12.5,
        "sequences": 4, "prompt_tokens": 16, "new_tokens": 8, "decode_tokens_per_second": 30.0,
        "prefill_tokens_per_second": 400.0, "efficiency": 0.5, "decode_efficiency": 0.6, "prefill_efficiency": 0.4,
        "bound": {"resource": "memory"}, "predicted_tokens_per_second": 13.0, "peak_device_bytes": 2**31}))
"""

# What the made-up program leaves where it was asked for a trace.
TRACE = {"traceEvents": [
    {"name": "thread_name", "ph": "M", "tid": 1, "args": {"name": "compute"}},
    {"name": "thread_name", "ph": "M", "tid": 2, "args": {"name": "weights"}},
    {"name": "linear", "ph": "X", "tid": 1, "ts": 0.0, "dur": 30.0, "args": {"rows": 4}},
    {"name": "linear", "ph": "X", "tid": 1, "ts": 30.0, "dur": 50.0, "args": {"rows": 4}},
    {"name": "linear", "ph": "X", "tid": 1, "ts": 80.0, "dur": 15.0, "args": {"rows": 64}},
    {"name": "attention", "ph": "X", "tid": 1, "ts": 95.0, "dur": 5.0, "args": {"rows": 4}},
    {"name": "copy", "ph": "X", "tid": 2, "ts": 0.0, "dur": 100.0, "args": {"bytes": 5000000}}]}

SANITIZER = """#!/bin/sh
echo "compute-sanitizer $*" >> "$CALLS"
while [ "$1" != env ]; do shift; done
exec "$@"
"""

NVIDIA_SMI = """#!/bin/sh
echo "nvidia-smi $*" >> "$CALLS"
case "$*" in *-i*-L*) echo "ERROR: Option -i is not valid for this command."; exit 2;; esac
case "$*" in *compute_cap*) echo 8.6; exit;; *nounits*) echo 16384; exit;; esac
echo "A GPU made up, 16384 MiB, 1.2, 4, 16"
"""


class GpuCheck(unittest.TestCase):
    """Runs it from a bundle."""

    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        self.calls = self.root / "calls"
        self.output = self.root / "output"
        for script in SCRIPTS.glob("gpu_check*"):
            shutil.copy(script, self.root)
        for folder in ("bin", "lib", "tools"):
            (self.root / folder).mkdir()
        self.program("bin/kernels_test", TEST_PROGRAM)
        self.program("bin/endtoend_test", TEST_PROGRAM)
        self.program("bin/spillway", SPILLWAY)
        self.program("tools/nvidia-smi", NVIDIA_SMI)
        self.program("tools/compute-sanitizer", SANITIZER)

    def program(self, name, text):
        """Writes an executable."""
        path = self.root / name
        path.write_text(text)
        path.chmod(0o755)

    def check(self, *options, failing=""):
        """Its exit status and what it printed."""
        env = dict(os.environ, CALLS=str(self.calls), FAILING=failing, TRACE=json.dumps(TRACE))
        env["PATH"] = f"{self.root}/tools:{env['PATH']}"
        env.pop("CUDA_VISIBLE_DEVICES", None)
        command = ["bash", self.root / "gpu_check.sh", "--output", self.output]
        if "--no-defaults" not in options:
            command += ["--quick", "--host-memory", "1GiB"]
        options = [option for option in options if option != "--no-defaults"]
        run = subprocess.run([*command, *options], capture_output=True, text=True, env=env, timeout=120)
        self.text = run.stdout + run.stderr
        return run.returncode

    def called(self, word):
        """The calls in which a word is."""
        return [line for line in self.calls.read_text().splitlines() if word in line]

    def test_memcheck_does_not_take_answers_of_the_runtime_for_errors(self):
        self.assertEqual(self.check(), 0, self.text)
        memcheck = self.called("--tool memcheck")
        self.assertEqual(len(memcheck), 2)
        for call in memcheck:
            self.assertIn("--report-api-errors no", call)
        for call in self.called("--tool racecheck"):
            self.assertNotIn("--report-api-errors", call)
        for call in self.called("--tool"):
            self.assertIn("--kernel-regex kns=spillway", call)

    def results(self):
        """results.json, and the step of each name in it."""
        found = json.loads((self.output / "results.json").read_text())
        return found, {step["name"]: step for step in found["steps"]}

    def test_one_table_and_one_file_have_every_step(self):
        self.assertEqual(self.check(), 0, self.text)
        found, steps = self.results()
        self.assertTrue(found["passed"])
        self.assertIn("A GPU made up", found["gpu"])
        self.assertEqual(found["spillway"], "spillway 1.2.3")
        self.assertEqual(found["profile"], {"name": "made up"})
        traced = ["opt-6.7b-resident-traced", "opt-1.3b-resident-1-traced", "opt-6.7b-6GiB-traced"]
        traced += ["opt-6.7b-6GiB-q4-traced"]
        names = ["smoke", "ops", "profile", "opt-1.3b-resident", "opt-1.3b-resident-1", "opt-6.7b-resident"]
        names += ["llama-3.1-8b-resident", "opt-6.7b-resident-1", "opt-6.7b-resident-q4"]
        names += [name + end for name in traced for end in ("", "-ops")]
        names += ["opt-6.7b-6GiB", "opt-6.7b-6GiB-q4", "end-to-end"]
        names += [f"{tool}-{program}" for tool in ("memcheck", "racecheck") for program in ("kernels_test", "endtoend_test")]
        self.assertEqual(list(steps), names)
        self.assertEqual(steps["ops"]["detail"], "12 assertions in 3 test cases")
        figures = steps["opt-6.7b-6GiB"]["figures"]
        self.assertEqual((figures["tokens_per_second"], figures["efficiency"], figures["bound"]), (12.5, 0.5, "memory"))
        self.assertEqual(figures["link_used_in_decode"], 0.5)
        summary = (self.output / "summary.txt").read_text()
        self.assertIn(summary, self.text)
        rows = [line for line in summary.splitlines() if line.startswith("| ")]
        self.assertEqual([row.split()[1] for row in rows], ["step", *names])
        self.assertIn("Everything passed.", summary)
        for row in rows:
            self.assertGreaterEqual(self.text.count(row), 1)
        ops = steps["opt-6.7b-resident-traced-ops"]["ops"]
        self.assertEqual([line.split()[:4] for line in ops[1:4]],
                         [["compute", "linear,", "4", "rows"], ["compute", "linear,", "64", "rows"],
                          ["compute", "attention,", "4", "rows"]])
        self.assertEqual(ops[1].split()[4:], ["2", "0.08", "40.0", "80.0%", "80.0%"])
        self.assertEqual(ops[4].split(), ["weights", "copy", "1", "0.10", "100.0", "100.0%", "100.0%", "50.0"])
        self.assertFalse(list(self.output.glob("*.trace.json")))

    def test_one_file_to_bring_back_has_everything_after_every_step(self):
        self.assertEqual(self.check("--parts", "smoke,ops"), 0, self.text)
        with tarfile.open(self.output / "results.tar.gz") as packed:
            names = {name.removeprefix("./") for name in packed.getnames()}
            found = json.load(packed.extractfile("./results.json"))
        self.assertLessEqual({"summary.txt", "smoke.json", "ops.log"}, names)
        self.assertEqual([step["name"] for step in found["steps"]], ["smoke", "ops"])
        self.assertNotIn("tar:", self.text)  # It changes nothing that it reads.

    def test_parts_run_in_the_order_in_which_they_are_named(self):
        self.assertEqual(self.check("--parts", "ops,smoke"), 0, self.text)
        self.assertEqual(list(self.results()[1]), ["ops", "smoke"])
        self.assertEqual(self.check("--parts", "ops,nonsense"), 2)
        self.assertIn("there is no part nonsense", self.text)

    def test_what_the_time_is_too_short_for_is_skipped_and_nothing_has_failed(self):
        start = time.monotonic()
        self.assertEqual(self.check("--parts", "ops,smoke,trace", "--seconds", "25", failing="slow"), 0, self.text)
        self.assertLess(time.monotonic() - start, 60)
        _, steps = self.results()
        self.assertEqual(steps["ops"]["result"], "skipped")  # 25 of its 240 s are too few.
        self.assertEqual(steps["smoke"]["result"], "skipped")
        self.assertIn("no time: no end within", steps["smoke"]["detail"])
        self.assertEqual(steps["opt-6.7b-6GiB-traced"]["detail"], "no time")
        self.assertNotIn("opt-6.7b-6GiB-traced-ops", steps)
        self.assertEqual(self.check("--seconds", "soon"), 2)

    def test_a_large_model_pins_less_memory_where_time_is_short(self):
        self.check("--no-defaults", "--parts", "h2o-30b", "--seconds", "1000")
        for call in self.called("opt-30b"):
            gib = int(call.split("--host-memory ")[1].split("GiB")[0])
            self.assertLessEqual(gib, 72)
        self.assertEqual(len(self.called("opt-30b")), 2)
        self.check("--no-defaults", "--parts", "resident-30b")
        self.assertEqual(self.results()[1]["opt-30b-resident"]["result"], "skipped")

    def test_a_gpu_that_the_programs_are_not_for_is_refused_before_anything_runs(self):
        (self.root / "architectures").write_text("90-real")
        self.assertEqual(self.check(), 2)
        self.assertIn("compute capability 8.6, these programs are for 90-real", self.text)
        self.assertIn("gpu_bundle --arch 86", self.text)
        self.assertFalse(self.called("kernels_test"))
        for architectures in ("80-real", "75-real;86-real", "75", "80-virtual", "80-real;90"):
            (self.root / "architectures").write_text(architectures)
            self.assertEqual(self.check("--parts", "smoke"), 0, self.text)
        for architectures in ("75-real", "89", "90a-real"):
            (self.root / "architectures").write_text(architectures)
            self.assertEqual(self.check("--parts", "smoke"), 2, architectures)

    def test_what_fails_fails_the_check_and_the_rest_still_runs(self):
        self.assertEqual(self.check(failing="kernels_test bench"), 1)
        found, steps = self.results()
        self.assertFalse(found["passed"])
        self.assertEqual(steps["ops"]["result"], "FAILED")
        self.assertEqual(steps["end-to-end"]["result"], "passed")
        self.assertEqual(steps["opt-6.7b-6GiB"]["result"], "FAILED")
        self.assertIn("no memory for that", steps["opt-6.7b-6GiB"]["detail"])
        self.assertIn("Not everything passed.", self.text)

    def test_without_the_sanitizer_the_check_has_not_passed_unless_that_was_asked_for(self):
        (self.root / "tools/compute-sanitizer").unlink()
        if pathlib.Path("/usr/local/cuda/bin/compute-sanitizer").exists():
            self.skipTest("this machine has it")
        self.assertEqual(self.check(), 1)
        self.assertEqual(self.results()[1]["memcheck"]["result"], "MISSING")
        self.assertEqual(self.check("--no-sanitizer"), 0, self.text)
        self.assertEqual(self.results()[1]["racecheck"]["result"], "skipped")

    def test_a_gpu_is_named_and_demanded(self):
        self.assertEqual(self.check("--gpu", "3"), 0, self.text)
        self.assertTrue(self.called("nvidia-smi -i 3"))
        for program in ("kernels_test", "endtoend_test"):
            calls = [call for call in self.called(program) if call.startswith(program)]
            self.assertTrue(calls)
            for call in calls:
                self.assertRegex(call, "CUDA_VISIBLE_DEVICES=3 SPILLWAY_TEST_CUDA=(required|only)")
        ops = [call for call in self.called("kernels_test") if "SPILLWAY_TEST_CUDA=only" in call]
        self.assertEqual(len(ops), 1, "conformance tests, on the GPU alone")

    def test_a_rehearsal_demands_nothing_of_a_gpu(self):
        (self.root / "tools/compute-sanitizer").unlink()
        self.assertEqual(self.check("--device", "cpu"), 0, self.text)
        self.assertFalse(self.called("SPILLWAY_TEST_CUDA=required") + self.called("SPILLWAY_TEST_CUDA=only"))
        self.assertIn("opt-125m-h2o", self.results()[1])
        self.assertIsNone(self.results()[1]["opt-125m"]["figures"]["link_used_in_decode"])

    def test_the_help_says_what_is_needed(self):
        self.assertEqual(self.check("--help"), 0)
        for word in ("gpu_bundle", "python3", "compute-sanitizer", "cuBLAS", "--gpu N"):
            self.assertIn(word, self.text)
        self.assertEqual(self.check("--unknown"), 2)


if __name__ == "__main__":
    unittest.main()
