// SPDX-License-Identifier: Apache-2.0
#include "layers/head.h"

#include <algorithm>

#include "ops/gemm/gemm.h"
#include "ops/loss/cross_entropy.h"
#include "ops/loss/greedy_match.h"

namespace nibble {
namespace {

/// Tokens a chunk: fixed for a backend, never by threads or memory, so that sums keep their order. A GPU
/// needs larger products to be busy; its sums differ from the host's anyway. Every chunk reads and writes the
/// weight's gradient, so that BF16 logits come in chunks of twice as many tokens, in the same memory.
std::int64_t chunk_tokens(BackendKind kind, DType logits) {
  if (kind != BackendKind::Cuda) return 512;
  return logits == DType::F32 ? 4096 : 8192;
}

}  // namespace

void Head::loss(Context& ctx, ConstRealView x_TD, View<const std::int32_t> targets_T, View<float> loss_T,
                float grad_scale, RealView dx_TD) {
  const std::int64_t tokens = x_TD.size(0), columns = weight_.compute.size(0);
  const std::int64_t chunk = chunk_tokens(ctx.stream.kind(), ctx.logits);
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t count = std::min(chunk, tokens - begin);
    const ArenaScope temporaries(ctx.arena);
    const ConstRealView x = x_TD.rows(begin, count);
    const RealView logits_TV = ctx.arena.take_real(ctx.logits, count, columns);
    const RealView dlogits_TV = grad_scale == 0                ? RealView{}
                                : ctx.logits == ctx.activation ? logits_TV
                                                               : ctx.activations(count, columns);
    matmul(ctx.stream, {.a_MK = x, .b_NK = weight_.compute, .c_MN = logits_TV});
    cross_entropy(ctx.stream, {.logits_TV = logits_TV,
                               .targets_T = targets_T.rows(begin, count),
                               .loss_T = loss_T.rows(begin, count),
                               .dlogits_TV = dlogits_TV,
                               .grad_scale = grad_scale,
                               .vocab = vocab_});
    if (grad_scale == 0) continue;
    // wgrad first: it reads x, in whose place dx may be.
    matmul(ctx.stream, {.a_MK = dlogits_TV.transposed(),
                        .b_NK = x.transposed(),
                        .c_MN = weight_.grad,
                        .beta = ctx.first_wgrad && begin == 0 ? 0.0f : 1.0f});
    matmul(ctx.stream,
           {.a_MK = dlogits_TV, .b_NK = weight_.compute.transposed(), .c_MN = dx_TD.rows(begin, count)});
  }
}

void Head::score(Context& ctx, ConstRealView x_TD, View<const std::int32_t> targets_T, View<float> loss_T,
                 View<float> greedy_T) {
  const std::int64_t tokens = x_TD.size(0), columns = weight_.compute.size(0);
  const std::int64_t chunk = chunk_tokens(ctx.stream.kind(), DType::F32);
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t count = std::min(chunk, tokens - begin);
    const ArenaScope temporaries(ctx.arena);
    const View<float> logits_TV = ctx.arena.take<float>(count, columns);
    const View<const std::int32_t> targets = targets_T.rows(begin, count);
    matmul(ctx.stream, {.a_MK = x_TD.rows(begin, count), .b_NK = weight_.compute, .c_MN = logits_TV});
    cross_entropy(ctx.stream, {.logits_TV = logits_TV,
                               .targets_T = targets,
                               .loss_T = loss_T.rows(begin, count),
                               .grad_scale = 0,
                               .vocab = vocab_});
    greedy_match(ctx.stream, {.logits_TV = logits_TV,
                              .targets_T = targets,
                              .greedy_T = greedy_T.rows(begin, count),
                              .vocab = vocab_});
  }
}

void Head::logits(Context& ctx, ConstRealView x_TD, View<float> logits_TV) {
  matmul(ctx.stream, {.a_MK = x_TD, .b_NK = weight_.compute, .c_MN = logits_TV});
}

}  // namespace nibble
