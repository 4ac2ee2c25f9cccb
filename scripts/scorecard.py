#!/usr/bin/env python3
"""The scorecard of reliability: what `spillway serve` does with hostile framing, wrong JSON, slow and leaving
clients, too many of them, wrong keys, SIGTERM and kill -9. One line a row, with its figures; status 1 if a row fails.

    scripts/scorecard.py                    # the demo model, minutes
    scripts/scorecard.py --rows keys,drain  # some rows
    scripts/scorecard.py --kills 50         # as many crashes as a release has to survive
"""

import argparse
import asyncio
import functools
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from scorecard_client import DEMO, GREEDY, PATIENCE, Failed, Server, expect, request, status_of  # noqa: E402
from scorecard_load import connections_allowed, disturbed, load, slowhttptest  # noqa: E402
from serving import serving  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]


# ---- Rows: each returns its figures as a text, or raises Failed --------------------------------------------------

def framing_cases():
    post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    get = b"GET /version HTTP/1.1\r\nHost: localhost\r\n"
    refused = {400: [], 413: [], 431: [], 417: [], 405: [], 404: [], 505: []}
    lengths = [b"29, 29", b"+29", b"-1", b"0x1d", b"18446744073709551616", b""]
    refused[400] += [post + b"Content-Length: " + length + b"\r\n\r\n" for length in lengths]
    refused[400] += [post + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                     post + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
                     post + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
                     post + b"Content-Length : 5\r\n\r\nabcde"]
    refused[400] += [post + b"Transfer-Encoding: " + coding + b"\r\n\r\n0\r\n\r\n"
                     for coding in (b"xchunked", b"chunked, identity", b"identity", b"gzip, chunked", b"chunked\x0b")]
    refused[400] += [post + b"Transfer-Encoding: chunked\r\n\r\n" + chunk
                     for chunk in (b"-2\r\n", b"0x1d\r\n", b"5\r\nabcdeXX")]
    refused[400] += [b"GET /ver\rsion HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /ver\0sion HTTP/1.1\r\nHost: localhost\r\n\r\n",
                     b"GET /version HTTP/1.1\r\n\r\n", get + b"Host: b\r\n\r\n", get + b"a: b\r\n c\r\n\r\n",
                     b"GET  /version HTTP/1.1\r\nHost: localhost\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                     b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", get + b": b\r\n\r\n", get + b"ab\r\n\r\n"]
    refused[413] += [post + b"Content-Length: 10000000000\r\n\r\n",
                     post + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n"]
    refused[431] += [get + b"a: " + b"b" * (64 << 10) + b"\r\n\r\n", get + b"a: b\r\n" * 300 + b"\r\n"]
    refused[417] += [post + b"Expect: a-miracle\r\nContent-Length: 2\r\n\r\n{}"]
    refused[404] += [b"GET /v1/../version HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET //version HTTP/1.1\r\nHost: localhost\r\n\r\n"]
    refused[405] += [b"TRACE /version HTTP/1.1\r\nHost: localhost\r\n\r\n"]
    return [(status, case) for status, cases in refused.items() for case in cases]


async def framing(server, options):
    """Requests that smugglers send get one refusal, and nothing behind them is read."""
    smuggled = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    cases = framing_cases()
    for status, case in cases:
        answer = await server.raw(case + smuggled)
        closes = status not in (404, 405)
        got = status_of(answer)
        expect(got == status or (closes and got == 400), f"{case[:80]!r}: {got} instead of {status}")
        expect(not closes or answer.count(b"HTTP/1.1 ") == 1, f"{case[:80]!r}: answered twice")
    return f"{len(cases)} hostile requests refused"


async def json_bodies(server, options):
    """Texts that are no JSON, or not what a field may be, are 400 and never 5xx."""
    bad = [b"", b"[", b"{", b'{"prompt":"a",}', b'{"prompt":"a"} x', b'{"a":NaN}', b'{"a":1e400}', b"\xff\xfe{\x00}\x00",
           b'{"prompt":"\xff"}', b'{"prompt":"\\ud800"}', b"[" * 100_000, b'{"prompt":"a","prompt":"b"}', b"// a\n{}",
           b'{"prompt":"a"}{"prompt":"b"}', b"1", b'"a"', b"null", b'{"prompt":' + b"9" * 100_000 + b"}"]
    for body in bad:
        status, _ = await server.ask("POST", "/v1/completions", body)
        expect(status == 400, f"{body[:60]!r}: {status}")
    draw = random.Random(1)
    values = [None, True, -1, 0, 1, 10**30, 1.5, -1e300, "", "a", "\u0000", [], [1], ["a", 1], {}, {"a": {}}]
    names = ["prompt", "max_tokens", "n", "temperature", "top_p", "top_k", "stop", "seed", "logprobs", "stream", "echo",
             "logit_bias", "stream_options", "priority", "kv_rule", "kv_heavy", "prompt_logprobs", "timeout", "user"]
    statuses, times = {}, []
    for _ in range(options.bodies):
        body = {name: draw.choice(values) for name in draw.sample(names, draw.randint(1, 6))}
        if draw.random() < 0.5:
            body["prompt"] = "a"
        body.setdefault("max_tokens", 1)
        start = time.monotonic()
        status, _ = await server.ask("POST", "/v1/completions", body)
        times.append(time.monotonic() - start)
        statuses[status] = statuses.get(status, 0) + 1
        expect(status in (200, 400, 404), f"{body}: {status}")
    return f"{len(bad)} wrong texts, {options.bodies} random bodies: {statuses}, median {1000 * statistics.median(times):.1f} ms"


async def slow_clients(server, options):
    """Clients that send or read by drops are cut off, and hold up nobody."""
    async def drip(head, drop):
        reader, writer = await server.open()
        start = time.monotonic()
        try:
            writer.write(head)
            while time.monotonic() - start < PATIENCE:
                writer.write(drop)
                await writer.drain()
                try:
                    async with asyncio.timeout(0.5):
                        if not await reader.read(1 << 16):
                            break
                except TimeoutError:
                    pass
        except ConnectionError:
            pass
        finally:
            writer.close()
        return time.monotonic() - start

    async def pace():
        times = []
        for _ in range(20):
            start = time.monotonic()
            status, _ = await server.ask("POST", "/v1/completions", GREEDY)
            expect(status == 200, f"an honest client gets {status}")
            times.append(time.monotonic() - start)
        return statistics.median(times)

    before = await pace()
    post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    drips = [asyncio.create_task(drip(head, drop)) for head, drop in
             [(b"GET /", b"a"), (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"a: b\r\n"), (post + b"Content-Length: 1000\r\n\r\n", b" "),
              (post + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"), (b"", b"\r\n")] for _ in range(40)]
    beside = await pace()
    seconds = await asyncio.gather(*drips)
    expect(max(seconds) < PATIENCE, "a slow client is never cut off")
    return f"{len(drips)} cut off after {max(seconds):.0f} s at most; an honest request takes {beside / before:.2f} times as long beside them"


async def idle_connections(server, options):
    """Thousands of silent connections cost little, and the server answers beside them."""
    count = connections_allowed(options.connections, 200)
    await server.ask("POST", "/v1/completions", GREEDY)  # What a first request takes is not a connection's.
    before, held = server.resident(), []
    try:
        for _ in range(count):
            held.append(await server.open())
        await asyncio.sleep(1)
        status, _ = await server.ask("POST", "/v1/completions", GREEDY)
        expect(status == 200, f"a request beside them gets {status}")
        each = (server.resident() - before) / count
        expect(each <= 4096, f"each takes {each:.0f} bytes")
        return f"{count} of them, {each:.0f} bytes each"
    finally:
        for _, writer in held:
            writer.close()


async def leaving_clients(server, options):
    """Clients that leave at any moment stop their sequences, and leave no memory behind."""
    draw = random.Random(2)

    async def leave():
        reader, writer = await server.open()
        writer.write(request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "n": 2,
                                                         "stream": draw.random() < 0.7}))
        try:
            async with asyncio.timeout(draw.random() * 0.5):
                while await reader.read(1 << 16):
                    pass
        except (TimeoutError, ConnectionError):
            pass
        writer.transport.abort() if draw.random() < 0.5 else writer.close()

    sizes = []
    for _ in range(6):
        await asyncio.gather(*(leave() for _ in range(100)))
        await server.idle()
        sizes.append(server.resident())
    used = server.metric("vllm:gpu_cache_usage_perc") or server.metric("vllm:kv_cache_usage_perc")
    expect(sizes[-1] <= 1.02 * sizes[2], f"the server grew from {sizes[2]} to {sizes[-1]} bytes")
    return f"600 left; memory {100 * (sizes[-1] / sizes[2] - 1):+.1f} % over the last half, {100 * used:.1f} % of the KV cache in use after"


async def overload(server, options):
    """More requests than the queue takes are told so at once, with a time; the others are answered."""
    statuses, waits = {}, set()

    async def one():
        answer = await server.raw(request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 8, "n": 8}))
        status = status_of(answer)
        statuses[status] = statuses.get(status, 0) + 1
        if status == 429:
            fields = answer.partition(b"\r\n\r\n")[0].lower()
            expect(b"retry-after:" in fields, "429 without Retry-After")
            waits.add(fields.partition(b"retry-after:")[2].split(b"\r\n")[0].strip().decode())

    await asyncio.gather(*(one() for _ in range(options.burst)))
    expect(set(statuses) <= {200, 429, 503}, f"{statuses}")
    expect(statuses.get(200, 0) > 0, f"{statuses}")
    await server.idle()
    return f"{options.burst} at once: {statuses}, Retry-After {sorted(waits)}"


