// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/hf_json.h"

#include <limits>

#include "base/error.h"
#include "io/json.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/pre_tokenizer.h"

namespace nibble {
namespace {

/// Sixteen times the largest vocabularies in use; an id beyond it is damage, and would cost its number in
/// memory.
constexpr TokenId kMostIds = 1 << 22;

std::string type_of(const Json& part, const std::string& where) {
  return json_get<std::string>(part, "type", where);
}

void parse_normalizer(const Json& part, const std::string& where, HfTokenizer& out) {
  if (part.is_null()) return;
  const std::string type = type_of(part, where);
  if (type == "NFC") {
    out.nfc = true;
  } else if (type == "Sequence") {
    for (const Json& child : json_get<Json>(part, "normalizers", where)) parse_normalizer(child, where, out);
  } else {
    fail("{}: normaliser \"{}\" is not supported (NFC or none is)", where, type);
  }
}

void parse_split(const Json& part, const std::string& where, HfTokenizer& out) {
  const auto behavior = json_get<std::string>(part, "behavior", where);
  check(behavior == "Isolated", "{}: pre-tokenizer Split with behavior \"{}\" is not supported (Isolated is)",
        where, behavior);
  check(!json_get_or<bool>(part, "invert", false, where),
        "{}: pre-tokenizer Split with invert is not supported", where);
  const Json pattern = json_get<Json>(part, "pattern", where);
  check(pattern.is_object() && pattern.contains("Regex"),
        "{}: pre-tokenizer Split needs a Regex pattern, found {}", where, pattern.dump());
  out.regexes.push_back(json_get<std::string>(pattern, "Regex", where));
}

/// Returns whether a ByteLevel step was seen; without one the vocabulary is not byte-level.
bool parse_pre_tokenizer(const Json& part, const std::string& where, HfTokenizer& out) {
  check(!part.is_null(), "{}: a file without a pre-tokenizer is not byte-level BPE", where);
  const std::string type = type_of(part, where);
  if (type == "Sequence") {
    bool byte_level = false;
    for (const Json& child : json_get<Json>(part, "pretokenizers", where)) {
      check(!byte_level, "{}: a pre-tokenizer after ByteLevel is not supported", where);
      byte_level = parse_pre_tokenizer(child, where, out);
    }
    return byte_level;
  }
  if (type == "Split") {
    parse_split(part, where, out);
    return false;
  }
  check(type == "ByteLevel", "{}: pre-tokenizer \"{}\" is not supported (Split and ByteLevel are)", where,
        type);
  check(!json_get_or<bool>(part, "add_prefix_space", false, where),
        "{}: pre-tokenizer ByteLevel with add_prefix_space is not supported", where);
  if (json_get_or<bool>(part, "use_regex", true, where)) out.regexes.emplace_back(kGpt2Regex);
  return true;
}

void parse_vocabulary(const Json& model, const std::string& where, BpeVocabulary& out,
                      StringMap<TokenId>& ids) {
  const Json& vocab = model.at("vocab");
  check(vocab.is_object(), "{}: model.vocab is not an object", where);
  ids.reserve(vocab.size());
  for (const auto& [token, id] : vocab.items()) {
    check(id.is_number_unsigned() && id.get<std::uint64_t>() < kMostIds, "{}: token \"{}\" has the id {}",
          where, token, id.dump());
    const auto n = id.get<TokenId>();
    ids.emplace(token, n);
    if (out.bytes.size() <= static_cast<std::size_t>(n)) out.bytes.resize(static_cast<std::size_t>(n) + 1);
    check(out.bytes[n].empty(), "{}: two tokens have the id {}", where, n);
    out.bytes[n] = from_byte_level(token).value_or(token);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto it = ids.find(to_byte_level(std::string(1, static_cast<char>(byte))));
    out.byte_ids[byte] = it == ids.end() ? -1 : it->second;
  }
}

/// Both spellings of a merge: "A B" and ["A", "B"].
std::pair<std::string, std::string> merge_parts(const Json& merge, const std::string& where) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  check(merge.is_string(), "{}: a merge is neither a string nor a pair: {}", where, merge.dump());
  const auto text = merge.get<std::string>();
  const auto space = text.find(' ');
  check(space != std::string::npos, "{}: the merge \"{}\" has no space", where, text);
  return {text.substr(0, space), text.substr(space + 1)};
}

void parse_model(const Json& model, const std::string& where, HfTokenizer& out) {
  const std::string type = json_get_or<std::string>(model, "type", "BPE", where);
  check(type == "BPE", "{}: model \"{}\" is not supported (byte-level BPE is)", where, type);
  check(!json_get_or<bool>(model, "byte_fallback", false, where),
        "{}: BPE with byte_fallback is not supported", where);
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    check(json_get_or<std::string>(model, key, "", where).empty(), "{}: BPE with {} is not supported", where,
          key);
  }
  check(json_get_or<double>(model, "dropout", 0.0, where) == 0.0, "{}: BPE with dropout is not supported",
        where);
  check(model.contains("vocab") && model.contains("merges"), "{}: model.vocab or model.merges is missing",
        where);
  out.bpe.ignore_merges = json_get_or<bool>(model, "ignore_merges", false, where);
  StringMap<TokenId> ids;
  parse_vocabulary(model, where, out.bpe, ids);
  const auto id_of = [&](const std::string& token) {
    const auto it = ids.find(token);
    check(it != ids.end(), "{}: a merge uses the token \"{}\", which the vocabulary lacks", where, token);
    return it->second;
  };
  for (const Json& merge : model.at("merges")) {
    const auto [left, right] = merge_parts(merge, where);
    out.bpe.merges.push_back({id_of(left), id_of(right), id_of(left + right)});
  }
}

