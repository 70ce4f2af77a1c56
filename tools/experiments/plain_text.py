#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plain text of unpacked packages, as JSON lines for data.files.

  plain_text.py LIST UNPACKED OUT [--add FILE]... [--held-out SHARE]

UNPACKED/PACKAGE/ is what `dpkg-deb -x` wrote. Takes the files that LIST names, strips markup, drops every paragraph
that an earlier document already had, and writes OUT/train.jsonl and OUT/validation.jsonl ({"id", "text"} a line) and
OUT/texts.tsv (source, documents, bytes, sha256 of its text). A document is held out by a hash of its name, so that
the split does not change when packages are added. FILE is .txt (a document each) or .jsonl with "text".
"""
import argparse
import gzip
import hashlib
import html
import json
import pathlib
import re
import sys

SHORTEST = 400            # characters of a document
LONGEST = 200_000         # a longer one is cut into several at a paragraph
DUPLICATE_FROM = 60       # characters of a paragraph that may not occur twice
LARGEST = 4_200_000       # bytes of a package, so that none outweighs the others; added files are taken whole
BLOCK = re.compile(r"</?(p|div|li|ul|ol|dl|dt|dd|tr|table|h[1-6]|pre|blockquote|section|title|br|hr|item|para|note|"
                   r"steps|body|head|page|screen)\b[^>]*>", re.I)


def from_html(text):
    text = re.sub(r"<!--.*?-->", " ", text, flags=re.S)
    text = re.sub(r"<(script|style|nav|head|footer|svg|math)\b.*?</\1>", " ", text, flags=re.S | re.I)
    body = re.search(r'<(main|article)\b.*?</\1>|<div [^>]*(role="main"|class="body")[^>]*>.*', text, re.S | re.I)
    text = body.group(0) if body else text
    parts = re.split(r"(<pre\b.*?</pre>)", text, flags=re.S | re.I)
    out = []
    for i, part in enumerate(parts):
        if i % 2 == 0:
            part = re.sub(r"\s+", " ", part)
        part = re.sub(r"<(p|h[1-6]|pre|table|title|section|note|screen|page)\b[^>]*>", "\n\n", part, flags=re.I)
        part = BLOCK.sub("\n", part)
        out.append(html.unescape(re.sub(r"<[^>]+>", "", part)))
    return "".join(out)


def from_roff(text):
    if text.startswith(".so "):
        return ""
    out = []
    for line in text.split("\n"):
        if line.startswith(("'\\\"", '.\\"', ".\\}")):
            continue
        macro = re.match(r"[.'] *([A-Za-z]+) ?(.*)", line)
        if macro:
            name, rest = macro.groups()
            if name in ("SH", "SS", "Sh", "Ss"):
                line = "\n" + rest.strip('"') + "\n"
            elif name in ("PP", "P", "LP", "sp", "Pp", "nf", "fi", "EX", "EE", "in", "RS", "RE", "CS", "CE", "PD"):
                line = ""
            elif name in ("TP", "IP"):
                line = "" if name == "TP" else rest.split('"')[0]
            elif name in ("B", "I", "BR", "IR", "RB", "RI", "BI", "IB", "SM", "SB", "AP", "OP", "QW", "PQ"):
                words = re.findall(r'"([^"]*)"|(\S+)', rest)
                line = ("" if name[-1] in "RI" and len(name) == 2 or name in ("RB",) else " ").join(a or b for a, b in words)
            else:
                continue
        out.append(line)
    text = "\n".join(out)
    text = re.sub(r"\\f(\[[^]]*\]|\(..|.)", "", text)
    text = re.sub(r"\\s[-+]?\d", "", text)
    for a, b in (("\\-", "-"), ("\\e", "\\"), ("\\&", ""), ("\\(aq", "'"), ("\\(lq", '"'), ("\\(rq", '"'), ("\\|", ""),
                 ("\\(em", "--"), ("\\(bu", "*"), ("\\ ", " "), ("\\:", ""), ("\\(ga", "`"), ("\\(ha", "^"), ("\\(ti", "~"),
                 ("\\.", "."), ("\\~", " "), ("\\c", ""), ("\\(dq", '"'), ("\\(en", "-"), ("\\%", ""), ("\\^", "")):
        text = text.replace(a, b)
    return re.sub(r"\\(\*?\([^ ]{2}|\*\[[^]]*\])", "", text)


def from_info(text):
    text = re.sub(r"\x1f?\nTag Table:.*", "", text, flags=re.S)
    text = re.sub(r"\n\x1f\n?File: [^\n]*\n", "\n\n", text)
    text = re.sub(r"\* Menu:\n(\n|\*[^\n]*\n|  [^\n]*\n)*", "", text)
    text = re.sub(r"^[*=~.-]{4,}$", "", text, flags=re.M)
    return text.replace("\x1f", "").replace("\x7f", "")


def from_pod(text):
    text = re.sub(r"^=(head\d|item|over|back|cut|pod|encoding|begin|end|for)\b *", "", text, flags=re.M)
    for _ in range(3):
        text = re.sub(r"[BCIFSX]<([^<>]*)>", r"\1", text)
        text = re.sub(r"[BCIF]<< (.*?) >>", r"\1", text)
        text = re.sub(r"L<(?:[^<>|]*\|)?([^<>]*)>", r"\1", text)
    return text.replace("E<lt>", "<").replace("E<gt>", ">")


def read(path):
    raw = path.read_bytes()
    if path.suffix in (".gz", ".dz"):
        raw = gzip.decompress(raw)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def plain(path):
    text, name = read(path), path.name
    if name.endswith((".html", ".page", ".xml")):
        return from_html(text)
    if ".info" in name:
        return from_info(text)
    if "/man/" in str(path):
        return from_roff(text)
    return from_pod(text) if name.endswith(".pod") else text


def tidy(text, seen):
    """Trimmed paragraphs that no earlier document had."""
    text = "".join(c for c in text.replace("\r\n", "\n").replace("\u00a0", " ") if c in "\n\t" or ord(c) >= 32)
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text):
        paragraph = "\n".join(line.rstrip() for line in paragraph.split("\n")).strip("\n")
        if len(paragraph) >= DUPLICATE_FROM:
            key = hashlib.blake2b(re.sub(r"\s+", " ", paragraph).strip().encode(), digest_size=10).digest()
            if key in seen:
                continue
            seen.add(key)
        if paragraph.strip():
            paragraphs.append(paragraph)
    return paragraphs


def documents(paragraphs):
    size, part = 0, []
    for paragraph in paragraphs:
        if part and size + len(paragraph) > LONGEST:
            yield "\n\n".join(part) + "\n"
            size, part = 0, []
        part.append(paragraph)
        size += len(paragraph) + 2
    if size >= SHORTEST:
        yield "\n\n".join(part) + "\n"


def sources(options):
    for line in options.list.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        package, pattern = line.split(None, 1)
        root = options.unpacked / package
        found = [p for p in sorted(root.rglob("*")) if p.is_file() and not p.is_symlink() and
                 re.fullmatch(pattern.strip(), str(p.relative_to(root)))]
        if not found:
            raise SystemExit(f"{package}: no file of the package matches {pattern}")
        yield package, LARGEST, ((f"{package}/{p.relative_to(root)}", plain(p)) for p in found)
    for path in options.add:
        if path.suffix == ".jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
            yield path.name, sys.maxsize, ((f"{path.name}/{d.get('id', i)}", d["text"]) for i, d in enumerate(lines))
        else:
            yield path.name, sys.maxsize, iter([(path.name, path.read_text())])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=pathlib.Path)
    parser.add_argument("unpacked", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--add", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--held-out", type=float, default=0.02)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    seen, total = set(), 0
    with open(options.out / "train.jsonl", "w") as train, open(options.out / "validation.jsonl", "w") as held, \
            open(options.out / "texts.tsv", "w") as table:
        table.write("source\tdocuments\tbytes\tsha256\n")
        for source, largest, found in sources(options):
            count, size, digest = 0, 0, hashlib.sha256()
            for name, text in found:
                if size >= largest:
                    break
                for i, document in enumerate(documents(tidy(text, seen))):
                    if size >= largest:
                        break
                    label = f"{name}#{i}"
                    draw = int.from_bytes(hashlib.sha256(label.encode()).digest()[:6], "big") / 2**48
                    row = json.dumps({"id": label, "text": document}, ensure_ascii=False)
                    (held if draw < options.held_out else train).write(row + "\n")
                    raw = document.encode()
                    digest.update(raw)
                    count, size = count + 1, size + len(raw)
            table.write(f"{source}\t{count}\t{size}\t{digest.hexdigest()}\n")
            total += size
            print(f"{source:<26} {count:>6} documents {size / 1e6:8.2f} MB", flush=True)
    print(f"{'all':<26} {'':>6}           {total / 1e6:8.2f} MB")


if __name__ == "__main__":
    main()
