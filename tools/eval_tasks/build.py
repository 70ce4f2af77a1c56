#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes data/tasks and data/recall: evaluation sets from the held-out novel (data/austen/persuasion.txt) and from
WordNet 3.0 as Debian's wordnet-base has it. The same input gives the same bytes.

    build.py --wordnet usr/share/wordnet [--out data]

Debian: apt-get install wordnet-base. Elsewhere, from the package: dpkg -x wordnet-base_*.deb . The format of the files:
docs/howto/evaluate.md. Beside each set lies the same task for lm-eval-harness, in lm_eval/.
"""

import argparse
import json
import os
import random
import re

from lm_eval_yaml import yaml_of

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
# Usage and topics that an evaluation set can do without.
UNFIT = re.compile(r"obscen|vulgar|slang|offensive|disparag|derogat|slur|sexual|genital|copulat|prostitut|excre|"
                   r"ethnic|racial|nazi|drug|murder|suicide|faeces|urin|intercourse|whore|slave|breast|\bsex\b", re.IGNORECASE)


class Choice:
    """Drawing that no version of Python changes: random.random() alone is guaranteed to stay."""

    def __init__(self, name):
        self.rng = random.Random(f"nibble evaluation set {name}")

    def below(self, n):
        return int(self.rng.random() * n)

    def one(self, items):
        return items[self.below(len(items))]

    def some(self, items, count):
        items = list(items)
        for i in range(min(count, len(items))):
            j = i + self.below(len(items) - i)
            items[i], items[j] = items[j], items[i]
        return items[:count]

    def question(self, query, right, wrong):
        choices = self.some([right] + wrong, 1 + len(wrong))
        return {"query": query, "choices": choices, "gold": choices.index(right)}


# ---- The novel ----

def chapters(path):
    text = open(path, encoding="ascii").read()
    parts = re.split(r"\n\s*Chapter \d+\s*\n", text)[1:]
    return [[re.sub(r"\s+", " ", p).strip() for p in re.split(r"\n\s*\n", part) if p.strip()] for part in parts]


def sentences(paragraph):
    """Cut after a full stop, unless it ends a title or stands inside quotation marks."""
    guarded = re.sub(r"\b(Mr|Mrs|Dr|St|Esq|Capt|Hon)\.", r"\1<dot>", paragraph)
    return [s.replace("<dot>", ".") for s in re.split(r"(?<=[.!?])\s+(?=[A-Z])", guarded)]


def words_of(text):
    return re.findall(r"[A-Za-z]+", text)


def passages(novel, least, most):
    """(words that stand before, sentence) for sentences with `least` to `most` words of their chapter before them."""
    for chapter in novel:
        stream = [s for paragraph in chapter for s in sentences(paragraph)]
        for i, sentence in enumerate(stream):
            before, count = [], 0
            for earlier in reversed(stream[:i]):
                count += len(earlier.split())
                if count > most:
                    break
                before.insert(0, earlier)
            if sum(len(s.split()) for s in before) >= least:
                yield " ".join(before), sentence


def austen_lambada(novel, count):
    choice, found = Choice("lambada"), []
    for before, sentence in passages(novel, 40, 110):
        m = re.fullmatch(r"(.{15,}) ([A-Za-z]{4,})[.!?]\"?", sentence)
        # As in LAMBADA the word can be found from the passage: it stands in it once more.
        if m and re.search(rf"\b{m[2]}\b", before, re.IGNORECASE):
            found.append({"context": f"{before} {m[1]}", "word": m[2]})
    return choice.some(found, count)


def cloze(novel, name, count, is_candidate, options=5):
    choice, found = Choice(name), []
    for before, sentence in passages(novel, 60, 110):
        there = sorted({w for w in words_of(before) if is_candidate(w)})
        spots = [m for m in re.finditer(r"[A-Za-z]+", sentence)
                 if m[0] in there and m.start() > 15 and len(sentence) - m.end() < 150]
        if len(there) < options or not spots:
            continue
        spot = choice.one(spots)
        wrong = choice.some([w for w in there if w.lower() != spot[0].lower()], options - 1)
        rest = sentence[spot.end():]
        if len(wrong) == options - 1:
            found.append(choice.question(f"{before} {sentence[:spot.start()].rstrip()}", spot[0] + rest,
                                         [w + rest for w in wrong]))
    return choice.some(found, count)


IRREGULAR = {"gone": "went", "seen": "saw", "taken": "took", "given": "gave", "known": "knew", "done": "did",
             "written": "wrote", "spoken": "spoke", "fallen": "fell", "begun": "began", "grown": "grew",
             "forgotten": "forgot", "chosen": "chose", "drawn": "drew", "shown": "showed", "broken": "broke"}


def agreement(sentence):
    """(kind, wrong sentence) by rules that break one thing."""
    def swap(kind, pattern, put):
        m = re.search(pattern, sentence)
        if m:
            yield kind, sentence[:m.start()] + put(m) + sentence[m.end():]
    yield from swap("article", r"\b(an?) (?=[a-z])", lambda m: ("a " if m[1] == "an" else "an "))
    yield from swap("number", r"\b(he|she|it) (was|has|is) ",
                    lambda m: f"{m[1]} {dict(was='were', has='have', **{'is': 'are'})[m[2]]} ")
    yield from swap("number", r"\b(they|we) (were|have|are) ",
                    lambda m: f"{m[1]} {dict(were='was', have='has', are='is')[m[2]]} ")
    yield from swap("pronoun", r"\b(to|with|for|from|of) (him|them|me)\b",
                    lambda m: f"{m[1]} {dict(him='he', them='they', me='I')[m[2]]}")
    yield from swap("participle", rf"\b(had|have|has|been) ({'|'.join(IRREGULAR)})\b",
                    lambda m: f"{m[1]} {IRREGULAR[m[2]]}")
    yield from swap("order", r" (the|her|his|their) ([a-z]{4,})\b(?=[ ,.;])", lambda m: f" {m[2]} {m[1]}")


def agree_pairs(novel, count):
    choice, by_kind = Choice("pairs"), {}
    for chapter in novel:
        for sentence in (s for paragraph in chapter for s in sentences(paragraph)):
            if not 6 <= len(sentence.split()) <= 25 or '"' in sentence:
                continue
            for kind, wrong in agreement(sentence):
                by_kind.setdefault(kind, []).append({"good": sentence, "bad": wrong, "rule": kind})
    each = count // len(by_kind)
    pairs = [pair for kind in sorted(by_kind) for pair in choice.some(by_kind[kind], each)]
    return choice.some(pairs, len(pairs))  # in no order, so that a limit keeps some of each


def text_pieces(novel, count):
    pieces = []
    for chapter in novel:
        piece = ""
        for paragraph in chapter:
            piece += paragraph + "\n\n"
            if len(piece) > 1500:
                pieces.append({"text": piece.strip()})
                piece = ""
    step = len(pieces) / count
    return [pieces[int(i * step)] for i in range(count)]


# ---- WordNet ----

class WordNet:
    def __init__(self, folder):
        self.counts, self.parts = {}, {}
        for line in open(os.path.join(folder, "cntlist.rev"), encoding="ascii"):
            key, _, count = line.split()
            lemma, _, rest = key.partition("%")
            if rest.startswith("1:"):
                self.counts[lemma] = self.counts.get(lemma, 0) + int(count)
        for part in ("noun", "verb", "adj", "adv"):
            for line in open(os.path.join(folder, f"index.{part}"), encoding="ascii"):
                if not line.startswith(" "):
                    self.parts.setdefault(line.split(" ", 1)[0], set()).add(part)
        self.synsets = {}
        for line in open(os.path.join(folder, "data.noun"), encoding="ascii"):
            if line.startswith(" "):
                continue
            data, _, gloss = line.partition(" | ")
            fields = data.split()
            lemmas = [fields[4 + 2 * i] for i in range(int(fields[3], 16))]
            rest = fields[4 + 2 * len(lemmas):]
            pointers = [(rest[1 + 4 * i], rest[2 + 4 * i]) for i in range(int(rest[0]))]
            self.synsets[fields[0]] = (lemmas, pointers, gloss.split(";")[0].split('"')[0].strip())

    def count(self, lemma):
        return self.counts.get(lemma.lower(), 0)

    def usable(self, offset):
        """The synset's own words: common, of one word, and fit to print."""
        lemmas, pointers, gloss = self.synsets[offset]
        if any(p == ";u" for p, _ in pointers) or UNFIT.search(gloss) or UNFIT.search(" ".join(lemmas)):
            return None
        word = lemmas[0]
        return word if re.fullmatch(r"[a-z]{3,}", word) and self.count(word) >= 5 else None

    def nouns(self):
        for offset in sorted(self.synsets):
            word = self.usable(offset)
            if word:
                yield offset, word

    def ancestors(self, offset):
        seen, todo = set(), [offset]
        while todo:
            for pointer, target in self.synsets[todo.pop()][1]:
                if pointer in ("@", "@i") and target not in seen and target in self.synsets:
                    seen.add(target)
                    todo.append(target)
        return seen

    def only_noun(self, word):
        return self.parts.get(word) == {"noun"}


