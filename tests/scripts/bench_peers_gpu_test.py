#!/usr/bin/env python3
"""scripts/bench_peers_gpu.py: what it reads of FlexGen, and a whole run of it with programs made up for that."""

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
import bench_peers_gpu  # noqa: E402  (the path comes first)

# As flexgen/utils.py writes it, with figures made up.
FLEXGEN_LOG = """model size: 55.803 GB\tcache size: 50.203 GB\thidden size (p): 0.523 GB
peak gpu mem: 13.250 GB\tprojected: False
prefill latency: 102.500 s\tprefill throughput: 719.297 token/s
decode latency: 497.500 s\tdecode throughput: 8.973 token/s
total latency: 600.000 s\ttotal throughput: 7.680 token/s
"""

# An interpreter that runs nothing: it writes down its arguments, and what FlexGen would log.
INTERPRETER = f"""#!/bin/sh
echo "$@" >> "$CALLS"
while [ "$1" != --log-file ]; do shift; done
cat >> "$2" <<'END'
{FLEXGEN_LOG}END
"""

# One that has everything that transformers + accelerate need, and writes down what they would find.
TORCH = """#!/bin/sh
echo "torch $@" >> "$CALLS"
while [ $# -gt 0 ] && [ "$1" != --result ]; do shift; done
[ $# -eq 0 ] || echo '{"prefill_seconds": 10.0, "step_seconds": [1.0, 2.0, 3.0], "gpu_peak_bytes": 1073741824}' > "$2"
"""

SPILLWAY = """#!/usr/bin/env python3
import json, os, sys
with open(os.environ["CALLS"], "a") as calls:
    print(*sys.argv[1:], file=calls)
if sys.argv[1] == "profile":
    open(sys.argv[sys.argv.index("--output") + 1], "w").write('{"name": "made up"}')
elif "h2o" in sys.argv:
    sys.exit("Error: no memory for that")
else:
    print(json.dumps({
        "efficiency": 0.75, "bound": {"resource": "host to device"}, "plan": {"attention": "host"},
        "predicted_tokens_per_second": None, "projected": True, "measured": {"decode_steps": 24},
        "prefill_seconds": 60.0, "total_seconds": 400.0, "peak_device_bytes": 12 * 2**30}))
"""

NVIDIA_SMI = "#!/bin/sh\necho 'A GPU made up, 1.2, 16384 MiB'\n"


class Parsers(unittest.TestCase):
    """What is read of others."""

    def test_a_flexgen_log_is_read_in_seconds_and_bytes(self):
        found = bench_peers_gpu.parse_flexgen(FLEXGEN_LOG)
        self.assertEqual(
            found, {"prefill": 102.5, "decode": 497.5, "total": 600.0, "peak": 13.25 * 2**30, "projected": False}
        )

    def test_a_run_that_was_cut_short_is_projected(self):
        for word, projected in (("True", True), ("5", True), ("fewer_batch", True), ("False", False), ("None", False)):
            text = FLEXGEN_LOG.replace("projected: False", f"projected: {word}")
            self.assertEqual(bench_peers_gpu.parse_flexgen(text)["projected"], projected, word)

    def test_a_log_that_lacks_something_is_an_error_that_names_it(self):
        for line, name in ((1, "peak"), (2, "prefill"), (3, "decode"), (4, "total")):
            lines = FLEXGEN_LOG.splitlines()
            del lines[line]
            with self.assertRaisesRegex(KeyError, name):
                bench_peers_gpu.parse_flexgen("\n".join(lines))
        with self.assertRaises(KeyError):
            bench_peers_gpu.parse_flexgen("")

    def test_a_policy_is_batches_and_six_percentages(self):
        self.assertEqual(
            bench_peers_gpu.parse_policy(bench_peers_gpu.FLEXGEN_POLICY), (48, 3, ["20", "80", "0", "100", "0", "100"], True)
        )
        self.assertFalse(bench_peers_gpu.parse_policy(bench_peers_gpu.FLEXGEN_POLICY + " copied")[3])
        self.assertEqual(bench_peers_gpu.parse_policy(bench_peers_gpu.H2O_POLICY)[:2], (3, 15))
        for wrong in ("48 20,80,0,100,0,100", "48x3 20,80,0,100", "axb 1,2,3,4,5,6", "48x3", "", "1x1 1,2,3,4,5,6 gpu"):
            with self.assertRaises(ValueError, msg=wrong):
                bench_peers_gpu.parse_policy(wrong)


