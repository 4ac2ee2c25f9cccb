#!/usr/bin/env python3
"""scripts/bench_bounds.py on figures made up for it, and that docs/benchmarks/bounds.md is of the figures in docs/benchmarks/data."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def run_of(total, seconds, any_schedule, **more):
    return {"model": "opt-x", "sequences": 2, "prompt_tokens": 3, "new_tokens": 4, "total_seconds": total,
            "plan": {"format": "q4", "weights": [40, 0, 60], "kv": [100, 0, 0], "kv_rule": "h2o"},
            "bound": {"resource": "disk read", "seconds": seconds, "seconds_any_schedule": any_schedule}, **more}


def output(*arguments):
    return subprocess.run([sys.executable, ROOT / "scripts" / "bench_bounds.py", *arguments],
                          check=True, capture_output=True, text=True).stdout


class BenchBounds(unittest.TestCase):
    def rows(self, figures):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "a.json").write_text(json.dumps(figures))
            return [line for line in output("--figures", folder).splitlines() if line.startswith("| opt-x")]

    def test_runs_are_found_wherever_they_are(self):
        rows = self.rows({"machine": "m", "runs": [{"result": run_of(10, 8, 5)}], "rows": {"b": {"detail": run_of(10, 9, 9)}}})
        what = "| opt-x q4, 2 x (3 + 4), weights 60 % on disk, h2o "
        self.assertEqual(rows, [what + "| 10.0 | 8.0 | 0.80 | 5.0 | 0.50 | disk read |",
                                what + "| 10.0 | 9.0 | 0.90 | 9.0 | 0.90 | disk read |"])

    def test_a_bound_that_was_beaten_is_invalid(self):
        self.assertIn("| 12.0 | 1.20, invalid | 9.0 | 0.90 |", self.rows(run_of(10, 12, 9))[0])
        self.assertIn("| 10.2 | 1.02 | 10.2 | 1.02 |", self.rows(run_of(10, 10.19, 10.19))[0])

    def test_a_run_that_was_cut_short_is_held_against_what_ran(self):
        self.assertIn("| 4.0 | 2.0 | 0.50 | 1.0 | 0.25 |", self.rows(run_of(10, 2, 1, measured={"total_seconds": 4}))[0])

    def test_the_page_is_of_the_figures(self):
        self.assertEqual(output(), (ROOT / "docs" / "benchmarks" / "bounds.md").read_text())


if __name__ == "__main__":
    unittest.main()
