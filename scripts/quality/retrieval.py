"""Retrieval cases: sentences with codes between those of a text, and a question about one of them at the end.

A case is as long as `characters` of the text (four make about a token of English) and holds four sentences of the form
"The access code of Lisbon is 4027.", at depths drawn at random. The answer is read off the text by a model that has
the rows of these digits in its cache, and by none that has not: four digits are not guessed.
"""

import random
import re

CITIES = ["Lisbon", "Oslo", "Cairo", "Lima", "Dublin", "Prague", "Madrid", "Tokyo", "Delhi", "Boston", "Vienna", "Rome",
          "Athens", "Paris", "Berlin", "Sydney"]
NEEDLES = 4
DIGITS = 4


def sentences(text):
    """Sentences of a text of the WikiText kind, its headings left out."""
    lines = [line.strip() for line in text.split("\n") if line.strip() and not line.strip().startswith("=")]
    return [part + " ." for line in lines for part in re.split(r" \. ", line.removesuffix(" .")) if part]


def cases(text, count, characters=6000, seed=0):
    """Dicts of `prompt`, `answer` (digits) and `depth` (share of the text before the needle)."""
    parts, start, found = sentences(text), 0, []
    draw = random.Random(seed)
    for number in range(count):
        end = start
        while end < len(parts) and sum(map(len, parts[start:end])) < characters:
            end += 1
        if end == len(parts):
            raise ValueError(f"the text suffices for {number} cases of {characters} characters, not for {count}")
        hay, start = parts[start:end], end
        codes = {city: "".join(draw.choices("0123456789", k=DIGITS)) for city in draw.sample(CITIES, NEEDLES)}
        places = sorted(draw.sample(range(len(hay)), NEEDLES), reverse=True)
        for (city, code), place in zip(codes.items(), places):
            hay.insert(place, f"The access code of {city} is {code}.")
        asked = draw.choice(list(codes))
        body = " ".join(hay)
        question = f"\n\nQuestion: What is the access code of {asked}?\nAnswer: The access code of {asked} is"
        found.append({"prompt": body + question, "answer": codes[asked],
                      "depth": round(body.index(f"code of {asked} is") / len(body), 3)})
    return found
