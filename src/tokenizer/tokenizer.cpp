// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/tokenizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/error.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/hf_json.h"
#include "tokenizer/pre_tokenizer.h"

namespace nibble {
namespace {

constexpr const char* kEndOfDocument = "<|endoftext|>";
constexpr const char* kPad = "<|pad|>";

std::string to_nfc(std::string_view text) {
  // ASCII is its own NFC, and most text is ASCII.
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
    return std::string(text);
  }
  utf8proc_uint8_t* out = nullptr;
  const auto n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                              static_cast<utf8proc_ssize_t>(text.size()), &out,
                              static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  check(n >= 0, "tokenizer: cannot normalise the text: {}", utf8proc_errmsg(n));
  std::string result(reinterpret_cast<const char*>(out), static_cast<std::size_t>(n));
  std::free(out);
  return result;
}

bool is_space(char32_t c) {
  if ((c >= 0x9 && c <= 0xD) || c == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

std::size_t spaces_after(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size()) {
    utf8proc_int32_t c = 0;
    const auto step = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + n,
                                       static_cast<utf8proc_ssize_t>(text.size() - n), &c);
    if (step <= 0 || !is_space(static_cast<char32_t>(c))) break;
    n += static_cast<std::size_t>(step);
  }
  return n;
}

std::size_t spaces_before(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size()) {
    std::size_t start = text.size() - n - 1;
    while (start > 0 && (text[start] & 0xC0) == 0x80) --start;
    const std::string_view character = text.substr(start, text.size() - n - start);
    if (spaces_after(character) != character.size()) break;
    n += character.size();
  }
  return n;
}

/// Finds added tokens: leftmost first, the longest of those that start there.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    std::stable_sort(tokens_.begin(), tokens_.end(),
                     [](const auto& a, const auto& b) { return a.content.size() > b.content.size(); });
    for (const AddedToken& t : tokens_) starts_[static_cast<unsigned char>(t.content[0])] = true;
  }

  /// Calls token(id) and text(gap) in order.
  template <class OnToken, class OnText>
  void cut(std::string_view text, OnToken on_token, OnText on_text) const {
    std::size_t done = 0;
    for (std::size_t i = tokens_.empty() ? text.size() : 0; i < text.size();) {
      const AddedToken* found =
          starts_[static_cast<unsigned char>(text[i])] ? match(text.substr(i)) : nullptr;
      if (found == nullptr) {
        ++i;
        continue;
      }
      std::string_view before = text.substr(done, i - done);
      if (found->lstrip) before.remove_suffix(spaces_before(before));
      if (!before.empty()) on_text(before);
      on_token(found->id);
      i += found->content.size();
      if (found->rstrip) i += spaces_after(text.substr(i));
      done = i;
    }
    if (done < text.size()) on_text(text.substr(done));
  }

 private:
  const AddedToken* match(std::string_view text) const {
    for (const AddedToken& t : tokens_) {
      if (text.starts_with(t.content)) return &t;
    }
    return nullptr;
  }
  std::vector<AddedToken> tokens_;
  std::array<bool, 256> starts_{};
};

std::vector<AddedToken> with_normalized(const HfTokenizer& hf, bool normalized) {
  std::vector<AddedToken> out;
  for (AddedToken t : hf.added) {
    if (t.normalized != normalized) continue;
    if (normalized && hf.nfc) t.content = to_nfc(t.content);
    out.push_back(std::move(t));
  }
  return out;
}

/// The name in tokenizer_config.json, which is a string or an object with "content".
std::optional<std::string> configured_token(const std::filesystem::path& config, const char* key) {
  if (!std::filesystem::exists(config)) return std::nullopt;
  const Json json = read_json(config);
  if (!json.is_object() || !json.contains(key) || json.at(key).is_null()) return std::nullopt;
  const Json& value = json.at(key);
  if (value.is_object()) return json_get<std::string>(value, "content", config.string());
  return json_get<std::string>(json, key, config.string());
}

}  // namespace

