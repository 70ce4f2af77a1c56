#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints marks of unfinished work, skipped tests, absolute paths of one machine, files without a licence line,
files over 3 MB, and source keys such as [TE], in comments and in strings that a user reads, that docs/SOURCES.md
does not explain."""

import os
import re

from cpp_source import ROOT, comments_and_strings, files, finish, read

# Written so that this file does not find itself.
UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|XX[X]|HA[C]K|not [i]mplemented|un[i]mplemented|GTEST_[S]KIP)\b|\bDISABLED[_]")
MACHINE_PATH = re.compile(r"(?<![\w.])/(work|root|home|farm|tmp)/[\w.]")
MAY_NAME_TMP = re.compile(r"_test\.cpp$|^tests/")
SOURCE_KEY = re.compile(r"\[([A-Z][A-Z0-9]*(?:-[A-Z0-9]+)*)\]")
CODE = (".h", ".cpp", ".cu")
TEXT = CODE + (".py", ".sh", ".cmake", ".txt", ".toml", ".md", ".json", ".yaml")
OURS = ("src", "tests", "bench", "tools", "docs", "configs", "cmake", "CMakeLists.txt", "CMakePresets.json",
        "Makefile", ".ci", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
MAX_BYTES = 3_000_000
LARGE = {"tests/golden/nvfp4_te.safetensors"}  # the bytes that quantisers and GEMMs are held to, every tensor used


def source_keys():
    return set(re.findall(r"^\*\*\[([A-Z0-9-]+)\]\*\*", read("docs/SOURCES.md"), flags=re.MULTILINE))


def check_lines(path, text, problems):
    for number, line in enumerate(text.splitlines(), 1):
        if not path.endswith(".md") and UNFINISHED.search(line):
            problems.append(f"{path}:{number}: mark of unfinished work or a skipped test: {line.strip()[:80]}")
        found = MACHINE_PATH.search(line)
        if found and not (found.group(1) == "tmp" and MAY_NAME_TMP.search(path)):
            problems.append(f"{path}:{number}: absolute path of one machine: {line.strip()[:80]}")


def main():
    problems, keys = [], source_keys()
    paths = [p for p in files(*TEXT, under=OURS) if "/golden/" not in p]
    for path in paths:
        text = read(path)
        check_lines(path, text, problems)
        if path.endswith(CODE + (".py", ".sh")) and "SPDX-License-Identifier: Apache-2.0" not in text[:200]:
            problems.append(f"{path}: the first lines lack 'SPDX-License-Identifier: Apache-2.0'")
        if path.endswith(CODE):
            for key in sorted(set(SOURCE_KEY.findall(comments_and_strings(text))) - keys):
                if len(key) > 1:
                    problems.append(f"{path}: source key [{key}] is not in docs/SOURCES.md")
    everything = files("", under=(".",))
    for path in everything:
        size = os.path.getsize(os.path.join(ROOT, path))
        if size > MAX_BYTES and path not in LARGE:
            problems.append(f"{path}: {size} bytes; is it needed in the tree?")
    finish("check_words", problems, len(everything))


if __name__ == "__main__":
    main()
