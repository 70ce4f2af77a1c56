// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <type_traits>

#include "base/error.h"
#include "base/hd.h"
#include "tensor/dtype.h"

namespace nibble {

inline constexpr int kMaxRank = 4;

/// Sizes and strides (in elements) of up to four axes. Axis 0 is the slowest in a contiguous layout.
struct Layout {
  int rank = 0;
  std::array<std::int64_t, kMaxRank> size{};
  std::array<std::int64_t, kMaxRank> stride{};

  template <class... N>
  static Layout contiguous(N... sizes) {
    static_assert(sizeof...(N) <= kMaxRank);
    Layout l;
    l.rank = sizeof...(N);
    l.size = {static_cast<std::int64_t>(sizes)...};
    std::int64_t s = 1;
    for (int i = l.rank - 1; i >= 0; --i) {
      l.stride[i] = s;
      s *= l.size[i];
    }
    return l;
  }
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= size[i];
    return n;
  }
  bool is_contiguous() const {
    std::int64_t s = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (size[i] != 1 && stride[i] != s) return false;
      s *= size[i];
    }
    return true;
  }
  bool same_sizes(const Layout& o) const {
    if (rank != o.rank) return false;
    for (int i = 0; i < rank; ++i)
      if (size[i] != o.size[i]) return false;
    return true;
  }
  /// Elements `begin` to `begin + count` of `axis`; returns the offset of the new origin.
  std::int64_t slice(int axis, std::int64_t begin, std::int64_t count) {
    assert(axis < rank && begin >= 0 && begin + count <= size[axis]);
    size[axis] = count;
    return begin * stride[axis];
  }
  /// Splits the last axis (contiguous) into outer x inner: [T, H*D] becomes [T, H, D].
  void split_last(std::int64_t outer, std::int64_t inner) {
    assert(rank >= 1 && rank < kMaxRank && size[rank - 1] == outer * inner);
    const std::int64_t s = stride[rank - 1];
    size[rank - 1] = outer;
    stride[rank - 1] = inner * s;
    size[rank] = inner;
    stride[rank] = s;
    ++rank;
  }
  void swap_first_two() {
    assert(rank == 2);
    std::swap(size[0], size[1]);
    std::swap(stride[0], stride[1]);
  }
  void drop_first() {
    assert(rank >= 1);
    for (int i = 1; i < rank; ++i) {
      size[i - 1] = size[i];
      stride[i - 1] = stride[i];
    }
    --rank;
  }
};

/// Numbers somebody else owns: a pointer and a layout. Cheap to copy; const T for reading.
/// Names carry shapes (docs/NOTATION.md): x_TD has size(0) = tokens, size(1) = features.
template <class T>
class View {
 public:
  View() = default;
  View(T* data, const Layout& layout) : data_(data), layout_(layout) {}
  template <class... N>
  requires(std::is_convertible_v<N, std::int64_t>&&...) explicit View(T* data, N... sizes)
      : data_(data), layout_(Layout::contiguous(sizes...)) {}
  operator View<const T>() const requires(!std::is_const_v<T>) { return {data_, layout_}; }

  T* data() const { return data_; }
  const Layout& layout() const { return layout_; }
  int rank() const { return layout_.rank; }
  std::int64_t size(int axis) const { return layout_.size[axis]; }
  std::int64_t stride(int axis) const { return layout_.stride[axis]; }
  std::int64_t numel() const { return layout_.numel(); }
  bool empty() const { return data_ == nullptr; }
  bool is_contiguous() const { return layout_.is_contiguous(); }

  T& operator()(std::int64_t i) const {
    assert(rank() == 1 && i >= 0 && i < size(0));
    return data_[i * stride(0)];
  }
  T& operator()(std::int64_t i, std::int64_t j) const {
    assert(rank() == 2 && i >= 0 && i < size(0) && j >= 0 && j < size(1));
    return data_[i * stride(0) + j * stride(1)];
  }
  T& operator()(std::int64_t i, std::int64_t j, std::int64_t k) const {
    assert(rank() == 3 && i < size(0) && j < size(1) && k < size(2));
    return data_[i * stride(0) + j * stride(1) + k * stride(2)];
  }
  T& operator()(std::int64_t i, std::int64_t j, std::int64_t k, std::int64_t l) const {
    assert(rank() == 4 && i < size(0) && j < size(1) && k < size(2) && l < size(3));
    return data_[i * stride(0) + j * stride(1) + k * stride(2) + l * stride(3)];
  }

