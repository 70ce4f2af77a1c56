// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/conformance.h"
#include "ops/quantize/quantize_pair.h"
#include "ops/quantize/quantize_testing.h"
#include "ops/quantize/rotate.h"

/// Tests only: the quantising ops on any device. Data goes into memory that the device reads and writes
/// (Device::allocate_host) and comes back when the device is done.
namespace nibble::testing {

/// Which results to ask for: a GPU has kernels of its own for values alone and for codes alone.
enum class Outputs { Both, Values, Codes };

template <class T>
HostBuffer shared_copy(Device& device, const T* data, std::size_t count) {
  HostBuffer b(device, std::max<std::size_t>(1, count) * sizeof(T));
  if (count != 0) std::memcpy(b.as<void>(), data, count * sizeof(T));
  return b;
}

/// The source with the gaps between its rows.
class SharedMatrix {
 public:
  SharedMatrix(Device& device, const ConstRealView& x)
      : buffer_(shared_copy(device, static_cast<const char*>(x.data()),
                            static_cast<std::size_t>(extent(x)) * size_of(x.dtype()))),
        view_(buffer_.as<const void>(), x.dtype(), x.layout()) {}
  ConstRealView view() const { return view_; }

 private:
  static std::int64_t extent(const ConstRealView& x) {
    return x.numel() == 0 ? 0 : (x.size(0) - 1) * x.stride(0) + x.size(1);
  }
  HostBuffer buffer_;
  ConstRealView view_;
};

/// Rows of an output, `gap` numbers apart, full of a pattern.
template <class T>
class SharedOutput {
 public:
  SharedOutput(Device& device, std::int64_t rows, std::int64_t cols, std::int64_t gap)
      : rows_(rows),
        cols_(cols),
        stride_(cols + gap),
        buffer_(device, static_cast<std::size_t>(rows * stride_) * sizeof(T) + 16) {
    std::memset(buffer_.as<void>(), 0x5A, static_cast<std::size_t>(rows * stride_) * sizeof(T));
  }
  View<T> view() const {
    Layout l = Layout::contiguous(rows_, cols_);
    l.stride[0] = stride_;
    return {buffer_.as<T>(), l};
  }
  /// The rows without the gaps, which nobody may have written to.
  template <class U>
  void collect(std::vector<U>& out) const {
    static_assert(sizeof(U) == sizeof(T));
    out.resize(static_cast<std::size_t>(rows_ * cols_));
    for (std::int64_t r = 0; r < rows_; ++r) {
      const T* row = buffer_.as<T>() + r * stride_;
      if (cols_ != 0) std::memcpy(out.data() + r * cols_, row, static_cast<std::size_t>(cols_) * sizeof(T));
      const auto* gap = reinterpret_cast<const std::uint8_t*>(row + cols_);
      for (std::size_t k = 0; k < static_cast<std::size_t>(stride_ - cols_) * sizeof(T); ++k)
        ASSERT_EQ(gap[k], 0x5A) << "written between the rows, after row " << r;
    }
  }

 private:
  std::int64_t rows_, cols_, stride_;
  HostBuffer buffer_;
};

/// The memory of one quantised copy.
class SharedQuantized {
 public:
  SharedQuantized(Device& device, const ConstRealView& x, const QuantizeOptions& o, Outputs outputs,
                  std::int64_t gap)
      : shape_(quantized_shape(o.spec, x.size(0), x.size(1), o.transpose)),
        has_values_(outputs != Outputs::Codes || shape_.code_cols == 0),
        has_codes_(outputs != Outputs::Values && shape_.code_cols != 0),
        row_scaled_(o.spec.tensor_scaling == TensorScaling::Row),
        numbers_(device, 3 * sizeof(float)),
        values_(device, shape_.rows, shape_.cols, gap),
        codes_(device, shape_.rows, shape_.code_cols, gap),
        scales_(device, shape_.rows, shape_.scale_cols, gap),
        row_amax_(device, shape_.rows, 1, 0) {
    numbers_.as<float>()[0] = numbers_.as<float>()[1] = -1;
    if (o.amax_given) numbers_.as<float>()[2] = *o.amax_given;
    given_ = o.amax_given.has_value();
  }

  /// Quantize or QuantizePair::Copy: both call these the same.
  template <class Args>
  void put_into(Args& args) const {
    args.amax = numbers_.as<float>();
    args.scale = numbers_.as<float>() + 1;
    if (given_) args.amax_given = numbers_.as<float>() + 2;
    if (has_values_) args.values = values_.view();
    if (has_codes_) args.codes = codes_.view();
    if (has_codes_ && shape_.scale_cols != 0) args.scales = scales_.view();
    if (row_scaled_) args.row_amax = View<float>(row_amax_.view().data(), shape_.rows);
  }

  Quantized collect() const {
    Quantized out;
    out.shape = shape_;
    out.amax = numbers_.as<float>()[0];
    out.scale = numbers_.as<float>()[1];
    if (has_values_) values_.collect(out.values);
    if (has_codes_) codes_.collect(out.codes);
    if (has_codes_) scales_.collect(out.scales);
    if (row_scaled_) row_amax_.collect(out.row_amax);
    return out;
  }

