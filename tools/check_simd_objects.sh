#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The x_simd.cpp files are compiled once for each instruction set. A weak function in such an object (an inline
# function that was not inlined) may be chosen by the linker for every caller, and would then run AVX-512 code on
# a processor that has none. Prints every such function of a build.
#   tools/check_simd_objects.sh build/release
set -euo pipefail
build=${1:?usage: check_simd_objects.sh BUILD_DIR}
objects=$(find "$build" -path '*_avx*.dir/*' -name '*.o' | sort)
count=0 bad=0
for object in $objects; do
  count=$((count + 1))
  weak=$(nm -C "$object" | awk '$2 == "W" || $2 == "V" || $2 == "u"')
  [ -z "$weak" ] || { bad=$((bad + 1)); printf '%s has weak functions:\n%s\n' "${object#"$build"/}" "$weak"; }
done
echo "check_simd_objects: $bad of $count objects have weak functions"
[ "$bad" -eq 0 ]
