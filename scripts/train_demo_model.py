#!/usr/bin/env python3
"""Train the demo model in configs/demo: a small OPT on public-domain English.

The text comes out of three Debian packages that this script fetches with
`apt-get download` (nothing is installed, no root needed):

  r-cran-janeaustenr                     the six novels of Jane Austen
  golang-github-klauspost-compress-dev   Tom Sawyer, test data of a compressor
  bible-kjv, bible-kjv-text              King James Bible (the narrative books, Psalms, Proverbs)

Training is boxed by the clock (`--minutes`; on a CPU the time that its threads
computed, so that a busy machine takes longer and does the same work): the learning
rate follows the share of the time that has passed, so a slower machine sees fewer
updates and still ends at a learning rate of zero. Checkpoints are written on the way.

  train     train_demo_model.py --minutes 55 --out configs/demo
  go on     train_demo_model.py --init configs/demo --hide 0.6 --rest 0.1 --short-share 0 --matrix-lr 0.01 --lr 2e-3
            --bfloat16 --minutes 24 --out configs/demo
  measure   train_demo_model.py --evaluate configs/demo
  sample    train_demo_model.py --sample configs/demo

Needs torch, transformers, tokenizers, safetensors and numpy.
"""

import argparse
import json
import math
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import time
import zlib

# On a busy machine a worker that spins for its neighbour costs it the core; OpenMP reads this at load.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AttentionInterface, AutoTokenizer, GenerationConfig, OPTConfig, OPTForCausalLM

CONTEXT = 1024  # positions the model learns
EOS = 2  # `</s>`: begins every prompt and separates documents, as in OPT
SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]  # ids 0 to 3, as in OPT

PACKAGES = ["r-cran-janeaustenr", "golang-github-klauspost-compress-dev", "bible-kjv", "bible-kjv-text"]
NOVELS = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
TOM_SAWYER = "usr/share/gocode/src/github.com/klauspost/compress/testdata/Mark.Twain-Tom.Sawyer.txt"
# A minority share in an older English: the books that tell or sing.
BIBLE_BOOKS = {"Ge", "Exo", "Ruth", "1Sm", "2Sm", "Psa", "Prv", "Eccl", "Mat", "Mark", "Luke", "John", "Acts"}

SAMPLE_PROMPTS = [
    "It is a truth universally acknowledged, that",
    "\"My dear Mr. Bennet,\" said his lady to him one day,",
    "And it came to pass in those days, that",
]


def fetch_packages(work):
    """Download and unpack PACKAGES below `work`; return the folder that plays `/`."""
    root = work / "root"
    if all((root / file).exists() for file in (NOVELS, TOM_SAWYER, "usr/lib/bible.data")):
        return root
    work.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *PACKAGES], cwd=work, check=True)
    for package in sorted(work.glob("*.deb")):
        subprocess.run(["dpkg", "-x", package.name, "root"], cwd=work, check=True)
    return root


def r_strings(data):
    """Read the character vector that leads a serialised R object (XDR form, version 3)."""
    at = 14  # magic "X\n", then three version words

    def word():
        nonlocal at
        at += 4
        return struct.unpack(">i", data[at - 4 : at])[0]

    length = word()  # bytes in the name of the encoding
    at += length
    if word() & 0xFF != 16:
        raise ValueError("the R object is no character vector")
    strings = []
    for _ in range(word()):
        word()  # type and flags of the element
        length = word()  # bytes; -1 means NA
        strings.append(data[at : at + max(length, 0)].decode("utf-8", "replace"))
        at += max(length, 0)
    return strings


def read_novels(path):
    """Return one list of lines per novel from R's lazy-load database.

    The database is a row of records: four bytes of inflated length, then a zlib stream.
    """
    rest, novels = path.read_bytes(), []
    while rest:
        inflate = zlib.decompressobj()
        novels.append(r_strings(inflate.decompress(rest[4:])))
        rest = inflate.unused_data
    return novels