 private:
  QuantizedShape shape_;
  bool has_values_, has_codes_, row_scaled_, given_ = false;
  HostBuffer numbers_;
  SharedOutput<bf16> values_;
  SharedOutput<std::uint8_t> codes_, scales_;
  SharedOutput<float> row_amax_;
};

/// quantize_all on any device.
inline Quantized quantize_on(Stream& stream, const ConstRealView& x, const QuantizeOptions& o,
                             Outputs outputs = Outputs::Both, std::int64_t gap = 0) {
  const SharedMatrix source(stream.device(), x);
  const SharedQuantized result(stream.device(), x, o, outputs, gap);
  Quantize q{.x_RC = source.view(),
             .spec = o.spec,
             .transpose = o.transpose,
             .random = o.random,
             .row_elements = o.row_elements};
  result.put_into(q);
  quantize(stream, q);
  stream.device().synchronize();
  return result.collect();
}

struct QuantizedPair {
  Quantized rows, transposed;
};

inline QuantizedPair quantize_pair_on(Stream& stream, const ConstRealView& x, const QuantizeOptions& rows,
                                      const QuantizeOptions& transposed, Outputs outputs, std::int64_t gap) {
  const SharedMatrix source(stream.device(), x);
  const SharedQuantized a(stream.device(), x, rows, outputs, gap);
  const SharedQuantized b(stream.device(), x, transposed, outputs, gap);
  QuantizePair pair{.x_RC = source.view(), .row_elements = rows.row_elements};
  pair.rows.spec = rows.spec;
  pair.rows.random = rows.random;
  pair.transposed.spec = transposed.spec;
  pair.transposed.random = transposed.random;
  a.put_into(pair.rows);
  b.put_into(pair.transposed);
  quantize_pair(stream, pair);
  stream.device().synchronize();
  return {a.collect(), b.collect()};
}

/// Rotate into contiguous rows.
inline std::vector<bf16> rotate_on(Stream& stream, const ConstRealView& x, bool transpose,
                                   std::uint16_t sign_mask = 0xD7E8) {
  const SharedMatrix source(stream.device(), x);
  const std::int64_t rows = x.size(transpose ? 1 : 0), cols = (x.size(transpose ? 0 : 1) + 15) / 16 * 16;
  const SharedOutput<bf16> out(stream.device(), rows, cols, 3);
  rotate(stream, {.x_RC = source.view(), .transpose = transpose, .sign_mask = sign_mask, .out = out.view()});
  stream.device().synchronize();
  std::vector<bf16> result;
  out.collect(result);
  return result;
}

/// What `q`, made with codes under `spec`, decodes to.
inline std::vector<float> dequantize_on(Stream& stream, const Quantized& q, const QuantSpec& spec) {
  Device& device = stream.device();
  const QuantizedShape& s = q.shape;
  const HostBuffer codes = shared_copy(device, q.codes.data(), q.codes.size());
  const HostBuffer scales = shared_copy(device, q.scales.data(), q.scales.size());
  const HostBuffer row_amax = shared_copy(device, q.row_amax.data(), q.row_amax.size());
  const float numbers[2] = {q.amax, q.scale};
  const HostBuffer both = shared_copy(device, numbers, 2);
  const SharedOutput<float> out(device, s.rows, s.cols, 1);
  Dequantize d{.format = spec.format, .amax = both.as<float>(), .scale = both.as<float>() + 1};
  d.codes = View<const std::uint8_t>(codes.as<std::uint8_t>(), s.rows, s.code_cols);
  if (s.scale_cols != 0) d.scales = View<const std::uint8_t>(scales.as<std::uint8_t>(), s.rows, s.scale_cols);
  if (!q.row_amax.empty()) d.row_amax = View<const float>(row_amax.as<float>(), s.rows);
  d.scale_bound = spec.scale_bound;
  d.amax_factor = amax_factor(spec);
  d.out_RC = out.view();
  dequantize(stream, d);
  device.synchronize();
  std::vector<float> result;
  out.collect(result);
  return result;
}

inline void expect_same_bits(float a, float b, const std::string& what) {
  if (std::isnan(a) && std::isnan(b)) return;
  ASSERT_EQ(float_bits(a), float_bits(b)) << what << ": " << a << " and " << b;
}

/// The same bytes, amax and scale included.
inline void expect_same(const Quantized& a, const Quantized& b, const std::string& what) {
  expect_same_bits(a.amax, b.amax, what + ": amax");
  expect_same_bits(a.scale, b.scale, what + ": scale");
  const auto compare = [&](const auto& x, const auto& y, const char* name, std::int64_t cols) {
    ASSERT_EQ(x.size(), y.size()) << what << ": " << name;
    for (std::size_t i = 0; i < x.size(); ++i)
      ASSERT_EQ(+x[i], +y[i]) << what << ": " << name << " at row " << i / static_cast<std::size_t>(cols)
                              << ", column " << i % static_cast<std::size_t>(cols);
  };
  compare(a.scales, b.scales, "scales", a.shape.scale_cols);
  compare(a.codes, b.codes, "codes", a.shape.code_cols);
  compare(a.values, b.values, "values", a.shape.cols);
  compare(a.row_amax, b.row_amax, "row_amax", 1);
}

}  // namespace nibble::testing
