#!/usr/bin/env python3
"""OPT with a limited KV cache, as plainly as PyTorch allows: the reference that Spillway's KV rules are held against.

    python scripts/h2o_reference.py --golden tests/golden                      # writes tests/golden/h2o.json
    python scripts/h2o_reference.py --golden tests/golden --kv-format q4       # writes tests/golden/h2o_cache_q4.json
    python scripts/h2o_reference.py MODEL_DIR --prompt 5,7,11 --new-tokens 20 --rule h2o --heavy 4 --recent 0.1

The rules are those of the user guide ("Keeping less of the KV cache"; after H2O, arXiv 2306.14048):

h2o     A prompt attends to all of itself; a position's score is the sum of the softmax weights that all queries give it.
        Kept are the last `recent` positions and, of the others, the `heavy` with the highest scores. A decode step
        attends to what is kept and to itself and adds its weights to the scores; then the lowest score outside the
        recent window is dropped. Of equal scores the later position stays.
window  The last `recent` positions and the first `sink`.

Every KV head of every layer keeps its own rows, as a list in order of position. Amounts below 1 are shares of
(prompt + new tokens), or with --ratio-of prompt of the prompt, rounded down; `recent` is at least 1; a rule that would
keep every position is the full cache.

Everything is float32, but for what --kv-format makes of keys and values in the cache: each becomes the nearest bf16 or
f16, or a 4-bit or 8-bit number of its row (q4_row, q8_row below). Queries and keys are multiplied by a Hadamard matrix before (hadamard
below) where that is so. A prompt and a decode step attend to what is cached, their own rows included.

A golden file has prompts of which another order of summation turns no decision. The two best logits and the scores of
the row that goes and the next lie apart (GAP_MIN, SCORE_GAP_MIN). And a number that lies between two of a format's may
be rounded to either: so keys and values are moved by noise before they are rounded, several times over, and tokens and
positions have to stay what they are, and scores nearly (bf16, q4 and q8; NOISE, NOISY_RUNS, SCORE_MOVE_MAX).

Needs PyTorch and transformers (scripts/oracle/requirements.txt), which read the checkpoint and nothing else.
"""

import argparse
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers

NEW_TOKENS = 40
PROMPT_TOKENS = (1, 23, 60)
PROMPT_TOKENS_ROUNDED = (23, 60)  # of the other formats' files
GAP_MIN = 1e-3  # of the two best logits of a greedy step
SCORE_GAP_MIN = 1e-4  # of the score that stays and the one that goes
NOISE = 1e-6  # of the largest number of a row; an order of summation moves a number by less
NOISY_RUNS = 8
# By noise, of the largest score. Of a prompt's many numbers some always turns among bf16's steps, and all that follows
# moves a little; among f16's finer ones by less than the tests allow.
SCORE_MOVE_MAX = {"bf16": 5e-3, "q4": 1e-4, "q8": 1e-3}


@dataclass
class Rule:
    """A KV rule as people write it."""

    kind: str = "full"
    heavy: float = 0
    recent: float = 0
    sink: int = 0
    ratio_of: str = "total"

    def rows(self, amount, prompt, new_tokens):
        """Positions that an amount means."""
        if not 0 < amount < 1:
            return int(amount)
        length = prompt if self.ratio_of == "prompt" else prompt + new_tokens
        return math.floor(amount * length + 1e-6)

    def budget(self, prompt, new_tokens):
        """(kept besides the recent ones, recent), or None for the full cache."""
        if self.kind == "full":
            return None
        recent = max(1, self.rows(self.recent, prompt, new_tokens))
        kept = self.rows(self.heavy, prompt, new_tokens) if self.kind == "h2o" else self.sink
        positions = prompt + max(0, new_tokens - 1)
        return None if kept + recent >= positions else (kept, recent)


def float16_beside(value, towards):
    """The float16 nearest to `value` among those between it and `towards`."""
    nearest, towards = value.half(), torch.tensor(towards).half()
    crossed = nearest.float() < value if towards > 0 else nearest.float() > value
    return (torch.nextafter(nearest, towards) if crossed else nearest).float()


def q4_row(row):
    """Groups of 64 as 0 to 15 steps above a minimum; step and minimum are float16 and leave no number outside."""
    groups = []
    for group in row.split(64):
        minimum = float16_beside(group.min(), -math.inf)
        step = float16_beside((group.max() - minimum) / 15, math.inf)
        steps = torch.floor((group - minimum) / step + 0.5).clamp(0, 15) if step > 0 else torch.zeros_like(group)
        groups.append(minimum + steps * step)
    return torch.cat(groups)


