// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding/embedding.h"
#include "ops/rows.h"

namespace nibble::cpu {

void run(Stream& stream, const Embedding& e) {
  const std::int64_t D = e.w_VD.size(1);
  for_tiles(stream, e.ids_T.size(0), kTileRows, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    std::vector<float> buffer(static_cast<std::size_t>(D));
    for (std::int64_t t = begin; t < end; ++t) {
      const float* w = read_row(e.w_VD, e.ids_T(t), buffer.data());
      if (e.x_TD.dtype() == DType::F32)
        std::copy(w, w + D, begin_row(e.x_TD, t, nullptr));
      else
        finish_row(e.x_TD, t, w);
    }
  });
}

void run(Stream& stream, const EmbeddingBackward& e) {
  // Tiles of columns: every row of dw is then summed by one thread a column, in the order of the tokens.
  constexpr std::int64_t kColumns = 64;
  for_tiles(stream, e.dw_VD.size(1), kColumns, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    const ConstRealView dx = e.dx_TD.cols(begin, end - begin);
    float buffer[kColumns];
    for (std::int64_t t = 0; t < e.ids_T.size(0); ++t)
      NIBBLE_SIMD_CALL(add_to, &e.dw_VD(e.ids_T(t), begin), read_row(dx, t, buffer), end - begin);
  });
}

}  // namespace nibble::cpu
