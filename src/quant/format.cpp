// SPDX-License-Identifier: Apache-2.0
#include "quant/format.h"

#include <array>
#include <string>

#include "base/error.h"

namespace nibble {
namespace {

/// In the order of the enumeration: info() indexes it.
constexpr std::array kFormats = {
    FormatInfo{Format::Fp32, "fp32", 32, 0, 0, false, 3.4028234663852886e38f},
    FormatInfo{Format::Bf16, "bf16", 16, 0, 0, false, 3.3895313892515355e38f},
    FormatInfo{Format::Nvfp4, "nvfp4", 4, 16, 8, true, 6.0f},
    FormatInfo{Format::Mxfp4, "mxfp4", 4, 32, 8, false, 6.0f},
    FormatInfo{Format::Mxfp8E4M3, "mxfp8_e4m3", 8, 32, 8, false, 448.0f},
    FormatInfo{Format::Mxfp8E5M2, "mxfp8_e5m2", 8, 32, 8, false, 57344.0f},
    FormatInfo{Format::Fp8E4M3, "fp8_e4m3", 8, 0, 0, true, 448.0f},
    FormatInfo{Format::Fp8E5M2, "fp8_e5m2", 8, 0, 0, true, 57344.0f},
};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kFormats.size(); ++i) {
    if (static_cast<std::size_t>(kFormats[i].format) != i) return false;
  }
  return true;
}
static_assert(in_order());

}  // namespace

const FormatInfo& info(Format format) { return kFormats.at(static_cast<std::size_t>(format)); }

Format format_from_name(std::string_view name) {
  std::string names;
  for (const FormatInfo& f : kFormats) {
    if (f.name == name) return f.format;
    names += names.empty() ? "" : ", ";
    names += f.name;
  }
  fail_usage("unknown format \"{}\"; known formats: {}", name, names);
}

double bits_per_element(Format format) {
  const FormatInfo& f = info(format);
  const double scale_bits = f.block == 0 ? 0.0 : static_cast<double>(f.block_scale_bits) / f.block;
  return f.element_bits + scale_bits;
}

}  // namespace nibble