def q8_row(row):
    """Signed integers of 8 bits with one float32 scale, the largest magnitude over 127."""
    scale = row.abs().max() / 127
    return torch.round(row / scale) * scale if scale > 0 else row


def hadamard(rows):
    """Heads in the last dimension times the Walsh-Hadamard matrix over its root, in blocks of a power of two."""
    size = rows.shape[-1]
    block = size & -size
    matrix = torch.ones(1, 1)
    while len(matrix) < block:
        matrix = torch.cat([torch.cat([matrix, matrix], dim=1), torch.cat([matrix, -matrix], dim=1)])
    return (rows.reshape(*rows.shape[:-1], -1, block) @ matrix / math.sqrt(block)).reshape(rows.shape)


@dataclass
class KvFormat:
    """A format of the cache."""

    cached: callable  # What it gives back of a row of keys or values.
    rotated: bool = False  # Whether queries and keys are multiplied by a Hadamard matrix.

    def noisy(self, seed):
        """The same, of rows as another order of summation may make them."""
        generator = torch.Generator().manual_seed(seed)
        noise = lambda row: NOISE * row.abs().max() * torch.randn(row.shape, generator=generator)  # noqa: E731
        return KvFormat(lambda row: self.cached(row + noise(row)), self.rotated)


KV_FORMATS = {
    "f32": KvFormat(lambda row: row),
    "f16": KvFormat(lambda row: row.half().float()),
    "bf16": KvFormat(lambda row: row.bfloat16().float()),
    "q4": KvFormat(q4_row, rotated=True),
    "q8": KvFormat(q8_row, rotated=True),
}


@dataclass
class Head:
    """The cache of one KV head of one layer, in order of position."""

    by_score: bool
    budget: tuple
    format: KvFormat
    positions: list = field(default_factory=list)
    keys: list = field(default_factory=list)
    values: list = field(default_factory=list)
    scores: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    gap: float = math.inf  # the closest decision so far

    def scored(self):
        """Whether scores decide what is kept."""
        return self.by_score and self.budget is not None and self.budget[0] > 0

    def attend(self, query):
        """softmax(q K^T) V over what is kept; the weights go into the scores."""
        weights = torch.softmax(torch.stack(self.keys) @ query, dim=0)
        self.scores = self.scores + weights
        return weights @ torch.stack(self.values)

    def append(self, position, key, value):
        """A row of its own; nothing has looked at it yet."""
        self.positions.append(position)
        self.keys.append(key)
        self.values.append(value)
        self.scores = torch.cat([self.scores, torch.zeros(1)])

    def drop(self, positions):
        """Drops rows until the budget holds, with `positions` positions seen so far."""
        if self.budget is None:
            return
        kept, recent = self.budget
        while len(self.positions) > kept + recent:
            outside = [row for row, position in enumerate(self.positions) if position < positions - recent]
            if self.by_score:
                scores = self.scores.tolist()
                victim = min(outside, key=lambda row: (scores[row], self.positions[row]))
                others = [scores[row] - scores[victim] for row in outside if row != victim]
                if others:
                    self.gap = min(self.gap, min(others) / max(1e-3, scores[victim]))
            else:
                victim = outside[-1]
            for rows in (self.positions, self.keys, self.values):
                del rows[victim]
            self.scores = torch.cat([self.scores[:victim], self.scores[victim + 1 :]])


