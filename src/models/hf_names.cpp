// SPDX-License-Identifier: Apache-2.0
#include "models/hf_names.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "models/hf_family.h"

namespace nibble {
namespace {

const std::vector<HfFamily>& families() {
  static const std::vector<HfFamily> all = [] {
    std::vector<HfFamily> list = llama_hf_families();
    for (const HfFamily& family : hybrid_hf_families()) list.push_back(family);
    return list;
  }();
  return all;
}

const HfFamily& find_family(const std::string& model_type, const std::string& where) {
  std::vector<std::string> names;
  for (const HfFamily& family : families()) {
    if (model_type == family.model_type) return family;
    names.push_back(family.model_type);
  }
  fail_usage("{}: model_type \"{}\" is not supported; the families are {}", where, model_type,
             fmt::join(names, ", "));
}

Json id_or_null(std::int64_t id) { return id < 0 ? Json(nullptr) : Json(id); }

}  // namespace

void SliceList::attention(const std::string& hf, const std::string& internal, const AttentionSpec& a,
                          std::int64_t d_model) {
  const std::int64_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  const struct {
    const char* name;
    std::int64_t begin, rows;
  } parts[] = {{"q_proj", 0, q}, {"k_proj", q, kv}, {"v_proj", q + kv, kv}};
  for (const auto& part : parts) {
    rows(hf + part.name + ".weight", internal + ".qkv.weight", part.begin, part.rows, d_model);
    if (a.qkv_bias) entries(hf + part.name + ".bias", internal + ".qkv.bias", part.begin, part.rows);
  }
  whole(hf + "o_proj.weight", internal + ".out.weight", {d_model, q});
}

std::vector<HfSlice> hf_slices(const DecoderSpec& spec) {
  return find_family(spec.family, "export").slices(spec);
}

std::string hf_library_name(const DecoderSpec& spec, const std::string& hf_name) {
  const std::string prefix = "backbone.";
  if (spec.family != "nemotron_h" || hf_name.compare(0, prefix.size(), prefix) != 0) return hf_name;
  return "model." + hf_name.substr(prefix.size());
}

std::string to_config_json(const DecoderSpec& spec, const HfTokenIds& ids) {
  Json config = find_family(spec.family, "export").write(spec);
  config["model_type"] = spec.family;
  config["vocab_size"] = spec.vocab;
  config["hidden_size"] = spec.d_model;
  config["max_position_embeddings"] = spec.max_seq;
  config["tie_word_embeddings"] = spec.tied;
  config["initializer_range"] = spec.init_sigma;
  config["torch_dtype"] = "float32";
  config["use_cache"] = true;
  config["bos_token_id"] = id_or_null(ids.bos);
  config["eos_token_id"] = id_or_null(ids.eos);
  config["pad_token_id"] = id_or_null(ids.pad);
  return dump_json(config);
}

DecoderSpec spec_from_config_json(const std::string& text, const std::string& where) {
  const Json config = parse_json(text, where);
  const HfFamily& family = find_family(json_get<std::string>(config, "model_type", where), where);
  DecoderSpec spec = family.read(config, where);
  spec.family = family.model_type;
  spec.vocab = json_get<std::int64_t>(config, "vocab_size", where);
  spec.d_model = json_get<std::int64_t>(config, "hidden_size", where);
  // Mamba-2 has no positions and its published files no limit; a million tokens is beyond any training
  // sequence.
  spec.max_seq = json_get_or<std::int64_t>(config, "max_position_embeddings", 1 << 20, where);
  spec.tied = json_get_or<bool>(config, "tie_word_embeddings", false, where);
  spec.init_sigma = json_get_or<double>(config, "initializer_range", 0.02, where);
  check_spec(spec);
  return spec;
}

}  // namespace nibble