def plain(text):
    """Reduce marks of print (emphasis, curly quotes, odd bytes) to plain ASCII."""
    swaps = {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2014": "--", "_": "", "*": ""}
    text = "".join(swaps.get(char, char) for char in text)
    return re.sub(r"\s+", " ", text.encode("ascii", "ignore").decode()).strip()


def chapters(lines):
    """Split a novel into chapters: each a string with one paragraph per line, headings left out."""
    found, paragraph, chapter = [], [], []
    for line in [*lines, "", "CHAPTER"]:  # the last two flush what is open
        heading = re.match(r"\s*(chapter|volume|preface|conclusion)\b", line, re.I) and len(line) < 40
        if heading and not paragraph:
            found.append("\n".join(chapter))
            chapter = []
        elif line.strip():
            paragraph.append(line)
        elif paragraph:
            chapter.append(plain(" ".join(paragraph)))
            paragraph = []
    ends = re.compile(r"\n(THE END|FINIS|CONCLUSION)\.?$")
    # Short pieces are title pages; the one that names its producer is a note on the edition.
    return [ends.sub("", text) for text in found if len(text) > 1000 and not text.startswith("Produced by")]


def read_bible(root):
    """Return the chapters of BIBLE_BOOKS, a paragraph each, without verse numbers."""
    command = ["usr/bin/bible", "-f", "-d", "bible.data", "-p", "usr/lib", "ge1:1-rev22:21"]
    printed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True, errors="replace").stdout
    found = {}
    for book, chapter, verse in re.findall(r"^(\w+?)(\d+):\d+ (.*)$", printed, re.M):
        if book in BIBLE_BOOKS:
            found.setdefault((book, chapter), []).append(verse)
    return [plain(" ".join(verses)) for verses in found.values()]


def read_corpus(root):
    """Return {source: documents}; a document is one chapter."""
    sawyer = (root / TOM_SAWYER).read_text("utf-8", "replace").splitlines()
    return {
        "austen": [text for novel in read_novels(root / NOVELS) for text in chapters(novel)],
        "twain": chapters(sawyer),
        "bible": read_bible(root),
    }


def split_heldout(corpus, share):
    """Set whole chapters aside, about `share` of each source's bytes; return (train, heldout) lists."""
    train, heldout = [], []
    for source, documents in sorted(corpus.items()):
        order = random.Random(1813).sample(range(len(documents)), len(documents))
        wanted = share * sum(map(len, documents))
        for index in order:
            part = heldout if wanted > 0 else train
            part.append({"source": source, "text": documents[index]})
            wanted -= len(documents[index])
    return train, heldout