def wn_gloss(wn, count):
    choice = Choice("gloss")
    rows = [(word, wn.synsets[offset][2]) for offset, word in wn.nouns()]
    first = {}
    for word, gloss in rows:  # a word's first sense alone would be better known, but any definition tells words apart
        if 20 <= len(gloss) <= 100 and not re.search(rf"\b{word}", gloss):
            first.setdefault(word, gloss)
    ranked = sorted(first, key=lambda w: (wn.count(w), w))
    out = []
    for word in choice.some(sorted(first), count):
        at = ranked.index(word)
        near = [w for w in ranked[max(0, at - 40):at + 41] if w != word]
        out.append(choice.question(f"Definition: {first[word]}.\nWord:", word, choice.some(near, 3)))
    return out


def isa_facts(wn):
    facts = {}
    for offset, word in wn.nouns():
        for pointer, target in wn.synsets[offset][1]:
            parent = wn.usable(target) if pointer == "@" else None
            if parent and parent not in word:
                facts.setdefault(word, (parent, offset))
    return facts


def article(word):
    return "An" if word[0] in "aeiou" else "A"


def isa_question(wn, choice, facts, parents, word):
    parent, offset = facts[word]
    above = {wn.synsets[a][0][0] for a in wn.ancestors(offset)}
    wrong = [p for p in choice.some(parents, 40) if p != parent and p not in above and p != word]
    return choice.question(f"{article(word)} {word} is a kind of", parent, wrong[:3])


