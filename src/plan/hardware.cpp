// SPDX-License-Identifier: Apache-2.0
#include "plan/hardware.h"

#include <algorithm>

#include "base/error.h"
#include "base/nearest.h"

namespace nibble {
namespace {

constexpr const char* kHopper =
    "[MBRIDGE] FP8 fitted to one half of the dense rows (nibble plan --calibration); BF16 to FP8-over-BF16 "
    "ratios of "
    "NeMo at 8B, 70B, 405B (1.30, 1.43, 1.53)";
constexpr const char* kFitted =
    "[MBRIDGE] FP8, MXFP8 and FP4 fitted to one half of the dense rows (nibble plan --calibration); BF16 to "
    "one 8B row "
    "on GB200, carried over to other systems by the BF16 rows of sparse models";
constexpr const char* kEight =
    "[MBRIDGE] FP8 and MXFP8 fitted to one half of B200's dense rows; FP4 to the 8B submission [MLPERF51]; "
    "BF16 to one "
    "8B row on GB200, carried over by the BF16 rows of sparse models";
constexpr const char* kMeasured =
    "products of training shapes measured on an H200: BF16 600-760, FP8 840-1400 TFLOP/s";

std::vector<Hardware> data_centre() {
  return {
      {.name = "h100",
       .summary = "H100 SXM 80 GB",
       .bf16 = {989.4, 1978.9, 0.58},
       .fp8 = {1978.9, 3957.8, 0.488},
       .memory_gb = 80,
       .usable_gb = 85.0,
       .bandwidth_tb = 3.35,
       .copy_fraction = 0.88,
       .nvlink_gb = 450,
       .nvlink_domain = 8,
       .nic_gbit = 400,
       .watts = 700,
       .source = "[NVIDIA-SPECS] H100 data sheet; dense = half of the printed figures",
       .achieved_source = kHopper},
      {.name = "h200",
       .summary = "H200 SXM 141 GB",
       .bf16 = {989.4, 1978.9, 0.69},
       .fp8 = {1978.9, 3957.8, 0.57},
       .memory_gb = 141,
       .usable_gb = 150.0,
       .bandwidth_tb = 4.8,
       .copy_fraction = 0.87,
       .nvlink_gb = 450,
       .nvlink_domain = 8,
       .nic_gbit = 400,
       .watts = 700,
       .source = "[NVIDIA-SPECS] H200 data sheet; dense = half of the printed figures",
       .achieved_source = kMeasured},
      {.name = "b200",
       .summary = "B200 (HGX) 192 GB, 180 usable",
       .bf16 = {2250, 4500, 0.445},
       .fp8 = {4500, 9000, 0.454},
       .mxfp8 = {4500, 9000, 0.411},
       .fp4 = {9000, 18000, 0.335},
       .memory_gb = 192,
       .usable_gb = 180,
       .bandwidth_tb = 7.7,
       .copy_fraction = 0.88,
       .nvlink_gb = 900,
       .nvlink_domain = 8,
       .nic_gbit = 400,
       .watts = 1000,
       .source = "[NVIDIA-SPECS] HGX B200; 192 GB is the marketing figure",
       .achieved_source = kEight},
      {.name = "gb200",
       .summary = "GB200 (NVL72), 189,471 MiB",
       .bf16 = {2500, 5000, 0.491},
       .fp8 = {5000, 10000, 0.474},
       .mxfp8 = {5000, 10000, 0.448},
       .fp4 = {10000, 20000, 0.289},
       .memory_gb = 186,
       .usable_gb = 198.7,
       .bandwidth_tb = 8,
       .copy_fraction = 0.88,
       .nvlink_gb = 900,
       .nvlink_domain = 72,
       .nic_gbit = 400,
       .watts = 1200,
       .source = "[NVIDIA-SPECS] GB200 NVL72; [MLPERF51] system files give 189,471 MiB",
       .achieved_source = kFitted},
      {.name = "b300",
       .summary = "B300 (HGX) 288 GB, 270 usable",
       .bf16 = {2250, 4500, 0.5},
       .fp8 = {4500, 9000, 0.454},
       .mxfp8 = {4500, 9000, 0.411},
       .fp4 = {13500, 18000, 0.28},
       .memory_gb = 288,
       .usable_gb = 270,
       .bandwidth_tb = 7.7,
       .copy_fraction = 0.88,
       .nvlink_gb = 900,
       .nvlink_domain = 8,
       .nic_gbit = 800,
       .watts = 1100,
       .source = "[NVIDIA-SPECS] HGX B300; dense FP4 is stated between 13,125 and 14,000; sparse is only "
                 "1.33x dense",
       .achieved_source = kEight},
      {.name = "gb300",
       .summary = "GB300 (NVL72), 284,208 MiB",
       .bf16 = {2500, 5000, 0.59},
       .fp8 = {5000, 10000, 0.653},
       .mxfp8 = {5000, 10000, 0.551},
       .fp4 = {15000, 20000, 0.328},
       .memory_gb = 288,
       .usable_gb = 298.0,
       .bandwidth_tb = 8,
       .copy_fraction = 0.88,
       .nvlink_gb = 900,
       .nvlink_domain = 72,
       .nic_gbit = 800,
       .watts = 1400,
       .source =
           "[NVIDIA-SPECS] GB300 NVL72; [MLPERF51] system files give 284,208 MiB; sparse FP4 is 1.33x dense",
       .achieved_source = kFitted},
  };
}

std::vector<Hardware> workstation() {
  return {
      {.name = "rtx-pro-6000",
       .summary = "RTX PRO 6000 Blackwell 96 GB",
       .bf16 = {504, 1008, 0.85},
       .fp8 = {1008, 2015, 0.7},
       .mxfp8 = {1008, 2015, 0.65},
       .fp4 = {2015, 4030, 0.7},
       .memory_gb = 96,
       .usable_gb = 101.5,
       .bandwidth_tb = 1.79,
       .copy_fraction = 0.9,
       .nvlink_gb = 0,
       .nvlink_domain = 1,
       .nic_gbit = 0,
       .watts = 600,
       .source = "[NVIDIA-SPECS] RTX PRO 6000 Blackwell Workstation Edition; no NVLink, PCIe 5 x16",
       .achieved_source = "taken from the RTX 5090, whose tensor cores are the same"},
      {.name = "rtx-5090",
       .summary = "RTX 5090 32 GB",
       .bf16 = {209.5, 419, 0.92},
       .fp8 = {419, 838, 0.8},
       .mxfp8 = {419, 838, 0.75},
       .fp4 = {1676, 3352, 0.71},
       .memory_gb = 32,
       .usable_gb = 33.7,
       .bandwidth_tb = 1.79,
       .copy_fraction = 0.9,
       .nvlink_gb = 0,
       .nvlink_domain = 1,
       .nic_gbit = 0,
       .watts = 575,
       .source =
           "[NVIDIA-SPECS] RTX Blackwell white paper, FP32 accumulation; FP4 : BF16 is 8 : 1 on this card",
       .achieved_source = "[QUARTET2] FP4 1.16-1.24 PFLOP/s, 69-74 % of dense; BF16 92 % MFU at 1.1B"},
  };
}

void check_rate(const Hardware& h, Rate r) {
  const RateInfo& info = h.rate(r);
  check_usage(
      info.dense >= 0 && info.achieved >= 0 && info.achieved <= 1,
      "hardware {}: {} has dense = {}, achieved = {}; a peak is positive, the achieved share is at most 1",
      h.name, name(r), info.dense, info.achieved);
  check_usage(
      info.dense == 0 || info.achieved > 0,
      "hardware {}: {}.achieved is missing: the share of the dense peak that products reach, for example 0.6",
      h.name, name(r));
  check_usage(
      info.sparse == 0 || info.dense < info.sparse,
      "hardware {}: {}.dense = {} is not below {}.sparse = {}: that is the sparse peak, which no training "
      "step reaches; give the dense one (half of it, or 3/4 for FP4 on Blackwell Ultra)",
      h.name, name(r), info.dense, name(r), info.sparse);
}

/// The row whose name is the longest within the hardware's: "gb200", not "b200", for "my-gb200".
const Hardware* same_part(const Hardware& h) {
  const Hardware* found = nullptr;
  for (const Hardware& known : hardware_table()) {
    if (h.name.find(known.name) == std::string::npos) continue;
    if (found == nullptr || known.name.size() > found->name.size()) found = &known;
  }
  return found;
}

/// A dense peak that the same part has only with sparsity is a misread data sheet.
void check_against_table(const Hardware& h, Rate r) {
  const Hardware* known = same_part(h);
  if (known == nullptr || !known->native(r)) return;
  const RateInfo& k = known->rate(r);
  check_usage(
      h.rate(r).dense <= 1.05 * k.dense,
      "hardware {}: {}.dense = {} TFLOP/s is above the dense peak of {}, {} ({} is with 2:4 sparsity, which "
      "no training step reaches); use {}",
      h.name, name(r), h.rate(r).dense, known->summary, k.dense, k.sparse, k.dense);
}

}  // namespace

std::string_view name(Rate rate) {
  constexpr std::string_view kNames[] = {"bf16", "fp8", "mxfp8", "fp4"};
  return kNames[static_cast<int>(rate)];
}

const RateInfo& Hardware::rate(Rate r) const {
  return r == Rate::Bf16 ? bf16 : r == Rate::Fp8 ? fp8 : r == Rate::Mxfp8 ? mxfp8 : fp4;
}

RateInfo& Hardware::rate(Rate r) {
  return r == Rate::Bf16 ? bf16 : r == Rate::Fp8 ? fp8 : r == Rate::Mxfp8 ? mxfp8 : fp4;
}

double Hardware::flops(Rate r) const {
  const RateInfo& info = native(r) ? rate(r) : bf16;
  return info.dense * 1e12 * info.achieved;
}

double Hardware::collective_seconds(double bytes, std::int64_t group, std::int64_t stride,
                                    double fraction) const {
  if (group <= 1) return 0;
  const double moved = bytes * static_cast<double>(group - 1) / static_cast<double>(group);
  const bool joined = nvlink_gb > 0;
  const std::int64_t together = joined ? std::max<std::int64_t>(1, nvlink_domain / stride) : 1;
  const double inside = moved / ((joined ? nvlink_gb : pcie_gb) * 1e9 * fraction);
  if (group <= together || nic_gbit == 0) return inside;
  const double outside = moved / (static_cast<double>(together) * nic_gbit * 1e9 / 8 * fraction);
  return together == 1 ? outside : inside + outside;
}

const std::vector<Hardware>& hardware_table() {
  static const std::vector<Hardware> table = [] {
    std::vector<Hardware> all = data_centre();
    for (Hardware& h : workstation()) all.push_back(std::move(h));
    return all;
  }();
  return table;
}

Hardware find_hardware(const std::string& wanted) {
  if (wanted.ends_with(".toml")) return read_hardware(wanted);
  std::vector<std::string> names;
  for (const Hardware& h : hardware_table()) {
    if (h.name == wanted) return h;
    names.push_back(h.name);
  }
  std::string all;
  for (const std::string& n : names) all += (all.empty() ? "" : ", ") + n;
  fail_usage("there is no hardware \"{}\"{} Known: {}; a file ending in .toml describes another.", wanted,
             did_you_mean(wanted, names), all);
}

void check_hardware(const Hardware& h) {
  check_usage(h.bf16.dense > 0, "hardware {}: bf16.dense is missing: TFLOP/s without sparsity", h.name);
  for (const Rate r : kRates) {
    check_against_table(h, r);
    check_rate(h, r);
  }
  check_usage(
      h.usable_gb > 0 && h.bandwidth_tb > 0 && h.copy_fraction > 0 && h.copy_fraction <= 1,
      "hardware {}: usable_gb = {}, bandwidth_tb = {} and copy_fraction = {} must be positive, the last at "
      "most 1",
      h.name, h.usable_gb, h.bandwidth_tb, h.copy_fraction);
  check_usage(
      h.nvlink_domain >= 1 && h.nvlink_gb >= 0 && h.nic_gbit >= 0 && h.pcie_gb > 0,
      "hardware {}: nvlink_domain = {}, nvlink_gb = {}, nic_gbit = {}, pcie_gb = {} are not a machine",
      h.name, h.nvlink_domain, h.nvlink_gb, h.nic_gbit, h.pcie_gb);
}

}  // namespace nibble
