// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "io/json.h"
#include "models/hf_names.h"
#include "models/spec.h"

namespace nibble {

/// What a family of Hugging Face models must say of itself; `hf_names.cpp` keeps the list.
struct HfFamily {
  const char* model_type;  ///< of config.json, and DecoderSpec::family
  std::vector<HfSlice> (*slices)(const DecoderSpec& spec);
  Json (*write)(const DecoderSpec& spec);  ///< without the keys that all families share
  DecoderSpec (*read)(const Json& config, const std::string& where);
};

std::vector<HfFamily> llama_hf_families();
std::vector<HfFamily> hybrid_hf_families();

/// Throws Error{Usage} when an option of config.json has a value that is not supported.
template <class T>
void require_option(const Json& config, const char* key, const T& supported, const std::string& where) {
  if (!config.contains(key) || config.at(key).is_null()) return;
  check_usage(config.at(key) == Json(supported), "{}: \"{}\" is {}; only {} is supported", where, key,
              config.at(key).dump(), Json(supported).dump());
}

/// Collects slices: whole parameters, and rows of fused ones.
class SliceList {
 public:
  void whole(const std::string& hf_name, const std::string& internal, std::vector<std::int64_t> shape) {
    slices_.push_back({hf_name, internal, 0, shape.front(), std::move(shape)});
  }
  void rows(const std::string& hf_name, const std::string& internal, std::int64_t begin, std::int64_t rows,
            std::int64_t columns) {
    slices_.push_back({hf_name, internal, begin, rows, {rows, columns}});
  }
  void entries(const std::string& hf_name, const std::string& internal, std::int64_t begin,
               std::int64_t rows) {
    slices_.push_back({hf_name, internal, begin, rows, {rows}});
  }
  /// q, k, v and the output of one attention sublayer; `hf` and `internal` end before the tensor's own name.
  void attention(const std::string& hf, const std::string& internal, const AttentionSpec& a,
                 std::int64_t d_model);
  std::vector<HfSlice> take() { return std::move(slices_); }

 private:
  std::vector<HfSlice> slices_;
};

}  // namespace nibble
