// SPDX-License-Identifier: Apache-2.0
#include "train/step_sums.h"

namespace nibble {
namespace {

constexpr std::size_t kChunk = 256 * 1024, kAlignment = 16;

}  // namespace

StepSums::Place StepSums::take_bytes(std::size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (used_chunks_ == 0 || used_ + bytes > kChunk) {
    if (used_chunks_ == chunks_.size()) chunks_.emplace_back(*device_, kChunk);
    ++used_chunks_;
    used_ = 0;
  }
  const Place place{used_chunks_ - 1, used_};
  used_ += bytes;
  return place;
}

void StepSums::send() {
  HostChunks host;
  if (!spare_.empty()) {
    host = std::move(spare_.back());
    spare_.pop_back();
  }
  while (host.size() < used_chunks_) host.emplace_back(*device_, kChunk);
  for (std::size_t i = 0; i < used_chunks_; ++i) {
    const std::size_t bytes = i + 1 == used_chunks_ ? used_ : kChunk;
    device_->send_to_host(host[i].as<void>(), chunks_[i].data(), bytes);
    device_->zero(chunks_[i].data(), bytes);
  }
  sent_.push_back(std::move(host));
  used_chunks_ = 0;
  used_ = 0;
}

void StepSums::drop_oldest() {
  spare_.push_back(std::move(sent_.front()));
  sent_.pop_front();
}

}  // namespace nibble
