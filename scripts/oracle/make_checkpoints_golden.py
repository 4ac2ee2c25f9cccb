#!/usr/bin/env python3
"""Golden files for end-to-end parity with transformers in float32.

Makes tiny random OPT checkpoints, one per configuration variant, has transformers save each as
safetensors and as PyTorch .bin (some sharded, some in half precision), loads them back in float32 and
records what greedy generation gives: token ids, logits, logprobs. See README.md in this folder.

    python make_checkpoints_golden.py --output tests/golden              # all variants
    python make_checkpoints_golden.py --output tests/golden --demo DIR   # only demo.json, from a trained model
"""

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, OPTConfig, OPTForCausalLM
from transformers.modeling_utils import no_init_weights

NEW_TOKENS = 64
GAP_MIN = 1e-3  # smallest allowed distance of the two best logits at any greedy step
DISTINCT_MIN = 8  # a continuation of 64 tokens must not be one token over and over
PROMPT_TOKENS = (1, 2, 3, 5, 8, 13, 17, 32, 47, 64, 90)
SAFETENSORS, BIN = "safetensors", "bin"


@dataclass
class Variant:
    """One checkpoint: what its config says, how it is stored, which formats are kept in the tree."""

    name: str
    about: str
    config: dict
    kept: tuple
    dtype: torch.dtype = torch.float32
    max_shard_size: str = "1GB"
    gain: float = 1.5  # standard deviation of linear weights times sqrt(inputs)
    embed_std: float = 0.4


def base_config(**changes):
    """An OPT config of about 25k parameters; `changes` are what a variant is about."""
    config = dict(
        vocab_size=256,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=64,
        max_position_embeddings=128,
        dropout=0.0,
        activation_function="relu",
        do_layer_norm_before=True,
    )
    config.update(changes)
    return config


VARIANTS = [
    Variant(
        "pre_ln_relu",
        "as opt-125m: norms before, relu, tied head",
        base_config(vocab_size=128, ffn_dim=48),
        (SAFETENSORS, BIN),
    ),
    Variant(
        "post_ln_projected",
        "as opt-350m: norms after, embeddings narrower than the hidden size, no last norm",
        base_config(
            do_layer_norm_before=False, word_embed_proj_dim=24, num_hidden_layers=3, ffn_dim=48, num_attention_heads=4
        ),
        (BIN,),
    ),
    Variant(
        "galactica_no_bias",
        "as Galactica: no biases, norms without weights, gelu (erf)",
        base_config(
            enable_bias=False,
            layer_norm_elementwise_affine=False,
            activation_function="gelu",
            ffn_dim=96,
            vocab_size=200,
            bos_token_id=0,
        ),
        (SAFETENSORS,),
    ),
    Variant(
        "gelu_new_untied",
        "gelu_new (tanh) and a head of its own",
        base_config(activation_function="gelu_new", tie_word_embeddings=False, vocab_size=200),
        (BIN,),
    ),
    Variant(
        "no_final_norm",
        "_remove_final_layer_norm: pre-LN without the last norm",
        base_config(_remove_final_layer_norm=True, num_attention_heads=1, vocab_size=160),
        (SAFETENSORS,),
        gain=0.9,
    ),
    Variant(
        "head_20_f16_sharded",
        "head size 20, float16, several shards",
        base_config(hidden_size=60, num_attention_heads=3, ffn_dim=96, vocab_size=203),
        (SAFETENSORS, BIN),
        dtype=torch.float16,
        max_shard_size="45KB",
    ),
    Variant(
        "head_80_bf16",
        "one head of size 80, bfloat16",
        base_config(hidden_size=80, num_attention_heads=1, ffn_dim=40, vocab_size=100),
        (SAFETENSORS, BIN),
        dtype=torch.bfloat16,
    ),
    Variant(
        "pre_ln_projected_sharded",
        "norms before with projections and a last norm, untied, gelu, several shards",
        base_config(
            word_embed_proj_dim=16,
            tie_word_embeddings=False,
            activation_function="gelu",
            num_attention_heads=4,
            ffn_dim=56,
            vocab_size=251,
        ),
        (SAFETENSORS, BIN),
        max_shard_size="40KB",
    ),
]


