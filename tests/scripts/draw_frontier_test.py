#!/usr/bin/env python3
"""scripts/draw_frontier.py on frontiers made up for it: every plan is a mark inside the axes, and the file is XML."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SVG = "{http://www.w3.org/2000/svg}"


def answer(*points):
    rows = [{"block": i, "latency_seconds": seconds, "tokens_per_second": rate, "flags": "--block <1>",
             "bottleneck": "disk read"} for i, (seconds, rate) in enumerate(points)]
    return json.dumps({"plan": {"model": "opt & co"}, "hardware": {"name": '<a "machine">'}, "frontier": rows})


def draw(text):
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder, "frontier.svg")
        run = subprocess.run([sys.executable, ROOT / "scripts" / "draw_frontier.py", "--output", target], input=text,
                             capture_output=True, text=True)
        return run, xml.etree.ElementTree.parse(target).getroot() if target.exists() else None


class DrawFrontier(unittest.TestCase):
    def test_every_plan_is_a_mark_inside_the_axes(self):
        for points in [[(3, 7)], [(1, 10), (20, 90), (400, 150)], [(1e-6, 1e-6), (1e6, 1e6)]]:
            run, figure = draw(answer(*points))
            self.assertEqual(run.returncode, 0, run.stderr)
            circles = figure.findall(SVG + "circle")
            self.assertEqual(len(circles), len(points))
            for circle in circles:
                self.assertTrue(84 < float(circle.get("cx")) < 732 and 74 < float(circle.get("cy")) < 438)
            words = [text.text for text in figure.findall(SVG + "text")]
            self.assertIn('opt & co on <a "machine">', words)
            self.assertIn("block 0", words)
            self.assertGreater(sum(word[0].isdigit() for word in words), 1)

    def test_without_a_frontier_nothing_is_drawn(self):
        run, figure = draw("{}")
        self.assertEqual(run.returncode, 2)
        self.assertIsNone(figure)


if __name__ == "__main__":
    unittest.main()
