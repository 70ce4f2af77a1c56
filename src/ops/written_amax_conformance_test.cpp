// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "ops/conformance.h"
#include "ops/elementwise/elementwise.h"
#include "ops/norm/rms_norm.h"
#include "quant/amax.h"

/// The amax that an op leaves beside its output is that of the output, bit for bit, on every backend: a
/// quantiser that takes it makes the codes it would have made with its own.
namespace nibble {
namespace {

/// Memory that this backend reads and writes and so does the test.
class Matrices {
 public:
  Matrices(BackendKind kind, Device& device, std::int64_t rows, std::int64_t columns, float special)
      : stream_(kind, device, 2), device_(device), rows_(rows), columns_(columns), special_(special) {}

  Stream& stream() { return stream_; }
  /// Normal numbers, and the special one among them.
  RealView input(DType dtype, std::int64_t columns) {
    const RealView v = output(dtype, columns);
    const std::uint64_t seed = buffers_.size();
    for (std::int64_t i = 0; i < rows_; ++i)
      for (std::int64_t j = 0; j < columns; ++j)
        v.set(static_cast<float>(initial_normal(seed, 0, static_cast<std::uint64_t>(i * columns + j))), i, j);
    v.set(special_, rows_ - 1, columns - 1);
    return v;
  }
  RealView output(DType dtype, std::int64_t columns) {
    buffers_.emplace_back(device_, static_cast<std::size_t>(rows_ * columns) * sizeof(float));
    return {buffers_.back().as<void>(), dtype, Layout::contiguous(rows_, columns)};
  }
  View<float> vector(std::int64_t size) {
    buffers_.emplace_back(device_, static_cast<std::size_t>(size) * sizeof(float));
    return View<float>(buffers_.back().as<float>(), size);
  }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }

  /// Runs the op and compares.
  template <class Args>
  void expect_amax(const Op<Args>& op, const Args& args, const RealView& written) {
    *args.amax = -1;  // something that was there before
    op(stream_, args);
    device_.synchronize();
    float expected = 0;
    for (std::int64_t i = 0; i < rows_; ++i)
      for (std::int64_t j = 0; j < written.size(1); ++j)
        expected = amax_keeping_nan(expected, written.get(i, j));
    EXPECT_TRUE(*args.amax == expected || (std::isnan(*args.amax) && std::isnan(expected)))
        << op.name << " on " << name_of(stream_.kind()) << ", " << name_of(written.dtype()) << " [" << rows_
        << ", " << columns_ << "]: " << *args.amax << " instead of " << expected;
    EXPECT_TRUE(std::isfinite(special_) || !std::isfinite(expected)) << op.name << ": the case tests nothing";
  }

