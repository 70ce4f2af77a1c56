#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clang-tidy on the .cpp files of the tree.

  tools/tidy.py all                every file
  tools/tidy.py changed [SECONDS]  files that differ from origin/main (or, on main itself, from ten commits ago),
                                   newest first and without the slow clang-analyzer checks; stops at the time given
                                   and names what it did not reach

Tests are read without the clang-analyzer checks too: GoogleTest's macros are most of what the analyzer would walk
through, and tests run under the sanitizers.

A file that was clean is not looked at again while nothing it reads has changed: the preprocessed text, comments
included, the checks and the tool's version make a key, kept in ~/.cache/nibble-tidy (NIBBLE_TIDY_CACHE moves it).
A file in which clang finds nothing but what it cannot parse (clang 14: structured bindings in a lambda, gcc's shuffles) is
named and is no failure: the compiler that builds it has read it.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "tidy"
CACHE = pathlib.Path(os.environ.get("NIBBLE_TIDY_CACHE", pathlib.Path.home() / ".cache" / "nibble-tidy"))


def output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def git_ok(*arguments):
    r = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return r.stdout.strip() if r.returncode == 0 else ""


def changed_files():
    base = git_ok("merge-base", "HEAD", "origin/main")
    if not base or base == git_ok("rev-parse", "HEAD"):
        base = git_ok("rev-parse", "--verify", "-q", "HEAD~10") or git_ok("rev-list", "--max-parents=0", "HEAD").split()[-1]
    listed = output("git", "diff", "--name-only", base, "--", "src/*.cpp", "tests/*.cpp")
    return listed + output("git", "ls-files", "-o", "--exclude-standard", "--", "src/*.cpp", "tests/*.cpp")


def preprocess_commands():
    """How clang reads each file, comments kept because NOLINT is one."""
    commands = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        kept = [w for i, w in enumerate(words[1:], 1) if w not in ("-c", "-o") and words[i - 1] != "-o"]
        name = str(pathlib.Path(entry["file"]).relative_to(ROOT))
        commands.setdefault(name, (["clang++", "-E", "-C", *kept], entry["directory"]))
    return commands


class Tidy:
    def __init__(self, analyzes, budget):
        self.analyzes, self.end = analyzes, time.monotonic() + budget
        self.commands = preprocess_commands()
        self.fixed = output("clang-tidy", "--version") + (ROOT / ".clang-tidy").read_text()
        CACHE.mkdir(parents=True, exist_ok=True)

    def checks(self, name):
        return "" if self.analyzes and not name.endswith("_test.cpp") else "-clang-analyzer-*"

    def key(self, name):
        command, directory = self.commands[name]
        text = subprocess.run(command, cwd=directory, capture_output=True).stdout
        if not text:
            return None
        fixed = (self.fixed + self.checks(name)).encode()
        return hashlib.sha256(fixed + text.replace(str(ROOT).encode(), b"")).hexdigest()

    def look(self, name):
        """"clean", "unreached", "unreadable", or what was found."""
        left = self.end - time.monotonic()
        if left <= 0:
            return "unreached"
        if name not in self.commands:
            return f"{name}: no compile command\n"
        key = self.key(name)
        if key and (CACHE / key).exists():
            return "clean"
        command = ["clang-tidy", "--quiet", "-p", str(BUILD), f"--checks={self.checks(name)}", name]
        try:
            r = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=left)
        except subprocess.TimeoutExpired:
            return "unreached"
        found = re.findall(r"\[([\w.,-]+)\]$", r.stdout, flags=re.MULTILINE)
        if found and all(name == "clang-diagnostic-error" for name in found):
            return "unreadable"
        if r.returncode != 0 or r.stdout.strip():
            return r.stdout + r.stderr
        if key:
            (CACHE / key).touch()
        return "clean"


def main():
    mode = sys.argv[1] if len(sys.argv) > 1 else "changed"
    everything = mode == "all"
    budget = 86400 if everything else int(sys.argv[2]) if len(sys.argv) > 2 else 240
    subprocess.run(["cmake", "--preset", "dev", "-B", str(BUILD), "-DNIBBLE_WERROR=OFF"], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)
    listed = output("git", "ls-files", "-co", "--exclude-standard", "--", "src/*.cpp", "tests/*.cpp") if everything \
        else changed_files()
    # Files of the cuda backend are in no build without it; nvcc and g++ read them in the cuda-compile preset.
    wanted = {n for n in listed.split() if (ROOT / n).is_file() and not n.endswith("_cuda.cpp")}
    names = sorted(wanted, key=lambda n: -(ROOT / n).stat().st_mtime)
    tidy = Tidy(everything, budget)
    failed, unreached, unreadable = [], [], []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, result in zip(names, pool.map(tidy.look, names)):
            if result == "unreached":
                unreached.append(name)
            elif result == "unreadable":
                unreadable.append(name)
            elif result != "clean":
                failed.append(name)
                print(result, flush=True)
    print(f"tidy: {len(failed)} of {len(names) - len(unreached)} files with findings; {len(unreached)} not reached")
    for name in failed:
        print(f"  findings: {name}")
    for name in unreached:
        print(f"  not reached: {name}")
    for name in unreadable:
        print(f"  not readable for this clang: {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
