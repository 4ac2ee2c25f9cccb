"""What vLLM's benchmark (`vllm bench serve`) sends, byte by byte, and what it makes of the answers: its figures count
the chunks that have choices, so each of them has to be a token, and nothing but the last has a usage.

The requests are those of vLLM's endpoint_request_func.py as aiohttp puts them on the wire.
"""

import json
import socket
import unittest

from server import ServedTest

TOKENS = 24


class VllmBenchTest(ServedTest):
    def send(self, path, body, more=""):
        """The events of an answer, as the benchmark cuts them out of what arrives."""
        host, port = self.url.removeprefix("http://").split(":")
        text = json.dumps(body)
        head = (f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{more}x-request-id: bench-0f0f-0\r\nAccept: */*\r\n"
                f"Accept-Encoding: gzip, deflate\r\nUser-Agent: Python/3.12 aiohttp/3.12.15\r\n"
                f"Content-Length: {len(text)}\r\nContent-Type: application/json\r\n\r\n")
        with socket.create_connection((host, int(port)), timeout=120) as connection:
            connection.sendall((head + text).encode())
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):
                part = connection.recv(1 << 16)
                self.assertTrue(part, answer[-500:])
                answer += part
        head, _, rest = answer.partition(b"\r\n\r\n")
        self.assertTrue(head.startswith(b"HTTP/1.1 200 "), head)
        self.assertIn(b"x-request-id: bench-0f0f-0", head.lower())
        body = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            body += rest[:int(size, 16)]
            rest = rest[int(size, 16) + 2:]
        messages = [message for message in body.decode().split("\n\n") if message and not message.startswith(":")]
        self.assertEqual(messages[-1], "data: [DONE]")
        return [json.loads(message.removeprefix("data: ")) for message in messages[:-1]]

    def check(self, events, texts):
        with_choices = [event for event in events if event["choices"]]
        # Time to the first token is that of the first such chunk; the others are the times between tokens.
        self.assertEqual(len(with_choices), TOKENS)
        self.assertTrue(all(texts(event["choices"][0]) for event in with_choices[:-1]))
        self.assertEqual([event["choices"][0]["finish_reason"] for event in with_choices], [None] * (TOKENS - 1) + ["length"])
        usages = [event["usage"] for event in events if not event["choices"]]
        self.assertEqual(len(usages), 1)
        self.assertEqual(usages[0]["completion_tokens"], TOKENS)
        self.assertGreater(usages[0]["prompt_tokens"], 3)
        self.assertIs(events[-1], [event for event in events if not event["choices"]][0])

    def test_completions(self):
        events = self.send("/v1/completions", {
            "model": "demo", "prompt": "Emma Woodhouse, handsome, clever,", "repetition_penalty": 1.0, "max_tokens": TOKENS,
            "logprobs": None, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
            "temperature": 0.0}, "Authorization: Bearer any\r\n")
        self.check(events, lambda choice: choice["text"])

    def test_chats(self):
        events = self.send("/v1/chat/completions", {
            "model": "demo", "messages": [{"role": "user", "content": [{"type": "text", "text": "Who is Emma?"}]}],
            "max_completion_tokens": TOKENS, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
            "temperature": 0.0})
        self.check(events, lambda choice: choice["delta"].get("content"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