  View slice(int axis, std::int64_t begin, std::int64_t count) const {
    View v = *this;
    v.data_ += v.layout_.slice(axis, begin, count);
    return v;
  }
  View rows(std::int64_t begin, std::int64_t count) const { return slice(0, begin, count); }
  View row(std::int64_t i) const {
    View v = slice(0, i, 1);
    v.layout_.drop_first();
    return v;
  }
  View split_last(std::int64_t outer, std::int64_t inner) const {
    View v = *this;
    v.layout_.split_last(outer, inner);
    return v;
  }
  View transposed() const {
    View v = *this;
    v.layout_.swap_first_two();
    return v;
  }

 private:
  T* data_ = nullptr;
  Layout layout_;
};

/// A view of real numbers whose storage, F32 or BF16, is chosen at run time: activations are BF16 under
/// every recipe but `fp32`. Reading widens exactly; writing rounds to nearest even.
template <bool kConst>
class BasicRealView {
 public:
  using Void = std::conditional_t<kConst, const void, void>;
  template <class T>
  using Typed = std::conditional_t<kConst, const T, T>;

  BasicRealView() = default;
  BasicRealView(Void* data, DType dtype, const Layout& layout) : data_(data), dtype_(dtype), layout_(layout) {
    assert(dtype == DType::F32 || dtype == DType::BF16);
  }
  template <class T>
  requires(std::is_same_v<std::remove_const_t<T>, float> || std::is_same_v<std::remove_const_t<T>, bf16>) &&
      (kConst || !std::is_const_v<T>)BasicRealView(View<T> v)
      : data_(v.data()),
  dtype_(dtype_of<std::remove_const_t<T>>::value), layout_(v.layout()) {}
  operator BasicRealView<true>() const requires(!kConst) { return {data_, dtype_, layout_}; }

  Void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  const Layout& layout() const { return layout_; }
  int rank() const { return layout_.rank; }
  std::int64_t size(int axis) const { return layout_.size[axis]; }
  std::int64_t stride(int axis) const { return layout_.stride[axis]; }
  std::int64_t numel() const { return layout_.numel(); }
  bool empty() const { return data_ == nullptr; }
  bool is_contiguous() const { return layout_.is_contiguous(); }

  /// The typed view; the caller has looked at dtype().
  template <class T>
  View<Typed<T>> as() const {
    assert(dtype_ == dtype_of<T>::value);
    return {static_cast<Typed<T>*>(data_), layout_};
  }

  template <class... I>
  float get(I... i) const {
    const std::int64_t at = offset(i...);
    return dtype_ == DType::F32 ? static_cast<const float*>(data_)[at]
                                : static_cast<const bf16*>(data_)[at].value();
  }
  template <class... I>
  void set(float value, I... i) const requires(!kConst) {
    const std::int64_t at = offset(i...);
    if (dtype_ == DType::F32)
      static_cast<float*>(data_)[at] = value;
    else
      static_cast<bf16*>(data_)[at] = bf16::nearest(value);
  }

  BasicRealView slice(int axis, std::int64_t begin, std::int64_t count) const {
    BasicRealView v = *this;
    v.advance(v.layout_.slice(axis, begin, count));
    return v;
  }
  BasicRealView rows(std::int64_t begin, std::int64_t count) const { return slice(0, begin, count); }
  BasicRealView cols(std::int64_t begin, std::int64_t count) const { return slice(1, begin, count); }
  BasicRealView split_last(std::int64_t outer, std::int64_t inner) const {
    BasicRealView v = *this;
    v.layout_.split_last(outer, inner);
    return v;
  }
  BasicRealView transposed() const {
    BasicRealView v = *this;
    v.layout_.swap_first_two();
    return v;
  }

 private:
  template <class... I>
  std::int64_t offset(I... i) const {
    assert(sizeof...(I) == static_cast<std::size_t>(rank()));
    const std::int64_t index[] = {static_cast<std::int64_t>(i)...};
    std::int64_t at = 0;
    for (int a = 0; a < layout_.rank; ++a) at += index[a] * layout_.stride[a];
    return at;
  }
  void advance(std::int64_t elements) {
    using Byte = std::conditional_t<kConst, const char, char>;
    data_ = static_cast<Byte*>(data_) + elements * static_cast<std::int64_t>(size_of(dtype_));
  }

  Void* data_ = nullptr;
  DType dtype_ = DType::F32;
  Layout layout_;
};

using RealView = BasicRealView<false>;
using ConstRealView = BasicRealView<true>;

/// Calls f(View<T>) with the type that the view stores: with_type(x, [&](auto x_TD) { ... }).
template <bool kConst, class F>
decltype(auto) with_type(const BasicRealView<kConst>& v, F&& f) {
  if (v.dtype() == DType::F32) return f(v.template as<float>());
  return f(v.template as<bf16>());
}

}  // namespace nibble
