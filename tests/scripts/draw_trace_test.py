#!/usr/bin/env python3
"""scripts/draw_trace.py on a made-up trace: the shares are those of its spans, and the bars lie where these are."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SVG = "{http://www.w3.org/2000/svg}"


def trace_of(tracks):
    """A trace of {name: [(start, end)]} in seconds, that begins at no round time."""
    events = []
    for tid, (name, spans) in enumerate(tracks.items()):
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}})
        for start, end in spans:
            events.append({"ph": "X", "name": "span", "pid": 1, "tid": tid, "ts": 7e6 + start * 1e6, "dur": (end - start) * 1e6})
    return json.dumps({"traceEvents": events})


def draw(text, *options):
    with tempfile.TemporaryDirectory() as folder:
        source, target = pathlib.Path(folder, "trace.json"), pathlib.Path(folder, "trace.svg")
        source.write_text(text)
        run = subprocess.run([sys.executable, ROOT / "scripts" / "draw_trace.py", source, "--output", target, *options],
                             capture_output=True, text=True)
        return run, xml.etree.ElementTree.parse(target).getroot() if target.exists() else None


class DrawTrace(unittest.TestCase):
    TRACE = trace_of({"disk -> host": [(0, 4), (3, 6), (8, 10)], "compute": [(0, 1), (5, 10)]})

    def test_shares_count_what_overlaps_once(self):
        run, figure = draw(self.TRACE)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("disk -> host: 80 % busy", run.stdout)
        self.assertIn("compute: 60 % busy", run.stdout)
        words = [text.text for text in figure.findall(SVG + "text")]
        self.assertIn("disk -> host", words)
        self.assertIn("80 %", words)

    def test_a_part_of_the_time_and_of_the_tracks(self):
        run, figure = draw(self.TRACE, "--from", "5", "--seconds", "2", "--tracks", "compute", "disk -> host")
        self.assertEqual(run.stdout.strip(), "compute: 100 % busy, disk -> host: 50 % busy")
        bars = [bar for bar in figure.findall(SVG + "rect") if bar.get("fill") not in ("#fff", "#f2f2f2")]
        self.assertEqual(len(bars), 2)
        for bar in bars:
            self.assertAlmostEqual(float(bar.get("x")), 150)
        self.assertAlmostEqual(float(bars[0].get("width")), 2 * float(bars[1].get("width")), delta=2)

    def test_what_is_not_there_is_named(self):
        run, _ = draw(self.TRACE, "--tracks", "link")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("'disk -> host'", run.stderr)
        run, _ = draw(self.TRACE, "--from", "11")
        self.assertIn("ends after 10.00 s", run.stderr)
        run, _ = draw(json.dumps({"traceEvents": []}))
        self.assertIn("has no spans", run.stderr)


if __name__ == "__main__":
    unittest.main()
