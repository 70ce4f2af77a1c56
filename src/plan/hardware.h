// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

/// What a GPU can do, as data with its sources. Dense and sparse peaks are kept apart: data sheets print the
/// sparse ones first, and no training step reaches them.
namespace nibble {

/// The kinds of matrix product that hardware tells apart. Fp8 has one scale a tensor, Mxfp8 one a block
/// of 32.
enum class Rate : std::uint8_t { Bf16, Fp8, Mxfp8, Fp4 };
inline constexpr Rate kRates[] = {Rate::Bf16, Rate::Fp8, Rate::Mxfp8, Rate::Fp4};
std::string_view name(Rate rate);  ///< "bf16", "fp8", "mxfp8", "fp4"

struct RateInfo {
  double dense = 0;     ///< TFLOP/s; 0: the hardware has no such product, and BF16 products emulate it
  double sparse = 0;    ///< TFLOP/s with 2:4 sparsity; 0: not stated
  double achieved = 0;  ///< share of `dense` that large products reach inside a training step
};

struct Hardware {
  std::string name, summary;
  RateInfo bf16, fp8, mxfp8, fp4;
  double memory_gb = 0;      ///< the data sheet's figure; some parts print GiB under the name GB
  double usable_gb = 0;      ///< what a process can allocate, 10^9 bytes
  double bandwidth_tb = 0;   ///< memory, 10^12 bytes/s
  double copy_fraction = 0;  ///< share of it that streaming kernels reach
  double nvlink_gb = 0;      ///< 10^9 bytes/s in one direction; 0: none (PCIe is in `pcie_gb`)
  int nvlink_domain = 1;     ///< GPUs that NVLink joins
  double pcie_gb = 64;       ///< 10^9 bytes/s in one direction
  double nic_gbit = 0;       ///< network, 10^9 bit/s a GPU
  double watts = 0;          ///< board power
  std::string source;        ///< keys of docs/SOURCES.md and what they say
  std::string achieved_source;

  const RateInfo& rate(Rate r) const;
  RateInfo& rate(Rate r);
  bool native(Rate r) const { return rate(r).dense > 0; }
  /// FLOP/s that products of this kind reach; those of BF16 where the kind is emulated.
  double flops(Rate r) const;
  /// Bytes/s of streaming kernels.
  double bytes_per_s() const { return bandwidth_tb * 1e12 * copy_fraction; }
  /// Seconds to gather or scatter `bytes` a GPU among `group` GPUs that are `stride` apart: over NVLink
  /// inside its domain; across domains every byte crosses the network once a domain, shared by the members in
  /// it, and is spread over NVLink. `fraction`: of the links' rates that collectives reach.
  double collective_seconds(double bytes, std::int64_t group, std::int64_t stride, double fraction) const;
};

const std::vector<Hardware>& hardware_table();

/// A row of the table, or, when `name` ends in ".toml", the user's file. Throws Error{Usage} naming the
/// nearest.
Hardware find_hardware(const std::string& name);

/// A user's hardware. `base = "gb200"` starts from a row; every other key is a field of Hardware, the rates
/// in tables [bf16] [fp8] [mxfp8] [fp4] with dense, sparse, achieved. Throws Error{Usage} for unknown keys,
/// missing peaks, and for a sparse peak given as dense.
Hardware parse_hardware(const std::string& text, const std::string& source);
Hardware read_hardware(const std::filesystem::path& path);

/// The hardware in the form that parse_hardware reads.
std::string to_toml(const Hardware& hardware);

/// Throws Error{Usage} for what no card is: a peak that the table knows as a sparse one, a fraction above 1,
/// ...
void check_hardware(const Hardware& hardware);

}  // namespace nibble
