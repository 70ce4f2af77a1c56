// SPDX-License-Identifier: Apache-2.0
#pragma once

/// NIBBLE_HD marks arithmetic that is written once and used on the host and in kernels.
/// On the host it forces inlining: the same header is compiled for several instruction sets
/// (base/simd.h), and an out-of-line copy made for one of them must never serve another.
#if defined(__CUDACC__)
#define NIBBLE_HD __host__ __device__ __forceinline__
#else
#define NIBBLE_HD inline __attribute__((always_inline))
#endif
