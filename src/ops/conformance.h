// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/simd.h"
#include "numeric/random_key.h"
#include "ops/op.h"

/// Tests only: one op on `ref`, on `cpu` and, in a build with it and where there is a GPU, on `cuda`, with
/// the same inputs. A conformance test is
///
///   TEST(Conformance, add) {
///     for (auto [T, D] : kShapes)
///       conformance::compare(add, fmt::format("T={} D={}", T, D), [&](conformance::Case& c) {
///         return Add{.x_TD = c.output("x", Bound::of(1e-6), T, D), .y_TD = c.input(T, D)};
///       });
///   }
///
/// and its name is the op's (or its suite is called after the op): all_ops_conformance_test.cpp looks for it.
namespace nibble::conformance {

/// How far `cpu` may be from `ref`: |cpu - ref| <= relative * max(|ref|, rms of ref over the output), and for
/// a BF16 output one BF16 ulp more, because two FP32 values on either side of a rounding boundary end up
/// there. Zero: the same bytes.
struct Bound {
  double relative = 0;
  /// The same for `cuda` with BF16 storage, where a library rounds to BF16 inside the op; 0: no wider.
  double gpu_bf16 = 0;
  static Bound of(double relative) { return {relative}; }
  static Bound of(double relative, double gpu_bf16) { return {relative, gpu_bf16}; }
  static Bound same_bytes() { return {0}; }
};

/// Makes the tensors of one run of an op. Whoever asks in the same order gets the same numbers, so `ref` and
/// `cpu` see equal inputs in separate memory.
class Case {
 public:
  /// The tensors lie in host memory that `device` reads and writes (Device::allocate_host), so that a test
  /// fills and compares them whatever computes.
  Case(Device& device, std::uint64_t seed, DType storage, std::int64_t padding)
      : device_(&device), seed_(seed), storage_(storage), padding_(padding) {}

  /// The type of activations in this run.
  DType storage() const { return storage_; }

  /// Normal numbers times sigma plus mean, in the storage type (or FP32), rows padded in strided runs.
  template <class... N>
  ConstRealView input(N... sizes) {
    return make("", storage_, {}, 1, 0, Layout::contiguous(sizes...)).view;
  }
  template <class... N>
  View<const float> input_f32(double sigma, double mean, N... sizes) {
    return make("", DType::F32, {}, sigma, mean, Layout::contiguous(sizes...)).view.template as<float>();
  }
  /// An output that starts with random contents, so that += shows.
  template <class... N>
  RealView output(const std::string& name, Bound bound, N... sizes) {
    return make(name, storage_, bound, 1, 0, Layout::contiguous(sizes...)).view;
  }
  template <class... N>
  View<float> output_f32(const std::string& name, Bound bound, N... sizes) {
    return make(name, DType::F32, bound, 1, 0, Layout::contiguous(sizes...)).view.template as<float>();
  }
  template <class... N>
  RealView output_as(DType dtype, const std::string& name, Bound bound, N... sizes) {
    return make(name, dtype, bound, 1, 0, Layout::contiguous(sizes...)).view;
  }
  /// `count` integers in [low, high).
  View<const std::int32_t> ids(std::int32_t low, std::int32_t high, std::int64_t count) {
    std::int32_t* p = other<std::int32_t>(count);
    for (std::int64_t i = 0; i < count; ++i)
      p[i] = low + static_cast<std::int32_t>(uniform(i) * (high - low));
    return {p, Layout::contiguous(count)};
  }
  /// `count` bytes in [0, high).
  View<const std::uint8_t> bytes(int high, std::int64_t count) {
    std::uint8_t* p = other<std::uint8_t>(count);
    for (std::int64_t i = 0; i < count; ++i) p[i] = static_cast<std::uint8_t>(uniform(i) * high);
    return {p, Layout::contiguous(count)};
  }
  /// Overwrites element by element, before the op runs: for inputs of a special kind.
  template <class F>
  static void fill(const RealView& view, F&& f) {
    for (std::int64_t i = 0; i < view.size(0); ++i)
      for (std::int64_t j = 0; j < view.size(1); ++j) view.set(f(i, j), i, j);
  }
  /// A single number that the op writes; compared like an output.
  double* number(std::string name, Bound bound) {
    numbers_.push_back({std::move(name), bound, HostBuffer(*device_, sizeof(double))});
    return numbers_.back().value.as<double>();
  }

  struct Tensor {
    std::string name;  ///< empty: an input
    Bound bound;
    RealView view;
    HostBuffer buffer;
    std::int64_t words = 0;
    /// Everything, gaps between rows included.
    std::vector<std::uint32_t> memory() const {
      return {buffer.as<std::uint32_t>(), buffer.as<std::uint32_t>() + words};
    }
  };
  struct Number {
    std::string name;
    Bound bound;
    HostBuffer value;
  };
  const std::vector<std::unique_ptr<Tensor>>& tensors() const { return tensors_; }
  const std::vector<Number>& numbers() const { return numbers_; }

