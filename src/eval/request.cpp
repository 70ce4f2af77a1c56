// SPDX-License-Identifier: Apache-2.0
#include "eval/request.h"

#include <algorithm>

#include "base/error.h"
#include "io/json.h"

namespace nibble {
namespace {

/// The code point that ends at `end`, and where it begins. A byte that is not UTF-8 counts as itself.
char32_t character_before(std::string_view text, std::size_t end, std::size_t& begin) {
  begin = end - 1;
  while (begin > 0 && end - begin < 4 && (text[begin] & 0xC0) == 0x80) --begin;
  const auto lead = static_cast<unsigned char>(text[begin]);
  const std::size_t length = end - begin;
  if (length == 1) return lead;
  char32_t c = lead & (0xFFu >> (length + 1));
  for (std::size_t i = begin + 1; i < end; ++i) c = c << 6 | (static_cast<unsigned char>(text[i]) & 0x3Fu);
  return c;
}

/// As str.isspace of Python 3.
bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

/// The special tokens that a TemplateProcessing puts before a single text.
void add_template(const Json& processor, const std::string& where, std::vector<std::string>& before) {
  if (!processor.is_object()) return;
  const auto type = json_get<std::string>(processor, "type", where);
  if (type == "Sequence") {
    for (const Json& inner : json_get<Json>(processor, "processors", where))
      add_template(inner, where, before);
    return;
  }
  if (type != "TemplateProcessing") return;
  bool text_seen = false;
  for (const Json& piece : json_get<Json>(processor, "single", where)) {
    if (piece.contains("Sequence")) {
      text_seen = true;
    } else {
      check(!text_seen,
            "{}: its template adds tokens after a text, which continuations cannot be scored with", where);
      before.push_back(json_get<std::string>(json_get<Json>(piece, "SpecialToken", where), "id", where));
    }
  }
}

}  // namespace

TaskEncoder::TaskEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  const std::optional<TokenId> prefix = tokenizer.bos_id() ? tokenizer.bos_id() : tokenizer.eos_id();
  check(prefix.has_value(),
        "tokenizer {} names neither a beginning nor an end token: a text without a context has nothing to "
        "stand "
        "on. Name one in tokenizer_config.json as eos_token",
        tokenizer.name());
  prefix_ = *prefix;
  prefix_text_ = tokenizer.decode(std::vector<TokenId>{prefix_});
  const Json json = parse_json(tokenizer.json(), tokenizer.name());
  std::vector<std::string> before;
  if (json.contains("post_processor")) add_template(json.at("post_processor"), tokenizer.name(), before);
  for (const std::string& content : before) {
    const std::optional<TokenId> id = tokenizer.token_to_id(content);
    check(id.has_value(), "tokenizer {}: its template adds \"{}\", which is no token of it", tokenizer.name(),
          content);
    leading_.push_back(*id);
  }
}

std::vector<TokenId> TaskEncoder::encode(std::string_view text) const {
  std::vector<TokenId> ids = tokenizer_.encode(text);
  if (!leading_.empty() && !text.starts_with(prefix_text_))
    ids.insert(ids.begin(), leading_.begin(), leading_.end());
  return ids;
}

std::size_t trailing_space(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t begin = 0;
    if (!is_space(character_before(text, end, begin))) break;
    end = begin;
  }
  return text.size() - end;
}

std::int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::int64_t words(std::string_view text) {
  std::int64_t runs = 0;
  bool was_space = false;
  for (std::size_t end = text.size(), begin = 0; end > 0; end = begin) {
    const bool space = is_space(character_before(text, end, begin));
    runs += space && !was_space;
    was_space = space;
  }
  return runs + 1;
}

Request pair_request(const TaskEncoder& encoder, std::string_view context, std::string_view continuation,
                     std::int64_t max_length) {
  Request request;
  if (context.empty()) {
    request.ids = encoder.encode_plain(continuation);
    if (request.ids.empty() || request.ids.front() != encoder.prefix())
      request.ids.insert(request.ids.begin(), encoder.prefix());
    request.scored = static_cast<std::int64_t>(request.ids.size()) - 1;
  } else {
    const std::size_t moved = trailing_space(context);
    const std::string whole = std::string(context) + std::string(continuation);
    const std::vector<TokenId> before = encoder.encode(context.substr(0, context.size() - moved));
    check_usage(!before.empty(), "the context \"{}\" is white space alone; leave it empty instead", context);
    request.ids = encoder.encode(whole);
    request.scored = static_cast<std::int64_t>(request.ids.size()) - static_cast<std::int64_t>(before.size());
    // What is scored is the end of the whole, but what it is given are the context's own tokens.
    const auto kept = std::max<std::int64_t>(request.scored, 0);
    std::vector<TokenId> ids = before;
    ids.insert(ids.end(), request.ids.end() - kept, request.ids.end());
    request.ids = std::move(ids);
  }
  check_usage(request.scored > 0, "the tokenizer has no token for the continuation \"{}\" after its context",
              continuation);
  check_usage(
      request.scored <= max_length,
      "the continuation \"{}...\" has {} tokens, the model takes {}: shorten it, or make it a task of "
      "kind text",
      continuation.substr(0, 40), request.scored, max_length);
  const auto most = static_cast<std::size_t>(max_length) + 1;
  if (request.ids.size() > most)
    request.ids.erase(request.ids.begin(), request.ids.end() - static_cast<std::ptrdiff_t>(most));
  return request;
}

std::vector<Request> text_requests(const TaskEncoder& encoder, std::string_view text,
                                   std::int64_t max_length) {
  std::vector<TokenId> ids = encoder.encode(text);
  const auto tokens = static_cast<std::int64_t>(ids.size());
  ids.insert(ids.begin(), encoder.prefix());
  std::vector<Request> out;
  for (std::int64_t done = 0; done < tokens;) {
    const std::int64_t count = std::min(tokens - done, max_length);
    const auto first = ids.begin() + std::max<std::int64_t>(0, done + count - max_length);
    out.push_back({std::vector<TokenId>(first, ids.begin() + done + count + 1), count});
    done += count;
  }
  return out;
}

}  // namespace nibble
