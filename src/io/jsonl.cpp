// SPDX-License-Identifier: Apache-2.0
#include "io/jsonl.h"

namespace nibble {
namespace {

/// Calls visit(line with its newline, line number from 1) for each finished line.
template <class Visit>
void for_each_line(std::string_view text, Visit visit) {
  int number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) return;
    visit(text.substr(begin, end + 1 - begin), ++number);
    begin = end + 1;
  }
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == std::string_view::npos; }

}  // namespace

JsonLine& JsonLine::add_raw(std::string_view key, std::string_view json) {
  if (text_.size() > 1) text_ += ',';
  text_ += json_quote(key);
  text_ += ':';
  text_ += json;
  return *this;
}

std::vector<Json> read_jsonl(const std::filesystem::path& path) {
  const MappedFile file(path);
  std::vector<Json> out;
  for_each_line(file.text(), [&](std::string_view line, int number) {
    if (!is_blank(line)) out.push_back(parse_json(line, fmt::format("{}: line {}", path.string(), number)));
  });
  return out;
}

void truncate_jsonl_after(const std::filesystem::path& path, const std::string& key, std::int64_t last) {
  if (!std::filesystem::exists(path)) return;
  const std::string text = read_file(path);
  std::string kept;
  for_each_line(text, [&](std::string_view line, int number) {
    if (is_blank(line)) return;
    const Json json = parse_json(line, fmt::format("{}: line {}", path.string(), number));
    if (json_get_or<std::int64_t>(json, key, last, path.string()) <= last) kept += line;
  });
  if (kept != text) write_file_atomically(path, kept);
}

}  // namespace nibble
