#!/usr/bin/env python3
"""scripts/bench_long_prompt.py: what it holds a first token against."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"))
import bench_long_prompt  # noqa: E402  (the path comes first)


class TwoSweeps(unittest.TestCase):
    """The sweep that a request comes in, and the next one."""

    def test_they_are_the_sweeps_around_the_arrival(self):
        ends = [10.0, 13.0, 17.0, 22.0]
        # It comes in the sweep from 13 to 17; the next one ends at 22.
        self.assertEqual(bench_long_prompt.in_two_sweeps({"start": 14.0, "first": 22.0}, ends), (8.0, 9.0))
        first, two = bench_long_prompt.in_two_sweeps({"start": 14.0, "first": 24.0}, ends)
        self.assertGreater(first, two)

    def test_none_where_one_of_them_was_not_seen(self):
        ends = [10.0, 13.0, 17.0]
        for start in (9.0, 14.0, 18.0):
            self.assertIsNone(bench_long_prompt.in_two_sweeps({"start": start, "first": 20.0}, ends), start)


if __name__ == "__main__":
    unittest.main()
