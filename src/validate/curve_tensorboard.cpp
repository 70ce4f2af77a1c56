// SPDX-License-Identifier: Apache-2.0
// TensorBoard event files: TFRecord framing around protocol buffers, of which the few fields that scalars
// need are read. Source: [TFRECORD].
#include <fmt/ranges.h>

#include <bit>
#include <cstring>

#include "base/error.h"
#include "io/file.h"
#include "validate/curve_reader.h"

namespace nibble {
namespace {

template <class T>
T little_endian(std::string_view bytes) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

/// Walks the fields of one protocol buffer message. Unknown fields are passed over by their wire type.
class Message {
 public:
  Message(std::string_view bytes, const std::string& where) : rest_(bytes), where_(where) {}

  /// False at the end. After true: `field`, and of `varint`, `fixed` and `bytes` the one of its wire type.
  bool next() {
    if (rest_.empty()) return false;
    const std::uint64_t key = read_varint();
    field = static_cast<int>(key >> 3);
    wire = static_cast<int>(key & 7);
    if (wire == 0) {
      varint = read_varint();
    } else if (wire == 1) {
      bytes = take(8);
    } else if (wire == 2) {
      bytes = take(read_varint());
    } else if (wire == 5) {
      bytes = take(4);
    } else {
      broken();
    }
    return true;
  }

  int field = 0, wire = 0;
  std::uint64_t varint = 0;
  std::string_view bytes;

 private:
  std::uint64_t read_varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    broken();
  }
  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) broken();
    const std::string_view out = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return out;
  }
  [[noreturn]] void broken() const { fail("{}: an event is not a protocol buffer of TensorBoard", where_); }

  std::string_view rest_;
  const std::string& where_;
};

/// TensorProto with exactly one float or double: float_val = 5, double_val = 6 or tensor_content = 4 in the
/// type that dtype = 1 names (1 float, 2 double).
std::optional<double> scalar_of_tensor(std::string_view bytes, const std::string& where) {
  std::uint64_t dtype = 0;
  std::string_view content;
  for (Message m(bytes, where); m.next();) {
    if (m.field == 1 && m.wire == 0) dtype = m.varint;
    if ((m.field == 4 || m.field == 5 || m.field == 6) && m.wire != 0) content = m.bytes;
  }
  if (dtype == 1 && content.size() == 4) return little_endian<float>(content);
  if (dtype == 2 && content.size() == 8) return little_endian<double>(content);
  return {};
}

/// Summary.Value: tag = 1, simple_value = 2, tensor = 8.
void add_value(std::string_view bytes, std::int64_t step, const std::string& where,
               std::vector<ScalarEvent>& out) {
  ScalarEvent e{.step = step};
  std::optional<double> value;
  for (Message m(bytes, where); m.next();) {
    if (m.field == 1 && m.wire == 2) e.tag = m.bytes;
    if (m.field == 2 && m.wire == 5) value = little_endian<float>(m.bytes);
    if (m.field == 8 && m.wire == 2 && !value) value = scalar_of_tensor(m.bytes, where);
  }
  if (!value) return;  // an image, a histogram, a text
  e.value = *value;
  out.push_back(std::move(e));
}

/// Event: step = 2, summary = 5; Summary: value = 1. A step may stand after its summary, so it is read first.
void add_event(std::string_view bytes, const std::string& where, std::vector<ScalarEvent>& out) {
  std::int64_t step = 0;
  for (Message m(bytes, where); m.next();)
    if (m.field == 2 && m.wire == 0) step = static_cast<std::int64_t>(m.varint);
  for (Message m(bytes, where); m.next();) {
    if (m.field != 5 || m.wire != 2) continue;
    for (Message s(m.bytes, where); s.next();)
      if (s.field == 1 && s.wire == 2) add_value(s.bytes, step, where, out);
  }
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// The tag that is meant when none is named: the only one with "loss" in it, else the only validation one.
std::string choose_tag(const CurveSource& source, const std::map<std::string, std::size_t>& tags) {
  std::vector<std::string> all, losses, validation;
  for (const auto& entry : tags) {
    const std::string& tag = entry.first;
    all.push_back(tag);
    if (!has(tag, "loss")) continue;
    losses.push_back(tag);
    if (has(tag, "val") || has(tag, "eval") || has(tag, "test")) validation.push_back(tag);
  }
  const auto asked = source.options.find("tag");
  if (asked != source.options.end()) {
    check_usage(tags.contains(asked->second), "{}: there is no scalar \"{}\"; there are {}", source.text,
                asked->second, fmt::join(all, ", "));
    return asked->second;
  }
  if (losses.size() == 1) return losses.front();
  if (validation.size() == 1) return validation.front();
  fail_usage("{}: which of its scalars? Write {}#tag=NAME with one of: {}", source.text, source.path.string(),
             fmt::join(all, ", "));
}

}  // namespace

std::vector<ScalarEvent> read_event_file(std::string_view bytes, const std::string& name,
                                         std::vector<std::string>& notes) {
  constexpr std::size_t kHead = 12, kTail = 4;  // u64 length, u32 checksum of it; u32 checksum of the data
  std::vector<ScalarEvent> out;
  std::size_t at = 0;
  while (at < bytes.size()) {
    const std::string_view rest = bytes.substr(at);
    if (rest.size() < kHead) break;
    check(masked_crc32c(rest.substr(0, 8)) == little_endian<std::uint32_t>(rest.substr(8)),
          "{}: the checksum of a record's length is wrong at byte {}: the file is damaged or holds no "
          "TensorBoard events; copy it again",
          name, at);
    const auto length = little_endian<std::uint64_t>(rest);
    if (length > rest.size() - kHead || rest.size() - kHead - length < kTail) break;
    const std::string_view data = rest.substr(kHead, length);
    check(masked_crc32c(data) == little_endian<std::uint32_t>(rest.substr(kHead + length)),
          "{}: the checksum of a record is wrong at byte {}: the file is damaged; copy it again", name, at);
    add_event(data, fmt::format("{}, byte {}", name, at), out);
    at += kHead + length + kTail;
  }
  if (at < bytes.size())
    notes.push_back(
        fmt::format("{} ends in the middle of a record (byte {}): the rest was left out", name, at));
  return out;
}

Curve detail::read_tensorboard(const CurveSource& source, const std::vector<std::filesystem::path>& files) {
  check_options(source, {"tag"}, "TensorBoard events");
  Curve curve{.source = source.text, .format = "TensorBoard events"};
  std::vector<ScalarEvent> events;
  for (const auto& path : files) {
    const MappedFile file(path);
    const auto more = read_event_file(file.text(), path.filename().string(), curve.notes);
    events.insert(events.end(), more.begin(), more.end());
  }
  std::map<std::string, std::size_t> tags;
  for (const ScalarEvent& e : events) ++tags[e.tag];
  check(!tags.empty(), "{} holds no scalars", source.path.string());
  curve.metric = choose_tag(source, tags);
  curve.validation = has(curve.metric, "val") || has(curve.metric, "test");
  for (const ScalarEvent& e : events)
    if (e.tag == curve.metric) curve.points.push_back({.step = e.step, .tokens = {}, .loss = e.value});
  return curve;
}

}  // namespace nibble
