"""Runs every fenced block of the guide, the HTTP API's document and the README against the demo model: a block is run,
or it is named below with the reason why not, so a new one cannot go untested by being forgotten.

Names that stand for the reader's own (MODEL, prompts.jsonl, /mnt/nvme/scratch, file-...) are replaced; runs of models
of billions of weights, and on several GPUs, have their flags read and checked (--print-config), and are not run.
"""

import contextlib
import io
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest


sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "services"))
from postgres import Postgres, programs  # noqa: E402
from server import DEMO, SOURCE, SPILLWAY
from serving import serving

DOCUMENTS = ("README.md", "docs/USER_GUIDE.md", "docs/HTTP_API.md")
# Beginnings of blocks that are not run, and why.
SHOWN_ONLY = {
    "opt-1.3b, 32 sequences": "what bench prints",
    '{"id":"batch_req_': "what batch writes",
    '{"state":"running"': "what batch writes of its progress",
    "The system message": "a prompt",
    "[2026-": "a line of the log",
    "sk-7f3a...": "a line of a key file: tests of the server read such",
    "scrape_configs:": "of Prometheus, whose own test has one",
    "podman ": "needs podman and a network",
    "HTTP client": "a picture",
    "./scripts/demo": "what builds this program and runs this test",
}


def blocks(document):
    """(line, language, text) of each fenced block."""
    language = begin = None
    lines = []
    for number, line in enumerate((SOURCE / document).read_text().splitlines(), 1):
        if not line.startswith("```"):
            lines.append(line)
        elif begin is None:
            begin, language, lines = number, line[3:], []
        else:
            yield begin, language, "\n".join(lines)
            begin = None


class GuideTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "bin").mkdir()
        (self.folder / "bin/spillway").symlink_to(SPILLWAY.resolve())
        (self.folder / "home/.zfunc").mkdir(parents=True)
        for part in (".local/share/bash-completion/completions", ".config/fish/completions"):
            (self.folder / "home" / part).mkdir(parents=True)
        (self.folder / "scratch").mkdir()
        line = {"custom_id": "q1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Emma", "max_tokens": 8}}
        for name in ("prompts.jsonl", "requests.jsonl"):
            (self.folder / name).write_text(json.dumps(line) + "\n")
        self.environment = {**os.environ, "HOME": str(self.folder / "home"), "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                            "SPILLWAY_CACHE": str(self.folder / "cache"),
                            # mpirun on a container's root, and with more ranks than cores
                            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
        os.environ["SPILLWAY_CACHE"] = str(self.folder / "cache")
        self.socket, self.server, self.file_id = self.folder / "s.sock", None, "file-unknown"
        self.database, self.job = None, "0"

    def serve(self, *flags):
        """Another server instead of the one that is there."""
        if self.server:
            self.server.__exit__(None, None, None)
        with open(self.folder / "serve.log", "a") as log:
            self.server = serving(SPILLWAY, DEMO, "--socket", self.socket, "--batch-dir", self.folder / "batches", *flags, log=log)
            self.url, _ = self.server.__enter__()
        end = time.monotonic() + 120  # Until the model is there
        while subprocess.run(["curl", "-sf", self.url + "/health"], capture_output=True).returncode and time.monotonic() < end:
            time.sleep(0.05)

    def tearDown(self):
        if self.server:
            self.server.__exit__(None, None, None)

    def mine(self, text):
        """The text with this test's names instead of the reader's."""
        for theirs, ours in (("http://127.0.0.1:8000", self.url), ("build/release/spillway", "spillway"),
                             ("/run/spillway/spillway.sock", str(self.socket)), ("/mnt/nvme/scratch", "scratch"),
                             ("file-...", self.file_id)):
            text = text.replace(theirs, ours)
        if self.database:
            text = text.replace("postgresql://spillway@db.example.org/spillway", shlex.quote(self.database.url))
            text = text.replace("/srv/models/llama-3.2-1b", f"{DEMO} --served-model-name llama-3.2-1b --until-done")
            text = text.replace("--job 12", f"--job {self.job}")
        return re.sub(r"\b(MODEL|DIR|my-model)\b", str(DEMO), text)

    def shell(self, block):
        assignments = ""
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r" +# .*| +#$", "", line).strip()
            words = line.split()
            if words[:2] == ["spillway", "serve"] or words[:2] == ["build/release/spillway", "serve"]:
                flags = [word for word in words[3:] if word not in ("--port", "8000")]
                self.serve(*[self.folder / word if (self.folder / word).exists() else word for word in flags])
                continue
            if words[:1] == ["mpirun"] and shutil.which("mpirun") is None:
                continue
            if re.match(r"(export )?[A-Z_]+=", line):
                assignments += line + "\n"
                continue
            (self.folder / "completions.jsonl").unlink(missing_ok=True)
            if "bench opt-6.7b" in line or "--gpus" in line:
                line += " --print-config"
            if words[:2] == ["spillway", "profile"]:
                line += " --seconds 2"
            run = subprocess.run(["bash", "-c", "set -o pipefail\n" + self.mine(assignments + line)], cwd=self.folder, env=self.environment,
                                 capture_output=True, text=True, timeout=600)
            self.assertEqual(run.returncode, 0, f"{line}\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}")
            if words[:3] == ["spillway", "queue", "submit"]:
                self.job = run.stdout.split()[-1]
            if words[0] != "curl":
                continue
            # An error is an answer, too, and curl's status does not tell.
            self.assertNotIn('"error":{', run.stdout, line)
            self.assertTrue(run.stdout, line)
            if found := re.search(r'"id":"(file-[^"]*)"', run.stdout):
                self.file_id = found[1]

    def json(self, block):
        value = json.loads(block)
        if "custom_id" not in value:
            (self.folder / "config.json").write_text(block)
            flags = ["serve", DEMO, "--config", "config.json", "--print-config"]
        else:
            (self.folder / "lines.jsonl").write_text(block + "\n")
            (self.folder / "lines.out").unlink(missing_ok=True)
            flags = ["batch", DEMO, "--input", "lines.jsonl", "--output", "lines.out"]
        run = subprocess.run([SPILLWAY.resolve(), *flags], cwd=self.folder, env=self.environment, capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        if "custom_id" in value:
            answer = json.loads((self.folder / "lines.out").read_text())
            self.assertEqual(answer["response"]["status_code"], 200, answer)

    def test_every_block(self):
        done = 0
        for document in DOCUMENTS:
            self.serve()
            names = {"time": time}
            for line, language, text in blocks(document):
                if any(text.lstrip().startswith(beginning) for beginning in SHOWN_ONLY):
                    continue
                if "SPILLWAY_DATABASE=" in text and not self.database:
                    if not programs():
                        continue  # PostgreSQL is not installed.
                    self.database = Postgres()
                    self.addCleanup(self.database.close)
                done += 1
                with self.subTest(f"{document}:{line}"):
                    if language == "python":
                        text = self.mine(text).replace("sleep(10)", "sleep(0.1)")
                        here = os.getcwd()
                        os.chdir(self.folder)
                        try:
                            with contextlib.redirect_stdout(io.StringIO()):
                                exec(compile(text, f"{document}:{line}", "exec"), names)
                        finally:
                            os.chdir(here)
                    elif language == "json":
                        self.json(text)
                    else:
                        self.assertEqual(language, "")
                        self.shell(text)
            if "answers" in names:
                self.assertEqual(json.loads(names["answers"])["response"]["status_code"], 200)
            if "scores" in names:
                self.assertTrue(all(score < 0 for score in names["scores"][1:]))
        self.assertGreaterEqual(done, 21)


if __name__ == "__main__":
    unittest.main()
