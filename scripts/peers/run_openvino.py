"""OpenVINO GenAI: exported once by optimum-intel, then its continuous-batching pipeline, asked with token ids."""

import subprocess
import sys
from pathlib import Path

import common


def exported(options):
    """Where the exported model lies: the bf16 and f32 rows share one."""
    weights = "int8" if options.format == "int8" else "bf16"
    return options.model.with_name(f"{options.model.name}-openvino-{weights}")


def prepare(options):
    """Exports the checkpoint; the directory gets its name when it is complete."""
    target = exported(options)
    if target.exists():
        return
    partial = target.with_name(target.name + ".partial")
    weights = ["--weight-format", "int8"] if options.format == "int8" else ["--weight-format", "fp16"]
    tool = Path(sys.executable).with_name("optimum-cli")
    subprocess.run(
        [
            tool,
            "export",
            "openvino",
            "--model",
            options.model,
            "--task",
            "text-generation-with-past",
            *weights,
            "--disable-convert-tokenizer",
            partial,
        ],
        check=True,
    )
    partial.rename(target)


def load(options):
    """The pipeline; its cache holds the whole work at once."""
    import numpy
    import openvino
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 8
    scheduler.max_num_batched_tokens = 4096
    scheduler.max_num_seqs = 64
    scheduler.enable_prefix_caching = False
    properties = {
        "INFERENCE_NUM_THREADS": options.threads,
        "PERFORMANCE_HINT": "LATENCY",  # one stream over all threads; THROUGHPUT leaves this pipeline one thread of two
        "INFERENCE_PRECISION_HINT": "f32" if options.format == "f32" else "bf16",
    }
    pipeline = genai.ContinuousBatchingPipeline(str(exported(options)), scheduler, "CPU", properties)

    def generate(prompts, new_tokens):
        rules = genai.GenerationConfig()
        rules.max_new_tokens = rules.min_new_tokens = new_tokens
        rules.ignore_eos = True
        rules.do_sample = False
        tensors = [openvino.Tensor(numpy.array([p], dtype=numpy.int64)) for p in prompts]
        return [r.m_generation_ids[0] for r in pipeline.generate(tensors, [rules] * len(prompts))]

    has_bf16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    activations = "bf16" if has_bf16 and options.format != "f32" else "f32"  # without bf16 the hint gives f32
    weights = "int8" if options.format == "int8" else "16-bit"
    return generate, {"version": genai.__version__.split("-")[0], "computed": f"{weights} weights, {activations}"}


common.run(load, prepare)
