"""transformers + accelerate with what does not fit in memory on disk, or with a GPU in host memory: seconds of a prefill and of a few decode steps.

Greedy, one batch of equal prompts, end tokens ignored. A step is a pass over the weights and takes the same time each, so
the caller projects the rest from the measured ones.
"""

import argparse
import json
import math
import time
from pathlib import Path

import accelerate
import torch
import transformers


def parse_arguments():
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--memory-bytes", type=int, required=True, help="of weights in memory; the rest is on disk")
    parser.add_argument("--offload", type=Path, required=True, help="an empty folder for what is on disk")
    parser.add_argument("--gpu-weight-bytes", type=int, default=0, help="of weights on the GPU; 0: the CPU computes")
    parser.add_argument("--gpu-bytes", type=int, default=0, help="cap on all that torch takes on the GPU")
    parser.add_argument("--prompts", type=int, required=True)
    parser.add_argument("--prompt-tokens", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="decode steps to measure")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    return parser.parse_args()


def weights_by_tier(model, device_map):
    """Bytes in memory and on disk, from the map's longest matching prefix of each parameter; tied ones count once."""
    tiers = {"0": 0, "cpu": 0, "disk": 0}
    tied = set(model._tied_weights_keys or ())  # pylint: disable=protected-access
    for name, parameter in model.named_parameters():
        if name in tied:
            continue
        places = [key for key in device_map if key == "" or name == key or name.startswith(key + ".")]
        tiers[str(device_map[max(places, key=len)])] += parameter.numel() * parameter.element_size()
    return tiers


def faster_on_this_cpu(rows=256, size=4096):
    """bfloat16, in which the weights are half the bytes, or float32 where this CPU multiplies that faster."""

    def seconds(dtype):
        inputs, weights = torch.ones(rows, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
        best = math.inf
        for _ in range(4):
            started = time.perf_counter()
            torch.nn.functional.linear(inputs, weights)
            best = min(best, time.perf_counter() - started)
        return best

    return min((torch.bfloat16, torch.float32), key=seconds)


def main():
    """Loads, generates step by step, writes the times."""
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    gpu = options.gpu_weight_bytes > 0
    memory = {"cpu": options.memory_bytes}
    if gpu:
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.gpu_bytes / torch.cuda.mem_get_info()[1]))
        memory[0] = options.gpu_weight_bytes
    dtype = torch.float16 if gpu else faster_on_this_cpu()
    started = time.perf_counter()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.model,
        dtype=dtype,
        device_map="auto",
        max_memory=memory,
        offload_folder=options.offload,
        attn_implementation="sdpa",
    ).eval()
    load_seconds = time.perf_counter() - started
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, model.config.vocab_size - 8, (options.prompts, options.prompt_tokens), generator=generator)
    ids = ids.to("cuda" if gpu else "cpu")
    seconds = []
    cache = None
    mask = torch.ones_like(ids)
    with torch.inference_mode():
        for _ in range(1 + options.steps):
            started = time.perf_counter()
            output = model(
                input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            ids = output.logits[:, -1].argmax(dim=-1, keepdim=True)
            cache = output.past_key_values
            mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
            if gpu:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
    result = {
        "version": f"accelerate {accelerate.__version__}, transformers {transformers.__version__}, "
        f"torch {torch.__version__.split('+')[0]}",
        "dtype": str(dtype).removeprefix("torch."),
        "load_seconds": load_seconds,
        "prefill_seconds": seconds[0],
        "step_seconds": seconds[1:],
        "weights": weights_by_tier(model, model.hf_device_map),
        "gpu_peak_bytes": torch.cuda.max_memory_allocated() if gpu else 0,
    }
    options.result.write_text(json.dumps(result))


main()
