// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"
#include "io/json.h"

namespace nibble {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors bytes are used in place");

constexpr std::uint64_t kMaxHeader = 100'000'000;
constexpr std::size_t kPrefix = 8;

/// Elements times element size; negative sizes and overflow are the file's fault, so they throw.
std::int64_t byte_count(DType dtype, const std::vector<std::int64_t>& shape, const std::string& where) {
  std::int64_t n = static_cast<std::int64_t>(size_of(dtype));
  for (std::int64_t s : shape) {
    check(s >= 0, "{}: a size in its shape is negative ({})", where, s);
    check(!__builtin_mul_overflow(n, s, &n), "{}: the shape has more elements than a file can hold", where);
  }
  return n;
}

struct Header {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

SafetensorsEntry parse_entry(const std::string& name, const Json& value, std::span<const std::byte> buffer,
                             const std::string& file) {
  const std::string where = fmt::format("{}: tensor \"{}\"", file, name);
  SafetensorsEntry entry;
  entry.name = name;
  try {
    entry.dtype = dtype_from_name(json_get<std::string>(value, "dtype", where));
  } catch (const Error& e) {
    fail("{}: {}", where, e.what());
  }
  const Json shape = json_get<Json>(value, "shape", where);
  check(shape.is_array(), "{}: its shape is not a list", where);
  for (const Json& size : shape) {
    check(size.is_number_integer(), "{}: a size in its shape is not an integer ({})", where, size.dump());
    check(size.is_number_unsigned() && size.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max(),
          "{}: a size in its shape is out of range ({})", where, size.dump());
    entry.shape.push_back(size.get<std::int64_t>());
  }
  const Json offsets = json_get<Json>(value, "data_offsets", where);
  check(offsets.is_array() && offsets.size() == 2 && offsets[0].is_number_unsigned() &&
            offsets[1].is_number_unsigned(),
        "{}: data_offsets is not a pair of integers >= 0 ({})", where, offsets.dump());
  const auto begin = offsets[0].get<std::uint64_t>(), end = offsets[1].get<std::uint64_t>();
  check(begin <= end && end <= buffer.size(),
        "{}: its bytes [{}, {}) lie outside the {} bytes of data; the file is damaged or was cut short",
        where, begin, end, buffer.size());
  const std::int64_t expected = byte_count(entry.dtype, entry.shape, where);
  check(static_cast<std::uint64_t>(expected) == end - begin, "{}: {} {} needs {} bytes, but it has {}", where,
        name_of(entry.dtype), shape.dump(), expected, end - begin);
  entry.bytes = buffer.subspan(begin, end - begin);
  return entry;
}

void check_cover(const std::vector<SafetensorsEntry>& sorted, std::span<const std::byte> buffer,
                 const std::string& file) {
  const std::byte* next = buffer.data();
  for (const SafetensorsEntry& entry : sorted) {
    check(entry.bytes.data() == next, "{}: tensor \"{}\" {} at byte {}", file, entry.name,
          entry.bytes.data() < next ? "overlaps the one before it" : "leaves a hole before it",
          entry.bytes.data() - buffer.data());
    next = entry.bytes.data() + entry.bytes.size();
  }
  check(next == buffer.data() + buffer.size(), "{}: {} bytes after the last tensor belong to none", file,
        buffer.data() + buffer.size() - next);
}

Header parse_header(const MappedFile& mapped) {
  const std::string file = mapped.path().string();
  const auto bytes = mapped.bytes();
  check(bytes.size() >= kPrefix, "{}: {} bytes are too few for a safetensors file", file, bytes.size());
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kPrefix);
  check(length <= kMaxHeader,
        "{}: a header of {} bytes is over the format's limit of {}; not a safetensors file?", file, length,
        kMaxHeader);
  check(length <= bytes.size() - kPrefix, "{}: the header says {} bytes, but the file ends after {}", file,
        length, bytes.size() - kPrefix);
  const std::string_view text = mapped.text().substr(kPrefix, length);
  check(text.starts_with('{'), "{}: the header does not start with '{{'; not a safetensors file?", file);
  const Json json = parse_json(text, file, {.refuse_duplicate_keys = true});
  const auto buffer = bytes.subspan(kPrefix + length);

  Header header;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      check(value.is_object(), "{}: __metadata__ is not an object", file);
      for (const auto& [k, v] : value.items()) {
        check(v.is_string(), "{}: __metadata__ key \"{}\" is not a string", file, k);
        header.metadata[k] = v.get<std::string>();
      }
      continue;
    }
    header.entries.push_back(parse_entry(name, value, buffer, file));
  }
  // An empty tensor shares its begin with the tensor after it and must come first for the cover check.
  std::stable_sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    if (a.bytes.data() != b.bytes.data()) return a.bytes.data() < b.bytes.data();
    return a.bytes.size() < b.bytes.size();
  });
  check_cover(header.entries, buffer, file);
  return header;
}

}  // namespace

std::int64_t SafetensorsEntry::numel() const {
  std::int64_t n = 1;
  for (std::int64_t s : shape) n *= s;
  return n;
}

void detail::fail_element_size(const SafetensorsEntry& entry, std::size_t size) {
  fail("tensor \"{}\" is {} ({} bytes a value), and was asked for as values of {} bytes", entry.name,
       name_of(entry.dtype), size_of(entry.dtype), size);
}

void detail::copy_bytes(const SafetensorsEntry& entry, void* out) {
  if (!entry.bytes.empty()) std::memcpy(out, entry.bytes.data(), entry.bytes.size());
}

