// SPDX-License-Identifier: Apache-2.0
#include "plan/storage.h"

#include <fmt/format.h>

namespace nibble {

Storage storage(Format format, int directions) {
  const FormatInfo& f = info(format);
  Storage s;
  s.what = fmt::format("{}{}", f.name, directions == 2 ? ", both directions" : "");
  s.directions = directions;
  s.code_bits = f.element_bits;
  s.scale_bits = f.block > 0 ? static_cast<double>(f.block_scale_bits) / f.block : 0;
  s.tensor_bytes = f.tensor_scale ? 4.0 * directions : 0;
  return s;
}

Storage storage_2d_shared() {
  Storage s = storage(Format::Nvfp4);
  s.what = "nvfp4, 16x16 squares with one scale, one copy for both directions";
  s.scale_bits = 8.0 / (16 * 16);
  return s;
}

std::vector<Storage> storage_table() {
  return {storage(Format::Bf16),      storage(Format::Fp8E4M3),      storage(Format::Fp8E4M3, 2),
          storage(Format::Mxfp8E4M3), storage(Format::Mxfp8E4M3, 2), storage(Format::Mxfp4),
          storage(Format::Mxfp4, 2),  storage(Format::Nvfp4),        storage(Format::Nvfp4, 2),
          storage_2d_shared()};
}

std::string storage_text() {
  std::string out = fmt::format("{:<66} {:>10} {:>11} {:>8} {:>14}\n", "format", "code bits", "scale bits",
                                "copies", "bytes/element");
  for (const Storage& s : storage_table()) {
    out += fmt::format("{:<66} {:>10} {:>11.5g} {:>8} {:>14.5f}{}\n", s.what, s.code_bits, s.scale_bits,
                       s.directions, s.bytes_per_element(),
                       s.tensor_bytes > 0 ? fmt::format("  + {} B a tensor", s.tensor_bytes) : "");
  }
  out +=
      "The scale bits are the price of small blocks: 8 bits for 16 values (NVFP4) or 32 (MX). Tensor cores "
      "read a\n"
      "scale a row of 16, so squares of 16 x 16 save scale bytes in files, not in the operands of a "
      "product.\n";
  return out;
}

}  // namespace nibble
