"""The openai package: completions, chats, streams, errors, retries, timeouts."""

import concurrent.futures
import json
import tempfile
import time
import unittest
import urllib.request

import openai

from server import ServedTest

PROMPT = "Emma Woodhouse, handsome, clever, and rich,"
ABORTED = 'vllm:request_success_total{model_name="demo",engine="0",finished_reason="abort"'
CHAT = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Who is Emma?"}]


def metric(url, name):
    """The sum of a metric's samples."""
    text = urllib.request.urlopen(url + "/metrics").read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


class OpenAiTest(ServedTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.url + "/v1", api_key="any", max_retries=0)
        cls.name = cls.client.models.list().data[0].id

    def complete(self, **fields):
        return self.client.completions.create(**{"model": self.name, "prompt": PROMPT, "max_tokens": 8,
                                                 "temperature": 0, **fields})

    def chat(self, **fields):
        return self.client.chat.completions.create(**{"model": self.name, "messages": CHAT, "max_completion_tokens": 8,
                                                      "temperature": 0, **fields})

    def test_models(self):
        self.assertEqual(self.client.models.retrieve(self.name).id, self.name)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.models.retrieve("other")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_completion(self):
        answer = self.complete(logprobs=2, n=2, seed=5, temperature=0.8)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])
        self.assertEqual(answer.object, "text_completion")
        self.assertEqual(answer.usage.completion_tokens, 16)
        self.assertEqual(len(answer.choices[0].logprobs.tokens), 8)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        again = self.complete(logprobs=2, n=2, seed=5, temperature=0.8)
        self.assertEqual([c.text for c in again.choices], [c.text for c in answer.choices])
        self.assertTrue(answer._request_id)

    def test_prompts(self):
        texts = [choice.text for choice in self.complete(prompt=[PROMPT, "It is a truth"]).choices]
        self.assertEqual(texts[0], self.complete().choices[0].text)
        self.assertEqual(texts[1], self.complete(prompt="It is a truth").choices[0].text)
        self.assertEqual(len(self.complete(prompt=[5, 7, 9]).choices), 1)
        self.assertEqual(len(self.complete(prompt=[[5, 7], [9]]).choices), 2)

    def test_stream(self):
        whole = self.complete(logprobs=0)
        chunks = list(self.complete(stream=True, logprobs=0, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices), whole.choices[0].text)
        self.assertEqual([c.choices[0].finish_reason for c in chunks[:-1]], [None] * (len(chunks) - 2) + ["length"])
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 8)
        tokens = [token for c in chunks if c.choices for token in c.choices[0].logprobs.tokens]
        self.assertEqual(tokens, whole.choices[0].logprobs.tokens)

    def test_chat(self):
        answer = self.chat(logprobs=True, top_logprobs=3)
        self.assertEqual(answer.object, "chat.completion")
        message = answer.choices[0].message
        self.assertEqual(message.role, "assistant")
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), 8)
        self.assertEqual(b"".join(bytes(token.bytes) for token in content).decode(), message.content)
        self.assertEqual(content[0].top_logprobs[0].token, content[0].token)
        # The demo model has no template of its own: plain turns.
        prompt = "Be kind.\n\nUser: Who is Emma?\n\nAssistant:"
        self.assertEqual(self.complete(prompt=prompt, stop=["\nUser:"]).choices[0].text, message.content)

    def test_chat_stream(self):
        whole = self.chat().choices[0].message.content
        with self.client.chat.completions.stream(model=self.name, messages=CHAT, max_completion_tokens=8,
                                                 temperature=0) as stream:
            with self.assertRaises(openai.LengthFinishReasonError) as caught:  # As the package has it
                stream.get_final_completion()
        final = caught.exception.completion
        self.assertEqual(final.choices[0].message.content, whole)
        self.assertEqual(final.choices[0].finish_reason, "length")
        parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
        chunks = list(self.chat(messages=parts, stream=True))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks),
                         self.chat(messages=[{"role": "user", "content": "Hi"}]).choices[0].message.content)

    def test_several_choices_of_a_chat(self):
        answer = self.chat(n=3, temperature=1, seed=3)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2])

    def test_errors(self):
        for fields, param in [({"temperature": 3}, "temperature"), ({"n": 0}, "n"), ({"logprobs": 99}, "logprobs"),
                              ({"max_tokens": 10**6}, None)]:
            with self.assertRaises(openai.BadRequestError) as caught:
                self.complete(**fields)
            if param:
                self.assertEqual(caught.exception.param, param)
            else:
                self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
        self.assertEqual(caught.exception.param, "tools")
        with self.assertRaises(openai.BadRequestError):
            self.chat(stream=True, messages=[])
        with self.assertRaises(openai.NotFoundError):
            self.complete(model="other")

    def test_a_reader_that_leaves_ends_its_sequence(self):
        before = metric(self.url, ABORTED)
        stream = self.complete(stream=True, max_tokens=900, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        for _ in range(200):
            if metric(self.url, "vllm:num_requests_running") == 0:
                break
        self.assertEqual(metric(self.url, "vllm:num_requests_running"), 0)
        self.assertEqual(metric(self.url, ABORTED), before + 1)

    def test_fields_beyond_openai(self):
        answer = self.complete(extra_body={"top_k": 5, "min_p": 0.1, "return_token_ids": True, "prompt_logprobs": 1,
                                           "timings_per_token": True, "kv_rule": "window", "kv_recent": 16})
        self.assertEqual(len(answer.choices[0].token_ids), 8)
        self.assertEqual(len(answer.choices[0].prompt_logprobs), answer.usage.prompt_tokens)
        self.assertEqual(answer.timings["predicted_n"], 8)
        raw = self.client.completions.with_raw_response.create(model=self.name, prompt=PROMPT, max_tokens=1,
                                                               extra_body={"frobnicate": 1})
        self.assertEqual(raw.headers["x-ignored-parameters"], "frobnicate")


class BatchTest(ServedTest):
    flags = ("--batch-dir", tempfile.mkdtemp())

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.url + "/v1", api_key="any", max_retries=0)
        cls.name = cls.client.models.list().data[0].id

    def hand_in(self, lines):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        return self.client.files.create(file=("in.jsonl", text.encode()), purpose="batch")

    def wait(self, batch):
        for _ in range(600):
            batch = self.client.batches.retrieve(batch.id)
            if batch.status in ("completed", "failed", "cancelled", "expired"):
                return batch
            time.sleep(0.1)
        raise AssertionError(f"the batch stays {batch.status}")

    def line(self, number, **body):
        return {"custom_id": f"l{number}", "method": "POST", "url": "/v1/completions",
                "body": {"model": self.name, "prompt": PROMPT, "max_tokens": 4, "temperature": 0, **body}}

    def test_a_batch(self):
        file = self.hand_in([self.line(i) for i in range(50)] + [self.line(50, temperature=9)])
        self.assertEqual(self.client.files.retrieve(file.id).filename, "in.jsonl")
        batch = self.client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h",
                                           metadata={"job": "test"})
        done = self.wait(batch)
        self.assertEqual(done.status, "completed")
        self.assertEqual((done.request_counts.total, done.request_counts.completed, done.request_counts.failed),
                         (51, 50, 1))
        rows = [json.loads(row) for row in self.client.files.content(done.output_file_id).text.splitlines()]
        self.assertEqual([row["custom_id"] for row in rows], [f"l{i}" for i in range(50)])
        text = self.client.completions.create(model=self.name, prompt=PROMPT, max_tokens=4, temperature=0).choices[0].text
        self.assertEqual({row["response"]["body"]["choices"][0]["text"] for row in rows}, {text})
        errors = self.client.files.content(done.error_file_id).text.splitlines()
        self.assertEqual(json.loads(errors[0])["response"]["body"]["error"]["param"], "temperature")
        self.assertIn(done.id, [batch.id for batch in self.client.batches.list(limit=1)])
        self.assertIn(file.id, [found.id for found in self.client.files.list(purpose="batch", limit=1)])
        self.assertTrue(self.client.files.delete(file.id).deleted)

    def test_a_wrong_file(self):
        file = self.client.files.create(file=("in.jsonl", b"no JSON\n"), purpose="batch")
        failed = self.wait(self.client.batches.create(input_file_id=file.id, endpoint="/v1/completions",
                                                      completion_window="24h"))
        self.assertEqual(failed.status, "failed")
        self.assertEqual(failed.errors.data[0].line, 1)

    def test_cancelling(self):
        file = self.hand_in([self.line(i, max_tokens=900, ignore_eos=True) for i in range(400)])
        batch = self.client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        self.client.batches.cancel(batch.id)
        self.assertEqual(self.wait(batch).status, "cancelled")


