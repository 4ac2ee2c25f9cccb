"""How scripts/scorecard.py asks a server: raw bytes over HTTP/1.1, its metrics and its memory."""

import asyncio
import json
import pathlib
import time
import urllib.request

DEMO = pathlib.Path(__file__).resolve().parents[1] / "configs/demo"
GREEDY = {"prompt": "It is a truth universally acknowledged", "max_tokens": 16, "temperature": 0}
PATIENCE = 120  # Seconds after which an answer does not come any more


class Failed(Exception):
    """A row's expectation that did not hold."""


def expect(condition, text):
    if not condition:
        raise Failed(text)


def request(method, path, body=b"", *fields):
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
            f"Content-Length: {len(body)}", *fields]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


class Server:
    """A server under test; `url`, `port`, `pid`. `key`: what its metrics are asked with."""

    def __init__(self, url, pid, key="none"):
        self.url, self.pid, self.port, self.key = url, pid, int(url.rsplit(":", 1)[1]), key

    async def open(self):
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def raw(self, data, seconds=PATIENCE):
        """All that comes back on a connection of its own until the server closes it, or one whole answer."""
        reader, writer = await self.open()
        try:
            writer.write(data)
            answer = b""
            async with asyncio.timeout(seconds):
                while part := await reader.read(1 << 16):
                    answer += part
                    if whole(answer):
                        break
            return answer
        except (ConnectionError, TimeoutError):
            return answer if "answer" in locals() else b""
        finally:
            writer.close()

    async def ask(self, method, path, body=b"", *fields):
        """(status, body)"""
        answer = await self.raw(request(method, path, body, *fields))
        return status_of(answer), answer.partition(b"\r\n\r\n")[2]

    def metric(self, name):
        asked = urllib.request.Request(self.url + "/metrics", headers={"Authorization": f"Bearer {self.key}"})
        text = urllib.request.urlopen(asked).read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    def resident(self):
        for line in open(f"/proc/{self.pid}/status"):
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
        return 0

    async def idle(self):
        """Waits until nothing runs or waits."""
        end = time.monotonic() + PATIENCE
        while self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting") > 0:
            expect(time.monotonic() < end, "sequences still run")
            await asyncio.sleep(0.05)


def status_of(answer):
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def whole(answer):
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    for field in head.lower().split(b"\r\n"):
        if field.startswith(b"content-length:"):
            return len(body) >= int(field[15:])
        if field.startswith(b"transfer-encoding:"):
            return body.endswith(b"0\r\n\r\n")
    return False
