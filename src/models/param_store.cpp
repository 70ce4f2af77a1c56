// SPDX-License-Identifier: Apache-2.0
#include "models/param_store.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "io/hash.h"
#include "numeric/random_key.h"
#include "ops/elementwise/elementwise.h"
#include "ops/quantize/quantize.h"

namespace nibble {
namespace {

constexpr std::int64_t kAlignment = 16;  // elements of FP32: 64 bytes

Layout layout_of(const std::vector<std::int64_t>& shape) {
  if (shape.size() == 1) return Layout::contiguous(shape[0]);
  std::int64_t inner = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) inner *= shape[i];
  return Layout::contiguous(shape[0], inner);
}

double start_value(const ParamInfo& p, std::uint64_t seed, std::uint64_t tensor, std::uint64_t element) {
  switch (p.init) {
    case InitKind::Ones:
      return 1;
    case InitKind::Zeros:
      return 0;
    case InitKind::Normal:
      return p.scale * initial_normal(seed, tensor, element);
    case InitKind::Uniform:
      return p.scale * (2 * initial_uniform(seed, tensor, element) - 1);
    case InitKind::ALog:
      return std::log(1 + 15 * initial_uniform(seed, tensor, element));
    case InitKind::DtBias: {
      const double u = initial_uniform(seed, tensor, element);
      const double dt = std::max(std::exp(u * (std::log(0.1) - std::log(0.001)) + std::log(0.001)), 1e-4);
      return dt + std::log(-std::expm1(-dt));
    }
  }
  return 0;
}

}  // namespace

ParamStore::ParamStore(Device& device, std::vector<ParamInfo> infos, bool keeps_amaxes) : device_(&device) {
  for (ParamInfo& info : infos) {
    Entry e;
    e.offset = flat_size_;
    e.has_copy = info.is_matmul || info.name == "embedding.weight";
    flat_size_ += (info.size() + kAlignment - 1) / kAlignment * kAlignment;
    by_name_[info.name] = entries_.size();
    e.info = std::move(info);
    entries_.push_back(std::move(e));
  }
  const std::size_t bytes = static_cast<std::size_t>(flat_size_) * sizeof(float);
  for (Buffer* b : {&master_, &grad_, &m_, &v_}) *b = Buffer(device, bytes);
  copy_ = Buffer(device, bytes / 2);
  static_assert(kAlignment % kDecayGroup == 0);
  std::vector<std::uint8_t> decays(static_cast<std::size_t>(flat_size_ / kDecayGroup));
  std::vector<std::int32_t> starts;
  for (const Entry& e : entries_) {
    const std::int64_t first = e.offset / kDecayGroup;
    std::fill_n(decays.begin() + first, (e.info.size() + kDecayGroup - 1) / kDecayGroup, e.info.decay);
    starts.push_back(static_cast<std::int32_t>(first));
  }
  decays_ = Buffer(device, decays.size());
  device.copy_from_host(decays_.data(), decays.data(), decays.size());
  if (!keeps_amaxes) return;
  starts_ = Buffer(device, starts.size() * sizeof(std::int32_t));
  device.copy_from_host(starts_.data(), starts.data(), starts_.bytes());
  amaxes_ = Buffer(device, entries_.size() * sizeof(float));
}

const ParamStore::Entry& ParamStore::at(const std::string& name) const {
  const auto it = by_name_.find(name);
  check(it != by_name_.end(), "the model has no parameter \"{}\"", name);
  return entries_[it->second];
}

Param ParamStore::param(const std::string& name, DType compute) const {
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) return {};
  const Entry& e = entries_[it->second];
  const Layout layout = layout_of(e.info.shape);
  Param p;
  p.master = {master(e).data(), layout};
  p.grad = {grad(e).data(), layout};
  if (e.has_copy && compute == DType::BF16) {
    p.compute = View<const bf16>(copy(e).data(), layout);
    if (amaxes_kept() > 0) p.amax = &all_amaxes()(static_cast<std::int64_t>(it->second));
  } else {
    p.compute = View<const float>(p.master);
  }
  return p;
}

View<bf16> ParamStore::copy(const Entry& e) const {
  if (!e.has_copy) return {};
  return View<bf16>(copy_.as<bf16>() + e.offset, e.info.size());
}

void ParamStore::initialise(std::uint64_t seed) {
  constexpr std::int64_t kTile = 65536;
  // All threads of the host whatever computes: a billion normal numbers take one thread a minute.
  ThreadPool pool;
  std::vector<float> values;
  for (const Entry& e : entries_) {
    values.resize(static_cast<std::size_t>(e.info.size()));
    const std::uint64_t tensor = xxh3_64(e.info.name);
    pool.parallel_for((e.info.size() + kTile - 1) / kTile, [&](std::int64_t tile) {
      const std::int64_t end = std::min((tile + 1) * kTile, e.info.size());
      for (std::int64_t i = tile * kTile; i < end; ++i)
        values[static_cast<std::size_t>(i)] =
            static_cast<float>(start_value(e.info, seed, tensor, static_cast<std::uint64_t>(i)));
    });
    write(master(e), values);
  }
}

void ParamStore::begin_grads() {
  for (std::size_t i = 0; i < entries_.size();) {
    if (entries_[i].info.is_matmul) {
      ++i;
      continue;
    }
    const std::int64_t begin = entries_[i].offset;
    while (i < entries_.size() && !entries_[i].info.is_matmul) ++i;
    const std::int64_t end = i < entries_.size() ? entries_[i].offset : flat_size_;
    device_->zero(grad_.as<float>() + begin, static_cast<std::size_t>(end - begin) * sizeof(float));
  }
}

void ParamStore::refresh_copies(Stream& stream) {
  const ArenaScope scope(stream.scratch());
  float* const unread = stream.scratch().take<float>(1).data();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    if (!e.has_copy) continue;
    const std::int64_t n = e.info.size();
    cast(stream, {.in_TD = View<const float>(master(e).data(), std::int64_t{1}, n),
                  .out_TD = View<bf16>(copy(e).data(), std::int64_t{1}, n)});
    if (amaxes_kept() == 0) continue;
    // A quantiser of one scale a tensor that is asked for nothing else finds the amax.
    quantize(stream, {.x_RC = View<const bf16>(copy(e).data(), layout_of(e.info.shape)),
                      .spec = {.format = Format::Fp8E4M3},
                      .amax = &all_amaxes()(static_cast<std::int64_t>(i)),
                      .scale = unread});
  }
}

}  // namespace nibble