class Opt:
    """The weights of an OPT checkpoint, and one layer after another by hand."""

    def __init__(self, directory):
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self.config = model.config
        self.decoder = model.model.decoder
        self.head = model.lm_head

    def run(self, tokens, first_position, caches):
        """Logits behind the last of `tokens`, which stand at `first_position` and after. caches: [layer][head]."""
        config, decoder = self.config, self.decoder
        hidden = decoder.embed_tokens(torch.tensor(tokens))
        if decoder.project_in is not None:
            hidden = decoder.project_in(hidden)
        places = torch.arange(first_position, first_position + len(tokens)) + 2
        hidden = hidden + decoder.embed_positions.weight[places]
        for layer, heads in zip(decoder.layers, caches):
            before = config.do_layer_norm_before
            attended = self.attend(layer, layer.self_attn_layer_norm(hidden) if before else hidden, first_position, heads)
            hidden = hidden + attended
            if not before:
                hidden = layer.self_attn_layer_norm(hidden)
            inner = layer.final_layer_norm(hidden) if before else hidden
            hidden = hidden + layer.fc2(layer.activation_fn(layer.fc1(inner)))
            if not before:
                hidden = layer.final_layer_norm(hidden)
        last = hidden[-1]
        if decoder.final_layer_norm is not None:
            last = decoder.final_layer_norm(last)
        if decoder.project_out is not None:
            last = decoder.project_out(last)
        return self.head(last)

    def attend(self, layer, rows, first_position, heads):
        """Attention of a prompt (first_position 0) or of one decode step, head by head."""
        attention = layer.self_attn
        size = self.config.hidden_size // self.config.num_attention_heads
        split = lambda x: x.view(len(rows), -1, size)  # noqa: E731
        queries = split(attention.q_proj(rows)) * size**-0.5
        keys, values = split(attention.k_proj(rows)), split(attention.v_proj(rows))
        if heads[0].format.rotated:
            queries, keys = hadamard(queries), hadamard(keys)
        outputs = []
        for index, head in enumerate(heads):
            out, cached = [], head.format.cached
            for row in range(len(rows)):
                # In a prompt, a query sees the positions up to its own: those appended so far, none dropped.
                head.append(first_position + row, cached(keys[row, index]), cached(values[row, index]))
                out.append(head.attend(queries[row, index]))
            head.drop(first_position + len(rows))
            outputs.append(torch.stack(out))
        return attention.out_proj(torch.stack(outputs, dim=1).reshape(len(rows), -1))

    @torch.no_grad()
    def generate(self, prompt, new_tokens, rule, kv_format):
        """Greedy tokens, and the caches after the last step; `gaps` are the closest decisions on the way."""
        budget = rule.budget(len(prompt), new_tokens)
        layers, heads = self.config.num_hidden_layers, self.config.num_attention_heads
        caches = [[Head(rule.kind == "h2o", budget, kv_format) for _ in range(heads)] for _ in range(layers)]
        logits = self.run(prompt, 0, caches)
        tokens, gap = [], math.inf
        while True:
            best = torch.topk(logits, 2).values
            gap = min(gap, float(best[0] - best[1]))
            tokens.append(int(torch.argmax(logits)))
            if len(tokens) == new_tokens:
                score_gap = min(head.gap for layer in caches for head in layer)
                return tokens, caches, gap, score_gap
            logits = self.run([tokens[-1]], len(prompt) + len(tokens) - 1, caches)


def amount(text):
    """A whole number of positions or a ratio below 1."""
    return float(text) if "." in text else int(text)


CASES = [
    ("pre_ln_relu", Rule("h2o", 8, 8)),
    ("pre_ln_relu", Rule("h2o", 0.1, 0.1)),
    ("pre_ln_relu", Rule("h2o", 0.25, 0.2, ratio_of="prompt")),
    ("pre_ln_relu", Rule("window", recent=12, sink=4)),
    ("post_ln_projected", Rule("h2o", 5, 11)),
    ("post_ln_projected", Rule("h2o", 0.05, 0.15)),
    ("galactica_no_bias", Rule("h2o", 17, 16)),
    ("galactica_no_bias", Rule("window", recent=0.2)),
    ("gelu_new_untied", Rule("h2o", 1, 1)),
    ("head_20_f16_sharded", Rule("h2o", 0, 6)),
    ("head_20_f16_sharded", Rule("h2o", 0.2, 0.01)),
    ("head_80_bf16", Rule("h2o", 0.15, 0.05)),
    ("head_80_bf16", Rule("window", recent=0.1, sink=3)),
    ("pre_ln_projected_sharded", Rule("h2o", 30, 2)),
    ("no_final_norm", Rule("h2o", 0.3, 0.3)),
    ("no_final_norm", Rule("h2o", 500, 500)),  # Keeps everything: the full cache
]


def kept(caches):
    """Positions by layer and head, and scores where these decide, as the golden file has them."""

    def rows(head):
        scores = {"scores": [round(score, 5) for score in head.scores.tolist()]} if head.scored() else {}
        return {"positions": head.positions, **scores}

    return [[rows(head) for head in layer] for layer in caches]