class Rehearsal(unittest.TestCase):
    """The whole script, but for accelerate, which is installed from the network."""

    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        for name, text in (("python", INTERPRETER), ("spillway", SPILLWAY), ("nvidia-smi", NVIDIA_SMI)):
            (self.root / name).write_text(text)
            (self.root / name).chmod(0o755)
        for package in ("flexgen/flexllmgen", "fork/h2o_flexgen/flexgen"):
            (self.root / package).mkdir(parents=True)
            (self.root / package / "flex_opt.py").touch()

    def test_every_system_is_a_row_and_a_failure_is_one_too(self):
        calls = self.root / "calls"
        command = [sys.executable, "-B", SCRIPTS / "bench_peers_gpu.py", "--work", self.root / "work", "--shape", "opt-30b"]
        command += ["--spillway", self.root / "spillway", "--host-memory-gib", "200", "--skip-accelerate"]
        command += ["--flexgen", self.root / "flexgen", "--flexgen-python", self.root / "python"]
        command += ["--flexgen-policy", bench_peers_gpu.FLEXGEN_POLICY, "--flexgen-policy", "4x2 50,50,100,0,0,100 copied"]
        command += ["--h2o", self.root / "fork/h2o_flexgen", "--h2o-python", self.root / "python"]
        command += ["--output", self.root / "table"]
        env = dict(os.environ, CALLS=str(calls), PATH=f"{self.root}:{os.environ['PATH']}")
        run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
        self.assertEqual(run.returncode, 0, run.stderr)
        found = json.loads((self.root / "table.json").read_text())
        self.assertEqual(found["profile"], {"name": "made up"})
        flexgen, copied, fork, ours, failed = found["rows"]
        # 144 sequences of 32 new tokens in 600 s; the fork's policy has 45 of them.
        self.assertEqual((flexgen["sequences"], flexgen["tokens_per_second"]), (144, 144 * 32 / 600))
        self.assertEqual((copied["system"], copied["sequences"]), ("FlexGen 2", 8))
        self.assertEqual((fork["sequences"], fork["tokens_per_second"]), (45, 45 * 32 / 600))
        self.assertEqual((ours["tokens_per_second"], ours["decode_seconds"]), (144 * 32 / 400, 340.0))
        self.assertIn("projected from 24 decode steps", ours["note"])
        self.assertIn("no memory for that", failed["failed"])
        text = (self.root / "table.md").read_text()
        self.assertEqual(text, run.stdout)
        self.assertIn("| FlexGen | 144 | 102.5 | 497.5 | 7.68 | 13.25 |", text)
        self.assertIn("A GPU made up", text)
        lines = calls.read_text().splitlines()
        self.assertIn("--percent 20 80 0 100 0 100 --gpu-batch-size 48 --num-gpu-batches 3", lines[1])
        self.assertIn("flexllmgen/flex_opt.py", lines[1])
        self.assertIn("--cpu-cache-compute", lines[1])
        self.assertIn("--percent 50 50 100 0 0 100 --gpu-batch-size 4 --num-gpu-batches 2", lines[2])
        self.assertNotIn("--cpu-cache-compute", lines[2])
        self.assertIn("--hh-ratio 0.1 --hh-all", lines[3])
        self.assertIn("--device-memory 16000000000 ", lines[4])

    def test_with_an_interpreter_that_has_everything_nothing_is_installed(self):
        (self.root / "torch").write_text(TORCH)
        (self.root / "torch").chmod(0o755)
        calls = self.root / "calls"
        command = [sys.executable, "-B", SCRIPTS / "bench_peers_gpu.py", "--work", self.root / "work"]
        command += ["--python", self.root / "torch", "--host-memory-gib", "32", "--sequences", "4", "--output", self.root / "table"]
        env = dict(os.environ, CALLS=str(calls), PATH=f"{self.root}:{os.environ['PATH']}")
        run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
        self.assertEqual(run.returncode, 0, run.stderr)
        (row,) = json.loads((self.root / "table.json").read_text())["rows"]
        self.assertEqual(row["tokens_per_second"], 4 * 32 / (10 + 31 * 2))
        self.assertFalse((self.root / "work/venvs").exists())
        for line in calls.read_text().splitlines():
            self.assertTrue(line.startswith("torch "), line)
        refused = subprocess.run([*command, "--python", self.root / "none"], capture_output=True, text=True, env=env, timeout=120)
        self.assertIn("there is no such program", refused.stderr)


if __name__ == "__main__":
    unittest.main()
