#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the FP4 conversions for Blackwell and looks for their instructions in the machine code: a guard that is
# misspelt would leave the software rounder there, with the right numbers and a tenth of the speed.
# Needs nvcc, cuobjdump and nvdisasm (CUDA toolkit, or PyPI: nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm). No GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:${CUDA_PATH:-/usr/local/cuda}/bin
for tool in nvcc cuobjdump nvdisasm; do
  command -v "$tool" >/dev/null || { echo "check_sass: there is no $tool; install the CUDA toolkit's" >&2; exit 3; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/kernels.cu" <<'CUDA'
#include "backend/cuda/fp4_convert.cuh"
extern "C" __global__ void pair(const float* x, std::uint8_t* codes) {
  codes[threadIdx.x] = nibble::cuda::e2m1_pair(x[2 * threadIdx.x], x[2 * threadIdx.x + 1]);
}
extern "C" __global__ void quad(const float* x, const std::uint32_t* random, std::uint16_t* codes) {
  const float four[4] = {x[0], x[1], x[2], x[3]};
  codes[0] = nibble::cuda::e2m1_stochastic_quad(four, random[0]);
}
CUDA
status=0
# The function's machine code must (or must not) hold an instruction that matches.
expect() {
  local sm=$1 function=$2 wanted=$3 pattern=$4 found=no
  if cuobjdump -sass --function "$function" "$work/$sm.cubin" | grep -Eq "$pattern"; then found=yes; fi
  if [ "$found" != "$wanted" ]; then
    echo "check_sass: sm_$sm, $function: instruction $pattern: $found, but should be: $wanted" >&2
    status=1
  fi
}
rn='F2FP\.SATFINITE\.E2M1\.F32\.PACK_AB_MERGE_C ' rs='F2FP\.SATFINITE\.E2M1\.F32\.PACK_AB_MERGE_C\.RS '
for sm in 90a 100a 103a 120a; do
  nvcc -std=c++20 --expt-relaxed-constexpr --fmad=false -Isrc -cubin \
    -gencode "arch=compute_$sm,code=sm_$sm" -o "$work/$sm.cubin" "$work/kernels.cu"
  case $sm in
    90a) expect $sm pair no E2M1; expect $sm quad no E2M1 ;;
    120a) expect $sm pair yes "$rn"; expect $sm quad no E2M1 ;;
    *) expect $sm pair yes "$rn"; expect $sm quad yes "$rs" ;;
  esac
done
[ $status -ne 0 ] || echo "check_sass: E2M1 conversions are instructions where the card has them"
exit $status
