#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a hand-over states the result of: .ci/run's steps without its time limits, all sanitizers,
# clang-tidy on every file, the pages in Chromium, device code for every architecture. Goes on after a failure and names all that failed.
set -uo pipefail
cd "$(dirname "$0")/.."
results=() status=0

step() {
  local name=$1 start=$SECONDS
  shift
  printf '\n=== %s\n' "$name"
  if "$@"; then results+=("ok     $name ($((SECONDS - start)) s)"); else results+=("FAILED $name"); status=1; fi
}
built_and_tested() { cmake --preset "$1" && cmake --build --preset "$1" && ctest --preset "$1"; }
compiled() { cmake --preset "$1" && cmake --build --preset "$1"; }

step "packages" tools/install_deps.sh lint
step "make test" make test
step "lint, tidy on every file" tools/lint.sh all
step "AddressSanitizer and UBSan" built_and_tested asan-ubsan
step "ThreadSanitizer, warnings are errors" built_and_tested tsan
step "pages in Chromium" make pages
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
  step "CUDA compile, every architecture" compiled cuda-compile-all
  if command -v cuobjdump >/dev/null || [ -x /usr/local/cuda/bin/cuobjdump ]; then
    step "FP4 conversions are instructions" tools/check_sass.sh
  else
    results+=("absent FP4 conversions in machine code: there is no cuobjdump on this machine")
  fi
else
  results+=("absent CUDA compile: there is no nvcc on this machine")
fi
printf '\n=== ci-full\n'
printf '%s\n' "${results[@]}"
exit $status