def randomise(model, variant, seed):
    """Fills every parameter from `seed`, wide enough that greedy tokens vary and no term is negligible."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "layer_norm" in name:
                parameter.copy_(1 + 0.3 * noise if name.endswith("weight") else 0.2 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.2 * noise)
            elif "embed_positions" in name:
                parameter.copy_(0.8 * noise)  # strong, or a random model repeats one token for ever
            elif "embed_" in name or name.startswith("lm_head"):
                parameter.copy_(variant.embed_std * noise)
            elif "q_proj" in name or "k_proj" in name:  # peaked attention: a wrong row must show
                parameter.copy_(2.5 * noise / parameter.shape[1] ** 0.5)
            else:
                parameter.copy_(variant.gain * noise / parameter.shape[1] ** 0.5)


def save_both(variant, seed, folder):
    """Has transformers save the variant in both formats below `folder`; returns {format: directory}."""
    config = OPTConfig(**variant.config)
    with no_init_weights():  # transformers 4.57 cannot initialise norms without weights (enough for us: we fill all)
        model = OPTForCausalLM(config)
    randomise(model, variant, seed)
    model.tie_weights()
    model = model.to(variant.dtype).eval()
    places = {}
    for kind in (SAFETENSORS, BIN):
        places[kind] = folder / kind
        model.save_pretrained(
            places[kind], safe_serialization=kind == SAFETENSORS, max_shard_size=variant.max_shard_size
        )
        (places[kind] / "generation_config.json").unlink(missing_ok=True)
    return places


def load_f32(directory):
    """The model of `directory`, computed in float32 on the CPU whatever it is stored in."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    model.generation_config.eos_token_id = None  # ignore-eos: always the full number of tokens
    return model.eval()


def greedy(model, ids):
    """Greedy continuation of `ids`: (tokens, logits of every step), as many as the positions allow up to 64."""
    room = model.config.max_position_embeddings - len(ids)
    prompt = torch.tensor([ids])
    result = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=min(NEW_TOKENS, room),
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=model.config.pad_token_id,
    )
    return result.sequences[0, len(ids) :].tolist(), torch.stack(result.logits)[:, 0].float()


def problem_with(tokens, logits):
    """Why this continuation is no good golden, or None."""
    best = logits.topk(2).values
    gap = (best[:, 0] - best[:, 1]).min().item()
    if gap <= GAP_MIN:
        return f"top-2 gap {gap:.2g}"
    if len(set(tokens)) < min(DISTINCT_MIN, len(tokens)):
        return f"only {len(set(tokens))} distinct tokens"
    return None


def number(value):
    """A float with the 9 significant digits that identify a float32."""
    return float(f"{value:.9g}")


def logits_record(row):
    """A selection of one row of logits: the first 16 ids and the 8 largest."""
    top = row.topk(8)
    return {
        "first": [number(v) for v in row[:16].tolist()],
        "top_ids": top.indices.tolist(),
        "top": [number(v) for v in top.values.tolist()],
    }


def prompt_logprobs(model, ids):
    """Logprob of each prompt token given the tokens before it; null for the first."""
    with torch.no_grad():
        logprobs = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0].float(), dim=-1)
    return [None] + [number(logprobs[i - 1, token].item()) for i, token in enumerate(ids) if i > 0]


