#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy on the .cpp files of the tree.
#   tools/tidy.sh all               every file
#   tools/tidy.sh changed [SECONDS] files that differ from origin/main (or, on main itself, from ten commits ago),
#                                   newest first and without the slow clang-analyzer checks; stops at the time
#                                   given and names what it did not reach
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-changed} budget=${2:-240}
build=build/tidy
cmake --preset dev -B "$build" -DNIBBLE_WERROR=OFF >/dev/null

changed_since() {
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null || true)
  if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then
    base=$(git rev-parse --verify -q HEAD~10 || git rev-list --max-parents=0 HEAD | tail -n 1)
  fi
  { git diff --name-only "$base" -- 'src/*.cpp' 'tests/*.cpp'; git ls-files -o --exclude-standard -- 'src/*.cpp' 'tests/*.cpp'; } | sort -u
}

if [ "$mode" = all ]; then
  files=$(git ls-files -co --exclude-standard -- 'src/*.cpp' 'tests/*.cpp') budget=86400 checks=
else
  files=$(changed_since) checks=-clang-analyzer-*
fi
files=$(for f in $files; do [ ! -f "$f" ] || echo "$f"; done | xargs -r ls -t)
[ -n "$files" ] || { echo "tidy: no changed files"; exit 0; }

log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
end=$(($(date +%s) + budget))
one() {  # LOG END BUILD CHECKS FILE
  local left=$(($2 - $(date +%s)))
  local file=$5
  local out="$1/${file//\//_}"
  if [ "$left" -le 0 ]; then echo "$file" >>"$1/unreached"; return 0; fi
  timeout "$left" clang-tidy --quiet -p "$3" --checks="$4" "$file" >"$out" 2>/dev/null && return 0
  if [ $? -eq 124 ]; then echo "$file" >>"$1/unreached"; else cat "$out"; echo "$file" >>"$1/failed"; fi
}
export -f one
echo "$files" | xargs -P "$(nproc)" -I{} bash -c 'one "$@"' _ "$log" "$end" "$build" "$checks" {}
total=$(echo "$files" | wc -l)
unreached=0 failed=0
[ ! -f "$log/unreached" ] || unreached=$(wc -l <"$log/unreached")
[ ! -f "$log/failed" ] || failed=$(wc -l <"$log/failed")
echo "tidy: $failed of $((total - unreached)) files with findings; $unreached not reached in $budget s"
[ "$unreached" -eq 0 ] || { echo "not reached:"; sort "$log/unreached" | sed 's/^/  /'; }
[ "$failed" -eq 0 ]