def wn_isa(wn, facts, count):
    choice, parents = Choice("isa"), sorted({p for p, _ in facts.values()})
    return [isa_question(wn, choice, facts, parents, w) for w in choice.some(sorted(facts), count)]


# ---- Made up ----

def induction(pool, count, length):
    """A list of words said twice: which one comes next the second time?"""
    choice, out = Choice("induction"), []
    for _ in range(count):
        row = choice.some(pool, length)
        at = 1 + choice.below(length - 2)
        wrong = choice.some([w for i, w in enumerate(row) if i != at], 3)
        out.append(choice.question(" ".join(row + row[:at]), row[at], wrong))
    return out


def copying(pool, count):
    choice, out = Choice("copy"), []
    while len(out) < count:
        row = choice.some(pool, 4)
        orders = [choice.some(row, 4) for _ in range(12)]
        wrong = sorted({" ".join(o) for o in orders if o != row})
        if len(wrong) >= 3:
            out.append(choice.question(f"say: {' '.join(row)}\nsaid:", " ".join(row), choice.some(wrong, 3)))
    return out


def modular_sums(count):
    choice, out = Choice("modadd"), []
    pairs = choice.some([(a, b) for a in range(10) for b in range(10)], count)
    for a, b in pairs:
        right = (a + b) % 10
        wrong = choice.some([d for d in range(10) if d != right], 3)
        out.append(choice.question(f"{a} + {b} mod 10 =", str(right), [str(d) for d in wrong]))
    return out


CAPITALS = """Alabama Montgomery;Alaska Juneau;Arizona Phoenix;Arkansas Little_Rock;California Sacramento;Colorado Denver;
Connecticut Hartford;Delaware Dover;Florida Tallahassee;Georgia Atlanta;Hawaii Honolulu;Idaho Boise;Illinois Springfield;
Indiana Indianapolis;Iowa Des_Moines;Kansas Topeka;Kentucky Frankfort;Louisiana Baton_Rouge;Maine Augusta;
Maryland Annapolis;Massachusetts Boston;Michigan Lansing;Minnesota Saint_Paul;Mississippi Jackson;Missouri Jefferson_City;
Montana Helena;Nebraska Lincoln;Nevada Carson_City;New_Hampshire Concord;New_Jersey Trenton;New_Mexico Santa_Fe;
New_York Albany;North_Carolina Raleigh;North_Dakota Bismarck;Ohio Columbus;Oklahoma Oklahoma_City;Oregon Salem;
Pennsylvania Harrisburg;Rhode_Island Providence;South_Carolina Columbia;South_Dakota Pierre;Tennessee Nashville;
Texas Austin;Utah Salt_Lake_City;Vermont Montpelier;Virginia Richmond;Washington Olympia;West_Virginia Charleston;
Wisconsin Madison;Wyoming Cheyenne"""
COUNTRIES = "France Paris;Italy Rome;Japan Tokyo;Egypt Cairo;Norway Oslo;Peru Lima"