def moved(caches, others):
    """The largest difference of two runs' scores, relative to the largest; infinite if they keep other positions."""
    heads = [(head, other) for pair in zip(caches, others) for head, other in zip(*pair)]
    if any(head.positions != other.positions for head, other in heads):
        return math.inf
    most = max(float(head.scores.max()) for head, _ in heads)
    return max(float((head.scores - other.scores).abs().max()) for head, other in heads) / most


def bears_noise(model, prompt, rule, kv_format, tokens, caches):
    """Whether numbers that are rounded to the other side leave the outcome as it is."""
    for seed in range(NOISY_RUNS):
        others = model.generate(prompt, NEW_TOKENS, rule, KV_FORMATS[kv_format].noisy(seed))
        if others[0] != tokens or moved(caches, others[1]) > SCORE_MOVE_MAX[kv_format]:
            return False
    return True


def golden_prompts(model, rule, case, kv_format):
    """Prompts whose every decision is clear: rounding turns neither a token nor a choice of rows."""
    vocabulary = model.config.vocab_size
    for length in PROMPT_TOKENS if kv_format == "f32" else PROMPT_TOKENS_ROUNDED:
        for attempt in range(100):
            generator = torch.Generator().manual_seed(1000 * case + 10 * length + attempt)
            prompt = torch.randint(3, vocabulary, (length,), generator=generator).tolist()
            tokens, caches, gap, score_gap = model.generate(prompt, NEW_TOKENS, rule, KV_FORMATS[kv_format])
            if gap <= GAP_MIN or score_gap <= SCORE_GAP_MIN or len(set(tokens)) <= 5:
                continue
            if kv_format not in SCORE_MOVE_MAX or bears_noise(model, prompt, rule, kv_format, tokens, caches):
                break
        else:
            raise SystemExit(f"case {case}: no prompt of {length} tokens with clear decisions")
        yield {"prompt": prompt, "tokens": tokens, "kept": kept(caches)}


def write_golden(directory, kv_format):
    """Every case, one prompt a line."""
    cases = []
    for index, (variant, rule) in enumerate(CASES):
        about = json.loads((directory / f"{variant}.json").read_text())
        checkpoint = next(iter(about["checkpoints"].values()))
        model = Opt(directory / checkpoint)
        lines = golden_prompts(model, rule, index, kv_format)
        prompts = ",\n".join(json.dumps(prompt, separators=(",", ":")) for prompt in lines)
        head = {"checkpoint": checkpoint, "rule": rule.kind, "heavy": rule.heavy, "recent": rule.recent}
        head.update(sink=rule.sink, ratio_of=rule.ratio_of, new_tokens=NEW_TOKENS)
        cases.append(json.dumps(head)[:-1] + ', "prompts": [\n' + prompts + "\n]}")
        print(f"{index + 1} of {len(CASES)}: {variant}, {rule}", flush=True)
    versions = json.dumps({"transformers": transformers.__version__, "torch": torch.__version__})[:-1]
    name = "h2o.json" if kv_format == "f32" else f"h2o_cache_{kv_format}.json"
    (directory / name).write_text(versions + ', "cases": [\n' + ",\n".join(cases) + "\n]}\n")


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="an OPT checkpoint")
    parser.add_argument("--golden", type=Path, help="write h2o.json or h2o_cache_FORMAT.json here, from the checkpoints")
    parser.add_argument("--kv-format", choices=KV_FORMATS, default="f32", help="of the cache")
    parser.add_argument("--prompt", help="token ids, comma-separated")
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS)
    parser.add_argument("--rule", choices=["full", "h2o", "window"], default="h2o")
    parser.add_argument("--heavy", type=amount, default=0.1)
    parser.add_argument("--recent", type=amount, default=0.1)
    parser.add_argument("--sink", type=int, default=0)
    parser.add_argument("--ratio-of", choices=["prompt", "total"], default="total")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.golden:
        write_golden(options.golden, options.kv_format)
        return
    if not options.model or not options.prompt:
        parser.error("a model and --prompt, or --golden, are needed")
    rule = Rule(options.rule, options.heavy, options.recent, options.sink, options.ratio_of)
    prompt = [int(token) for token in options.prompt.split(",")]
    kv_format = KV_FORMATS[options.kv_format]
    tokens, caches, _, _ = Opt(options.model).generate(prompt, options.new_tokens, rule, kv_format)
    print(json.dumps({"tokens": tokens, "kept": kept(caches)}))


if __name__ == "__main__":
    main()
