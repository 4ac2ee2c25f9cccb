#!/usr/bin/env python3
"""Golden files for parity with transformers in float32 of the model families beside OPT.

Makes tiny random checkpoints, one per family and variant of its layers, and records what greedy generation gives, in
the form of make_checkpoints_golden.py. See README.md in this folder.

    python make_families_golden.py --output tests/golden              # all variants
    python make_families_golden.py --output tests/golden --only qwen3
"""

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import make_checkpoints_golden as common
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM


@dataclass
class Variant:
    """One checkpoint: its config, how it is stored, and what sets it apart."""

    name: str
    about: str
    model_type: str
    config: dict
    dtype: torch.dtype = torch.float32
    gain: float = 1.5
    embed_std: float = 0.8
    reach: int = 128  # the most positions of a prompt and its continuation
    edge: int = 0  # a length that no sequence crosses: below it to the end, or above it from the start


def base(**changes):
    """Fields that the families share; about 30k parameters."""
    config = dict(
        vocab_size=160,
        hidden_size=32,
        intermediate_size=56,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=1,
    )
    config.update(changes)
    return config


LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
VARIANTS = [
    Variant("llama3", "as Llama 3.2: grouped heads, llama3 scaling, tied head, several end tokens", "llama",
            base(rope_theta=5000.0, rope_scaling=LLAMA3, tie_word_embeddings=True, eos_token_id=[2, 5])),
    Variant("llama_biases_linear", "every bias, linear scaling, as many KV heads as heads", "llama",
            base(num_key_value_heads=4, attention_bias=True, mlp_bias=True, hidden_act="gelu_new",
                 rope_scaling=dict(rope_type="linear", factor=2.0), max_position_embeddings=64)),
    Variant("llama_yarn_bf16", "YaRN scaling, a head size of its own, bfloat16", "llama",
            base(head_dim=24, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
            dtype=torch.bfloat16),
    Variant("llama_dynamic", "dynamic NTK scaling: sequences grow past the trained positions", "llama",
            base(max_position_embeddings=32, rope_scaling=dict(rope_type="dynamic", factor=4.0))),
    Variant("mistral", "one KV head, a head size of its own, no window", "mistral",
            base(num_key_value_heads=1, head_dim=20, sliding_window=None)),
    Variant("qwen2", "as Qwen2.5: biases of q, k and v alone, tied head, float16", "qwen2",
            base(tie_word_embeddings=True, rope_theta=1e6), dtype=torch.float16),
    Variant("qwen3", "RMSNorm of each query and key head", "qwen3", base(head_dim=16, rope_theta=1e6)),
    Variant("smollm3", "every fourth layer has no positions", "smollm3", base(num_hidden_layers=4, rope_theta=2e6)),
    Variant("granite", "factors of embeddings, attention, residual sums and logits", "granite",
            base(embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.6, logits_scaling=2.0)),
    Variant("phi3_longrope", "q, k, v and gate, up in one tensor each; LongRoPE of three quarters of a head", "phi3",
            base(hidden_size=64, num_attention_heads=4, partial_rotary_factor=0.75,
                 original_max_position_embeddings=64,
                 rope_scaling=dict(type="longrope", short_factor=[1.0, 1.1, 1.2, 1.4, 1.5, 1.7],
                                   long_factor=[1.0, 1.3, 1.9, 2.8, 3.5, 4.0])), edge=64),
    Variant("mistral_window", "as Mistral 0.1: every layer has a sliding window", "mistral", base(sliding_window=8)),
    Variant("qwen2_window", "the later half of the layers has a sliding window", "qwen2",
            base(num_hidden_layers=4, use_sliding_window=True, sliding_window=8, max_window_layers=2)),
    Variant("smollm3_window", "layers without positions have a sliding window", "smollm3",
            base(num_hidden_layers=4, no_rope_layers=[1, 0, 1, 0], use_sliding_window=True, sliding_window=11,
                 tie_word_embeddings=False)),
    Variant("phi3_window", "as Phi-3-mini: a sliding window over more than a tile of keys", "phi3",
            base(hidden_size=64, sliding_window=70)),
    Variant("gpt_neox", "as Pythia: attention and MLP side by side, a quarter of a head is rotated", "gpt_neox",
            base(rotary_pct=0.25, hidden_size=64, num_attention_heads=2, intermediate_size=96)),
    Variant("gpt_neox_serial", "attention, then MLP; whole heads are rotated", "gpt_neox",
            base(rotary_pct=1.0, use_parallel_residual=False)),
]
for neox in VARIANTS[-2:]:
    del neox.config["num_key_value_heads"]


def randomise(model, variant, seed):
    """Fills every parameter from `seed`, wide enough that greedy tokens vary and no term is negligible."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.3 * noise if name.endswith("weight") else 0.2 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.2 * noise)
            elif "embed" in name or name.startswith("lm_head"):
                parameter.copy_(variant.embed_std * noise)
            elif any(part in name for part in ("q_proj", "k_proj", "qkv", "query_key_value")):
                parameter.copy_(2.5 * noise / parameter.shape[1] ** 0.5)  # peaked attention: a wrong row must show
            else:
                parameter.copy_(variant.gain * noise / parameter.shape[1] ** 0.5)


def save(variant, seed, folder):
    """Has transformers save the variant; returns the directory."""
    config = AutoConfig.for_model(variant.model_type, **variant.config)
    model = AutoModelForCausalLM.from_config(config)
    randomise(model, variant, seed)
    model.tie_weights()
    model = model.to(variant.dtype).eval()
    place = folder / common.SAFETENSORS
    model.save_pretrained(place)
    (place / "generation_config.json").unlink(missing_ok=True)
    return place


def greedy(model, ids, new_tokens):
    """Greedy continuation of `ids`: (tokens, logits of every step)."""
    prompt = torch.tensor([ids])
    result = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=new_tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=model.config.pad_token_id,
    )
    return result.sequences[0, len(ids) :].tolist(), torch.stack(result.logits)[:, 0].float()


def room(variant, length):
    """New tokens of a prompt of `length`."""
    most = min(common.NEW_TOKENS, variant.reach - length)
    return min(most, variant.edge - length) if length < variant.edge else most


def make_variant(variant, output, first_seed):
    """Searches the first good seed, then writes the golden file and the checkpoint."""
    for seed in range(first_seed, first_seed + 200):
        with tempfile.TemporaryDirectory() as scratch:
            place = save(variant, seed, Path(scratch))
            runs, why = [], None
            for ids in common.random_prompts(variant.config["vocab_size"], seed):
                if len(ids) == variant.edge:
                    continue
                model = common.load_f32(place)  # anew: dynamic positions remember the longest sequence
                tokens, logits = greedy(model, ids, room(variant, len(ids)))
                why = common.problem_with(tokens, logits)
                if why:
                    break
                runs.append((ids, tokens, logits))
            if why:
                print(f"{variant.name}: seed {seed}: {why}", file=sys.stderr)
                continue
            entries = []
            for i, (ids, tokens, logits) in enumerate(runs):
                model = common.load_f32(place)
                if variant.name != "llama_dynamic":  # its angles depend on the length of each pass
                    common.check_without_cache(model, ids, tokens, logits, 5e-5)
                entries.append(common.record(model, ids, tokens, logits, i in (5, 8)))
            home = output / "checkpoints" / variant.name
            shutil.rmtree(home, ignore_errors=True)
            shutil.copytree(place, home / common.SAFETENSORS)
        head = {
            "variant": variant.name,
            "about": variant.about,
            "seed": seed,
            "stored": str(variant.dtype)[6:],
            "computed": "float32",
            "transformers": transformers.__version__,
            "torch": torch.__version__.split("+")[0],
            "checkpoints": {common.SAFETENSORS: f"checkpoints/{variant.name}/{common.SAFETENSORS}"},
        }
        common.write_golden(output / f"{variant.name}.json", head, entries)
        distinct = [len(set(t)) for _, t, _ in runs]
        size = sum(f.stat().st_size for f in home.rglob("*") if f.is_file())
        print(f"{variant.name}: seed {seed}, distinct tokens {distinct}, {size} bytes kept", flush=True)
        return
    raise SystemExit(f"{variant.name}: no seed gives a clear greedy path")


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parents[2] / "tests" / "golden")
    parser.add_argument("--only", help="one variant")
    parser.add_argument("--seed", type=int, default=1, help="first seed to try")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # one order of summation
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for variant in VARIANTS:
        if arguments.only in (None, variant.name):
            make_variant(variant, arguments.output, arguments.seed)


if __name__ == "__main__":
    main()