 private:
  Stream stream_;
  Device& device_;
  std::int64_t rows_, columns_;
  float special_;
  std::vector<HostBuffer> buffers_;
};

template <class F>
void on_every_backend(F&& f) {
  HostDevice host;
  const float inf = std::numeric_limits<float>::infinity();
  for (float special : {1.0f, inf, std::numeric_limits<float>::quiet_NaN()})
    for (DType dtype : {DType::F32, DType::BF16})
      for (auto [rows, columns] : {std::pair{1, 1}, {70, 48}, {9, 1037}}) {
        for (BackendKind kind : {BackendKind::Ref, BackendKind::Cpu}) {
          Matrices m(kind, host, rows, columns, special);
          f(m, dtype);
        }
        if (conformance::gpu() == nullptr) continue;
        Matrices m(BackendKind::Cuda, *conformance::gpu(), rows, columns, special);
        f(m, dtype);
      }
}

TEST(WrittenAmax, OfRmsNorm) {
  on_every_backend([](Matrices& m, DType dtype) {
    const RealView y = m.output(dtype, m.columns());
    m.expect_amax<RmsNorm>(rms_norm,
                           {.x_TD = m.input(dtype, m.columns()),
                            .w_D = m.input(DType::F32, m.columns()).as<float>().row(0),
                            .y_TD = y,
                            .rstd_T = m.vector(m.rows()),
                            .amax = m.vector(1).data()},
                           y);
  });
}

TEST(WrittenAmax, OfAddRmsNorm) {
  on_every_backend([](Matrices& m, DType dtype) {
    const RealView y = m.output(dtype, m.columns());
    m.expect_amax<AddRmsNorm>(add_rms_norm,
                              {.x_TD = m.input(dtype, m.columns()),
                               .y_TD = m.input(dtype, m.columns()),
                               .sum_TD = m.output(dtype, m.columns()),
                               .w_D = m.input(DType::F32, m.columns()).as<float>().row(0),
                               .normed_TD = y,
                               .rstd_T = m.vector(m.rows()),
                               .amax = m.vector(1).data()},
                              y);
  });
}

TEST(WrittenAmax, OfSwiGlu) {
  on_every_backend([](Matrices& m, DType dtype) {
    const RealView y = m.output(dtype, m.columns());
    m.expect_amax<SwiGlu>(
        swiglu, {.gate_up_T2F = m.input(dtype, 2 * m.columns()), .y_TF = y, .amax = m.vector(1).data()}, y);
  });
}

TEST(WrittenAmax, OfGatedRmsNorm) {
  on_every_backend([](Matrices& m, DType dtype) {
    const int groups = m.columns() % 3 == 0 ? 3 : 1;
    const RealView out = m.output(dtype, m.columns());
    m.expect_amax<GatedRmsNorm>(gated_rms_norm,
                                {.y_TD = m.input(dtype, m.columns()),
                                 .z_TD = m.input(dtype, m.columns()),
                                 .w_D = m.input(DType::F32, m.columns()).as<float>().row(0),
                                 .out_TD = out,
                                 .rstd_TG = m.output(DType::F32, groups).as<float>(),
                                 .groups = groups,
                                 .amax = m.vector(1).data()},
                                out);
  });
}

TEST(WrittenAmax, OfTheGradientBehindARmsNorm) {
  on_every_backend([](Matrices& m, DType dtype) {
    const RealView copy = m.output(dtype, m.columns());
    m.expect_amax<RmsNormBackward>(rms_norm_backward,
                                   {.x_TD = m.input(dtype, m.columns()),
                                    .w_D = m.input(DType::F32, m.columns()).as<float>().row(0),
                                    .rstd_T = m.input(DType::F32, m.rows()).as<float>().row(0),
                                    .dy_TD = m.input(dtype, m.columns()),
                                    .dx_TD = m.input(DType::F32, m.columns()).as<float>(),
                                    .dw_D = m.vector(m.columns()),
                                    .dx_copy_TD = copy,
                                    .amax = m.vector(1).data()},
                                   copy);
  });
}

TEST(WrittenAmax, OfTheGradientBehindARmsNormThatIsReadWithoutACopy) {
  on_every_backend([](Matrices& m, DType dtype) {
    const RealView dx = m.input(dtype, m.columns());
    m.expect_amax<RmsNormBackward>(rms_norm_backward,
                                   {.x_TD = m.input(dtype, m.columns()),
                                    .w_D = m.input(DType::F32, m.columns()).as<float>().row(0),
                                    .rstd_T = m.input(DType::F32, m.rows()).as<float>().row(0),
                                    .dy_TD = m.input(dtype, m.columns()),
                                    .dx_TD = dx,
                                    .dw_D = m.vector(m.columns()),
                                    .amax = m.vector(1).data()},
                                   dx);
  });
}

TEST(WrittenAmax, OfBothHalvesOfTheGradientOfSwiGlu) {
  on_every_backend([](Matrices& m, DType dtype) {
    const RealView d = m.output(dtype, 2 * m.columns());
    m.expect_amax<SwiGluBackward>(swiglu_backward,
                                  {.gate_up_T2F = m.input(dtype, 2 * m.columns()),
                                   .dy_TF = m.input(dtype, m.columns()),
                                   .dgate_up_T2F = d,
                                   .amax = m.vector(1).data()},
                                  d);
  });
}

TEST(WrittenAmax, OfTheGradientOfSquaredRelu) {
  on_every_backend([](Matrices& m, DType dtype) {
    const RealView y = m.input(dtype, m.columns());
    for (std::int64_t i = 0; i < m.rows(); ++i)
      for (std::int64_t j = 0; j < m.columns(); ++j) y.set(std::abs(y.get(i, j)), i, j);
    const RealView dx = m.output(dtype, m.columns());
    m.expect_amax<SquaredReluBackward>(
        squared_relu_backward,
        {.y_TF = y, .dy_TF = m.input(dtype, m.columns()), .dx_TF = dx, .amax = m.vector(1).data()}, dx);
  });
}

TEST(WrittenAmax, OfSquaredRelu) {
  on_every_backend([](Matrices& m, DType dtype) {
    const RealView y = m.output(dtype, m.columns());
    m.expect_amax<SquaredRelu>(
        squared_relu, {.x_TF = m.input(dtype, m.columns()), .y_TF = y, .amax = m.vector(1).data()}, y);
  });
}

}  // namespace
}  // namespace nibble
