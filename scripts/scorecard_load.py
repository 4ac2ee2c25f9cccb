"""The row of scripts/scorecard.py that loads a server for minutes, and what it costs beside a batch run."""

import asyncio
import json
import os
import pathlib
import resource
import statistics
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


async def load(server, options):
    """A thousand streams at once for a while, beside idle connections: no error, no growth, and the tokens/s of `batch`."""
    flags = (*CACHE, "--connections-per-client-max", "20000", "--connections-max", "20000",
             "--idle-seconds", str(options.load_seconds + 600))
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
            client = await asyncio.create_subprocess_exec(
                "h2load", "--h1", "--clients=1000", f"--duration={options.load_seconds}", "--warm-up-time=5",
                f"--data={file}", "--header=content-type: application/json", url + "/v1/completions",
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            await asyncio.sleep(5 + options.load_seconds / 4)
            start, tokens, size = time.monotonic(), loaded.metric("vllm:generation_tokens_total"), loaded.resident()
            busy = processor_seconds(client.pid)
            await asyncio.sleep(options.load_seconds / 2)
            taken = time.monotonic() - start
            pace = (loaded.metric("vllm:generation_tokens_total") - tokens) / taken
            share = (processor_seconds(client.pid) - busy) / taken / len(os.sched_getaffinity(0))
            grown = loaded.resident() / size - 1
            said = (await client.communicate())[0].decode()
            for reader, writer in idle:
                await ask_again(reader, writer)
                writer.close()
        counts = next((line for line in said.splitlines() if line.startswith("requests:")), said[-300:])
        expect(", 0 failed, 0 errored, 0 timeout" in counts, counts)
        expect(abs(grown) <= 0.02, f"the server grew by {100 * grown:.1f} %")
        count = max(2000, int(pace * 20 / BODY["max_tokens"]))
        batch = statistics.median([await batch_pace(options.spillway, folder, count) for _ in range(3)])
    # What the clients on this machine take is no server's: a batch has none beside it.
    figures = (f"{pace:.0f} tokens/s, {pace / batch:.3f} of a batch's {batch:.0f} (its start included; median of 3), "
               f"{pace / batch / (1 - share):.3f} without the {100 * share:.1f} % of the processors that h2load takes")
    expect(pace >= 0.95 * batch * (1 - share), figures)
    return (f"1,000 streams beside {count_idle:,} idle connections ({each:.0f} bytes each), {options.load_seconds} s: "
            f"{figures}; memory {100 * grown:+.1f} %")
