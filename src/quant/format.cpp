// SPDX-License-Identifier: Apache-2.0
#include "quant/format.h"

#include <array>
#include <iterator>
#include <string>

#include "base/error.h"
#include "quant/format_names.h"

namespace nibble {
namespace {

/// In the order of the enumeration: info() indexes it.
constexpr std::array kFormats = {
    FormatInfo{Format::Fp32, "fp32", 32, 0, 0, false, 3.4028234663852886e38f, 1, false, false},
    FormatInfo{Format::Bf16, "bf16", 16, 0, 0, false, 3.3895313892515355e38f, 1, false, false},
    FormatInfo{Format::Nvfp4, "nvfp4", 4, 16, 8, true, 6.0f, 16, true, true},
    FormatInfo{Format::Mxfp4, "mxfp4", 4, 32, 8, false, 6.0f, 32, false, true},
    FormatInfo{Format::Mxfp8E4M3, "mxfp8_e4m3", 8, 32, 8, false, 448.0f, 32, false, false},
    FormatInfo{Format::Mxfp8E5M2, "mxfp8_e5m2", 8, 32, 8, false, 57344.0f, 32, false, false},
    FormatInfo{Format::Fp8E4M3, "fp8_e4m3", 8, 0, 0, true, 448.0f, 1, false, false},
    FormatInfo{Format::Fp8E5M2, "fp8_e5m2", 8, 0, 0, true, 57344.0f, 1, false, false},
    FormatInfo{Format::Mxfp6E2M3, "mxfp6_e2m3", 6, 32, 8, false, 7.5f, 32, false, false},
    FormatInfo{Format::Mxfp6E3M2, "mxfp6_e3m2", 6, 32, 8, false, 28.0f, 32, false, false},
    FormatInfo{Format::Fp8BlockE4M3, "fp8_block_e4m3", 8, 128, 8, false, 448.0f, 16, true, false},
    FormatInfo{Format::Fp8BlockFp32E4M3, "fp8_block_fp32_e4m3", 8, 128, 32, false, 448.0f, 16, true, false},
};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kFormats.size(); ++i) {
    if (static_cast<std::size_t>(kFormats[i].format) != i) return false;
  }
  return true;
}
static_assert(in_order());

constexpr std::string_view kProfiles[] = {"nvfp4.te",      "nvfp4.te213",    "nvfp4.exact",
                                          "nvfp4.torchao", "nvfp4.modelopt", "nvfp4.ct"};
constexpr std::string_view kRules[] = {"", ".floor", ".even", ".ceil", ".round", ".three_quarters"};

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

std::string_view profile_name(Profile profile) { return kProfiles[static_cast<std::size_t>(profile)]; }

std::vector<std::string> profile_names() { return {std::begin(kProfiles), std::end(kProfiles)}; }

Profile profile_from_name(std::string_view name) {
  std::string names;
  for (std::size_t i = 0; i < std::size(kProfiles); ++i) {
    if (kProfiles[i] == name) return static_cast<Profile>(i);
    names += (i == 0 ? "" : ", ") + std::string(kProfiles[i]);
  }
  fail_usage("unknown profile \"{}\"; known profiles: {}", name, names);
}

std::string arithmetic_name(const QuantSpec& spec) {
  const bool nvfp4 = spec.format == Format::Nvfp4;
  std::string text(nvfp4 ? profile_name(spec.profile) : info(spec.format).name);
  text += kRules[static_cast<std::size_t>(spec.scale_rule)];
  if (spec.four_over_six != FourOverSix::Off) {
    text += spec.four_over_six == FourOverSix::Mae ? " 4over6-mae" : " 4over6-mse";
  }
  if (spec.scale_bound != 448) text += "/" + std::to_string(spec.scale_bound);
  if (spec.tensor_scaling == TensorScaling::Row) text += " row-scaled";
  if (spec.tensor_scaling == TensorScaling::Delayed) text += " delayed";
  if (spec.tensor_scaling == TensorScaling::Previous) text += " previous-amax";
  if (spec.tensor_scaling == TensorScaling::Unit) text += " unscaled";
  if (spec.headroom) text += " headroom";
  if (spec.eden_group != 0) text += " ms-eden-" + std::to_string(spec.eden_group);
  return text;
}

double bits_per_element(Format format) {
  const FormatInfo& f = info(format);
  const double scale_bits = f.block == 0 ? 0.0 : static_cast<double>(f.block_scale_bits) / f.block;
  return f.element_bits + scale_bits;
}

}  // namespace nibble