class FullQueueTest(ServedTest):
    flags = ("--queue-max", "2", "--threads", "1")

    def test_retries_of_429(self):
        hasty = openai.OpenAI(base_url=self.url + "/v1", api_key="any", max_retries=0)
        patient = openai.OpenAI(base_url=self.url + "/v1", api_key="any", max_retries=30)
        name = hasty.models.list().data[0].id

        def ask(client, n):
            return client.completions.create(model=name, prompt=PROMPT, max_tokens=60, n=n).usage.completion_tokens

        with hasty.completions.create(model=name, prompt=PROMPT, max_tokens=900, n=2, stream=True,
                                      extra_body={"ignore_eos": True}) as full:
            next(iter(full))
            with self.assertRaises(openai.RateLimitError) as caught:
                ask(hasty, 1)
        self.assertEqual(caught.exception.code, "queue_full")
        self.assertGreaterEqual(int(caught.exception.response.headers["retry-after"]), 1)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            counts = list(pool.map(lambda _: ask(patient, 1), range(8)))
        self.assertTrue(all(count > 0 for count in counts))


class KeyTest(ServedTest):
    flags = ("--api-key", "secret")

    def test_key(self):
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.url + "/v1", api_key="wrong", max_retries=0).models.list()
        self.assertTrue(openai.OpenAI(base_url=self.url + "/v1", api_key="secret").models.list().data)


class TimeTest(ServedTest):
    flags = ("--threads", "1")

    def test_timeouts(self):
        client = openai.OpenAI(base_url=self.url + "/v1", api_key="any", max_retries=0)
        name = client.models.list().data[0].id
        body = {"ignore_eos": True}
        with self.assertRaises(openai.APITimeoutError):
            client.completions.create(model=name, prompt=PROMPT, n=64, max_tokens=900, timeout=0.5, extra_body=body)
        with self.assertRaises(openai.InternalServerError) as caught:
            client.completions.create(model=name, prompt=PROMPT, n=64, max_tokens=900,
                                      extra_body={"timeout": 0.5, **body})
        self.assertEqual(caught.exception.code, "request_timeout")


if __name__ == "__main__":
    unittest.main()
