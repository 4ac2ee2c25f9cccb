#!/usr/bin/env python3
"""Golden token ids for the byte-level BPE tokenizer, from the `tokenizers` library.

A seeded generator makes varied lines of text (English, code, many scripts, emoji, combining marks, every kind of
white space, control characters, numbers, addresses, contractions, long runs, special tokens written as text). Each
becomes one line of JSON, {"t": text, "i": ids}. The ids are without a bos token, and special tokens in the text stay
text. Characters that an editor could harm are escaped.

    python make_tokenizer_golden.py opt  --vocab DIR   # vocab.json + merges.txt -> tests/golden/tokenizer_opt.jsonl
    python make_tokenizer_golden.py demo --vocab DIR --lines 600   # tokenizer.json -> tests/golden/tokenizer_demo.jsonl
"""

import argparse
import inspect
import json
import random
import re
import unicodedata
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPACES = [
    " ",
    "\t",
    "\n",
    "\r",
    "\v",
    "\f",
    "\x85",
    "\xa0",
    "\u1680",
    *map(chr, range(0x2000, 0x200B)),
    "\u2028",
    "\u2029",
    "\u202f",
    "\u205f",
    "\u3000",
]
NEARLY_SPACES = ["\x1c", "\x1d", "\x1e", "\x1f", "\u180e", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\x00"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"]
SPECIALS = ["</s>", "<s>", "<pad>", "<unk>", "<mask>", "<|endoftext|>", "[INST]", "<0x0A>", "\u2581", "\u0120the", "<s"]
SENTENCES = [
    "Der schnelle braune Fuchs springt über den faulen Hund; Straße, Äpfel, größer.",
    "Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter en canoë au delà des îles.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío; ¿añoraba a su querido cachorro?",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Zażółć gęślą jaźń.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Её ёж.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ὦ ἄνδρες Ἀθηναῖοι",
    "Pijamalı hasta yağız şoföre çabucak güvendi. İSTANBUL ılık",
    "我能吞下玻璃而不伤身体。今天天气很好，我们去公园吧！",
    "私はガラスを食べられます。それは私を傷つけません。ｶﾀｶﾅ　全角ＡＢＣ１２３",
    "나는 유리를 먹을 수 있어요. 그래도 아프지 않아요",
    "أنا قادر على أكل الزجاج و هذا لا يؤلمني. السَّلامُ عَلَيْكُم ١٢٣٤",
    "אני יכול לאכול זכוכית וזה לא מזיק לי. שָׁלוֹם",
    "मैं काँच खा सकता हूँ और मुझे उससे कोई चोट नहीं पहुंचती. १२३ क्षत्रिय",
    "ฉันกินกระจกได้ แต่มันไม่ทำให้ฉันเจ็บ ๑๒๓",
    "Tôi có thể ăn thủy tinh mà không hại gì.",
    "நான் கண்ணாடி சாப்பிடுவேன், அதனால் எனக்கு ஒரு கேடும் வராது.",
    "მინას ვჭამ და არა მტკივა. ՀԱՅԵՐԵՆ հայերեն",
    "ᚠᛇᚻ᛫ᛒᛦᚦ᛫ᚠᚱᚩᚠᚢᚱ",
    "∮ E⋅da = Q, n → ∞, ∑ f(i) = ∏ g(i), ∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β",
    "½ ¼ ² ³ ¹ Ⅷ ⅻ ① ⑳ ㊿ 〇 ፲ ৴",
    "ǅ ǈ ǋ ﬁ ﬂ ß ẞ ı İ ſ K Å Ω",
    "𝒜𝓁𝑔𝑒𝒷𝓇𝒶 𝟘𝟙𝟚 𝔘𝔫𝔦 𐍈𐌰𐌹 𠮷野家 𡨸喃",
    "“Curly” ‘quotes’ — em–dash … • ‣ † ‡ « » ‹ › ‚ „",
    "don’t can’t we’ll I’m they’ve he’d it’s you’re",
]
EMOJI = [
    "😀",
    "🎉",
    "👍🏽",
    "👩‍👩‍👧‍👦",
    "🏳️‍🌈",
    "🇩🇪🇯🇵",
    "1️⃣",
    "❤️",
    "👨🏿‍🚀",
    "🧑‍💻",
    "☕",
    "✈️",
    "🫠",
    "🐈‍⬛",
    "#️⃣",
    "⏱",
]
MARKS = [chr(c) for c in range(0x300, 0x340)] + ["\u20dd", "\ufe0f", "\u0591", "\u064b", "\u093f", "\u0e31"]
RANGES = [
    (0x21, 0x7E),
    (0xA1, 0xFF),
    (0x100, 0x24F),
    (0x370, 0x3FF),
    (0x400, 0x4FF),
    (0x5D0, 0x5EA),
    (0x620, 0x64A),
    (0x905, 0x939),
    (0xE01, 0xE30),
    (0x1200, 0x1248),
    (0x1E00, 0x1EFF),
    (0x2010, 0x2027),
    (0x2070, 0x208E),
    (0x20A0, 0x20BF),
    (0x2100, 0x218B),
    (0x2190, 0x23FF),
    (0x2460, 0x24FF),
    (0x2500, 0x27BF),
    (0x3041, 0x3096),
    (0x30A1, 0x30FA),
    (0x4E00, 0x9FA5),
    (0xAC00, 0xD7A3),
    (0xE000, 0xE0FF),
    (0xFF01, 0xFF5E),
    (0x10330, 0x1034A),
    (0x1D400, 0x1D7FF),
    (0x1F300, 0x1F5FF),
    (0x20000, 0x2A6D6),
]


