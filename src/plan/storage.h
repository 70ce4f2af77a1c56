// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "quant/format.h"

namespace nibble {

/// Bytes of one element of a format, and where they go.
struct Storage {
  std::string what;
  double code_bits = 0;     ///< the elements themselves
  double scale_bits = 0;    ///< block scales, a share of 8 / block (or 8 / block^2 for shared 2D scales)
  double tensor_bytes = 0;  ///< once a tensor: the FP32 scale, a direction
  int directions = 1;       ///< copies along different reduction axes
  double bytes_per_element() const { return directions * (code_bits + scale_bits) / 8; }
};

/// NVFP4: 4 + 8/16 = 4.5 bits = 0.5625 bytes in one direction; both directions 1.125. MXFP4: 4 + 8/32 = 4.25
/// bits = 0.53125 bytes; MXFP8: 8.25 bits = 1.03125; FP8 with a tensor scale: 1; BF16: 2. [OCP-MX] [NVFP4]
Storage storage(Format format, int directions = 1);

/// NVFP4 weights in 16 x 16 squares as a checkpoint may keep them: the codes of one copy serve both
/// directions and a square has one scale, 4 + 8/256 bits. Tensor cores still read a scale a row of 16, so in
/// memory they are replicated: `storage(Format::Nvfp4)`.
Storage storage_2d_shared();

/// Every line the user may ask about, for `nibble plan --storage`.
std::vector<Storage> storage_table();
std::string storage_text();

}  // namespace nibble
