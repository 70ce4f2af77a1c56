// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize.h"
#include "quant/fp8_tensor.h"
#include "quant/mxfp4.h"
#include "quant/mxfp8.h"
#include "quant/nvfp4.h"

namespace nibble {
namespace {

float decoded(const Dequantize& d, std::int64_t i, std::int64_t j) {
  const auto e2m1 = [&] { return E2M1{static_cast<std::uint8_t>(d.codes(i, j / 2) >> (4 * (j % 2)) & 0xF)}; };
  switch (d.format) {
    case Format::Nvfp4:
      return decode(e2m1(), E4M3{d.scales(i, j / 16)}, *d.amax);
    case Format::Mxfp4:
      return decode(e2m1(), E8M0{d.scales(i, j / 32)});
    case Format::Mxfp8E4M3:
      return decode(E4M3{d.codes(i, j)}, E8M0{d.scales(i, j / 32)});
    case Format::Mxfp8E5M2:
      return decode(E5M2{d.codes(i, j)}, E8M0{d.scales(i, j / 32)});
    case Format::Fp8E4M3:
      return E4M3{d.codes(i, j)}.value() * *d.scale;
    case Format::Fp8E5M2:
      return E5M2{d.codes(i, j)}.value() * *d.scale;
    case Format::Fp32:
    case Format::Bf16:
      break;
  }
  fail("dequantize: {} has no codes", info(d.format).name);
}

}  // namespace

void ref::run(Stream&, const Dequantize& d) {
  for (std::int64_t i = 0; i < d.out_RC.size(0); ++i) {
    for (std::int64_t j = 0; j < d.out_RC.size(1); ++j) d.out_RC(i, j) = decoded(d, i, j);
  }
}

}  // namespace nibble
