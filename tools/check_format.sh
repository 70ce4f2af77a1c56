#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints C++ that clang-format would write differently; `--fix` rewrites it. Needs clang-format 14 or later.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=(--dry-run -Werror)
[ "${1:-}" != --fix ] || mode=(-i)
git ls-files -z -co --exclude-standard -- 'src/*.h' 'src/*.cpp' 'src/*.cu' 'tests/*.h' 'tests/*.cpp' 'tests/*.cu' \
  'bench/*.h' 'bench/*.cpp' 'bench/*.cu' |
  while IFS= read -r -d '' file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done |
  xargs -0 -r -P "$(nproc)" -n 16 clang-format --style=file "${mode[@]}"
echo "check_format: done"
