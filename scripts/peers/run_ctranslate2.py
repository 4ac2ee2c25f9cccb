"""CTranslate2: converted once, then one batch, computed in float32 or int8."""

import common
import ctranslate2


def converted(options):
    """Where the converted model lies."""
    return options.model.with_name(f"{options.model.name}-ctranslate2-{options.format}")


def prepare(options):
    """Converts the checkpoint; needs transformers."""
    if converted(options).exists():
        return
    from ctranslate2.converters import TransformersConverter
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(options.model.with_name(options.model.name + "-tokenizer"))
    stored = {"int8": "int8", "f32": "bfloat16"}[options.format]  # bfloat16 is what the checkpoint has: exact
    converter = TransformersConverter(str(options.model), low_cpu_mem_usage=True)
    converter.load_tokenizer = lambda *_, **__: tokenizer  # the checkpoint has none
    converter.convert(str(converted(options)), quantization=stored)


def load(options):
    """The generator; eos is ignored by asking for exactly the wanted length."""
    compute = {"int8": "int8", "f32": "float32"}[options.format]
    generator = ctranslate2.Generator(
        str(converted(options)), device="cpu", compute_type=compute, inter_threads=1, intra_threads=options.threads
    )

    def generate(prompts, new_tokens):
        results = generator.generate_batch(
            [[f"t{i}" for i in prompt] for prompt in prompts],
            max_length=new_tokens,
            min_length=new_tokens,
            beam_size=1,
            sampling_topk=1,
            include_prompt_in_result=False,
        )
        return [r.sequences_ids[0] for r in results]

    return generate, {"version": ctranslate2.__version__, "computed": generator.compute_type}


common.run(load, prepare)
