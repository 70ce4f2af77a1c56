#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints host functions over 80 lines and files over 600, unless tools/size_exceptions.txt gives a reason.

A line of that file is `path reason` or `path:function reason`. An entry that excuses nothing is an error too.
Functions are found by their braces, which is exact enough to compare by.
"""

import re

from cpp_source import blank, files, finish, read

MAX_FUNCTION, MAX_FILE = 80, 600
CONTAINER = re.compile(r"\b(namespace|struct|class|union|enum|extern)\b")
BEFORE_BODY = re.compile(
    r"\)\s*(const|noexcept|override|final|mutable|&&?|->\s*[\w:<>,\s*&()]+|requires\s[^;]*)*\s*(:[^;{]*)?$")
NAME = re.compile(r"([~\w]+|operator\s*\S+)\s*\(")


def functions(text):
    """(name, first line, lines) of every outermost function body."""
    text = re.sub(r"^[ \t]*#.*?(?<!\\)$", lambda m: re.sub(r"[^\n]", " ", m.group(0)), blank(text),
                  flags=re.MULTILINE | re.DOTALL)
    stack, line, since, since_line = [], 1, "", 1
    for c in text:
        if c == "\n":
            line += 1
        if c == "{":
            if "function" in [kind for kind, *_ in stack]:
                kind = "inner"
            elif BEFORE_BODY.search(since.strip()) and not re.match(r"\s*(struct|class|enum|union)\b", since):
                kind = "function"
            else:
                kind = "container" if CONTAINER.search(since) else "other"
            stack.append((kind, since.strip(), since_line))
        elif c == "}" and stack:
            kind, head, start = stack.pop()
            if kind == "function":
                names = NAME.findall(head)
                yield (names[0] if names else "?"), start, line - start + 1
        if c in "{};":
            since, since_line = "", line
        else:
            if not since.strip() and not c.isspace():
                since_line = line
            since += c


def exceptions():
    found = {}
    for number, line in enumerate(read("tools/size_exceptions.txt").splitlines(), 1):
        line = line.strip()
        if line and not line.startswith("#"):
            key, _, reason = line.partition(" ")
            found[key] = (number, reason.strip())
    return found


def main():
    allowed, used, problems = exceptions(), set(), []

    def judge(key, what, lines, limit):
        if lines <= limit:
            return
        used.add(key)
        number, reason = allowed.get(key, (0, ""))
        if reason:
            print(f"{what}: {lines} lines, allowed: {reason}")
        else:
            problems.append(f"{what}: {lines} lines, the limit is {limit}; split it, or give a reason in "
                            "tools/size_exceptions.txt")

    paths = files(".h", ".cpp", ".cu")
    for path in paths:
        text = read(path)
        judge(path, path, len(text.splitlines()), MAX_FILE)
        if path.endswith(".cu"):
            continue  # a kernel may be one straight line of work
        for name, start, lines in functions(text):
            judge(f"{path}:{name}", f"{path}:{start}: {name}", lines, MAX_FUNCTION)
    for key, (number, reason) in allowed.items():
        if key not in used:
            problems.append(f"tools/size_exceptions.txt:{number}: {key} needs no exception any more")
    finish("check_sizes", problems, len(paths))


if __name__ == "__main__":
    main()