 private:
  template <class T>
  T* other(std::int64_t count) {
    others_.emplace_back(*device_, static_cast<std::size_t>(count) * sizeof(T));
    ++tensors_made_;
    return others_.back().as<T>();
  }
  double uniform(std::int64_t i) const {
    return initial_uniform(seed_, tensors_made_, static_cast<std::uint64_t>(i));
  }

  Tensor& make(std::string name, DType dtype, Bound bound, double sigma, double mean, Layout layout) {
    const int last = layout.rank - 1;
    // Strided runs leave a gap after every row; a vector has no rows.
    if (layout.rank >= 2)
      for (int axis = 0; axis < last; ++axis) {
        std::int64_t stride = layout.size[last] + padding_;
        for (int inner = last - 1; inner > axis; --inner) stride *= layout.size[inner];
        layout.stride[axis] = stride;
      }
    std::int64_t extent = layout.rank >= 2 ? layout.stride[0] * layout.size[0] : layout.size[0];
    auto t = std::make_unique<Tensor>();
    t->name = std::move(name);
    t->bound = bound;
    t->words = extent;
    t->buffer = HostBuffer(*device_, static_cast<std::size_t>(extent) * sizeof(std::uint32_t));
    ++tensors_made_;
    const RealView flat(t->buffer.as<void>(), dtype, Layout::contiguous(extent));
    for (std::int64_t i = 0; i < extent; ++i)
      flat.set(static_cast<float>(
                   mean + sigma * initial_normal(seed_, tensors_made_, static_cast<std::uint64_t>(i))),
               i);
    t->view = RealView(t->buffer.as<void>(), dtype, layout);
    tensors_.push_back(std::move(t));
    return *tensors_.back();
  }

  Device* device_;
  std::uint64_t seed_;
  DType storage_;
  std::int64_t padding_;
  std::uint64_t tensors_made_ = 0;
  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::vector<HostBuffer> others_;
  std::vector<Number> numbers_;
};

/// Puts the SIMD level back.
class KeepSimdLevel {
 public:
  ~KeepSimdLevel() { set_simd_level(level_); }

