"""guidellm against completions and chats: every request is answered, with the tokens that it asked for.

0.3 is the last guidellm that does without torch; 0.8.1 was run by hand (`guidellm run`).
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from server import DEMO, ServedTest

REQUESTS, TOKENS = 12, 24


class GuidellmTest(ServedTest):
    def benchmark(self, route, *more):
        program = pathlib.Path(sys.executable).with_name("guidellm")
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            run = subprocess.run([program, "benchmark", "run", "--target", self.url, "--rate-type", "concurrent", "--rate", "4",
                                  "--max-requests", str(REQUESTS), "--processor", DEMO, "--disable-progress",
                                  "--data", f"prompt_tokens=64,output_tokens={TOKENS}", "--output-path", report, *more],
                                 env={**os.environ, "GUIDELLM__PREFERRED_ROUTE": route}, capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stdout[-4000:] + run.stderr[-2000:])
            return json.loads(report.read_text())["benchmarks"][0]["requests"]

    def check(self, kind, requests):
        self.assertEqual((requests["errored"], requests["incomplete"]), ([], []))
        self.assertEqual([answer["output_tokens"] for answer in requests["successful"]], [TOKENS] * REQUESTS)
        for answer in requests["successful"]:
            self.assertEqual(answer["request_type"], kind)
            self.assertTrue(answer["output"])
            self.assertGreater(answer["time_to_first_token_ms"], 0)
            self.assertGreater(answer["inter_token_latency_ms"], 0)

    def test_completions(self):
        requests = self.benchmark("text_completions")
        self.check("text_completions", requests)
        # It counts what it has made, the server what it has read.
        self.assertTrue(all(60 <= answer["prompt_tokens"] <= 68 for answer in requests["successful"]))

    def test_chats(self):
        self.check("chat_completions", self.benchmark("chat_completions", "--random-seed", "7"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