def capitals(text, name):
    rows = [r.strip().replace("_", " ", 0).split() for r in text.replace("\n", "").split(";")]
    rows = [(state.replace("_", " "), city.replace("_", " ")) for state, city in rows]
    choice, cities = Choice(name), sorted(c for _, c in rows)
    return [choice.question(f"The capital of {state} is", city, choice.some([c for c in cities if c != city], 3))
            for state, city in rows]


def recall(wn, facts, each):
    """Facts to be trained on 1, 4 and 16 times, the text with them, and a question for each."""
    choice, parents = Choice("recall"), sorted({p for p, _ in facts.values()})
    chosen = choice.some(sorted(facts), 3 * each)
    lines, sets = [], {}
    for i, times in enumerate((1, 4, 16)):
        group = chosen[i * each:(i + 1) * each]
        lines += [f"{article(w)} {w} is a kind of {facts[w][0]}.\n" for w in group] * times
        sets[times] = [isa_question(wn, choice, facts, parents, w) for w in group]
    return "".join(choice.some(lines, len(lines))), sets


# ---- Files ----

class Folder:
    def __init__(self, out, name):
        self.relative, self.path, self.tasks = f"data/{name}", os.path.join(out, name), []
        os.makedirs(os.path.join(self.path, "lm_eval"), exist_ok=True)

    def put(self, file, text):
        with open(os.path.join(self.path, file), "w", encoding="ascii") as f:
            f.write(text)

    def rows(self, file, rows):
        self.put(file, "".join(json.dumps(r) + "\n" for r in rows))

    def task(self, name, kind, rows=None, **more):
        if rows is not None:
            self.rows(more.get("file", f"{name}.jsonl"), rows)
        self.tasks.append({"task": name, "kind": kind, **more})
        self.put(f"lm_eval/{name}.yaml", yaml_of(self.tasks[-1], self.relative))

    def close(self):
        self.rows("tasks.jsonl", self.tasks)


def write_tasks(out, novel, wn, facts):
    names = {w for p in novel for s in p for w in re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b", s)}
    names -= {"Mrs", "Miss", "Sir", "Lady", "Captain", "Admiral", "The", "She", "But", "And", "You", "Lord"}
    folder = Folder(out, "tasks")
    folder.task("persuasion_text", "text", text_pieces(novel, 40))
    folder.task("austen_lambada", "last_word", austen_lambada(novel, 500))
    folder.task("austen_names", "multiple_choice", cloze(novel, "names", 250, lambda w: w in names))
    folder.task("austen_nouns", "multiple_choice", cloze(
        novel, "nouns", 250, lambda w: len(w) > 3 and wn.only_noun(w) and wn.count(w) > 0))
    folder.task("agree_pairs", "minimal_pairs", agree_pairs(novel, 600))
    folder.task("wn_gloss", "multiple_choice", wn_gloss(wn, 500))
    folder.task("wn_isa", "multiple_choice", wn_isa(wn, facts, 500))
    pool = sorted(w for w in facts if len(w) <= 6 and wn.count(w) >= 10)
    folder.task("induction", "multiple_choice", induction(pool, 200, 10))
    for name, rows in (("copy", copying(pool, 106)), ("modadd", modular_sums(100))):
        folder.rows(f"{name}_shots.jsonl", rows[:6])
        folder.rows(f"{name}.jsonl", rows[6:])
        folder.task(f"{name}_0", "multiple_choice", file=f"{name}.jsonl")
        for shots in (2, 5):
            folder.task(f"{name}_{shots}", "multiple_choice", file=f"{name}.jsonl", shots=shots,
                        shots_file=f"{name}_shots.jsonl")
    folder.rows("us_capitals_shots.jsonl", capitals(COUNTRIES, "countries"))
    folder.task("us_capitals", "multiple_choice", capitals(CAPITALS, "capitals"), shots=2,
                shots_file="us_capitals_shots.jsonl")
    folder.close()


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--wordnet", default="/usr/share/wordnet")
    ap.add_argument("--out", default=os.path.join(ROOT, "data"))
    args = ap.parse_args()
    novel = chapters(os.path.join(ROOT, "data", "austen", "persuasion.txt"))
    wn = WordNet(args.wordnet)
    facts = isa_facts(wn)
    write_tasks(args.out, novel, wn, facts)
    folder = Folder(args.out, "recall")
    text, sets = recall(wn, facts, 150)
    folder.put("facts.txt", text)
    for times, rows in sets.items():
        folder.task(f"recall_{times}", "multiple_choice", rows)
    folder.close()


if __name__ == "__main__":
    main()
