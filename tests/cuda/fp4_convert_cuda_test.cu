// SPDX-License-Identifier: Apache-2.0
// Conversion instructions against the rounders that the host uses: every kind of value, every random byte.
// Where a card has no instruction, both sides are the rounder; tools/check_sass.sh looks for the
// instructions. Needs a GPU (label "gpu").
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "backend/cuda/fp4_convert.cuh"

namespace nibble {
namespace {

/// Values: all ties and neighbours of the format, subnormals, overflows, infinities, either sign.
std::vector<float> interesting() {
  std::vector<float> x;
  for (int sixteenth = 0; sixteenth <= 128; ++sixteenth) {
    const float v = static_cast<float>(sixteenth) / 16;
    for (float y : {v, std::nextafter(v, 0.0f), std::nextafter(v, 1e9f)})
      for (float sign : {1.0f, -1.0f}) x.push_back(sign * y);
  }
  for (float v : {1e-45f, 1e-38f, 1e30f, 3.4028235e38f, INFINITY})
    for (float sign : {1.0f, -1.0f}) x.push_back(sign * v);
  while (x.size() % 4 != 0) x.push_back(0);
  return x;
}

__global__ void convert_pairs(const float* x, std::uint8_t* out, int pairs) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < pairs) out[i] = cuda::e2m1_pair(x[2 * i], x[2 * i + 1]);
}
/// Block r: random byte r and its neighbours for every group of four values.
__global__ void convert_quads(const float* x, std::uint16_t* out, int quads) {
  const std::uint32_t r = blockIdx.x;
  const std::uint32_t random = r | (r + 1 & 255u) << 8 | (r + 2 & 255u) << 16 | (r + 3 & 255u) << 24;
  for (int i = static_cast<int>(threadIdx.x); i < quads; i += static_cast<int>(blockDim.x)) {
    const float four[4] = {x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]};
    out[r * static_cast<unsigned>(quads) + static_cast<unsigned>(i)] =
        cuda::e2m1_stochastic_quad(four, random);
  }
}

/// Managed memory of a test.
template <class T>
struct Shared {
  T* p = nullptr;
  explicit Shared(std::size_t n) { EXPECT_EQ(cudaMallocManaged(&p, n * sizeof(T)), cudaSuccess); }
  ~Shared() { cudaFree(p); }
};

TEST(Fp4Convert, PairsHaveTheCodesOfTheNearestEvenRounder) {
  const std::vector<float> values = interesting();
  const int pairs = static_cast<int>(values.size() / 2);
  const Shared<float> x(values.size());
  const Shared<std::uint8_t> out(values.size());
  ASSERT_NE(x.p, nullptr);
  std::copy(values.begin(), values.end(), x.p);
  convert_pairs<<<(pairs + 127) / 128, 128>>>(x.p, out.p, pairs);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (int i = 0; i < pairs; ++i)
    EXPECT_EQ(out.p[i], pack_codes(E2M1::nearest(x.p[2 * i]), E2M1::nearest(x.p[2 * i + 1])))
        << x.p[2 * i] << " and " << x.p[2 * i + 1];
}

TEST(Fp4Convert, QuadsHaveTheCodesOfTheStochasticRounderForEveryRandomByte) {
  const std::vector<float> values = interesting();
  const int quads = static_cast<int>(values.size() / 4);
  const Shared<float> x(values.size());
  const Shared<std::uint16_t> out(256 * values.size());
  ASSERT_NE(x.p, nullptr);
  std::copy(values.begin(), values.end(), x.p);
  convert_quads<<<256, 128>>>(x.p, out.p, quads);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (int r = 0; r < 256; ++r)
    for (int i = 0; i < quads; ++i)
      for (int j = 0; j < 4; ++j)
        EXPECT_EQ(out.p[r * quads + i] >> (4 * j) & 15,
                  E2M1::stochastic(x.p[4 * i + j], static_cast<std::uint8_t>(r + j)).code)
            << x.p[4 * i + j] << " with byte " << ((r + j) & 255);
}

}  // namespace
}  // namespace nibble