 private:
  SimdLevel level_ = simd_level();
};

template <class F>
void for_each_index(const Layout& l, F&& f) {
  std::array<std::int64_t, kMaxRank> at{};
  for (std::int64_t n = 0; n < l.numel(); ++n) {
    std::int64_t offset = 0;
    for (int axis = 0; axis < l.rank; ++axis)
      offset += at[static_cast<std::size_t>(axis)] * l.stride[static_cast<std::size_t>(axis)];
    f(offset, at);
    for (int axis = l.rank - 1; axis >= 0; --axis) {
      if (++at[static_cast<std::size_t>(axis)] < l.size[static_cast<std::size_t>(axis)]) break;
      at[static_cast<std::size_t>(axis)] = 0;
    }
  }
}

/// Compares one output; says which element is worst, with both values.
inline void expect_close(const std::string& what, const Case::Tensor& ref, const Case::Tensor& cpu,
                         double relative) {
  const auto flat = [](const Case::Tensor& t) {
    return RealView(t.view.data(), t.view.dtype(), Layout::contiguous(t.words));
  };
  const RealView r = flat(ref), c = flat(cpu);
  double squares = 0;
  for_each_index(ref.view.layout(), [&](std::int64_t at, const auto&) { squares += std::pow(r.get(at), 2); });
  const double rms = std::sqrt(squares / static_cast<double>(std::max<std::int64_t>(1, ref.view.numel())));
  double worst = 0;
  std::string message;
  for_each_index(ref.view.layout(), [&](std::int64_t at, const auto& index) {
    const double a = r.get(at), b = c.get(at);
    double allowed = relative * std::max(std::abs(a), rms);
    if (relative > 0 && ref.view.dtype() == DType::BF16) allowed += std::ldexp(std::abs(a), -7);
    if (a == b || (std::isnan(a) && std::isnan(b))) return;
    const double excess = std::isfinite(b) && allowed > 0 ? std::abs(a - b) / allowed : 1e300;
    if (excess <= std::max(worst, 1.0)) return;
    worst = excess;
    message = fmt::format("{}: {}[{}, {}, {}] is {:.9g} but {:.9g} on ref, {:.3g} times the bound", what,
                          ref.name, index[0], index[1], index[2], b, a, excess);
  });
  if (worst > 0) ADD_FAILURE() << message;
}

/// What lies between the rows is nobody's to write.
inline void expect_same_gaps(const std::string& what, const Case::Tensor& ref, const Case::Tensor& cpu) {
  std::vector<std::uint32_t> without_elements = cpu.memory();
  const RealView flat(without_elements.data(), cpu.view.dtype(), Layout::contiguous(cpu.words));
  const RealView elements(ref.view.data(), ref.view.dtype(), flat.layout());
  for_each_index(ref.view.layout(), [&](std::int64_t at, const auto&) { flat.set(elements.get(at), at); });
  EXPECT_EQ(without_elements, ref.memory()) << what << ": " << ref.name << ": written between the rows";
}

inline void compare_with_ref(const std::string& what, const Case& ref, const Case& cpu, bool on_gpu = false) {
  for (std::size_t i = 0; i < ref.tensors().size(); ++i) {
    const Case::Tensor &r = *ref.tensors()[i], &c = *cpu.tensors()[i];
    if (r.name.empty()) {
      EXPECT_EQ(r.memory(), c.memory()) << what << ": an input was written to";
    } else {
      const bool wider = on_gpu && ref.storage() == DType::BF16 && r.bound.gpu_bf16 > 0;
      expect_close(what, r, c, wider ? r.bound.gpu_bf16 : r.bound.relative);
      expect_same_gaps(what, r, c);
    }
  }
  for (std::size_t i = 0; i < ref.numbers().size(); ++i) {
    const Case::Number &r = ref.numbers()[i], &c = cpu.numbers()[i];
    const double a = *r.value.as<double>(), b = *c.value.as<double>();
    EXPECT_NEAR(a, b, std::abs(a) * r.bound.relative) << what << ": " << r.name;
  }
}

/// The same bits, gaps between rows included: nobody writes there.
inline void compare_bits(const std::string& what, const Case& first, const Case& other) {
  for (std::size_t i = 0; i < first.tensors().size(); ++i)
    EXPECT_EQ(first.tensors()[i]->memory(), other.tensors()[i]->memory())
        << what << ": " << first.tensors()[i]->name
        << " is not the same twice (threads, SIMD level, or a second run)";
  for (std::size_t i = 0; i < first.numbers().size(); ++i)
    EXPECT_EQ(*first.numbers()[i].value.as<double>(), *other.numbers()[i].value.as<double>())
        << what << ": " << first.numbers()[i].name
        << " is not the same twice (threads, SIMD level, or a second run)";
}

/// The GPU of this machine, or null: no cuda backend in this build, or no GPU here. Made once a process; the
/// test of label "gpu" that asks for it fails where this is null.
inline Device* gpu() {
  static const std::unique_ptr<Device> device = []() -> std::unique_ptr<Device> {
    try {
      return open_device(BackendKind::Cuda);
    } catch (const Error&) {
      return nullptr;
    }
  }();
  return device.get();
}

struct Options {
  std::uint64_t seed = 1;
  bool bf16 = true;         ///< also with BF16 storage
  bool strided = true;      ///< also with gaps between rows
  bool same_levels = true;  ///< every SIMD level gives the same bits; false only where a library decides
};

/// The op on the GPU: near the reference, and twice the same bits.
template <class Args>
void compare_gpu(const Op<Args>& op, const std::string& what, const std::function<Args(Case&)>& make,
                 const Case& ref, const Options& options, DType storage, std::int64_t padding) {
  if (gpu() == nullptr || !op.has(BackendKind::Cuda)) return;
  Stream stream(BackendKind::Cuda, *gpu(), 1);
  Case first(*gpu(), options.seed, storage, padding), second(*gpu(), options.seed, storage, padding);
  for (Case* c : {&first, &second}) {
    op(stream, make(*c));
    gpu()->synchronize();
  }
  compare_with_ref(what + " cuda", ref, first, true);
  compare_bits(what + " cuda, twice", first, second);
}

/// Runs `op` on ref, then on cpu with one and two threads and at every SIMD level that this processor has,
/// then on the GPU.
template <class Args>
void compare(const Op<Args>& op, const std::string& shape, const std::function<Args(Case&)>& make,
             Options options = {}) {
  const KeepSimdLevel keep;
  HostDevice device;
  const SimdLevel best = simd_level();
  for (DType storage : {DType::F32, DType::BF16}) {
    if (storage == DType::BF16 && !options.bf16) continue;
    for (std::int64_t padding : {0, 5}) {
      if (padding != 0 && !options.strided) continue;
      const std::string what = fmt::format("{} {} storage={} padding={} seed={}", op.name, shape,
                                           name_of(storage), padding, options.seed);
      const auto run = [&](Case& c, BackendKind kind, int threads) {
        Stream stream(kind, device, threads);
        op(stream, make(c));
      };
      Case ref(device, options.seed, storage, padding), first(device, options.seed, storage, padding);
      run(ref, BackendKind::Ref, 1);
      run(first, BackendKind::Cpu, 1);
      compare_with_ref(what, ref, first);
      for (SimdLevel level : {best, SimdLevel::Avx2, SimdLevel::Baseline}) {
        if (level > best) continue;
        set_simd_level(level);
        Case other(device, options.seed, storage, padding);
        run(other, BackendKind::Cpu, 2);
        if (level == best || options.same_levels)
          compare_bits(fmt::format("{} level={} threads=2", what, static_cast<int>(level)), first, other);
        else
          compare_with_ref(what, ref, other);
      }
      set_simd_level(best);
      compare_gpu(op, what, make, ref, options, storage, padding);
    }
  }
}

}  // namespace nibble::conformance
