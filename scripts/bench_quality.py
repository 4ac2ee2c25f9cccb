#!/usr/bin/env python3
"""Quality of the KV rules over HTTP: lm-evaluation-harness against `spillway serve`.

    python3 -m venv VENV && VENV/bin/pip install "lm_eval[api]==0.4.13"
    VENV/bin/python scripts/bench_quality.py --spillway build/release/spillway --text FILE --work DIR --output OUT.json MODEL

spillway_codes (scripts/quality/): prompts with codes in them and a question about one at the end, answered greedily; the
share of codes that are right, for the full cache and every rule at --budgets per cent of the prompt. lm-eval sends a
rule's fields in each request (its gen_kwargs), so one server is enough. Half of h2o, snap and random is recent; random and
window protect the first four positions (`kv_keep`). The text is cut, the model sees no other data.

With --tokenizer DIR (a Hugging Face tokenizer; lm-eval then needs transformers, too, and one that transformers 4 saved from
a GGUF file needs "tokenizer_class": "PreTrainedTokenizerFast" for transformers 5) also spillway_last_word, by loglikelihood. That is scored on the prompt (`echo`), which attends to all of itself under any rule: for the full cache only.
"""

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "quality"))
import retrieval  # noqa: E402
from serving import serving  # noqa: E402

SINK = 4


def rules(budgets):
    """(name, per cent, fields of a request)."""
    yield "full", 100, {"kv_rule": "full"}
    for percent in budgets:
        share, half = percent / 100, percent / 200
        of_prompt = {"kv_ratio_of": "prompt"}
        halves = {"kv_heavy": half, "kv_recent": half, **of_prompt}
        yield "h2o", percent, {"kv_rule": "h2o", **halves}
        yield "snap", percent, {"kv_rule": "snap", **halves}
        yield f"window, keep {SINK}", percent, {"kv_rule": "window", "kv_recent": share, "kv_keep": SINK, **of_prompt}
        yield f"random, keep {SINK}", percent, {"kv_rule": "random", "kv_keep": SINK, **halves}


def last_words(text, count, characters=1000):
    """Paragraphs of about so many characters without their last word, and that word."""
    parts, found, start = retrieval.sentences(text), [], 0
    while len(found) < count:
        end = start
        while end < len(parts) and sum(map(len, parts[start:end])) < characters:
            end += 1
        if end == len(parts):
            raise SystemExit(f"the text suffices for {len(found)} cases of the last word, not for {count}")
        words = re.sub(r"[^\w]+$", "", " ".join(parts[start:end])).rsplit(" ", 1)
        start = end
        if words[1].isalpha():
            found.append({"context": words[0], "word": words[1]})
    return found


def write_lines(path, rows):
    """JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def evaluate(url, task, model_args, gen_kwargs=None):
    """What lm-eval finds of one task."""
    import lm_eval
    import lm_eval.tasks

    args = {"model": "spillway", "base_url": f"{url}/v1/completions", "max_length": 2048, "timeout": 3600, **model_args}
    manager = lm_eval.tasks.TaskManager(include_path=str(HERE / "quality"), include_defaults=False)
    done = lm_eval.simple_evaluate(model="local-completions", model_args=args, tasks=[task], task_manager=manager,
                                   gen_kwargs=gen_kwargs, bootstrap_iters=0, log_samples=True)
    return done["results"][task], done["samples"][task]


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="MODEL of `spillway serve`, with a tokenizer")
    parser.add_argument("--spillway", type=Path, default=Path("build/release/spillway"))
    parser.add_argument("--text", type=Path, required=True, help="a UTF-8 text of the WikiText kind")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--characters", type=int, default=6000, help="of a retrieval case's text (%(default)s)")
    parser.add_argument("--last-words", type=int, default=200, help="cases of the last word (%(default)s)")
    parser.add_argument("--budgets", type=lambda text: [int(part) for part in text.split(",")], default=[60, 40, 20, 10, 4])
    parser.add_argument("--at-once", type=int, default=16, help="requests (%(default)s)")
    parser.add_argument("--tokenizer", help="a directory, for the last word")
    parser.add_argument("--spillway-args", default="", help="more flags for `spillway serve`")
    parser.add_argument("--work", type=Path, required=True, help="where the cases are written")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    options.model = str(Path(options.model).resolve())
    output, text = options.output.resolve(), options.text.read_text(encoding="utf-8")
    options.work.mkdir(parents=True, exist_ok=True)
    write_lines(options.work / "codes.jsonl", retrieval.cases(text, options.cases, options.characters))
    write_lines(options.work / "last_word.jsonl", last_words(text, options.last_words))
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_CACHE=str((options.work / "datasets").resolve()))
    found = {"model": Path(options.model).stem, "text": options.text.name, "cases": options.cases,
             "characters": options.characters, "spillway_args": options.spillway_args, "codes": []}
    flags = ["--max-model-len", "2304", "--served-model-name", "spillway", *options.spillway_args.split()]
    with serving(options.spillway, options.model, *flags) as (url, _):
        os.chdir(options.work)
        plain = {"tokenizer_backend": "none", "tokenized_requests": False, "num_concurrent": options.at_once}
        for name, percent, fields in rules(options.budgets):
            start = time.monotonic()
            result, samples = evaluate(url, "spillway_codes", plain, fields)
            right = result["exact_match,digits"]
            found["codes"].append({"kv_rule": name, "percent": percent, "exact_match": right, "request": fields,
                                   "seconds": round(time.monotonic() - start, 1),
                                   "answers": [sample["resps"][0][0] for sample in samples]})
            print(f"{name:16s} {percent:3d} %  {right:.3f}", flush=True)
            output.write_text(json.dumps(found) + "\n")
        if options.tokenizer:
            args = {"tokenizer": options.tokenizer, "tokenizer_backend": "huggingface", "num_concurrent": options.at_once}
            result, samples = evaluate(url, "spillway_last_word", args)
            found["last_word"] = {"cases": options.last_words, "perplexity": result["perplexity,none"],
                                  "acc": result["acc,none"],
                                  "logprobs": [float(sample["resps"][0][0][0]) for sample in samples]}
            print(f"last word: perplexity {result['perplexity,none']:.3f}, right {result['acc,none']:.3f}")
            output.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
