// SPDX-License-Identifier: Apache-2.0
#include "data/source.h"

#include <cmath>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"

namespace nibble {
namespace {

/// The first line start at or behind the fraction of the text.
std::size_t cut_at(std::string_view text, double fraction) {
  const auto at = static_cast<std::size_t>(std::floor(fraction * static_cast<double>(text.size())));
  if (at == 0 || at >= text.size()) return std::min(at, text.size());
  const std::size_t newline = text.find('\n', at - 1);
  return newline == std::string_view::npos ? text.size() : newline + 1;
}

std::string_view part_of(std::string_view text, const DocumentRange& range) {
  const std::size_t begin = cut_at(text, range.begin_fraction), end = cut_at(text, range.end_fraction);
  return text.substr(begin, end - begin);
}

class TextSource : public DocumentSource {
 public:
  explicit TextSource(const DocumentRange& range) : file_(range.path), rest_(part_of(file_.text(), range)) {}
  std::optional<std::string_view> next() override {
    if (rest_.empty()) return std::nullopt;
    return std::exchange(rest_, {});
  }

 private:
  MappedFile file_;
  std::string_view rest_;
};

class JsonlSource : public DocumentSource {
 public:
  explicit JsonlSource(const DocumentRange& range) : file_(range.path), rest_(part_of(file_.text(), range)) {}
  std::optional<std::string_view> next() override {
    while (!rest_.empty()) {
      const std::size_t end = std::min(rest_.find('\n'), rest_.size() - 1) + 1;
      const std::string_view line = rest_.substr(0, end);
      const auto offset = line.data() - file_.text().data();
      rest_.remove_prefix(end);
      if (line.find_first_not_of(" \t\r\n") == std::string_view::npos) continue;
      const std::string where = fmt::format("{}: line at byte {}", file_.path().string(), offset);
      document_ = json_get<std::string>(parse_json(line, where), "text", where);
      return document_;
    }
    return std::nullopt;
  }

 private:
  MappedFile file_;
  std::string_view rest_;
  std::string document_;
};

template <class Source>
std::unique_ptr<DocumentSource> open(const DocumentRange& range) {
  return std::make_unique<Source>(range);
}

constexpr SourceFormat kFormats[] = {
    {"text", ".txt", open<TextSource>},
    {"jsonl", ".jsonl", open<JsonlSource>},
};

}  // namespace

std::span<const SourceFormat> source_formats() { return kFormats; }

std::unique_ptr<DocumentSource> open_source(const DocumentRange& range) {
  check_usage(
      range.begin_fraction >= 0 && range.begin_fraction <= range.end_fraction && range.end_fraction <= 1,
      "{}: the part from {} to {} is not within 0 and 1 and in order", range.path.string(),
      range.begin_fraction, range.end_fraction);
  check_usage(std::filesystem::exists(range.path),
              "data file {} does not exist. Check the path; relative ones start at the working directory {}",
              range.path.string(), std::filesystem::current_path().string());
  std::string known;
  for (const SourceFormat& format : source_formats()) {
    if (range.path.extension() == format.extension) return format.open(range);
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", format.extension, format.name);
  }
  fail_usage("data file {}: no reader for this extension; known are {}", range.path.string(), known);
}

}  // namespace nibble