void Safetensors::add_file(const std::filesystem::path& path) {
  files_.emplace_back(path);
  Header header = parse_header(files_.back());
  entries_.insert(entries_.end(), std::make_move_iterator(header.entries.begin()),
                  std::make_move_iterator(header.entries.end()));
  metadata_.merge(header.metadata);
}

void Safetensors::index_names() {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    check(by_name_.emplace(entries_[i].name, i).second, "{}: tensor \"{}\" is in two shards", path_.string(),
          entries_[i].name);
  }
}

Safetensors Safetensors::open_file(const std::filesystem::path& path) {
  Safetensors out;
  out.path_ = path;
  out.add_file(path);
  out.index_names();
  return out;
}

Safetensors Safetensors::open_model(const std::filesystem::path& directory) {
  const auto index_path = directory / "model.safetensors.index.json";
  if (!std::filesystem::exists(index_path)) {
    check(std::filesystem::exists(directory / "model.safetensors"),
          "{}: neither model.safetensors nor model.safetensors.index.json is here; expected a Hugging Face "
          "model folder",
          directory.string());
    return open_file(directory / "model.safetensors");
  }
  Safetensors out;
  out.path_ = directory;
  const Json index = read_json(index_path, {.refuse_duplicate_keys = true});
  const Json map = json_get<Json>(index, "weight_map", index_path.string());
  std::set<std::string> shards;
  for (const auto& [name, shard] : map.items()) {
    check(shard.is_string(), "{}: weight_map of \"{}\" is not a file name", index_path.string(), name);
    const auto file = shard.get<std::string>();
    // A shard lives beside its index; a path that leaves the folder is a mistake or an attack.
    check(!file.empty() && file.find('/') == std::string::npos,
          "{}: \"{}\" is not a file name beside the index", index_path.string(), file);
    shards.insert(file);
  }
  std::size_t first = 0;
  for (const std::string& shard : shards) {
    out.add_file(directory / shard);
    for (std::size_t i = first; i < out.entries_.size(); ++i) {
      const std::string& name = out.entries_[i].name;
      check(map.contains(name) && map.at(name) == shard,
            "{}: tensor \"{}\" of {} is not listed for that file", index_path.string(), name, shard);
    }
    first = out.entries_.size();
  }
  out.index_names();
  for (const auto& [name, shard] : map.items()) {
    check(out.find(name) != nullptr, "{}: tensor \"{}\" is not in {}", index_path.string(), name,
          shard.get<std::string>());
  }
  return out;
}

const SafetensorsEntry* Safetensors::find(std::string_view name) const& {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &entries_[it->second];
}

const SafetensorsEntry& Safetensors::at(std::string_view name) const& {
  if (const SafetensorsEntry* entry = find(name)) return *entry;
  // A name with the same last parts is the usual near miss (another prefix such as "model.").
  const std::string_view tail =
      name.substr(name.find('.') == std::string_view::npos ? 0 : name.find('.') + 1);
  for (const SafetensorsEntry& entry : entries_) {
    if (std::string_view(entry.name).ends_with(tail)) {
      fail("{}: no tensor \"{}\"; did you mean \"{}\"?", path_.string(), name, entry.name);
    }
  }
  fail("{}: no tensor \"{}\" among {}", path_.string(), name, entries_.size());
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<SafetensorsDeclaration> tensors,
                                     std::map<std::string, std::string> metadata)
    : file_(path) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    if (size_of(a.dtype) != size_of(b.dtype)) return size_of(a.dtype) > size_of(b.dtype);
    return a.name < b.name;
  });
  Json header = Json::object();
  for (auto& entry : metadata) header["__metadata__"][entry.first] = std::move(entry.second);
  std::int64_t offset = 0;
  for (const SafetensorsDeclaration& t : tensors) {
    check(t.name != "__metadata__", "{}: a tensor cannot be called __metadata__", path.string());
    const std::int64_t size =
        byte_count(t.dtype, t.shape, fmt::format("{}: tensor \"{}\"", path.string(), t.name));
    check(slots_.emplace(t.name, Slot{offset, size, 0}).second, "{}: tensor \"{}\" was declared twice",
          path.string(), t.name);
    header[t.name] = {{"dtype", std::string(name_of(t.dtype))},
                      {"shape", t.shape},
                      {"data_offsets", {offset, offset + size}}};
    offset += size;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  check(text.size() <= kMaxHeader, "{}: {} tensors need a header over the format's limit", path.string(),
        tensors.size());
  const std::uint64_t length = text.size();
  file_.write(std::as_bytes(std::span(&length, 1)));
  file_.write(text);
  const auto data_begin = static_cast<std::int64_t>(kPrefix + text.size());
  for (auto& [name, slot] : slots_) slot.offset += data_begin;
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  const auto it = slots_.find(name);
  check(it != slots_.end(), "{}: tensor \"{}\" was not declared", file_.path().string(), name);
  Slot& slot = it->second;
  check(slot.written + static_cast<std::int64_t>(bytes.size()) <= slot.size,
        "{}: tensor \"{}\" got more than its {} bytes", file_.path().string(), name, slot.size);
  file_.write_at(slot.offset + slot.written, bytes);
  slot.written += static_cast<std::int64_t>(bytes.size());
}

void SafetensorsWriter::finish() {
  for (const auto& [name, slot] : slots_) {
    check(slot.written == slot.size, "{}: tensor \"{}\" got {} of its {} bytes", file_.path().string(), name,
          slot.written, slot.size);
  }
  file_.sync();
  file_.close();
}

void write_safetensors_index(const std::filesystem::path& directory,
                             const std::map<std::string, std::string>& weight_map, std::int64_t total_size) {
  write_json(directory / "model.safetensors.index.json",
             {{"metadata", {{"total_size", total_size}}}, {"weight_map", weight_map}});
}

}  // namespace nibble