def train_tokenizer(documents, vocab_size):
    """Train a byte-level BPE arranged as OPT's: GPT-2 pre-tokenizer, `</s>` put in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()  # all 256 bytes, so that any text can be written
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator((document["text"] for document in documents), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="</s> $A", pair="</s> $A </s> $B", special_tokens=[("</s>", EOS)]
    )
    return tokenizer


def save_tokenizer(tokenizer, out):
    """Write the tokenizer in every form that readers of OPT checkpoints look for."""
    tokenizer.save(str(out / "tokenizer.json"))
    tokenizer.model.save(str(out))  # vocab.json and merges.txt
    special = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    # The class name makes transformers take tokenizer.json, with its `</s>` rule, as it stands.
    config = {**special, "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT,
              "add_bos_token": True, "add_prefix_space": False, "clean_up_tokenization_spaces": False}
    (out / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n")
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def new_model(vocab_size, hidden, layers):
    """Make an untrained OPT with heads of 64, float32."""
    shape = {"hidden_size": hidden, "word_embed_proj_dim": hidden, "num_hidden_layers": layers,
             "num_attention_heads": hidden // 64, "ffn_dim": 4 * hidden}
    kind = {"do_layer_norm_before": True, "activation_function": "relu", "tie_word_embeddings": True,
            "dropout": 0.0, "attention_dropout": 0.0}
    text = {"vocab_size": vocab_size, "max_position_embeddings": CONTEXT,
            "bos_token_id": EOS, "eos_token_id": EOS, "pad_token_id": 1}
    return OPTForCausalLM(OPTConfig(**shape, **kind, **text))


def save_model(model, out):
    """Write `model` to `out` in Hugging Face layout, float16; the running weights stay as they are."""
    state = {name: tensor.detach().to("cpu", torch.float16) for name, tensor in model.state_dict().items()}
    copy = OPTForCausalLM(model.config).to(torch.float16)
    copy.load_state_dict(state)
    copy.generation_config = GenerationConfig(bos_token_id=EOS, eos_token_id=EOS, pad_token_id=1)
    copy.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)  # written for the owner alone otherwise


def repeat_passage(ids, rng):
    """Write a passage of `ids` [length] a second time further on, in place.

    Looking far back for what followed the same words before is learned late from plain text; a few
    windows that repeat themselves teach it early, and the model makes use of all its context.
    """
    size = rng.integers(len(ids) // 8, len(ids) // 2)
    begin = rng.integers(1, len(ids) - 2 * size + 1)
    again = rng.integers(begin + size, len(ids) - size + 1)
    ids[again : again + size] = ids[begin : begin + size].copy()


def windows(stream, starts, length, repeats, rng):
    """Cut `stream` into training windows, one pass over the text, in random order.

    stream: token ids [N]; starts: sorted indices of paragraph beginnings; length: tokens per window;
    repeats: share of windows in which a passage stands twice.
    Yields (ids [length], positions [length]). Every window begins with `</s>` at position 0, as
    prompts do; half begin at a paragraph, the others anywhere. The text of a window shorter than
    the context is moved to a random distance, so that every position is learned from the start.
    """
    cuts = np.arange(rng.integers(length), len(stream) - length, length - 1)
    for cut in rng.permutation(cuts):
        if rng.random() < 0.5:
            cut = min(starts[np.searchsorted(starts, cut) % len(starts)], len(stream) - length)
        ids = np.concatenate([[EOS], stream[cut : cut + length - 1]])
        if rng.random() < repeats:
            repeat_passage(ids, rng)
        shift = 0 if rng.random() < 0.4 else rng.integers(CONTEXT - length + 1)
        positions = np.concatenate([[0], shift + np.arange(1, length)])
        yield ids, positions


def encode_stream(tokenizer, documents, rng):
    """Encode documents in random order; return (ids [N], indices of paragraph beginnings)."""
    newline = tokenizer.encode("\n", add_special_tokens=False).ids[0]
    encoded = tokenizer.encode_batch([document["text"] for document in documents])  # `</s>` leads each
    ids = np.concatenate([encoded[index].ids for index in rng.permutation(len(encoded))])
    return ids, np.flatnonzero((ids == newline) | (ids == EOS)) + 1


def batches(tokenizer, documents, args, progress):
    """Yield (ids [rows, length], positions [rows, length]) without end.

    `progress()` is the share of the time that has passed; it decides when long windows begin.
    """
    rng = np.random.default_rng(args.seed)
    while True:
        stream, starts = encode_stream(tokenizer, documents, rng)
        length = args.short if progress() < args.short_share else CONTEXT
        rows = max(1, args.batch_tokens // length)
        waiting = []
        for window in windows(stream, starts, length, args.repeats, rng):
            waiting.append(window)
            if len(waiting) == rows:
                ids, positions = (torch.from_numpy(np.stack(part)) for part in zip(*waiting))
                waiting = []
                yield ids, positions
                if length < CONTEXT and progress() >= args.short_share:
                    break  # a new pass, with long windows


class SparseAttention:
    """Attention that learns what large models do: to read few positions and to rest on the first.

    A model of this size, trained for an hour, averages over all it has read. In a large one few
    positions matter (Z. Zhang et al., "H2O", 2023, section 3), and heads that look for nothing rest
    on position 0, an attention sink (G. Xiao et al., "Efficient Streaming Language Models with
    Attention Sinks", 2024, section 3). Two things teach it early:
    `hide`, the share of all heads of a window that see position 0, the last 24 to 400 positions and a random
    part, 0 to 50 %, of those between, drawn anew for each update; and `rest`, the weight of a loss
    that is zero for queries that give position 0 half their attention or more.
    """

    QUERIES = 64  # of each head that the loss looks at

    def __init__(self, hide, rest, seed):
        self.hide, self.rest = hide, rest
        self.rng = np.random.default_rng(seed)
        self.masks = None  # [rows, heads, length, length], to be added to the scores
        self.losses = []  # a scalar of each layer
        AttentionInterface.register("sparse", self.attend)

    def draw(self, rows, heads, length, device):
        """Choose what the next update sees; `heads` as many as a layer has."""
        self.losses = []
        self.looked_at = torch.from_numpy(self.rng.choice(length, self.QUERIES, replace=False)).to(device)
        if self.hide == 0:
            return
        recent = np.exp(self.rng.uniform(math.log(24), math.log(400), (rows, heads))).astype(np.int64)
        recent[self.rng.random((rows, heads)) >= self.hide] = length
        kept = self.rng.choice([0.0, 0.05, 0.1, 0.2, 0.5], (rows, heads, 1))
        keep = self.rng.random((rows, heads, length)) < kept
        keep[..., 0] = True
        recent, keep = (torch.from_numpy(part).to(device) for part in (recent, keep))
        position = torch.arange(length, device=device)
        distance = (position[:, None] - position).to(torch.int16)
        seen = (distance < recent[..., None, None]).logical_or_(keep[:, :, None]).logical_and_(distance >= 0)
        self.masks = torch.zeros(seen.shape, dtype=torch.bfloat16, device=device).masked_fill_(~seen, -math.inf)

    def loss(self):
        """What resting too little costs, to be added to the loss of the last call."""
        return self.rest * sum(self.losses) / max(1, len(self.losses))

    def attend(self, module, query, key, value, attention_mask, scaling=None, **_):
        """What transformers calls; query, key, value [rows, heads, length, head]."""
        mask = None
        if self.masks is not None:  # layers differ in who sees what
            mask = self.masks[:, self.rng.permutation(query.size(1))].to(query.dtype)
        if self.rest > 0:
            scores = query[:, :, self.looked_at] @ key.transpose(2, 3) * (scaling or query.size(3) ** -0.5)
            later = torch.arange(key.size(2), device=key.device) > self.looked_at[:, None]
            scores = scores.float().masked_fill(later, -math.inf)
            self.losses.append((-math.log(2) - scores.log_softmax(-1)[..., 0]).relu().mean())
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling)
        return mixed.transpose(1, 2).contiguous(), None


def learning_rate(step, done, args):
    """The share of the peak: up over `args.warmup` updates, then a cosine over the time `done` to zero."""
    return min(1.0, (step + 1) / args.warmup) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal: fewer updates than AdamW on little text.

    K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024: five steps of a
    Newton-Schulz iteration with the coefficients given there. torch.optim.Muon computes them in
    bfloat16, which processors without such instructions do 50 times slower; this one does as told.
    """

    def __init__(self, matrices, lr, momentum=0.95, weight_decay=0.1, dtype=torch.float32):
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for matrix in group["params"]:
                average = self.state[matrix].setdefault("average", torch.zeros_like(matrix))
                average.lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonal(matrix.grad.lerp(average, group["momentum"]), self.dtype)
                scale = max(1.0, matrix.size(0) / matrix.size(1)) ** 0.5
                matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"] * scale)


def orthogonal(matrix, dtype):
    """Bring all singular values of `matrix` near one (0.7 to 1.2), computing in `dtype`."""
    x = (matrix / (matrix.norm() + 1e-7)).to(dtype)
    if matrix.size(0) > matrix.size(1):
        x = x.T
    for _ in range(5):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return (x.T if matrix.size(0) > matrix.size(1) else x).to(matrix.dtype)


def make_optimizers(model, args):
    """Muon for the matrices of the layers, AdamW for embeddings, norms and biases."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        (others if parameter.dim() < 2 or "embed" in name else matrices).append(parameter)
    dtype = torch.bfloat16 if args.bfloat16 else torch.float32
    return [Muon(matrices, lr=args.matrix_lr, weight_decay=args.weight_decay, dtype=dtype),
            torch.optim.AdamW(others, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True)]


def loss_of(model, ids, positions, device, bfloat16=False):
    """Mean negative log-likelihood (nats) of each token after the first; ids [rows, length]."""
    with torch.autocast(device, dtype=torch.bfloat16, enabled=bfloat16):
        logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def train(args):
    """Fetch, split, train for `args.minutes` and leave the finished model in `args.out`."""
    args.out.mkdir(parents=True, exist_ok=True)
    documents, heldout = split_heldout(read_corpus(fetch_packages(args.work)), args.heldout)
    heldout_text = "".join(json.dumps(document) + "\n" for document in heldout)
    if args.init and (args.init / "heldout.jsonl").read_text() != heldout_text:
        raise SystemExit(f"{args.init}/heldout.jsonl is not what --heldout {args.heldout} sets aside of these texts: the "
                         "model has seen some of it, or would now")
    (args.out / "heldout.jsonl").write_text(heldout_text)
    sparse = SparseAttention(args.hide, args.rest, args.seed)
    if args.init:
        tokenizer = Tokenizer.from_file(str(args.init / "tokenizer.json"))
        model = OPTForCausalLM.from_pretrained(args.init, dtype=torch.float32)
    else:
        tokenizer = train_tokenizer(documents, args.vocab)
        model = new_model(args.vocab, args.hidden, args.layers)
    model.set_attn_implementation("sparse")
    model.to(args.device).train()
    save_tokenizer(tokenizer, args.out)
    optimizers = make_optimizers(model, args)
    peaks = [args.matrix_lr, args.lr]
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(documents)} documents, "
          f"{sum(len(document['text']) for document in documents):,} bytes", flush=True)

    def clock():
        return time.monotonic() if args.device == "cuda" else time.process_time() / args.threads

    begin, saved = clock(), time.monotonic()
    tokens, recent = 0, []  # losses since the last line of the log

    def progress():
        return (clock() - begin) / (60 * args.minutes)

    for step, (ids, positions) in enumerate(batches(tokenizer, documents, args, progress)):
        if progress() >= 1:
            break
        for optimizer, peak in zip(optimizers, peaks):
            for group in optimizer.param_groups:
                group["lr"] = peak * learning_rate(step, progress(), args)
        sparse.draw(len(ids), model.config.num_attention_heads, ids.size(1), args.device)
        loss = loss_of(model, ids.to(args.device), positions.to(args.device), args.device, args.bfloat16)
        (loss + sparse.loss()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        tokens += ids.numel()
        recent.append(loss.item())
        if step % 50 == 0:
            print(f"{progress() * args.minutes:6.1f} min  step {step:6d}  {tokens / 1e6:7.2f} M tokens  "
                  f"loss {sum(recent) / len(recent):.3f}", flush=True)
            recent = []
        if time.monotonic() - saved > 60 * args.checkpoint_minutes:
            save_model(model, args.out)
            saved = time.monotonic()
    save_model(model, args.out)
    print(f"done: {step} updates, {tokens / 1e6:.2f} M tokens; model in {args.out}", flush=True)


def heldout_windows(tokenizer, text):
    """Cut one document into windows of CONTEXT ids, each led by `</s>`, without overlap."""
    ids = tokenizer.encode(text)[1:]
    return [[EOS, *ids[at : at + CONTEXT - 1]] for at in range(0, len(ids), CONTEXT - 1)]


@torch.no_grad()
def evaluate(folder, device):
    """Print held-out perplexity per token and bits per byte, by source and in all (float32)."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = OPTForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    sums = {}
    for line in (folder / "heldout.jsonl").read_text().splitlines():
        document = json.loads(line)
        for ids in heldout_windows(tokenizer, document["text"]):
            row = torch.tensor([ids], device=device)
            nats = loss_of(model, row, None, "cpu").item() * (len(ids) - 1)
            size = len(tokenizer.decode(ids[1:]).encode())
            for key in (document["source"], "all"):
                sums[key] = [a + b for a, b in zip(sums.get(key, [0, 0, 0]), [nats, len(ids) - 1, size])]
    for source, (nats, tokens, size) in sorted(sums.items()):
        print(f"{source:8s} {tokens:6d} tokens {size:7d} bytes  "
              f"perplexity {math.exp(nats / tokens):6.2f}  bits per byte {nats / math.log(2) / size:.3f}")


@torch.no_grad()
def sample(folder, device, seed):
    """Print a greedy and a sampled continuation of each of SAMPLE_PROMPTS."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = OPTForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    for prompt in SAMPLE_PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False).to(device)
        for title, how in (("greedy", {}), ("sampled", {"do_sample": True, "temperature": 0.8, "top_k": 40})):
            torch.manual_seed(seed)
            made = model.generate(**ids, max_new_tokens=64, **how)
            print(f"--- {title}: {tokenizer.decode(made[0], skip_special_tokens=True)}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--evaluate", type=pathlib.Path, metavar="DIR", help="measure held-out perplexity of the model in DIR")
    add("--sample", type=pathlib.Path, metavar="DIR", help="print continuations by the model in DIR")
    add("--out", type=pathlib.Path, default="configs/demo", help="where the model goes (%(default)s)")
    add("--work", type=pathlib.Path, default="build/demo-model", help="where packages are unpacked (%(default)s)")
    add("--minutes", type=float, default=55, help="time for the training loop (%(default)s)")
    add("--checkpoint-minutes", type=float, default=5, help="time between checkpoints (%(default)s)")
    add("--init", type=pathlib.Path, metavar="DIR", help="go on with the model in DIR and its tokenizer")
    add("--hide", type=float, default=0.0, help="share of heads that positions are hidden from (%(default)s)")
    add("--rest", type=float, default=0.0, help="weight of the loss for not resting on position 0 (%(default)s)")
    add("--device", choices=["cpu", "cuda"], default="cpu", help="cuda computes in bfloat16 (%(default)s)")
    add("--bfloat16", action="store_true", help="compute in bfloat16 on a CPU, too: fast where it has AVX-512-BF16")
    add("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    add("--vocab", type=int, default=4096, help="entries of the tokenizer (%(default)s)")
    add("--hidden", type=int, default=256, help="width, a multiple of 64 (%(default)s)")
    add("--layers", type=int, default=5, help="decoder layers (%(default)s)")
    add("--lr", type=float, default=3e-3, help="peak learning rate of AdamW (%(default)s)")
    add("--matrix-lr", type=float, default=0.02, help="peak learning rate of Muon (%(default)s)")
    add("--warmup", type=int, default=100, help="updates of warm-up (%(default)s)")
    add("--weight-decay", type=float, default=0.1, help="decay of the layers' matrices (%(default)s)")
    add("--batch-tokens", type=int, default=2048, help="tokens per update (%(default)s)")
    add("--short", type=int, default=256, help="window of the first phase, tokens (%(default)s)")
    add("--short-share", type=float, default=0.65, help="share of the time on short windows (%(default)s)")
    add("--repeats", type=float, default=0.1, help="share of windows with a passage twice (%(default)s)")
    add("--heldout", type=float, default=0.02, help="share of the text never trained on (%(default)s)")
    add("--seed", type=int, default=1, help="seed of weights, order and samples (%(default)s)")
    args = parser.parse_args()
    args.bfloat16 = args.bfloat16 or args.device == "cuda"
    return args


def main():
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    if args.evaluate:
        evaluate(args.evaluate, args.device)
    elif args.sample:
        sample(args.sample, args.device, args.seed)
    else:
        train(args)


if __name__ == "__main__":
    sys.exit(main())
