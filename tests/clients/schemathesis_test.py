"""schemathesis over /openapi.json: no 5xx, no status or type of content that is not documented, and what breaks the
schema is refused."""

import pathlib
import subprocess
import sys
import unittest

from server import ServedTest


class SchemathesisTest(ServedTest):
    flags = ("--strict-params",)

    def test_documented_answers_only(self):
        program = pathlib.Path(sys.executable).with_name("schemathesis")
        checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
        run = subprocess.run([program, "run", self.url + "/openapi.json", "--checks", checks, "--max-examples", "40",
                              "--seed", "20261126", "--request-timeout", "60"],
                             capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stdout[-6000:] + run.stderr[-2000:])


if __name__ == "__main__":
    unittest.main()
