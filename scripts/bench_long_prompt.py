#!/usr/bin/env python3
"""One long prompt beside short requests, over HTTP: the times to the first token, in sweeps, and the peak of memory.

    scripts/bench_long_prompt.py MODEL --spillway build/release/spillway --tokens 100000 --host-memory 8GiB

Fifteen short requests come 3 s apart after the long prompt has begun, then one at a time until it ends. Each should have
its first token at the end of the sweep after the one that it came in. Prompts are random ids, the same every time.
"""

import argparse
import bisect
import http.client
import json
import random
import re
import statistics
import sys
import threading
import time
import urllib.parse
from pathlib import Path

from serving import serving

SHORT_REQUESTS = 15
SHORT_TOKENS, SHORT_NEW_TOKENS = 64, 16
LATE_TOKENS, LATE_NEW_TOKENS = 100, 4


def get(address, path):
    """The body of an answer."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", path)
    return connection.getresponse().read().decode()


class Requests:
    """Asks for completions of random prompts and notes when their tokens came, in seconds since the epoch."""

    def __init__(self, address):
        self.address = address
        self.model = json.loads(get(address, "/v1/models"))["data"][0]["id"]
        self.random = random.Random(5)

    def prompt(self, tokens):
        """Random ids that are in any vocabulary, the demo model's included."""
        return [self.random.randrange(4, 4000) for _ in range(tokens)]

    def ask(self, prompt, new_tokens, record):
        """Fills in the record: start, first, last, tokens, or error."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": new_tokens, "ignore_eos": True}
        body |= {"temperature": 0, "stream": True, "return_token_ids": True}
        record["start"] = time.time()
        try:
            connection = http.client.HTTPConnection(self.address, timeout=36000)
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                record["error"] = answer.read().decode()[:300]
                return
            times = [time.time() for line in answer if line.startswith(b"data: {")]
            record.update(first=times[0], last=times[-1], events=len(times))
        except (OSError, http.client.HTTPException, IndexError) as reason:
            record["error"] = f"no answer: {type(reason).__name__}: {reason}"

    def begin(self, tokens, new_tokens, record):
        """Asks on a thread of its own."""
        thread = threading.Thread(target=self.ask, args=(self.prompt(tokens), new_tokens, record))
        thread.start()
        return thread


def watch_sweeps(address, ends, stop):
    """Appends the times at which sweeps were seen to have ended, to a quarter of a second."""
    last = None
    while not stop.wait(0.25):
        try:
            found = re.search(r"^spillway_sweeps_total\S* (\S+)", get(address, "/metrics"), re.M)
        except (OSError, http.client.HTTPException):
            continue  # The requests' own errors say what is wrong.
        if found and found[1] != last:
            last = found[1]
            ends.append(time.time())


def in_two_sweeps(record, ends):
    """Seconds to the first token, and those that the sweep it came in and the next one took together."""
    at = bisect.bisect(ends, record["start"])
    if at == 0 or at + 1 >= len(ends):
        return None
    return record["first"] - record["start"], ends[at + 1] - ends[at - 1]


def measure(options, address):
    """Asks the running server; returns what is printed."""
    requests = Requests(address)
    ends, stop = [], threading.Event()
    watcher = threading.Thread(target=watch_sweeps, args=(address, ends, stop))
    long, shorts = {}, [{} for _ in range(SHORT_REQUESTS)]
    asked = requests.begin(options.tokens, 8, long)
    watcher.start()
    time.sleep(5)
    threads = []
    for record in shorts:
        threads.append(requests.begin(SHORT_TOKENS, SHORT_NEW_TOKENS, record))
        time.sleep(3)
    for thread in threads:
        thread.join()
    while asked.is_alive():
        shorts.append({})
        requests.begin(LATE_TOKENS, LATE_NEW_TOKENS, shorts[-1]).join()
        asked.join(options.between_seconds)
    stop.set()
    watcher.join()
    errors = [record["error"] for record in [long, *shorts] if "error" in record]
    if errors:
        raise SystemExit(f"{len(errors)} requests failed: {errors[0]}")
    waits = [wait for wait in (in_two_sweeps(record, ends) for record in shorts) if wait]
    sweeps = [after - before for before, after in zip(ends, ends[1:])]
    return {
        "tokens": options.tokens,
        "seconds_to_first_token": long["first"] - long["start"],
        "sweeps": len(sweeps),
        "sweep_seconds_median": statistics.median(sweeps),
        "sweep_seconds_max": max(sweeps),
        "short_requests_asked": len(shorts),
        "short_requests": [{"seconds_to_first_token": first, "two_sweeps": two} for first, two in waits],
        "within_two_sweeps": sum(first <= two for first, two in waits),
    }


def main():
    """Starts the server, measures, stops it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--spillway", type=Path, required=True, help="the spillway binary")
    parser.add_argument("--tokens", type=int, default=100000, help="of the long prompt")
    parser.add_argument("--host-memory", default="8GiB")
    parser.add_argument("--format", default="bf16")
    parser.add_argument("--between-seconds", type=float, default=120, help="between the requests one at a time")
    parser.add_argument("--output", type=Path, help="the figures as JSON")
    options = parser.parse_args()
    flags = ["--host-memory", options.host_memory, "--format", options.format]
    with serving(options.spillway, options.model, *flags) as (url, pid):
        found = measure(options, urllib.parse.urlsplit(url).netloc)
        status = Path(f"/proc/{pid}/status").read_text()
        found["peak_resident_bytes"] = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10
    text = json.dumps(found, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    late = len(found["short_requests"]) - found["within_two_sweeps"]
    if late > 0 or not found["short_requests"]:
        sys.exit(f"{late} of {len(found['short_requests'])} short requests whose two sweeps were seen had to wait longer")


if __name__ == "__main__":
    main()
