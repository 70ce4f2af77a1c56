// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/tile_product.h"

#include <omp.h>

#include <array>
#include <dnnl.hpp>
#include <map>
#include <mutex>

#include "base/error.h"

namespace nibble::cpu {
namespace {

using Key = std::array<std::int64_t, 9>;

Key key_of(const TileProduct& t) {
  return {t.m,          t.n,          t.k,          t.bf16_operands, t.a_stride_m,
          t.a_stride_k, t.b_stride_n, t.b_stride_k, t.c_stride_m};
}

/// A compiled product and the places of its operands.
struct Compiled {
  dnnl::matmul run;
  dnnl::memory a, b, c, scratch;
};

/// What one thread keeps. Nothing is shared, so nothing is locked; oneDNN's own cache of compiled code is.
class Compiler {
 public:
  Compiler() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    // Parallelism is the caller's: tiles on our own pool. The setting belongs to this thread.
    omp_set_num_threads(1);
  }

  void run(const TileProduct& t) {
    Compiled& p = compiled(t);
    p.a.set_data_handle(const_cast<void*>(t.a));
    p.b.set_data_handle(const_cast<void*>(t.b));
    p.c.set_data_handle(t.c);
    p.run.execute(stream_, {{DNNL_ARG_SRC, p.a},
                            {DNNL_ARG_WEIGHTS, p.b},
                            {DNNL_ARG_DST, p.c},
                            {DNNL_ARG_SCRATCHPAD, p.scratch}});
    stream_.wait();
  }

 private:
  Compiled& compiled(const TileProduct& t) {
    const Key key = key_of(t);
    if (const auto found = cache_.find(key); found != cache_.end()) return found->second;
    // A model has a few dozen shapes; a caller with endless ones must not grow memory.
    if (cache_.size() >= 1024) cache_.clear();
    return cache_.emplace(key, compile(t)).first->second;
  }

  Compiled compile(const TileProduct& t) {
    // oneDNN keeps a cache of its own for the whole process; its locks are in a library that ThreadSanitizer
    // cannot read. Kernels are made once a shape, so making them one at a time costs nothing and is provable.
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    using Type = dnnl::memory::data_type;
    const Type type = t.bf16_operands ? Type::bf16 : Type::f32;
    const dnnl::memory::desc a({t.m, t.k}, type, dnnl::memory::dims{t.a_stride_m, t.a_stride_k});
    const dnnl::memory::desc b({t.k, t.n}, type, dnnl::memory::dims{t.b_stride_k, t.b_stride_n});
    const dnnl::memory::desc c({t.m, t.n}, Type::f32, dnnl::memory::dims{t.c_stride_m, 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::matmul::primitive_desc chosen(dnnl::matmul::desc(a, b, c), attributes, engine_);
    return {dnnl::matmul(chosen), dnnl::memory(a, engine_, nullptr), dnnl::memory(b, engine_, nullptr),
            dnnl::memory(c, engine_, nullptr), dnnl::memory(chosen.scratchpad_desc(), engine_)};
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<Key, Compiled> cache_;
};

}  // namespace

void multiply(const TileProduct& tile) {
  thread_local Compiler compiler;
  try {
    compiler.run(tile);
  } catch (const dnnl::error& e) {
    fail("matmul: oneDNN cannot multiply [{}, {}] by [{}, {}]: {}; run with --backend ref to go on", tile.m,
         tile.k, tile.k, tile.n, e.what());
  }
}

}  // namespace nibble::cpu