struct Tokenizer::Impl {
  Impl(HfTokenizer hf, std::string json_text, std::string name)
      : json(std::move(json_text)),
        name(std::move(name)),
        fingerprint(xxh3_64(json)),
        nfc(hf.nfc),
        any_bytes(!hf.nfc && hf.regexes.empty()),
        raw_added(with_normalized(hf, false)),
        normalized_added(with_normalized(hf, true)),
        pre_tokenizer(hf.regexes),
        added(std::move(hf.added)),
        bpe(std::move(hf.bpe)) {
    token_bytes = bpe.vocabulary().bytes;
    for (const AddedToken& t : added) {
      if (token_bytes.size() <= static_cast<std::size_t>(t.id))
        token_bytes.resize(static_cast<std::size_t>(t.id) + 1);
      token_bytes[t.id] = from_byte_level(t.content).value_or(t.content);
      if (is_special.size() <= static_cast<std::size_t>(t.id))
        is_special.resize(static_cast<std::size_t>(t.id) + 1);
      is_special[t.id] = t.special;
    }
  }

  std::optional<TokenId> id_of_added(std::string_view content) const {
    for (const AddedToken& t : added) {
      if (t.content == content) return t.id;
    }
    return std::nullopt;
  }

  std::string json, name;
  std::uint64_t fingerprint;
  bool nfc, any_bytes;
  AddedTokenFinder raw_added, normalized_added;
  PreTokenizer pre_tokenizer;
  std::vector<AddedToken> added;
  Bpe bpe;
  std::vector<std::string> token_bytes;  ///< by id, added tokens included
  std::vector<bool> is_special;
  std::optional<std::string> eos, bos, pad;
  std::string config_json;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::bytes() {
  HfTokenizer hf;
  for (int byte = 0; byte < 256; ++byte) {
    hf.bpe.bytes.emplace_back(1, static_cast<char>(byte));
    hf.bpe.byte_ids[byte] = byte;
  }
  for (const char* content : {kEndOfDocument, kPad}) {
    hf.added.push_back(
        {.id = static_cast<TokenId>(hf.bpe.bytes.size()), .content = content, .special = true});
    hf.bpe.bytes.emplace_back(content);
  }
  std::string json = format_hf_tokenizer(hf);
  auto impl = std::make_unique<Impl>(std::move(hf), std::move(json), "bytes");
  impl->eos = kEndOfDocument;
  impl->pad = kPad;
  impl->config_json = format_hf_tokenizer_config(impl->eos, impl->pad);
  return Tokenizer(std::move(impl));
}

Tokenizer Tokenizer::train(const std::function<std::optional<std::string_view>()>& next,
                           const BpeTraining& training) {
  check_usage(!training.special_tokens.empty(), "a tokenizer needs a special token that ends documents");
  HfTokenizer hf;
  hf.regexes = {pre_tokenizer_regex(training.pre_tokenizer)};
  for (const std::string& content : training.special_tokens) {
    hf.added.push_back({.id = static_cast<TokenId>(hf.added.size()), .content = content, .special = true});
  }
  const PreTokenizer pre_tokenizer(hf.regexes);
  const AddedTokenFinder specials(hf.added);
  PieceCounts counts;
  while (const auto document = next()) {
    const std::size_t bad = first_invalid_utf8(*document);
    check(bad == std::string_view::npos, "tokenizer: a training document is not UTF-8 at byte {}", bad);
    const auto count = [&](std::string_view text) {
      for (const std::string_view piece : pre_tokenizer.split(text)) {
        if (const auto it = counts.find(piece); it != counts.end())
          ++it->second;
        else
          counts.emplace(piece, 1);
      }
    };
    specials.cut(
        *document, [](TokenId) {}, count);
  }
  hf.bpe = train_bpe(counts, training.vocab_size, training.special_tokens, training.min_frequency);
  std::string json = format_hf_tokenizer(hf);
  const std::string name = fmt::format("bpe-{}", hf.bpe.bytes.size());
  auto impl = std::make_unique<Impl>(std::move(hf), std::move(json), name);
  impl->eos = training.special_tokens[0];
  if (training.special_tokens.size() > 1) impl->pad = training.special_tokens[1];
  impl->config_json = format_hf_tokenizer_config(impl->eos, impl->pad);
  return Tokenizer(std::move(impl));
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const auto file = std::filesystem::is_directory(path) ? path / "tokenizer.json" : path;
  std::string text = read_file(file);
  HfTokenizer hf = parse_hf_tokenizer(text, file.string());
  auto impl = std::make_unique<Impl>(std::move(hf), std::move(text), file.string());
  const auto config = file.parent_path() / "tokenizer_config.json";
  impl->pad = configured_token(config, "pad_token");
  impl->eos = configured_token(config, "eos_token");
  impl->bos = configured_token(config, "bos_token");
  if (impl->eos) {
    check(impl->id_of_added(*impl->eos).has_value(), "{}: eos_token \"{}\" is not an added token of {}",
          config.string(), *impl->eos, file.string());
  } else {
    for (const char* usual : {kEndOfDocument, "<|end_of_text|>", "</s>", "<eos>"}) {
      if (!impl->eos && impl->id_of_added(usual)) impl->eos = usual;
    }
  }
  impl->config_json =
      std::filesystem::exists(config) ? read_file(config) : format_hf_tokenizer_config(impl->eos, impl->pad);
  return Tokenizer(std::move(impl));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text) const {
  const Impl& t = *impl_;
  if (!t.any_bytes) {
    const std::size_t bad = first_invalid_utf8(text);
    check(bad == std::string_view::npos,
          "tokenizer {}: the text is not UTF-8 at byte {} (0x{:02x}). Convert it, or use the tokenizer "
          "\"bytes\"",
          t.name, bad, bad < text.size() ? static_cast<unsigned char>(text[bad]) : 0);
  }
  std::vector<TokenId> out;
  if (t.any_bytes && t.bpe.vocabulary().merges.empty()) out.reserve(text.size());
  // Few distinct pieces make up most of a text; their encodings are kept for the length of this call.
  StringMap<std::vector<TokenId>> known;
  const auto encode_plain = [&](std::string_view plain) {
    for (const std::string_view piece : t.pre_tokenizer.split(plain)) {
      constexpr std::size_t kLongestKept = 64;
      if (piece.size() > kLongestKept) {
        t.bpe.encode_piece(piece, out);
        continue;
      }
      auto it = known.find(piece);
      if (it == known.end()) {
        std::vector<TokenId> ids;
        t.bpe.encode_piece(piece, ids);
        it = known.emplace(piece, std::move(ids)).first;
      }
      out.insert(out.end(), it->second.begin(), it->second.end());
    }
  };
  const auto on_token = [&](TokenId id) { out.push_back(id); };
  t.raw_added.cut(text, on_token, [&](std::string_view raw) {
    if (t.nfc)
      t.normalized_added.cut(to_nfc(raw), on_token, encode_plain);
    else
      t.normalized_added.cut(raw, on_token, encode_plain);
  });
  return out;
}

std::string Tokenizer::decode_bytes(std::span<const TokenId> ids, bool skip_special) const {
  std::string out;
  for (const TokenId id : ids) {
    check(id >= 0 && id < vocab_size(), "tokenizer {}: id {} is outside the vocabulary of {}", impl_->name,
          id, vocab_size());
    const auto i = static_cast<std::size_t>(id);
    if (skip_special && i < impl_->is_special.size() && impl_->is_special[i]) continue;
    out += impl_->token_bytes[i];
  }
  return out;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  return replace_invalid_utf8(decode_bytes(ids, skip_special));
}

int Tokenizer::vocab_size() const { return static_cast<int>(impl_->token_bytes.size()); }
int Tokenizer::padded_vocab_size() const { return (vocab_size() + 127) / 128 * 128; }

std::optional<TokenId> Tokenizer::eos_id() const {
  return impl_->eos ? impl_->id_of_added(*impl_->eos) : std::nullopt;
}
std::optional<TokenId> Tokenizer::bos_id() const {
  return impl_->bos ? impl_->id_of_added(*impl_->bos) : std::nullopt;
}
std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
  return impl_->id_of_added(token);
}
const std::string& Tokenizer::name() const { return impl_->name; }
const std::string& Tokenizer::json() const { return impl_->json; }
std::uint64_t Tokenizer::fingerprint() const { return impl_->fingerprint; }

void Tokenizer::save(const std::filesystem::path& directory) const {
  make_directories(directory);
  write_file(directory / "tokenizer.json", impl_->json);
  write_file(directory / "tokenizer_config.json", impl_->config_json);
}

}  // namespace nibble
