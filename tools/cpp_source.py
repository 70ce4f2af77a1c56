# SPDX-License-Identifier: Apache-2.0
"""What the checks share: the project's source files, and C++ text without comments and strings."""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"([^()\\ ]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)


def files(*suffixes, under=("src", "tests", "bench")):
    """Paths relative to the root, tracked or new but not ignored, with one of the suffixes."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *under],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()
    return sorted(p for p in set(listed) if p.endswith(suffixes) and os.path.isfile(os.path.join(ROOT, p)))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def blank(text, keep_strings=False):
    """The text with comments (and strings) replaced by spaces; line numbers stay what they were."""

    def spaces(match):
        token = match.group(0)
        if keep_strings and not token.startswith("/"):
            return token
        return re.sub(r"[^\n]", " ", token)

    return _TOKEN.sub(spaces, text)


def comments_and_strings(text):
    """What is not code: text that a reader of the source or a user of the program sees."""
    return "\n".join(match.group(0) for match in _TOKEN.finditer(text))


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def finish(check, problems, looked_at):
    """Prints what was found and ends the process: 0 when nothing was."""
    for p in problems:
        print(p)
    print(f"{check}: {len(problems)} problems in {looked_at} files")
    sys.exit(1 if problems else 0)
