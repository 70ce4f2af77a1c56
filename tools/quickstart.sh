#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packages, build, and the paired run of configs/quickstart.toml. Succeeds when a verdict was written, whatever it
# says: the verdict is an answer. The binary's own exit code carries it (0 pass, 3 fail or aborted, 4 inconclusive).
set -euo pipefail
cd "$(dirname "$0")/.."
run=runs/quickstart

tools/install_deps.sh build
cmake --preset quickstart
cmake --build --preset quickstart

started=$(mktemp)
trap 'rm -f "$started"' EXIT
code=0
build/release/nibble validate configs/quickstart.toml || code=$?
case $code in
  0 | 3 | 4) ;;
  *) exit "$code" ;;
esac
if [ ! "$run/verdict.json" -nt "$started" ]; then
  echo "quickstart: nibble ended with code $code and wrote no new $run/verdict.json" >&2
  exit 1
fi
echo
echo "Verdict: $run/verdict.json   (exit code of nibble validate: $code)"
echo "Report:  $run/report.html   (one file, open it in a browser)"
