"""What all runners share: the command line, the order of the measurement, the result file.

A runner calls run(load, prepare). load(options) returns (generate, facts): generate(prompts, new_tokens) gives the token
lists of a greedy run with eos ignored, facts has at least "version". prepare(options) converts the model, if need be.
"""

import argparse
import json
import time
from pathlib import Path


def run(load, prepare=None, add_arguments=None):
    """Carries out `prepare` or `measure` as the command line says and writes the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("prepare", "measure"))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--format", required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--no-prefill", action="store_true", help="only the whole work, not the prompts alone")
    if add_arguments:
        add_arguments(parser)
    options = parser.parse_args()
    if options.verb == "prepare":
        if prepare:
            prepare(options)
        options.result.write_text("{}")
        return
    work = json.loads(options.prompts.read_text())
    started = time.perf_counter()
    generate, facts = load(options)
    facts["load_seconds"] = time.perf_counter() - started
    generate(work["warm_up"], 4)
    if not options.no_prefill:
        facts["prefill_seconds"] = timed(generate, work["prefill"], 1)
    cpu_started = time.process_time()
    facts["total_seconds"] = timed(generate, work["measured"], work["new_tokens"])
    facts["cpu_seconds"] = time.process_time() - cpu_started  # of this process: shows whether a peer used all cores
    facts["prompts"] = len(work["measured"])
    options.result.write_text(json.dumps(facts))


def timed(generate, prompts, new_tokens):
    """Seconds of one run; every prompt must have got all its tokens."""
    started = time.perf_counter()
    outputs = generate(prompts, new_tokens)
    seconds = time.perf_counter() - started
    counts = [len(tokens) for tokens in outputs]
    if counts != [new_tokens] * len(prompts):
        raise RuntimeError(
            f"Error: asked for {new_tokens} tokens each, got {sorted(set(counts))} for {len(counts)} prompts"
        )
    return seconds
