"""The rows of scripts/scorecard.py that load a server: what a long load costs beside a batch run, and whether slow and
leaving clients cost the engine anything."""

import asyncio
import contextlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import tempfile
import time

from scorecard_client import DEMO, GREEDY, PATIENCE, Server, expect, request
from serving import serving

BODY = {"prompt": GREEDY["prompt"], "max_tokens": 64, "ignore_eos": True, "temperature": 1}
CACHE = ("--prefix-cache", "off")  # All prompts are the same


def connections_allowed(wanted, others):
    """As many of the wanted as open files allow beside others, after raising that limit as far as it goes."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(wanted, hard - others)


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ask_again(reader, writer):
    """One small request on a connection that stays open."""
    writer.write(request("GET", "/version"))
    async with asyncio.timeout(PATIENCE):
        head = await reader.readuntil(b"\r\n\r\n")
        expect(head.startswith(b"HTTP/1.1 200"), "an idle connection was lost")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length[15:]))


async def batch_pace(spillway, folder, count):
    """Tokens/s of `spillway batch` over as many of the same requests, its start included."""
    lines = folder / "lines.jsonl"
    lines.write_text("".join(json.dumps({"custom_id": str(number), **BODY}) + "\n" for number in range(count)))
    start = time.monotonic()
    run = await asyncio.create_subprocess_exec(spillway, "batch", DEMO, "--input", lines, "--output",
                                               folder / "out.jsonl", "--overwrite", *CACHE,
                                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    expect(await run.wait() == 0, "the batch fails")
    return BODY["max_tokens"] * count / (time.monotonic() - start)


async def stream_pace(loaded, body_file, seconds):
    """1,000 streams for so long, and in their middle half: tokens/s, h2load's share of the processors, growth of memory."""
    client = await asyncio.create_subprocess_exec(
        "h2load", "--h1", "--clients=1000", f"--duration={seconds}", "--warm-up-time=5", f"--data={body_file}",
        "--header=content-type: application/json", loaded.url + "/v1/completions", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    await asyncio.sleep(5 + seconds / 4)
    start, tokens, size = time.monotonic(), loaded.metric("vllm:generation_tokens_total"), loaded.resident()
    busy = processor_seconds(client.pid)
    await asyncio.sleep(seconds / 2)
    taken = time.monotonic() - start
    pace = (loaded.metric("vllm:generation_tokens_total") - tokens) / taken
    share = (processor_seconds(client.pid) - busy) / taken / len(os.sched_getaffinity(0))
    grown = loaded.resident() / size - 1
    said = (await client.communicate())[0].decode()
    counts = next((line for line in said.splitlines() if line.startswith("requests:")), said[-300:])
    expect(", 0 failed, 0 errored, 0 timeout" in counts, counts)
    return pace, share, grown


async def load(server, options):
    """A thousand streams at once for a while, beside idle connections: no error and no growth. Then, in turn with `batch`
    over the same requests, since machines change their pace within minutes: the same tokens/s."""
    flags = (*CACHE, "--connections-per-client-max", "20000", "--connections-max", "20000",
             "--idle-seconds", str(options.load_seconds + 900))
    count_idle = connections_allowed(options.connections, 2000)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        file = folder / "body.json"
        file.write_text(json.dumps({**BODY, "stream": True}))
        with open(os.devnull, "w") as log, serving(options.spillway, DEMO, *flags, log=log) as (url, pid):
            loaded = Server(url, pid)
            await loaded.ask("POST", "/v1/completions", GREEDY)
            empty, idle = loaded.resident(), []
            for _ in range(count_idle):  # Each has asked: one that never does is cut off.
                idle.append(await loaded.open())
                await ask_again(*idle[-1])
            await asyncio.sleep(1)
            each = (loaded.resident() - empty) / max(count_idle, 1)
            long, _, grown = await stream_pace(loaded, file, options.load_seconds)
            expect(abs(grown) <= 0.02, f"the server grew by {100 * grown:.1f} %")
            paces, shares, batches = [], [], []
            for _ in range(5):
                pace, share, _ = await stream_pace(loaded, file, 30)
                await loaded.idle()
                batches.append(await batch_pace(options.spillway, folder, max(2000, int(pace * 20 / BODY["max_tokens"]))))
                paces.append(pace)
                shares.append(share)
            for reader, writer in idle:
                await ask_again(reader, writer)
                writer.close()
    pace, share, batch = map(statistics.median, (paces, shares, batches))
    # What the clients on this machine take is no server's: a batch has none beside it.
    figures = (f"{pace:.0f} tokens/s, {pace / batch:.3f} of a batch's {batch:.0f} (its start included; medians of 5 in turn), "
               f"{pace / batch / (1 - share):.3f} without the {100 * share:.1f} % of the processors that h2load takes")
    expect(pace >= 0.95 * batch * (1 - share), figures)
    return (f"1,000 streams beside {count_idle:,} idle connections ({each:.0f} bytes each), {options.load_seconds} s: no error, "
            f"{long:.0f} tokens/s, memory {100 * grown:+.1f} %; then {figures}")


@contextlib.asynccontextmanager
async def honest_clients(server):
    """300 clients that ask and read as fast as they can."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(json.dumps({**BODY, "stream": True}))
        file.flush()
        honest = await asyncio.create_subprocess_exec(
            "h2load", "--h1", "--clients=300", "--duration=3600", f"--data={file.name}", "--header=content-type: application/json",
            server.url + "/v1/completions", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            await asyncio.sleep(3)
            yield
        finally:
            honest.kill()
            await honest.wait()
    await server.idle()


async def pace_beside(server, start, stop, rounds):
    """Tokens/s of the engine with honest clients beside what start() starts and stop() ends, and without, in turn: medians. start() says
    which process that is, whose own share of the processors no server can help. (figures as a text, whether they are within
    5 % of the pace without, less that share)"""
    def computed():  # Prompts, too: clients that leave and come again have the engine compute more of them.
        return server.metric("vllm:generation_tokens_total") + server.metric("vllm:prompt_tokens_total")

    async def pace(seconds, pid):
        tokens, begin, busy = computed(), time.monotonic(), processor_seconds(pid)
        await asyncio.sleep(seconds)
        taken = time.monotonic() - begin
        return ((computed() - tokens) / taken,
                (processor_seconds(pid) - busy) / taken / len(os.sched_getaffinity(0)))

    alone, beside, shares = [], [], []
    for _ in range(rounds):
        alone.append((await pace(8, os.getpid()))[0])
        pid = await start()
        await asyncio.sleep(2)
        tokens, share = await pace(8, pid)
        beside.append(tokens)
        shares.append(share)
        await stop()
    ratio, share = statistics.median(beside) / statistics.median(alone), statistics.median(shares)
    return (f"{ratio:.2f} of {statistics.median(alone):.0f} tokens/s, where they take {100 * share:.0f} % of the processors",
            ratio >= 0.95 * (1 - share))


async def disturbed(server, options):
    """The engine's tokens/s with slow, leaving and half-open clients beside honest ones, and without."""
    draw = random.Random(8)
    completion = request("POST", "/v1/completions", {**BODY, "stream": True})
    ending, others = asyncio.Event(), []

    async def again(client):
        while not ending.is_set():
            # Bare sockets: whatever these clients compute, they take from the engine on the same processors.
            with contextlib.suppress(OSError), socket.socket() as connection:
                connection.setblocking(False)
                await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", server.port))
                await client(connection)
            await asyncio.sleep(draw.random())

    async def rest(seconds):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), seconds)

    def send(connection, data):
        return asyncio.get_running_loop().sock_sendall(connection, data)

    async def leaves(connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # Closing resets it
        await send(connection, completion)
        await rest(draw.random())

    async def reads_slowly(connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await send(connection, completion)
        while not ending.is_set() and await asyncio.get_running_loop().sock_recv(connection, 64):
            await rest(0.5)

    async def is_half_open(connection):
        await send(connection, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{")
        await rest(30)

    async def writes_slowly(connection):
        for byte in completion:
            await send(connection, bytes([byte]))
            await rest(0.2)
            if ending.is_set():
                return

    async def start():
        ending.clear()
        others.extend(asyncio.create_task(again(client)) for client in (leaves, reads_slowly, is_half_open, writes_slowly)
                      for _ in range(25))
        return os.getpid()

    async def stop():
        ending.set()
        await asyncio.gather(*others)
        others.clear()

    async with honest_clients(server):
        figures, unchanged = await pace_beside(server, start, stop, 5)
    expect(unchanged, figures)
    return f"100 slow, leaving and half-open clients: {figures} (medians of 5)"


# What the attacks of slowhttptest are: 400 connections, opened in two seconds.
SLOW = ["-c", "400", "-r", "200", "-l", "60", "-i", "1", "-p", "5"]
ATTACKS = {"slow heads": ["-H", "-u", "{}/v1/models"],
           "slow bodies": ["-B", "-s", "100000", "-f", "application/json", "-u", "{}/v1/completions"],
           "slow reading": ["-X", "-w", "64", "-y", "256", "-z", "16", "-k", "4", "-u", "{}/metrics"]}


async def slowhttptest(server, options):
    """Debian's slowhttptest beside honest clients: the server stays available, and the engine's tokens/s are the same."""
    if not shutil.which("slowhttptest"):
        return "skipped: no slowhttptest here"
    running, said = [], []
    async with honest_clients(server):
        for name, attack in ATTACKS.items():
            async def start(attack=attack):
                running.append(await asyncio.create_subprocess_exec(
                    "slowhttptest", *SLOW, *(part.format(server.url) for part in attack), stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
                return running[-1].pid

            async def stop(name=name):
                running[-1].send_signal(signal.SIGINT)
                text = re.sub(r"\x1b\[[0-9;]*m", "", (await running.pop().communicate())[0].decode(errors="replace"))
                available = re.findall(r"service available:\s*(YES|NO)", text)
                expect(available and "NO" not in available, f"{name}: {available or text[-300:]}")

            figures, unchanged = await pace_beside(server, start, stop, 3)
            expect(unchanged, f"{name}: {figures}")
            said.append(f"{name} {figures}")
    return f"always available; medians of 3: {'; '.join(said)}"