async def isolation(server, options):
    """A seeded answer is the same beside any neighbours."""
    body = {"prompt": "Emma", "max_tokens": 64, "temperature": 1, "seed": 7}

    async def answer():
        return json.loads((await server.ask("POST", "/v1/completions", body))[1])["choices"][0]["text"]

    alone, draw = await answer(), random.Random(3)
    for turn in range(5):
        others = [asyncio.create_task(server.ask("POST", "/v1/completions", {
            "prompt": "x " * draw.randint(1, 200), "max_tokens": draw.randint(1, 100), "temperature": 2})) for _ in range(30)]
        expect(await answer() == alone, f"another answer in turn {turn}")
        await asyncio.gather(*others)
    return "the same answer in 5 of 5 turns beside 30 others"


async def keys(server, options):
    """Without a key nothing but the open routes answers; every route of the document is asked."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("the-key\n")
        file.flush()
        with open(os.devnull, "w") as log, serving(options.spillway, DEMO, "--api-key-file", file.name, log=log) as (url, pid):
            keyed = Server(url, pid)
            status, text = await keyed.ask("GET", "/openapi.json", b"", "Authorization: Bearer the-key")
            expect(status == 200, f"/openapi.json: {status}")
            asked, opened = 0, []
            for path, operations in json.loads(text)["paths"].items():
                for method in operations:
                    for field in ((), ("Authorization: Bearer another",), ("Authorization: Basic dGhlLWtleQ==",)):
                        status, _ = await keyed.ask(method.upper(), path.replace("{", "").replace("}", ""), b"{}", *field)
                        asked += 1
                        if status != 401:
                            opened.append(path)
            expect(set(opened) <= {"/health", "/ping", "/", "/dashboard.css", "/dashboard.js"}, f"open: {sorted(set(opened))}")
    return f"{asked} requests without the key; open are {', '.join(sorted(set(opened)))}"


async def drain(server, options):
    """SIGTERM: what runs is answered to its end, what comes is refused with 503, and the status is 0."""
    process = subprocess.Popen([options.spillway, "serve", DEMO, "--port", "0"], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    try:
        url = next(part for line in process.stdout for part in line.split() if part.startswith("http://"))
        draining = Server(url.rstrip("/"), process.pid)
        body = {"prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True}
        streams = [asyncio.create_task(draining.raw(request("POST", "/v1/completions", body))) for _ in range(20)]
        await asyncio.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        late = status_of(await draining.raw(request("POST", "/v1/completions", GREEDY), 10))
        answers = await asyncio.gather(*streams)
        ended = sum(b"data: [DONE]" in answer for answer in answers)
        expect(ended == 20, f"{ended} of 20 streams ended")
        expect(late in (0, 503), f"a late request gets {late}")
        status = await asyncio.to_thread(process.wait, PATIENCE)
        expect(status == 0, f"exit status {status}")
        return f"20 of 20 streams ended; a late request gets {late or 'no connection'}"
    finally:
        process.kill()
        process.wait()


async def kill(server, options):
    """kill -9 at random moments: a batch's answers are those of an undisturbed run, each once."""
    draw = random.Random(4)
    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder) / "lines.jsonl"
        lines.write_text("".join(json.dumps({"custom_id": f"l{number}", "method": "POST", "url": "/v1/completions", "body": {
            "prompt": f"Chapter {number}", "max_tokens": 12 + number % 40, "temperature": 1, "seed": number}}) + "\n"
            for number in range(600)))

        def run(output, seconds=None):
            resume = ["--resume"] if pathlib.Path(f"{output}.journal").exists() else []
            process = subprocess.Popen([options.spillway, "batch", DEMO, "--input", lines, "--output", output, *resume],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return None

        def answers(path):
            rows = [json.loads(line) for line in path.open()]
            return [(row["custom_id"], row["response"]["body"]["choices"][0]["text"]) for row in rows]

        plain, broken = pathlib.Path(folder) / "plain.jsonl", pathlib.Path(folder) / "broken.jsonl"
        start = time.monotonic()
        expect(await asyncio.to_thread(run, plain) == 0, "the undisturbed run fails")
        length, kills = time.monotonic() - start, 0
        while kills < options.kills:
            status = await asyncio.to_thread(run, broken, draw.random() * length / 2)
            if status is None:
                kills += 1
            else:  # It ended first; the next one begins anew.
                expect(status == 0, f"a resumed run ends with {status}")
                expect(answers(broken) == answers(plain), "other rows after a crash")
                broken.unlink()
        expect(await asyncio.to_thread(run, broken) == 0, "the last run fails")
        expect(answers(broken) == answers(plain), "other rows after a crash")
    return f"{options.kills} times; 600 of 600 rows equal, none twice"


async def kill_serve(server, options):
    """kill -9 of a server with batches in flight, at random moments: answers as of an undisturbed one, each once."""
    draw = random.Random(6)
    lines = "".join(json.dumps({"custom_id": f"l{number}", "method": "POST", "url": "/v1/completions", "body": {
        "prompt": f"Chapter {number}", "max_tokens": 12 + number % 40, "temperature": 1, "seed": number}}) + "\n"
        for number in range(400)).encode()
    form = b"multipart/form-data; boundary=b0"
    upload = (b'--b0\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b0\r\nContent-Disposition: form-data; '
              b'name="file"; filename="b.jsonl"\r\n\r\n' + lines + b"\r\n--b0--\r\n")

    async def begin(target):
        head = (f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: {form.decode()}\r\n"
                f"Content-Length: {len(upload)}\r\n\r\n").encode()
        answer = await target.raw(head + upload)
        expect(status_of(answer) == 200, answer[:300])
        file = json.loads(answer.partition(b"\r\n\r\n")[2])["id"]
        status, text = await target.ask("POST", "/v1/batches", {
            "input_file_id": file, "endpoint": "/v1/completions", "completion_window": "none"})
        expect(status == 200, text)
        return json.loads(text)["id"]

    async def state(target, batch):
        status, text = await target.ask("GET", f"/v1/batches/{batch}")
        expect(status == 200, f"the batch is gone: {status} {text}")
        return json.loads(text)

    async def rows(target, batch):
        done = await state(target, batch)
        expect(done["status"] == "completed" and done["request_counts"] == {"total": 400, "completed": 400, "failed": 0}, done)
        text = (await target.ask("GET", f"/v1/files/{done['output_file_id']}/content"))[1]
        return [(row["custom_id"], row["response"]["body"]["choices"][0]["text"]) for row in map(json.loads, text.splitlines())]

    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as log:
        served = functools.partial(serving, options.spillway, DEMO, "--batch-dir", pathlib.Path(folder) / "batches", log=log)

        async def until_done(target, batches):
            while not all([(await state(target, batch))["status"] == "completed" for batch in batches]):
                await asyncio.sleep(0.1)

        with served() as (url, pid):
            target = Server(url, pid)
            start, batch = time.monotonic(), await begin(target)
            await until_done(target, [batch])
            length, plain = time.monotonic() - start, await rows(target, batch)
        kills, batches = 0, []
        while kills < options.kills:
            with served() as (url, pid):
                target = Server(url, pid)
                while (await target.ask("GET", "/health"))[0] != 200:
                    await asyncio.sleep(0.02)
                # Two in flight: one runs, one waits.
                unfinished = [batch for batch in batches if (await state(target, batch))["status"] != "completed"]
                while len(unfinished) < 2:
                    batches.append(await begin(target))
                    unfinished.append(batches[-1])
                await asyncio.sleep(draw.random() * length)
                os.kill(pid, signal.SIGKILL)
                kills += 1
        with served() as (url, pid):
            target = Server(url, pid)
            await until_done(target, batches)
            for batch in batches:
                expect(await rows(target, batch) == plain, "other rows after crashes")
    return f"{kills} times; {len(batches)} batches of 400 rows equal, none lost, none twice"


async def fairness(server, options):
    """One client's thousands of sequences do not hold up another's short request."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("greedy-key\nmodest-key\n")
        file.flush()
        with open(os.devnull, "w") as log, serving(options.spillway, DEMO, "--api-key-file", file.name, log=log) as (url, pid):
            shared = Server(url, pid, "modest-key")
            many = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "n": 128, "temperature": 1}
            greedy = [asyncio.create_task(shared.ask("POST", "/v1/completions", many, "Authorization: Bearer greedy-key"))
                      for _ in range(79)]
            await asyncio.sleep(3)
            waits, queued = [], []
            sweeps, busy = shared.metric("spillway_sweeps_total"), shared.metric("spillway_busy_seconds_total")
            for _ in range(20):
                start = time.monotonic()
                status, answer = await shared.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "timings_per_token": True},
                                                  "Authorization: Bearer modest-key")
                expect(status == 200, f"the modest client gets {status}")
                waits.append(time.monotonic() - start)
                queued.append(json.loads(answer)["timings"]["queue_ms"] / 1000)
            sweep = (shared.metric("spillway_busy_seconds_total") - busy) / (shared.metric("spillway_sweeps_total") - sweeps)
            ended = sum(task.done() for task in greedy)
            for task in greedy:
                task.cancel()
            await asyncio.gather(*greedy, return_exceptions=True)
    expect(ended < 79, "the greedy client had ended")
    expect(statistics.median(queued) <= 2 * sweep, f"waits {statistics.median(queued):.3f} s for sweeps of {sweep:.3f} s")
    return (f"one token beside 10,112 sequences takes {statistics.median(waits):.2f} s, {max(waits):.2f} s at most; it waits "
            f"{statistics.median(queued) / sweep:.1f} sweeps of {sweep:.2f} s in the queue, {max(queued) / sweep:.1f} at most")


ROWS = {"framing": framing, "json": json_bodies, "slow": slow_clients, "connections": idle_connections,
        "leaving": leaving_clients, "overload": overload, "isolation": isolation, "keys": keys, "drain": drain, "kill": kill,
        "kill-serve": kill_serve, "disturbed": disturbed, "slowhttptest": slowhttptest, "load": load, "fairness": fairness}


async def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--spillway", type=pathlib.Path, default=ROOT / "build/release/spillway")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {', '.join(ROWS)}")
    parser.add_argument("--bodies", type=int, default=2000, help="random bodies of json")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--burst", type=int, default=2000, help="requests at once of overload")
    parser.add_argument("--load-seconds", type=int, default=60)
    parser.add_argument("--kills", type=int, default=8)
    options = parser.parse_args()
    options.spillway = options.spillway.resolve()
    chosen = options.rows.split(",")
    if unknown := [row for row in chosen if row not in ROWS]:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    failed = 0
    # With little memory for the KV cache all of it is soon in use, and what grows is something else.
    flags = ("--host-memory", "600MiB", "--connections-per-client-max", "20000")
    with open(os.devnull, "w") as log, serving(options.spillway, DEMO, *flags, log=log) as (url, pid):
        server = Server(url, pid)
        for name in chosen:
            start = time.monotonic()
            try:
                verdict, text = "ok  ", await ROWS[name](server, options)
            except Failed as error:
                verdict, text, failed = "FAIL", str(error), failed + 1
            print(f"{verdict} {name:12} {text} ({time.monotonic() - start:.0f} s)", flush=True)
        expect(os.path.exists(f"/proc/{pid}"), "the server is gone")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
