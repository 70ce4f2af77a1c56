// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "tensor/view.h"

namespace nibble {

/// A matrix that a linear reads, and its amax where the op that wrote the matrix left that beside it: the
/// linear's quantisers then need not read the matrix once more to find it. The two go together, and what is
/// made of the matrix (a part, a rotation, a decoded copy) is a plain view again, whose amax nobody knows.
struct WithAmax : ConstRealView {
  WithAmax() = default;
  WithAmax(const ConstRealView& matrix, const float* amax_of_matrix = nullptr)
      : ConstRealView(matrix), amax(amax_of_matrix) {}
  /// The same of every view of real numbers: one conversion where two would not be implicit.
  template <class V>
  requires(std::is_convertible_v<V, ConstRealView>)
      WithAmax(const V& matrix, const float* amax_of_matrix = nullptr)
      : WithAmax(static_cast<ConstRealView>(matrix), amax_of_matrix) {}

  /// One number in the backend's memory, which lives as long as the matrix: the largest magnitude as it is
  /// stored, a NaN or an infinity where the matrix has one (quant/amax.h, NonFinite::Detect). Null: unknown.
  const float* amax = nullptr;
};

}  // namespace nibble
