#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every check that needs no test run; all of them, then one result.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=()
for check in check_layers.py check_sizes.py check_words.py check_format.sh; do
  tools/$check || failed+=("$check")
done
[ ! -d build/release ] || tools/check_simd_objects.sh build/release || failed+=(check_simd_objects.sh)
tools/tidy.py "${1:-changed}" || failed+=(tidy.py)
[ ${#failed[@]} -eq 0 ] || { echo "lint: failed: ${failed[*]}"; exit 1; }
echo "lint: all checks passed"
