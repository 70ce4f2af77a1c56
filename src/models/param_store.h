// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "backend/device.h"
#include "layers/context.h"
#include "models/parameters.h"
#include "ops/adamw/adamw.h"

namespace nibble {

/// All parameters of a model in flat buffers, each described by a global name and shape: FP32 master
/// weights, FP32 main gradients, the two FP32 states of Adam, and a BF16 copy, of which GEMMs and the lookup
/// read theirs. Beside the copies their amaxes, which whoever writes copies writes too. Every tensor starts
/// on a 64-byte boundary; the gaps stay zero, so a flat buffer can be summed, written or (later) cut into
/// equal shards without looking at names.
class ParamStore {
 public:
  struct Entry {
    ParamInfo info;
    std::int64_t offset = 0;  ///< elements, the same in every buffer
    bool has_copy = false;    ///< read through the BF16 copy (matrices and the embedding)
  };

  /// Amaxes beside the copies are kept where `keeps_amaxes`; else there are none.
  ParamStore(Device& device, std::vector<ParamInfo> infos, bool keeps_amaxes = true);

  const std::vector<Entry>& entries() const { return entries_; }
  const Entry& at(const std::string& name) const;  ///< throws Error{Runtime} when there is none
  std::int64_t flat_size() const { return flat_size_; }

  /// How a layer sees a parameter: two axes for matrices, one for vectors; its GEMMs read the BF16 copy, or
  /// for `compute` F32 the master weights. Empty when there is none of this name.
  Param param(const std::string& name, DType compute) const;

  View<float> master(const Entry& e) const { return flat(master_, e); }
  View<float> grad(const Entry& e) const { return flat(grad_, e); }
  View<float> adam_m(const Entry& e) const { return flat(m_, e); }
  View<float> adam_v(const Entry& e) const { return flat(v_, e); }
  View<bf16> copy(const Entry& e) const;  ///< empty without a copy

  View<float> all_master() const { return View<float>(master_.as<float>(), flat_size_); }
  View<float> all_grads() const { return View<float>(grad_.as<float>(), flat_size_); }
  View<float> all_m() const { return View<float>(m_.as<float>(), flat_size_); }
  View<float> all_v() const { return View<float>(v_.as<float>(), flat_size_); }
  View<bf16> all_copies() const { return View<bf16>(copy_.as<bf16>(), flat_size_); }
  /// For every kDecayGroup elements whether weight decay applies: a tensor starts on a group.
  View<const std::uint8_t> decays() const {
    return View<const std::uint8_t>(decays_.as<std::uint8_t>(), flat_size_ / kDecayGroup);
  }
  /// The group of kDecayGroup elements that each entry begins with; and one number an entry: the largest
  /// magnitude of its copy (Param::amax), and where it has none, nothing that anybody reads. Empty where they
  /// are not kept.
  View<const std::int32_t> starts() const {
    return View<const std::int32_t>(starts_.as<std::int32_t>(), amaxes_kept());
  }
  View<float> all_amaxes() const { return View<float>(amaxes_.as<float>(), amaxes_kept()); }

  Device& device() const { return *device_; }
  /// A stretch of a flat buffer in host memory, and the way back.
  std::vector<float> read(View<const float> from) const { return on_host(*device_, from); }
  void write(View<float> to, const std::vector<float>& values) const { to_device(*device_, to, values); }

  /// Start values: a pure function of (seed, parameter name, element).
  void initialise(std::uint64_t seed);

  /// Zeroes the main gradients that backward only adds into. Those of matrices that tokens are multiplied by
  /// are left: a step's first wgrad overwrites them (Context::first_wgrad), which spares a write and a read
  /// of four bytes a parameter.
  void begin_grads();

  /// Rounds the master weights into the copies and finds the amaxes of these: after an import or a load. The
  /// optimizer does it itself.
  void refresh_copies(Stream& stream);

 private:
  std::int64_t amaxes_kept() const { return static_cast<std::int64_t>(amaxes_.bytes() / sizeof(float)); }
  View<float> flat(const Buffer& b, const Entry& e) const {
    return View<float>(b.as<float>() + e.offset, e.info.size());
  }

  Device* device_;
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::int64_t flat_size_ = 0;
  Buffer master_, grad_, m_, v_, copy_, decays_, starts_, amaxes_;
};

}  // namespace nibble
