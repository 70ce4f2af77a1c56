#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints every include that goes upward in src/LAYERS.txt, and every breach of these rules:
- only layers/linear asks resolve() what a linear does; recipe/, which defines it, cli/, which prints it
  for people, and plan/, which counts what the trainer will do, may call it too;
- CUDA headers appear only in *_cuda.* files and in backend/cuda/;
- an x_simd.cpp, compiled once for each instruction set, includes no standard header whose inline functions
  the linker could take from the AVX-512 copy (the objects are checked too: tools/check_simd_objects.sh).
"""

import os
import re

from cpp_source import ROOT, blank, files, finish, line_of, read

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
RESOLVE = re.compile(r"(?<![\w.>])resolve\s*\(")
MAY_RESOLVE = re.compile(r"^src/(recipe/|layers/linear[\w]*\.|cli/|plan/)|_test\.cpp$")
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|nccl|cutlass/|cute/|cub/|mma\.h)")
MAY_CUDA = re.compile(r"_cuda(_\w+)?\.(cu|cpp|h)$|^src/backend/cuda/")
TEST_SUPPORT = re.compile(r"^(\.\./)*tests/support/|^[\w]+\.h$")  # shared by tests, or beside one
MAY_SUPPORT = re.compile(r"_test\.(cpp|cu)$|^tests/")
# Headers whose inline functions are not forced inline. <cmath>, <bit>, <cstdint>, <limits> are harmless.
HEAVY = {"vector", "string", "memory", "functional", "map", "unordered_map", "optional", "variant",
         "iostream", "sstream", "thread", "mutex", "algorithm", "numeric", "span", "fmt/format.h", "fmt/core.h"}


def layers():
    """folder -> folders it may include, closed over what those may include."""
    sees = {}
    for line in read("src/LAYERS.txt").splitlines():
        line = line.split("#")[0].strip()
        if line:
            name, _, direct = line.partition(":")
            sees[name.strip()] = set(direct.split())
    for name in sees:  # the file lists lower layers first
        for lower in list(sees[name]):
            sees[name] |= sees[lower]
        sees[name].add(name)
    return sees


def includes(path):
    text = blank(read(path), keep_strings=True)
    return [(m.group(1), m.group(2), line_of(text, m.start())) for m in INCLUDE.finditer(text)]


def check_includes(path, sees, problems):
    layer = path.split("/")[1] if path.startswith("src/") else None
    if layer and layer not in sees:
        problems.append(f"{path}: folder src/{layer} is not in src/LAYERS.txt")
        return
    for kind, target, line in includes(path):
        if CUDA_HEADER.match(target) and not MAY_CUDA.search(path):
            problems.append(f"{path}:{line}: CUDA header {target} outside *_cuda.* and backend/cuda/")
        if kind != '"' or TEST_SUPPORT.match(target) and MAY_SUPPORT.search(path):
            continue
        if not os.path.isfile(os.path.join(ROOT, "src", target)):
            problems.append(f'{path}:{line}: "{target}" is no file under src/ (write the path from src/)')
        elif layer and target.split("/")[0] not in sees[layer]:
            problems.append(f"{path}:{line}: {layer} includes {target}, which is above it in src/LAYERS.txt")


def check_resolve(path, problems):
    if MAY_RESOLVE.search(path):
        return
    text = blank(read(path))
    for m in RESOLVE.finditer(text):
        problems.append(f"{path}:{line_of(text, m.start())}: calls resolve(); only layers/linear may")


def check_simd(path, problems):
    seen, todo = set(), [path]
    while todo:
        current = todo.pop()
        for kind, target, line in includes(current):
            if target in HEAVY:
                problems.append(f"{path}: reaches <{target}> through {current}:{line}, see base/simd.h")
            inner = f"src/{target}"
            if kind == '"' and inner not in seen and os.path.isfile(os.path.join(ROOT, inner)):
                seen.add(inner)
                todo.append(inner)


def main():
    sees, problems = layers(), []
    paths = files(".h", ".cpp", ".cu")
    for path in paths:
        check_includes(path, sees, problems)
        check_resolve(path, problems)
        if path.endswith("_simd.cpp"):
            check_simd(path, problems)
    finish("check_layers", problems, len(paths))


if __name__ == "__main__":
    main()
