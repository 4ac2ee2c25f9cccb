#!/usr/bin/env python3
"""Log-likelihoods of choices as lm-eval asks for them, by transformers on the demo model, in float32.

    python scripts/oracle/make_lm_eval_golden.py        # configs/demo/heldout.jsonl -> tests/golden/lm_eval.jsonl

Each line is a document of a multiple-choice task: a context, continuations, and for each of these the sum of its
tokens' log-probabilities and whether each token was the likeliest. As lm-eval has it, without a bos token, and the
tokens of a continuation are those by which context and continuation are longer than the context.

Behind some continuations the likeliest next token is the end token: a server that leaves it out of an answer's
log-probabilities shifts all of lm-eval's numbers.
"""

import json
from pathlib import Path

import tokenizers
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS, AT_THE_END = 20, 3


@torch.no_grad()
def main():
    """Write the documents with what transformers says of them."""
    demo = ROOT / "configs/demo"
    tokenizer = tokenizers.Tokenizer.from_file(str(demo / "tokenizer.json"))
    model = transformers.AutoModelForCausalLM.from_pretrained(demo, dtype=torch.float32).eval()
    torch.set_num_threads(1)
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    end = model.config.eos_token_id

    def score(context, continuation):
        ids, begin = encode(context + continuation), len(encode(context))
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
        own = [float(logprobs[at - 1, ids[at]]) for at in range(begin, len(ids))]
        greedy = all(int(logprobs[at - 1].argmax()) == ids[at] for at in range(begin, len(ids)))
        return {"text": continuation, "logprob": sum(own), "greedy": greedy, "tokens": len(own),
                "then_end": int(logprobs[-1].argmax()) == end}

    texts = [json.loads(line)["text"] for line in (demo / "heldout.jsonl").open()]
    words = [text.split() for text in texts if len(text.split()) > 60]

    def document(context, true):
        """`true`, the greedy continuation of two tokens, and words of other texts."""
        ids = encode(context)
        for _ in range(2):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        greedy = tokenizer.decode(ids[len(encode(context)):], skip_special_tokens=False)
        others = [" " + " ".join(other[3:5]) for other in words[:2]]
        choices = [true] + [text for text in [greedy, *others] if text.startswith(" ") and text.strip()]
        return {"context": context, "choices": [score(context, text) for text in choices]}

    documents = [document(" ".join(text[:12 + 2 * at]), " " + " ".join(text[12 + 2 * at:16 + 2 * at]))
                 for at, text in enumerate(words[:DOCUMENTS])]
    ending = []
    for text in texts:
        ids = encode(text)[:400]
        likeliest = model(torch.tensor([ids])).logits[0].argmax(-1)
        for at in range(20, len(ids)):
            context, true = tokenizer.decode(ids[:at - 3]), tokenizer.decode(ids[at - 3:at + 1])
            same = encode(context) == ids[:at - 3] and encode(context + true) == ids[:at + 1]
            if int(likeliest[at]) == end and same and true.startswith(" ") and len(ending) < AT_THE_END:
                ending.append(document(context, true))
    assert len(ending) == AT_THE_END and all(doc["choices"][0]["then_end"] for doc in ending)
    with (ROOT / "tests/golden/lm_eval.jsonl").open("w") as file:
        for one in documents + ending:
            file.write(json.dumps(one, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