def record(model, ids, tokens, logits, with_prompt_logprobs):
    """The golden entry of one prompt."""
    logprobs = torch.log_softmax(logits, dim=-1)
    entry = {
        "prompt": ids,
        "tokens": tokens,
        "logits_prompt": logits_record(logits[0]),
        "logits_last": logits_record(logits[-1]),
        "logprobs": [number(logprobs[i, token].item()) for i, token in enumerate(tokens)],
        "top_logprobs": [],
    }
    for step in sorted({0, len(tokens) // 2, len(tokens) - 1}):
        top = logprobs[step].topk(5)
        entry["top_logprobs"].append(
            {"step": step, "ids": top.indices.tolist(), "logprobs": [number(v) for v in top.values.tolist()]}
        )
    if with_prompt_logprobs:
        entry["prompt_logprobs"] = prompt_logprobs(model, ids)
    return entry


def check_without_cache(model, ids, tokens, logits, error_max=2e-5):
    """The same logits must come from one pass without a KV cache (to rounding)."""
    with torch.no_grad():
        full = model(input_ids=torch.tensor([ids + tokens[:-1]]), use_cache=False).logits[0, len(ids) - 1 :]
    error = (full - logits).abs().max() / logits.abs().max()
    if error > error_max:
        raise SystemExit(f"cached and uncached logits differ by {error:.2g}")


def random_prompts(vocab_size, seed):
    """Distinct prompts of PROMPT_TOKENS lengths. Pad (1) and eos (2) occur inside: to a model they are ids."""
    generator = torch.Generator().manual_seed(1000 + seed)
    prompts = [torch.randint(3, vocab_size, (n,), generator=generator).tolist() for n in PROMPT_TOKENS]
    for ids in prompts[1::2]:
        ids[0] = 2
    prompts[4][3], prompts[6][5], prompts[6][6], prompts[8][20] = 1, 1, 2, vocab_size - 1
    return prompts


def write_golden(path, head, entries):
    """Writes {head..., "prompts": [...]} with one prompt a line, so that diffs and people can read it."""
    lines = ",\n".join(json.dumps(e, separators=(",", ":"), ensure_ascii=False) for e in entries)
    text = json.dumps(head, indent=1, ensure_ascii=False)[:-2] + ',\n "prompts": [\n' + lines + "\n]}\n"
    json.loads(text)
    path.write_text(text, encoding="utf-8")


def make_variant(variant, output, first_seed):
    """Searches the first good seed, then writes the golden file and the kept checkpoints."""
    for seed in range(first_seed, first_seed + 200):
        with tempfile.TemporaryDirectory() as scratch:
            places = save_both(variant, seed, Path(scratch))
            model = load_f32(places[SAFETENSORS])
            runs, why = [], None
            for ids in random_prompts(model.config.vocab_size, seed):
                tokens, logits = greedy(model, ids)
                why = problem_with(tokens, logits)
                if why:
                    break
                runs.append((ids, tokens, logits))
            if why:
                print(f"{variant.name}: seed {seed}: {why}", file=sys.stderr)
                continue
            twin = load_f32(places[BIN]).state_dict()
            for name, tensor in model.state_dict().items():
                assert torch.equal(tensor, twin[name]), name
            entries = []
            for i, (ids, tokens, logits) in enumerate(runs):
                check_without_cache(model, ids, tokens, logits)
                entries.append(record(model, ids, tokens, logits, i in (5, 9)))
            kept = {}
            home = output / "checkpoints" / variant.name
            shutil.rmtree(home, ignore_errors=True)
            for kind in variant.kept:
                shutil.copytree(places[kind], home / kind)
                kept[kind] = f"checkpoints/{variant.name}/{kind}"
        head = {
            "variant": variant.name,
            "about": variant.about,
            "seed": seed,
            "stored": str(variant.dtype)[6:],
            "computed": "float32",
            "transformers": transformers.__version__,
            "torch": torch.__version__.split("+")[0],
            "checkpoints": kept,
        }
        write_golden(output / f"{variant.name}.json", head, entries)
        distinct = [len(set(t)) for _, t, _ in runs]
        size = sum(f.stat().st_size for f in home.rglob("*") if f.is_file())
        print(f"{variant.name}: seed {seed}, distinct tokens {distinct}, {size} bytes kept")
        return
    raise SystemExit(f"{variant.name}: no seed gives a clear greedy path")


DEMO_PROMPTS = [
    "The",
    "Once upon a time",
    "It was",
    '"I do not know," said',
    "In the beginning of the year, the old man",
    "She looked out of the window and saw",
    "There was no one in the house except the dog, who",
    "The sea was calm, and the wind had fallen. The captain stood on the deck and",
    "My dear sir,\n\nI have the honour to inform you that",
    "He had never in his life seen so strange a thing. It was as large as a house, and yet it moved without a sound; "
    "and when it turned towards him he felt",
    "Chapter I\n\n",
    "What is the matter? asked the king.",
    "1. The first of these",
    "Alas! poor fellow, he",
    "When the sun had risen above the hills and the mist had left the valley, the two brothers took up their bundles, "
    "said good-bye to the miller and his wife, and set out upon the road to the city. They walked all that day "
    "without meeting a living soul. Towards evening they came to a bridge, and under the bridge there sat an old "
    'woman who was washing linen in the stream. "Good evening, mother," said the elder. "Is it far to the city?"',
    "the quick brown fox jumps over the lazy dog",
    "Caf\u00e9 na\u00efve \u2014 \u2018quoted\u2019",
    "    x = 1\n    y =",
]
DEMO_PROMPTS.append(DEMO_PROMPTS[14] * 5 + ' "It is')  # several hundred tokens


def make_demo(directory, output, texts):
    """demo.json: text prompts through the demo model's own tokenizer; prompts with unclear steps are left out."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    model = load_f32(directory)
    bos = model.config.bos_token_id
    entries = []
    for text in texts:
        ids = [bos] + tokenizer.encode(text, add_special_tokens=False).ids
        tokens, logits = greedy(model, ids)
        best = logits.topk(2).values
        gap = (best[:, 0] - best[:, 1]).min().item()
        if gap <= GAP_MIN:
            print(f"demo: left out {text[:40]!r}: top-2 gap {gap:.2g}", file=sys.stderr)
            continue
        check_without_cache(model, ids, tokens, logits)
        entry = {"text": text, **record(model, ids, tokens, logits, len(entries) in (3, 8))}
        entry["completion"] = tokenizer.decode(tokens, skip_special_tokens=False)
        entries.append(entry)
    if len(entries) < 8:
        raise SystemExit(f"demo: only {len(entries)} prompts left")
    head = {
        "variant": "demo",
        "about": "the bundled demo model; prompts begin with the bos id",
        "stored": "as bundled",
        "computed": "float32",
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
    }
    write_golden(output / "demo.json", head, entries)
    print(f"demo: {len(entries)} prompts")


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parents[2] / "tests" / "golden")
    parser.add_argument("--only", help="one variant")
    parser.add_argument("--seed", type=int, default=1, help="first seed to try")
    parser.add_argument("--demo", type=Path, help="write only demo.json, from this model directory")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # one order of summation
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.demo:
        make_demo(arguments.demo, arguments.output, DEMO_PROMPTS)
        return
    for variant in VARIANTS:
        if arguments.only in (None, variant.name):
            make_variant(variant, arguments.output, arguments.seed)


if __name__ == "__main__":
    main()
