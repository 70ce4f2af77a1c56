// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string_view>

#include "tensor/view.h"

/// What every op's check() says in the same words.
namespace nibble {

/// Throws Error{Runtime} unless `layout` has exactly these sizes.
inline void expect_sizes(std::string_view op, std::string_view argument, const Layout& layout,
                         std::initializer_list<std::int64_t> sizes) {
  check(layout.rank == static_cast<int>(sizes.size()), "{}: {} has {} axes, but needs {}", op, argument,
        layout.rank, sizes.size());
  int axis = 0;
  for (std::int64_t size : sizes) {
    check(layout.size[axis] == size, "{}: axis {} of {} has size {}, but the other arguments need {}", op,
          axis, argument, layout.size[axis], size);
    ++axis;
  }
}

/// Throws Error{Runtime} unless the last axis is contiguous (rows may be strided).
inline void expect_contiguous_rows(std::string_view op, std::string_view argument, const Layout& layout) {
  const int last = layout.rank - 1;
  check(last >= 0 && (layout.stride[last] == 1 || layout.size[last] <= 1),
        "{}: the last axis of {} must be contiguous; copy it first", op, argument);
}

/// Both of the above.
inline void expect_rows(std::string_view op, std::string_view argument, const Layout& layout,
                        std::initializer_list<std::int64_t> sizes) {
  expect_sizes(op, argument, layout, sizes);
  expect_contiguous_rows(op, argument, layout);
}

}  // namespace nibble
