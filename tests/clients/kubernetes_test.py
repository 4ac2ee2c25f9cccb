"""deploy/workers.yaml: Kubernetes' own schemas take it, without a field that they do not know, and what it starts is
a worker that gets ready where its probes ask, answers its queue, and ends within the time that a pod has to end.

No cluster runs here: the pod's command, environment and probes are read from the manifest and applied to a process.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import kubernetes_validate
import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "services"))
from postgres import Postgres, programs  # noqa: E402
from server import DEMO, SOURCE, SPILLWAY  # noqa: E402

MANIFEST = SOURCE / "deploy/workers.yaml"
# The oldest that the package knows, one that many clusters have, and the newest.
VERSIONS = ("1.25", "1.31", kubernetes_validate.latest_version())


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


class KubernetesTest(unittest.TestCase):
    def setUp(self):
        (self.deployment,) = yaml.safe_load_all(MANIFEST.read_text())
        self.pod = self.deployment["spec"]["template"]["spec"]
        (self.container,) = self.pod["containers"]

    def test_schemas_take_it(self):
        for version in VERSIONS:
            with self.subTest(version):
                kubernetes_validate.validate(self.deployment, version, strict=True)
        self.deployment["spec"]["replica"] = 2
        with self.assertRaises(kubernetes_validate.ValidationError):  # The check can fail
            kubernetes_validate.validate(self.deployment, VERSIONS[0], strict=True)

    def test_names_that_schemas_do_not_compare(self):
        labels = self.deployment["spec"]["template"]["metadata"]["labels"]
        self.assertLessEqual(self.deployment["spec"]["selector"]["matchLabels"].items(), labels.items())
        volumes = [volume["name"] for volume in self.pod["volumes"]]
        for mount in self.container["volumeMounts"]:
            self.assertIn(mount["name"], volumes)
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        for probe in ("startupProbe", "readinessProbe"):
            self.assertIn(self.container[probe]["httpGet"]["port"], ports)
        self.assertEqual(str(ports["health"]), self.value_of("--health-port"))
        self.assertEqual(self.value_of("--health-host"), "0.0.0.0")  # The kubelet asks the pod's address

    def value_of(self, flag):
        args = self.container["args"]
        return args[args.index(flag) + 1]

    @unittest.skipUnless(programs(), "PostgreSQL is not installed (scripts/setup --services)")
    def test_what_a_pod_runs(self):
        database = Postgres()
        self.addCleanup(database.close)
        secret = {"url": database.url, "password": "unused"}
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
        for variable in self.container["env"]:
            source = variable["valueFrom"]
            environment[variable["name"]] = (secret[source["secretKeyRef"]["key"]] if "secretKeyRef" in source else "pod-1")
        port = free_port()
        given = {"/model": str(DEMO), self.value_of("--host-memory"): "1GiB", self.value_of("--health-port"): port,
                 "0.0.0.0": "127.0.0.1"}
        args = [given.get(word, word) for word in self.container["args"]]
        name = self.value_of("--served-model-name")

        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        rows = folder / "rows.jsonl"
        rows.write_text('{"prompt":"Emma Woodhouse","max_tokens":4}\n' * 3)

        def queue(*words):
            done = subprocess.run([SPILLWAY, "queue", *words], env=environment, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        job = queue("submit", "--input", rows, "--model", self.value_of("--served-model-name")).strip()
        with open(folder / "log", "w") as log:
            worker = subprocess.Popen([SPILLWAY, *args], env=environment, stdout=log, stderr=log)
        self.addCleanup(worker.wait)
        self.addCleanup(worker.kill)
        end = time.monotonic() + 60
        for probe in ("startupProbe", "readinessProbe"):
            url = f"http://127.0.0.1:{port}{self.container[probe]['httpGet']['path']}"
            while not self.answers(url):
                self.assertIsNone(worker.poll(), (folder / "log").read_text())
                self.assertLess(time.monotonic(), end, (folder / "log").read_text())
                time.sleep(0.05)
        self.assertIn("pod-1", queue("workers"))
        queue("fetch", "--job", job, "--wait", "--output", folder / "results.jsonl")
        self.assertEqual(len((folder / "results.jsonl").read_text().splitlines()), 3)

        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(self.pod["terminationGracePeriodSeconds"]), 0, (folder / "log").read_text())

    def answers(self, url):
        try:
            return urllib.request.urlopen(url, timeout=5).status == 200
        except (urllib.error.URLError, ConnectionError):
            return False


if __name__ == "__main__":
    unittest.main()
