// SPDX-License-Identifier: Apache-2.0
#include "models/hf_checkpoint.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "io/file.h"

namespace nibble {
namespace {

/// The stretch of a parameter's master weights that a Hugging Face tensor is.
View<float> slice_of(const ParamStore& params, const HfSlice& slice) {
  const ParamStore::Entry& e = params.at(slice.internal);
  const std::int64_t row = e.info.size() / e.info.shape[0];
  return params.master(e).slice(0, slice.row_begin * row, slice.rows * row);
}

std::int64_t size_of_shape(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (std::int64_t s : shape) n *= s;
  return n;
}

std::vector<float> widened(const SafetensorsEntry& tensor) {
  if (tensor.dtype == DType::F32) return tensor.copy_as<float>();
  const std::vector<bf16> narrow = tensor.copy_as<bf16>();
  std::vector<float> values(narrow.size());
  std::transform(narrow.begin(), narrow.end(), values.begin(), [](bf16 v) { return v.value(); });
  return values;
}

}  // namespace

DecoderSpec read_hf_spec(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  return spec_from_config_json(read_file(path), path.string());
}

void load_hf_weights(const Safetensors& file, const DecoderSpec& spec, const ParamStore& params) {
  std::set<std::string> used;
  for (const HfSlice& slice : hf_slices(spec)) {
    const SafetensorsEntry& tensor = file.at(slice.hf_name);
    check(tensor.dtype == DType::F32 || tensor.dtype == DType::BF16,
          "{}: tensor {} is {}; nibble reads F32 and BF16 weights", file.path().string(), tensor.name,
          name_of(tensor.dtype));
    check(size_of_shape(slice.shape) == tensor.numel() && slice.shape == tensor.shape,
          "{}: tensor {} has shape [{}], the model of config.json needs [{}]", file.path().string(),
          tensor.name, fmt::join(tensor.shape, ", "), fmt::join(slice.shape, ", "));
    params.write(slice_of(params, slice), widened(tensor));
    used.insert(slice.hf_name);
  }
  for (const SafetensorsEntry& tensor : file.entries())
    check(used.count(tensor.name) || (spec.tied && tensor.name == "lm_head.weight"),
          "{}: tensor {} has no place in the model of config.json", file.path().string(), tensor.name);
}

void save_hf_model(const std::filesystem::path& directory, const DecoderSpec& spec, const ParamStore& params,
                   const HfTokenIds& ids) {
  write_file(directory / "config.json", to_config_json(spec, ids));
  std::vector<SafetensorsDeclaration> tensors;
  const std::vector<HfSlice> slices = hf_slices(spec);
  for (const HfSlice& s : slices) tensors.push_back({s.hf_name, DType::F32, s.shape});
  SafetensorsWriter file(directory / "model.safetensors", std::move(tensors));
  for (const HfSlice& s : slices)
    file.write(s.hf_name, std::span<const float>(params.read(slice_of(params, s))));
  file.finish();
}

}  // namespace nibble
