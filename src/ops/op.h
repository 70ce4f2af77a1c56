// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "backend/device.h"
#include "base/error.h"

namespace nibble {

/// An operation on tensors: its meaning is `ref`; every other function is the same made fast.
/// A null pointer says "not on this backend". Args is a plain struct of views and numbers: inputs are const
/// views, outputs mutable ones, and the caller owns everything.
template <class Args>
struct Op {
  std::string_view name;
  /// Throws Error{Runtime} naming the op and the argument. Looks at shapes and pointers, never at data:
  /// that may lie in another memory.
  void (*check)(const Args&);
  void (*ref)(Stream&, const Args&);
  void (*cpu)(Stream&, const Args&);
  void (*cuda)(Stream&, const Args&) = nullptr;

  bool has(BackendKind kind) const { return pick(kind) != nullptr; }
  void operator()(Stream& stream, const Args& args) const {
    check(args);
    auto* run = pick(stream.kind());
    nibble::check(run != nullptr, "{}: there is no {} implementation", name, name_of(stream.kind()));
    run(stream, args);
  }

 private:
  auto pick(BackendKind kind) const -> void (*)(Stream&, const Args&) {
    return kind == BackendKind::Ref ? ref : kind == BackendKind::Cpu ? cpu : cuda;
  }
};

/// `f` in a build with the cuda backend, null in one without.
#ifdef NIBBLE_WITH_CUDA
#define NIBBLE_CUDA(f) f
#else
#define NIBBLE_CUDA(f) nullptr
#endif

/// Declares what every op needs: the implementations `ref::run`, `cpu::run` and `cuda::run`, `check`, and the
/// op itself.
#define NIBBLE_OP(Args, op_name)     \
  namespace ref {                    \
  void run(Stream&, const Args&);    \
  }                                  \
  namespace cpu {                    \
  void run(Stream&, const Args&);    \
  }                                  \
  namespace cuda {                   \
  void run(Stream&, const Args&);    \
  }                                  \
  void check(const Args&);           \
  inline constexpr Op<Args> op_name{ \
      .name = #op_name, .check = check, .ref = ref::run, .cpu = cpu::run, .cuda = NIBBLE_CUDA(cuda::run)};

}  // namespace nibble