void parse_added(const Json& list, const std::string& where, HfTokenizer& out) {
  if (list.is_null()) return;
  for (const Json& item : list) {
    AddedToken token;
    token.id = json_get<TokenId>(item, "id", where);
    token.content = json_get<std::string>(item, "content", where);
    token.special = json_get_or<bool>(item, "special", false, where);
    token.normalized = json_get_or<bool>(item, "normalized", !token.special, where);
    token.lstrip = json_get_or<bool>(item, "lstrip", false, where);
    token.rstrip = json_get_or<bool>(item, "rstrip", false, where);
    check(!json_get_or<bool>(item, "single_word", false, where),
          "{}: added token \"{}\" with single_word is not supported", where, token.content);
    check(token.id >= 0 && !token.content.empty(), "{}: an added token has no content, or a negative id",
          where);
    out.added.push_back(std::move(token));
  }
}

Json byte_level_json(bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

Json pre_tokenizer_json(const std::vector<std::string>& regexes) {
  if (regexes.empty()) return byte_level_json(false);
  if (regexes.size() == 1 && regexes[0] == kGpt2Regex) return byte_level_json(true);
  Json steps = Json::array();
  for (const std::string& regex : regexes) {
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  steps.push_back(byte_level_json(false));
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

}  // namespace

HfTokenizer parse_hf_tokenizer(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, source);
  check(json.is_object() && json.contains("model"), "{}: not a tokenizer.json (no \"model\")", source);
  HfTokenizer out;
  const auto part = [&](const char* key) { return json.contains(key) ? json.at(key) : Json(); };
  parse_normalizer(part("normalizer"), source, out);
  check(parse_pre_tokenizer(part("pre_tokenizer"), source, out),
        "{}: no ByteLevel pre-tokenizer: not byte-level BPE", source);
  const Json decoder = part("decoder");
  check(decoder.is_null() || type_of(decoder, source) == "ByteLevel",
        "{}: decoder {} is not supported (ByteLevel is)", source, decoder.dump());
  parse_model(json.at("model"), source, out);
  parse_added(part("added_tokens"), source, out);
  return out;
}

std::string format_hf_tokenizer(const HfTokenizer& tokenizer) {
  const BpeVocabulary& bpe = tokenizer.bpe;
  // A special token is stored by its text; every other token by the characters that stand for its bytes.
  std::vector<std::string> names(bpe.bytes.size());
  for (std::size_t id = 0; id < names.size(); ++id) names[id] = to_byte_level(bpe.bytes[id]);
  Json added = Json::array();
  for (const AddedToken& t : tokenizer.added) {
    if (static_cast<std::size_t>(t.id) < names.size()) names[t.id] = t.content;
    added.push_back({{"id", t.id},
                     {"content", t.content},
                     {"single_word", false},
                     {"lstrip", t.lstrip},
                     {"rstrip", t.rstrip},
                     {"normalized", t.normalized},
                     {"special", t.special}});
  }
  Json vocab = Json::object();
  for (std::size_t id = 0; id < names.size(); ++id) {
    if (!names[id].empty()) vocab[names[id]] = id;
  }
  Json merges = Json::array();
  for (const BpeMerge& m : bpe.merges) merges.push_back({names[m.left], names[m.right]});
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"ignore_merges", bpe.ignore_merges},
                      {"vocab", vocab},
                      {"merges", merges}};
  return Json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", added},
              {"normalizer", tokenizer.nfc ? Json{{"type", "NFC"}} : Json()},
              {"pre_tokenizer", pre_tokenizer_json(tokenizer.regexes)},
              {"post_processor", nullptr},
              {"decoder", byte_level_json(true)},
              {"model", model}}
             .dump(1) +
         "\n";
}

std::string format_hf_tokenizer_config(const std::optional<std::string>& eos,
                                       const std::optional<std::string>& pad) {
  // Without the last key older versions of transformers would tidy spaces when decoding.
  Json json = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  if (eos) json["eos_token"] = *eos;
  if (pad) json["pad_token"] = *pad;
  return dump_json(json);
}

}  // namespace nibble
