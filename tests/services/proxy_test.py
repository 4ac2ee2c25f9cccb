"""`spillway serve` behind nginx and haproxy with the files of deploy/: TLS, streams that pass as they come, HEAD as a
health check, the addresses of clients, uploads, and two thousand connections.

Debian's nginx-light and haproxy; a proxy that is not there is skipped (77 if neither is), with a word.
"""

import http.client
import json
import pathlib
import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))
from server import DEMO, SOURCE, SPILLWAY, serving  # noqa: E402

NAME = "llm.example.org"
CONNECTIONS = 2000
PATIENCE = 60
JSON = {"Content-Type": "application/json"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def replaced(text, *pairs):
    """The text with each pattern replaced, which has to be there."""
    for pattern, new in pairs:
        text, count = re.subn(pattern, new, text)
        assert count > 0, pattern
    return text


def eventually(condition, text=""):
    """Waits until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, text
        time.sleep(0.05)


class Proxies:
    """Tests of one proxy; command() makes its configuration and says how it is started."""

    @classmethod
    def setUpClass(cls):
        if not shutil.which(cls.program, path="/usr/sbin:/usr/bin"):
            raise unittest.SkipTest(f"no {cls.program} here")
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}",
                        "-addext", f"subjectAltName=DNS:{NAME}", "-keyout", folder / "key", "-out", folder / "certificate"],
                       check=True, capture_output=True)
        (folder / "both.pem").write_text((folder / "certificate").read_text() + (folder / "key").read_text())
        cls.log = folder / "log"
        cls.server, _ = cls.enterClassContext(serving(
            SPILLWAY, DEMO, "--batch-dir", folder / "batches", "--allowed-host", NAME, "--trusted-proxy", "127.0.0.1",
            "--connections-per-client-max", "5000", log=cls.enterClassContext(cls.log.open("w"))))
        cls.port = free_port()
        process = subprocess.Popen(cls.command(folder, cls.server.rsplit(":", 1)[1]))
        cls.addClassCleanup(process.wait)
        cls.addClassCleanup(process.terminate)
        cls.tls = ssl.create_default_context(cafile=folder / "certificate")

        def answers():
            assert process.poll() is None, "the proxy has ended"
            try:
                return cls.ask("GET", "/health")[0] == 200
            except OSError:
                return False
        eventually(answers, "the proxy does not answer")

    @classmethod
    def connect(cls, source="127.0.0.1"):
        plain = socket.create_connection(("127.0.0.1", cls.port), PATIENCE, (source, 0))
        connection = http.client.HTTPConnection(NAME)
        connection.sock = cls.tls.wrap_socket(plain, server_hostname=NAME)
        return connection

    @classmethod
    def ask(cls, method, path, body=None, fields=None, source="127.0.0.1"):
        """(status, body)"""
        connection = cls.connect(source)
        connection.request(method, path, body, fields or {})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, text

    def complete(self, source="127.0.0.1", **fields):
        return self.ask("POST", "/v1/completions", json.dumps({"prompt": "Emma", **fields}), JSON, source)

    def stream(self, **fields):
        """A connection on which an endless answer is read as far as its first event, and the answer."""
        connection = self.connect()
        connection.request("POST", "/v1/completions", json.dumps({
            "prompt": "Emma", "max_tokens": 900, "ignore_eos": True, "stream": True, **fields}), JSON)
        answer = connection.getresponse()
        self.assertTrue(answer.readline().startswith(b"data: {"))
        return connection, answer

    def running(self):
        text = urllib.request.urlopen(self.server + "/metrics").read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                   if line.startswith("vllm:num_requests_running"))

    def test_answers_and_errors_pass(self):
        status, text = self.complete(max_tokens=4)
        self.assertEqual(status, 200)
        self.assertEqual(json.loads(text)["usage"]["completion_tokens"], 4)
        status, text = self.complete(max_tokens=-1)
        self.assertEqual(status, 400)
        self.assertEqual(json.loads(text)["error"]["param"], "max_tokens")

    def test_a_stream_passes_as_it_comes(self):
        connection, answer = self.stream()
        self.assertEqual(self.running(), 1, "the first token came with the last")
        self.assertTrue(answer.read().endswith(b"data: [DONE]\n\n"))
        connection.close()

    def test_a_client_that_leaves_stops_its_sequences(self):
        connection, answer = self.stream(n=8)
        answer.close()
        connection.sock.close()
        eventually(lambda: self.running() == 0, "sequences go on")

    def test_head_is_a_health_check(self):
        self.assertEqual(self.ask("HEAD", "/health"), (200, b""))

    def test_metrics_stay_inside(self):
        self.assertEqual(self.ask("GET", "/metrics")[0], 403)

    def test_the_log_has_the_address_of_the_client(self):
        self.assertEqual(self.complete("127.0.0.77", max_tokens=1)[0], 200)
        eventually(lambda: "client=127.0.0.77" in self.log.read_text(), "no line of that address")

    def test_an_upload_passes(self):
        line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x" * 1000}})
        content = (line + "\n").encode() * 20_000
        body = (b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: '
                b'form-data; name="file"; filename="in.jsonl"\r\n\r\n' + content + b"\r\n--b--\r\n")
        status, text = self.ask("POST", "/v1/files", body, {"Content-Type": "multipart/form-data; boundary=b"})
        self.assertEqual(status, 200, text)
        self.assertEqual(json.loads(text)["bytes"], len(content))
        self.assertEqual(self.ask("GET", f"/v1/files/{json.loads(text)['id']}/content")[1], content)

    def check_version(self, connection):
        connection.request("GET", "/version")
        answer = connection.getresponse()
        self.assertEqual(answer.status, 200)
        answer.read()

    def test_two_thousand_connections(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, CONNECTIONS + 500), hard))
        held = []
        try:
            # Each asks as soon as it is there: proxies give a connection some seconds for its first request.
            for _ in range(CONNECTIONS):
                held.append(self.connect())
                self.check_version(held[-1])
            # All of them are still there.
            for connection in held:
                self.check_version(connection)
        finally:
            for connection in held:
                connection.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class NginxTest(Proxies, unittest.TestCase):
    program = "nginx"

    @classmethod
    def command(cls, folder, upstream):
        site = replaced((SOURCE / "deploy/nginx.conf").read_text(), (r"127\.0\.0\.1:8000", f"127.0.0.1:{upstream}"),
                        (r"listen 443 ssl", f"listen 127.0.0.1:{cls.port} ssl"), (r" *listen \[::\]:443 ssl;\n", ""),
                        (r"/etc/ssl/\S+\.pem", str(folder / "certificate")), (r"/etc/ssl/\S+\.key", str(folder / "key")))
        paths = "".join(f"{name}_temp_path {folder}/{name};\n" for name in
                        ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (folder / "nginx.conf").write_text(
            f"pid {folder}/pid;\ndaemon off;\nworker_rlimit_nofile 16384;\nevents {{ worker_connections 8192; }}\n"
            f"http {{\naccess_log off;\nkeepalive_timeout 600s;\n{paths}{site}}}\n")
        return ["/usr/sbin/nginx", "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "nginx.log"]


class HaproxyTest(Proxies, unittest.TestCase):
    program = "haproxy"

    @classmethod
    def command(cls, folder, upstream):
        text = replaced((SOURCE / "deploy/haproxy.cfg").read_text(), (r"127\.0\.0\.1:8000", f"127.0.0.1:{upstream}"),
                        (r"bind :443", f"bind 127.0.0.1:{cls.port}"), (r"/etc/haproxy/\S+\.pem", str(folder / "both.pem")))
        (folder / "haproxy.cfg").write_text(text)
        return ["/usr/sbin/haproxy", "-f", folder / "haproxy.cfg"]


if __name__ == "__main__":
    if not any(shutil.which(program, path="/usr/sbin:/usr/bin") for program in ("nginx", "haproxy")):
        print("SKIPPED: no nginx and no haproxy here (scripts/setup --services)", file=sys.stderr)
        sys.exit(77)
    unittest.main(verbosity=2)
