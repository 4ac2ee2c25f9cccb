"""llama.cpp through llama-cpp-python's bindings of its C API: all sequences in one context, ragged prompts, greedy.

What llama-server does with as many slots as prompts: prompts go in batches of 2048 tokens, then every sequence's next
token in one batch a step.
"""

import subprocess
import sys
from pathlib import Path

import common

BATCH = 2048
FTYPES = {"q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0", "q4_0": "LLAMA_FTYPE_MOSTLY_Q4_0"}


def converted(options, kind):
    """Where the checkpoint lies as GGUF: bf16, or quantised."""
    return options.model.with_name(f"{options.model.name}-{kind}.gguf")


def prepare(options):
    """Writes the GGUF files; each gets its name when it is complete."""
    import llama_cpp

    plain = converted(options, "bf16")
    if not plain.exists():
        partial = plain.with_suffix(".partial")
        make = Path(__file__).with_name("make_gguf.py")
        subprocess.run([sys.executable, make, options.model, partial], check=True)
        partial.rename(plain)
    target = converted(options, options.format)
    if target.exists():
        return
    partial = target.with_suffix(".partial")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, FTYPES[options.format])
    params.nthread = options.threads
    if llama_cpp.llama_model_quantize(str(plain).encode(), str(partial).encode(), params) != 0:
        raise RuntimeError(f"Error: llama.cpp could not quantise {plain}")
    partial.rename(target)


def load(options):
    """The model and a context with room for all sequences."""
    import json

    import llama_cpp
    import numpy

    work = json.loads(options.prompts.read_text())
    sequences = max(len(work[name]) for name in ("warm_up", "prefill", "measured"))
    longest = max(len(p) + work["new_tokens"] for name in ("warm_up", "prefill", "measured") for p in work[name])
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        str(converted(options, options.format)).encode(), llama_cpp.llama_model_default_params()
    )
    params = llama_cpp.llama_context_default_params()
    params.n_seq_max = sequences
    params.n_ctx = sequences * ((longest + 255) // 256 * 256)
    params.n_batch, params.n_ubatch = BATCH, 512
    params.n_threads = params.n_threads_batch = options.threads
    params.kv_unified = False  # Else every sequence's attention goes through the cells of all.
    context = llama_cpp.llama_init_from_model(model, params)
    if not model or not context:
        raise RuntimeError("Error: llama.cpp could not load the model")
    batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def decode(entries):
        """entries: (token, position, sequence, whether its logits are wanted); yields (sequence, its next token)."""
        for i, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        batch.n_tokens = len(entries)
        if llama_cpp.llama_decode(context, batch) != 0:
            raise RuntimeError("Error: llama_decode failed")
        for i, (_, _, sequence, wanted) in enumerate(entries):
            if wanted:
                logits = llama_cpp.llama_get_logits_ith(context, i)
                yield sequence, int(numpy.ctypeslib.as_array(logits, (vocabulary,)).argmax())

    def generate(prompts, new_tokens):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        outputs = [[] for _ in prompts]
        waiting = [
            (token, position, sequence, position + 1 == len(prompt))
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        for first in range(0, len(waiting), BATCH):
            for sequence, token in decode(waiting[first : first + BATCH]):
                outputs[sequence].append(token)
        for step in range(new_tokens - 1):
            entries = [(outputs[s][-1], len(p) + step, s, True) for s, p in enumerate(prompts)]
            for sequence, token in decode(entries):
                outputs[sequence].append(token)
        return outputs

    return generate, {"version": llama_cpp.__version__, "computed": options.format}


common.run(load, prepare)
