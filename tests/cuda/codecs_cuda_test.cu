// SPDX-License-Identifier: Apache-2.0
// The codecs are written once for host and device. That the device gives the same bytes is a law, not a hope:
// a kernel and the host run the same function over random bit patterns. Needs a GPU (label "gpu"); compiling
// it needs none, and shows that every codec is device code.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "numeric/bf16.h"
#include "numeric/random_key.h"
#include "quant/fp8_tensor.h"
#include "quant/hadamard.h"
#include "quant/mxfp4.h"
#include "quant/mxfp8.h"
#include "quant/nvfp4.h"
#include "quant/operand.h"

namespace nibble {
namespace {

constexpr int kValues = 32;
constexpr std::uint64_t kSeed = 7;

/// Everything the codecs say of 32 values, in a fixed order.
struct Said {
  Nvfp4Block nearest, te213, rotated, stochastic, exact;
  Mxfp4Block mxfp4;
  Mxfp8Block<E4M3> mxfp8_e4m3;
  Mxfp8Block<E5M2> mxfp8_e5m2;
  E4M3 e4m3[kValues];
  E5M2 e5m2[kValues];
  bf16 rounded[kValues], operand[16];
  float decoded[16];
};

NIBBLE_HD void say(const float (&x)[kValues], float amax, std::uint32_t block, Said& out) {
  const TensorScale g = TensorScale::from_amax(amax);
  const RandomKey key{.seed = kSeed, .step = 3, .layer = 5, .role = 2};
  const Fp8Scale fp8 = Fp8Scale::from_amax<E4M3>(amax, kFloatMax);
  float head[16], rotated[16];
  Stochastic<16> stochastic;
  StochasticExact<16> exact;
  for (int j = 0; j < 16; ++j) {
    head[j] = rotated[j] = x[j];
    stochastic.random[j] = random_byte(key, 16 * block + j);
    exact.random[j] = random_bits24(key, 16 * block + j);
  }
  rotate_block(rotated, 0xD7E8);
  out.nearest = encode_block(head, g, Profile::Te, NearestEven{});
  out.te213 = encode_block(head, g, Profile::Te213, NearestEven{});
  out.rotated = encode_block(rotated, g, Profile::Te, NearestEven{});
  out.stochastic = encode_block(head, g, Profile::Te, stochastic);
  out.exact = encode_block(head, g, Profile::Te, exact);
  out.mxfp4 = encode_mxfp4(x, NearestEven{});
  out.mxfp8_e4m3 = encode_mxfp8<E4M3>(x);
  out.mxfp8_e5m2 = encode_mxfp8<E5M2>(x);
  for (int j = 0; j < kValues; ++j) {
    out.e4m3[j] = encode_fp8<E4M3>(x[j], fp8);
    out.e5m2[j] = E5M2::nearest(x[j]);
    out.rounded[j] = bf16::nearest(x[j]);
  }
  for (int j = 0; j < 16; ++j) {
    const E2M1 code = unpack_code(out.nearest.codes, j);
    out.operand[j] = exact_operand(code, out.nearest.scale);
    out.decoded[j] = decode(code, out.nearest.scale, amax);
  }
}

__global__ void say_kernel(const float (*x)[kValues], const float* amax, Said* out, int blocks) {
  const int b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b < blocks) say(x[b], amax[b], b, out[b]);
}

struct Cases {
  std::vector<float> x, amax;
  int blocks = 0;
};

/// Finite values of a few neighbouring binades, around every exponent an FP32 has: subnormals too.
Cases make_cases(int blocks) {
  Cases c{std::vector<float>(blocks * kValues), std::vector<float>(blocks), blocks};
  for (int b = 0; b < blocks; ++b) {
    const std::uint32_t top = b % 248;
    for (int j = 0; j < kValues; ++j) {
      const PhiloxBlock r = philox({1}, {{static_cast<std::uint32_t>(b * kValues + j)}});
      const std::uint32_t exponent = top + r.word[1] % 7;
      const float v = bits_float((r.word[0] & 0x807FFFFFu) | exponent << 23);
      c.x[b * kValues + j] = r.word[2] % 16 == 0 ? 0.0f : v;
      c.amax[b] = amax_keeping_nan(c.amax[b], v);
    }
  }
  return c;
}

template <class T>
T* to_device(const std::vector<T>& host) {
  T* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, host.size() * sizeof(T)), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  return p;
}

std::vector<Said> said_by_device(const Cases& c) {
  std::vector<Said> out(c.blocks, Said{});
  float* x = to_device(c.x);
  float* amax = to_device(c.amax);
  Said* said = to_device(out);
  say_kernel<<<(c.blocks + 127) / 128, 128>>>(reinterpret_cast<float(*)[kValues]>(x), amax, said, c.blocks);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(out.data(), said, out.size() * sizeof(Said), cudaMemcpyDeviceToHost), cudaSuccess);
  cudaFree(x);
  cudaFree(amax);
  cudaFree(said);
  return out;
}

template <class T>
bool same_bytes(const T& a, const T& b) {
  const auto* p = reinterpret_cast<const unsigned char*>(&a);
  const auto* q = reinterpret_cast<const unsigned char*>(&b);
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    if (p[i] != q[i]) return false;
  }
  return true;
}

/// The same bits, or NaN on both sides: where scale x amax overflows, infinity times zero is a NaN, and which
/// NaN is the processor's choice.
bool same_numbers(const float (&a)[16], const float (&b)[16]) {
  for (int j = 0; j < 16; ++j) {
    if (a[j] != a[j] && b[j] != b[j]) continue;
    if (!same_bytes(a[j], b[j])) return false;
  }
  return true;
}

TEST(DeviceCodecs, GiveTheBytesOfTheHost) {
  const Cases c = make_cases(248 * 64);
  const std::vector<Said> device = said_by_device(c);
  for (int b = 0; b < c.blocks; ++b) {
    Said host{};
    say(reinterpret_cast<const float(*)[kValues]>(c.x.data())[b], c.amax[b], b, host);
    EXPECT_TRUE(same_bytes(host.nearest, device[b].nearest)) << "nvfp4.te, block " << b;
    EXPECT_TRUE(same_bytes(host.te213, device[b].te213)) << "nvfp4.te213, block " << b;
    EXPECT_TRUE(same_bytes(host.rotated, device[b].rotated)) << "rotated, block " << b;
    EXPECT_TRUE(same_bytes(host.stochastic, device[b].stochastic)) << "stochastic, block " << b;
    EXPECT_TRUE(same_bytes(host.exact, device[b].exact)) << "stochastic exact, block " << b;
    EXPECT_TRUE(same_bytes(host.mxfp4, device[b].mxfp4)) << "mxfp4, block " << b;
    EXPECT_TRUE(same_bytes(host.mxfp8_e4m3, device[b].mxfp8_e4m3)) << "mxfp8 e4m3, block " << b;
    EXPECT_TRUE(same_bytes(host.mxfp8_e5m2, device[b].mxfp8_e5m2)) << "mxfp8 e5m2, block " << b;
    EXPECT_TRUE(same_bytes(host.e4m3, device[b].e4m3)) << "fp8 e4m3, block " << b;
    EXPECT_TRUE(same_bytes(host.e5m2, device[b].e5m2)) << "e5m2, block " << b;
    EXPECT_TRUE(same_bytes(host.rounded, device[b].rounded)) << "bf16, block " << b;
    EXPECT_TRUE(same_bytes(host.operand, device[b].operand)) << "exact operand, block " << b;
    EXPECT_TRUE(same_numbers(host.decoded, device[b].decoded)) << "decoded, block " << b;
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace nibble
