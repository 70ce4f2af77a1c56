// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "base/nearest.h"

namespace nibble {

const char* const kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwenRegex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kTekkenRegex =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::string pre_tokenizer_regex(std::string_view name) {
  if (name == "gpt2") return kGpt2Regex;
  if (name == "llama3") return kLlama3Regex;
  if (name == "qwen") return kQwenRegex;
  if (name == "tekken") return kTekkenRegex;
  fail_usage("unknown pre-tokenizer \"{}\"; known are gpt2, llama3, qwen, tekken{}", name,
             did_you_mean(name, {"gpt2", "llama3", "qwen", "tekken"}));
}

namespace {

std::string spell_out_spaces(const std::string& regex) {
  constexpr const char* kSpaces = R"(\t-\r \x{85}\p{Z})";
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    if (c == '\\' && i + 1 < regex.size()) {
      const char next = regex[++i];
      if (next == 's') {
        out += in_class ? kSpaces : fmt::format("[{}]", kSpaces);
      } else if (next == 'S') {
        check(!in_class, "pre-tokenizer: \\S inside brackets is not supported, in the expression {}", regex);
        out += fmt::format("[^{}]", kSpaces);
      } else {
        out += c;
        out += next;
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

std::string pcre_message(int code) {
  unsigned char text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

template <auto Free>
struct Freer {
  template <class T>
  void operator()(T* p) const {
    Free(p);
  }
};

constexpr std::size_t kJitStackStart = 64 << 10, kJitStackMost = 16 << 20;

}  // namespace

struct PreTokenizer::Regex {
  explicit Regex(const std::string& source) : source(source) {
    const std::string spelled = spell_out_spaces(source);
    int code_number = 0;
    std::size_t offset = 0;
    code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                             PCRE2_UTF | PCRE2_UCP, &code_number, &offset, nullptr));
    check(code != nullptr, "pre-tokenizer: cannot use the expression {}: {}", source,
          pcre_message(code_number));
    // Without a JIT (an odd processor) the interpreter gives the same pieces, only slower.
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  }

  void split(std::string_view text, std::vector<std::string_view>& out) const {
    // Per call, so that one tokenizer serves several threads.
    const std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>> match(
        pcre2_match_data_create_from_pattern(code.get(), nullptr));
    const std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>> context(
        pcre2_match_context_create(nullptr));
    const std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>> stack(
        pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr));
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    const std::size_t* ovector = pcre2_get_ovector_pointer(match.get());
    std::size_t done = 0, from = 0;
    while (from < text.size()) {
      const int found = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                    PCRE2_NO_UTF_CHECK, match.get(), context.get());
      if (found == PCRE2_ERROR_NOMATCH) break;
      check(found >= 0, "pre-tokenizer: {} while matching {}", pcre_message(found), source);
      const std::size_t begin = ovector[0], end = ovector[1];
      if (begin > done) out.push_back(text.substr(done, begin - done));
      if (end > begin) out.push_back(text.substr(begin, end - begin));
      done = end;
      from = end;
      if (end == begin) {  // an empty match: go on behind the next character
        do ++from;
        while (from < text.size() && (text[from] & 0xC0) == 0x80);
      }
    }
    if (done < text.size()) out.push_back(text.substr(done));
  }

  std::string source;
  std::unique_ptr<pcre2_code, Freer<pcre2_code_free>> code;
};

PreTokenizer::PreTokenizer(const std::vector<std::string>& regexes) {
  for (const std::string& regex : regexes) regexes_.emplace_back(regex);
}
PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
  std::vector<std::string_view> pieces;
  if (!text.empty()) pieces.push_back(text);
  for (const Regex& regex : regexes_) {
    std::vector<std::string_view> finer;
    for (const std::string_view piece : pieces) regex.split(piece, finer);
    pieces = std::move(finer);
  }
  return pieces;
}

}  // namespace nibble
