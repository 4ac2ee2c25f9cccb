"""transformers: one batch, padded on the left, the prompts' padding masked."""

import common
import torch
import transformers


def load(options):
    """The model in bf16 or f32 with torch's fused attention."""
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[options.format]
    torch.set_num_threads(options.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=dtype, attn_implementation="sdpa"
    ).eval()
    model.generation_config.eos_token_id = None
    pad = model.config.pad_token_id or 0  # Llama has none; what is masked may be any token.

    def generate(prompts, new_tokens):
        width = max(map(len, prompts))
        ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        with torch.inference_mode():
            result = model.generate(
                ids, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False, pad_token_id=pad
            )
        return result[:, width:].tolist()

    return generate, {"version": f"{transformers.__version__}, torch {torch.__version__.split('+')[0]}"}


common.run(load)