def source_lines():
    """English and code that every Python carries: its language reference and the sources of some modules."""
    import argparse as a, ast, asyncio.base_events as b, collections, difflib, heapq, json.decoder as d
    import pydoc_data.topics as topics
    import textwrap, typing

    text = [t for _, t in sorted(topics.topics.items())]
    english = [line for t in text for line in t.splitlines() if 20 < len(line) and line.count("*") < 6]
    code = []
    for module in (a, ast, b, collections, difflib, heapq, d, textwrap, typing):
        code += [line for line in inspect.getsource(module).splitlines() if line.strip()]
    return english, code


class Lines:
    """The generator: every method makes one line of its kind; all randomness comes from the seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.english, self.code_lines = source_lines()
        self.words = sorted({w for line in self.english for w in re.findall(r"[A-Za-z]{2,14}", line)})

    def pick(self, things, low, high):
        """Between low and high random things."""
        return [self.random.choice(things) for _ in range(self.random.randint(low, high))]

    def prose(self):
        """A line of English, at times indented, stripped, or joined with the next."""
        at = self.random.randrange(len(self.english) - 1)
        line = self.english[at]
        return self.random.choice([line, line.strip(), line.strip() + "\n" + self.english[at + 1].strip()])

    def code(self):
        """A line or two of Python with its indentation."""
        at = self.random.randrange(len(self.code_lines) - 2)
        return "\n".join(self.code_lines[at : at + self.random.randint(1, 2)])

    def other_code(self):
        """Code of other kinds, with random names."""
        a, b, n = *self.random.sample(self.words, 2), self.random.randint(-99, 9999)
        return self.random.choice(
            [
                f"for (int {a} = 0; {a} < {n}; ++{a}) {{ {b}[{a}] *= 0x{abs(n):04X}u; }}",
                f"std::vector<{a.title()}*>& {b}() const noexcept {{ return this->{a}_->{b}; }} // {n}",
                f'{{"{a}": [{n}, null, true], "{b}": {{"x\\n": "\\u00e9"}}}}',
                f"SELECT {a}, COUNT(*) FROM {b} WHERE id >= {n} GROUP BY 1;",
                f"$ {a} --{b}={n} | grep -E '^[a-z]+$' && exit",
                f"<div class=\"{a}\"><a href='#{b}'>{n}&nbsp;</a></div>",
                f"\\frac{{\\{a}_{{{n}}}}}{{\\sqrt{{{b}^2}}}}",
                f"{a}\t{n}\t{b}\t\t{n}",
                f"#define {a.upper()}(x) (((x) << {abs(n) % 31}) ^ ~{b.upper()})",
                f"if({a}!={b}){{}}",
            ]
        )

    def foreign(self):
        """Part of a sentence in another script, or two glued together."""
        sentence = self.random.choice(SENTENCES)
        start = self.random.randrange(len(sentence))
        part = sentence[start : start + self.random.randint(4, 50)]
        return self.random.choice([sentence, part, part + self.random.choice(SENTENCES)[:20]])

    def random_script(self):
        """Random assigned characters of one or several ranges, with spaces."""
        out = []
        for low, high in self.pick(RANGES, 1, 3):
            for _ in range(self.random.randint(1, 7)):
                c = chr(self.random.randint(low, high))
                out.append(c if unicodedata.category(c) != "Cn" else " ")
                if self.random.random() < 0.15:
                    out.append(" ")
        return "".join(out)

    def emoji(self):
        """Emoji sequences between words."""
        return "".join(self.pick(EMOJI + [" "] * 6 + self.words[:40], 2, 8))

    def marks(self):
        """Letters under combining marks, composed and decomposed."""
        text = "".join(c + "".join(self.pick(MARKS, 0, 2)) for c in self.random.choice(self.words))
        return self.random.choice(
            [text, unicodedata.normalize("NFD", self.random.choice(SENTENCES)[:40]), self.random.choice(MARKS) + text]
        )

    def spaces(self):
        """Words between runs of every kind of white space, also at both ends."""
        kinds = SPACES + [" "] * 12 + ["\n"] * 4 + NEARLY_SPACES
        words = self.pick(self.words + ["7", "!", ".", "é", "世"], 1, 4)
        return "".join("".join(self.pick(kinds, 0, 4)) + w for w in words) + "".join(self.pick(kinds, 0, 3))

    def controls(self):
        """C0 and C1 control characters and DEL between text."""
        kinds = [chr(c) for c in [*range(32), *range(127, 160)]]
        return "".join(self.pick(kinds, 1, 3) + self.pick(self.words, 0, 1) + self.pick(kinds + [" "], 0, 2))

    def numbers(self):
        """Numbers, dates, prices, glued to letters or not."""
        r = self.random
        n = r.choice([r.randint(0, 99), r.randint(0, 10**6), r.randint(0, 10**18)])
        return r.choice(
            [
                str(n),
                f"{n:,}",
                f" {n}",
                f"${n / 100:.2f}",
                f"{n:e}",
                f"0x{n:x}",
                f"{n}th",
                f"v{n % 9}.{n % 7}.0-rc1",
                f"{r.randint(1900, 2099)}-{r.randint(1, 12):02}-{r.randint(1, 31):02}T{n % 24:02}:00:00Z",
                f"+{n % 99} (0) {n % 1000} {n % 10**7}",
                f"{n}%",
                f"3.14159{n}",
                f"{n}²+{n % 7}½",
                f"a{n}b{n}",
            ]
        )

    def address(self):
        """URLs, mail addresses, paths."""
        a, b, c = self.random.sample(self.words, 3)
        n = self.random.randint(0, 9999)
        return self.random.choice(
            [
                f"https://www.{a.lower()}.example/{b}/{c}?q={n}&lang=en#top",
                f"{a}.{b}@{c.lower()}.example",
                f"/usr/lib/{a}/{b}.so.{n}",
                f"C:\\{a}\\{b}\\{c}_{n}.txt",
                f"see http://{a}:{n}/~{b}/%20{c}%C3%A9.",
                f"@{a} #{b} r/{c} $${n}",
                f"192.168.{n % 256}.1:{n}",
            ]
        )

    def contractions(self):
        """English contractions in every case, right and wrong, at the ends and doubled."""
        kinds = (
            CONTRACTIONS
            + [c.upper() for c in CONTRACTIONS]
            + ["'S", "'lL", "'x", "''s", "'", "' s", "'RE", "\u2019s", "'st"]
        )
        return "".join(
            w + self.random.choice(kinds) + self.random.choice([" ", " ", "", "\n"])
            for w in self.pick(self.words, 1, 5)
        )

    def mixed_case(self):
        """camelCase, SNAKE_CASE, rAnDoM case."""
        words = self.pick(self.words, 1, 3)
        return self.random.choice(
            [
                "".join(w.title() for w in words),
                "_".join(words).upper(),
                "-".join(words),
                "".join(self.random.choice([c.lower(), c.upper()]) for c in " ".join(words)),
                "  ".join(words).title(),
            ]
        )

    def punctuation(self):
        """Runs of signs with and without spaces and letters."""
        return "".join(
            self.pick(list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + [" ", " ", "a", "1", "\n", "…", "—", "¡"], 1, 24)
        )

    def specials(self):
        """Special tokens written by a user; they are text."""
        return "".join(self.pick(SPECIALS + [" "] * 3 + self.words[:30], 2, 5))

    def run(self):
        """One thing many times."""
        thing = self.random.choice(
            [
                "a",
                " ",
                "\n",
                "ab",
                "é",
                "世",
                "😀",
                "=",
                "0",
                "\t",
                "-",
                "ha",
                " the",
                "\xa0",
                "aA",
                "'s",
                ". ",
                "\u0301",
            ]
        )
        return self.random.choice(["", "x", " "]) + thing * self.random.choice([2, 3, 5, 9, 17, 33, 64, 65])

    def letters(self):
        """A word that no merge foresaw."""
        return "".join(self.pick(list("abcdefghijklmnopqrstuvwxyzABCXYZ"), 5, 40))

    def make(self, count):
        """`count` distinct lines: some fixed, some very long, the rest of all kinds in turn."""
        lines = [
            "",
            " ",
            "\n",
            "a",
            "\x00",
            " a",
            "a ",
            "  ",
            "'",
            "\u3000",
            "Hey, are you conscious? Can you talk to me?",
            "Today is a beautiful day and I want to",
            *SENTENCES,
            *EMOJI,
            *SPECIALS,
            *SPACES,
            *NEARLY_SPACES,
            *CONTRACTIONS,
            "".join(SPACES),
            "a".join(SPACES),
            "a " + " a".join(SPACES) + " ",
            "".join(NEARLY_SPACES),
            "a" * 1500,
            " " * 1500,
            "\n" * 700,
            "世界" * 250,
            "😀" * 150,
            "ab" * 500,
            "aaaaaaab" * 120,
            "=" * 900,
            "9" * 600,
            "".join(self.random.choice("etaoinshrdlu") for _ in range(2000)),
            "".join(self.pick(MARKS, 200, 200)),
        ]
        kinds = (
            [self.prose] * 5
            + [self.code] * 3
            + [
                self.other_code,
                self.foreign,
                self.foreign,
                self.random_script,
                self.random_script,
                self.emoji,
                self.marks,
                self.spaces,
                self.spaces,
                self.controls,
                self.numbers,
                self.numbers,
                self.address,
                self.contractions,
                self.mixed_case,
                self.punctuation,
                self.specials,
                self.run,
                self.letters,
            ]
        )
        seen = dict.fromkeys(lines)
        while len(seen) < count:
            seen.setdefault(
                kinds[len(seen) % len(kinds)]() if self.random.random() < 0.9 else self.random.choice(kinds)()
            )
        return list(seen)


def escape(text):
    """JSON string with everything invisible or ambiguous as an escape, the rest as itself."""

    def unit(c):
        if c == " " or unicodedata.category(c)[0] not in "CZM":
            return c
        return json.dumps(c)[1:-1]  # pairs of surrogates beyond the first plane

    return "".join(unit(c) if c not in '"\\' else "\\" + c for c in text)


def opt_tokenizer(directory):
    """OPT's tokenizer as transformers converts it: GPT-2's byte-level BPE, no prefix space, no added tokens."""
    merges = (directory / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges = [tuple(m.split(" ")) for m in merges if m and not m.startswith("#version")]
    vocab = json.loads((directory / "vocab.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    known = {
        "Hey, are you conscious? Can you talk to me?": [13368, 6, 32, 47, 13316, 116, 2615, 47, 1067, 7, 162, 116],
        "Today is a beautiful day and I want to": [5625, 16, 10, 2721, 183, 8, 38, 236, 7],
    }
    for text, ids in known.items():
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text
    return tokenizer


def demo_tokenizer(directory):
    """The tokenizer.json of a model, with special tokens in text treated as text."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("opt", "demo"))
    parser.add_argument("--vocab", type=Path, required=True, help="directory of the tokenizer's files")
    parser.add_argument("--lines", type=int, default=5100)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    home = Path(__file__).resolve().parents[2] / "tests" / "golden"
    output = arguments.output or home / f"tokenizer_{arguments.which}.jsonl"
    tokenizer = (opt_tokenizer if arguments.which == "opt" else demo_tokenizer)(arguments.vocab)
    lines = Lines(arguments.seed).make(arguments.lines)
    with output.open("w", encoding="utf-8", newline="\n") as out:
        for text in lines:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            assert tokenizer.decode(ids, skip_special_tokens=False) == text, repr(text)
            record = '{"t":"' + escape(text) + '","i":' + json.dumps(ids, separators=(",", ":")) + "}"
            assert json.loads(record) == {"t": text, "i": ids}
            out.write(record + "\n")
    print(f"{len(lines)} lines, {output.stat().st_size} bytes, tokenizers {tokenizers.__version__}")


if __name__ == "__main__":
    main()
