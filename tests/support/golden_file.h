// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace nibble::testing {

struct GoldenTensor {
  std::string dtype;  ///< "F32", "BF16", "U8", "I32", "I64"
  std::vector<std::int64_t> shape;
  const unsigned char* data;  ///< owned by the file
  std::size_t bytes;
};

/// Reads a .safetensors file of golden vectors. For tests only: it lives apart from the project's own reader
/// so that lower layers can be tested too, and so that one does not check itself.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error("cannot open " + path);
    contents_.assign(std::istreambuf_iterator<char>(in), {});
    std::uint64_t header = 0;
    if (contents_.size() < 8) throw std::runtime_error(path + " is no safetensors file");
    std::memcpy(&header, contents_.data(), 8);
    if (header > contents_.size() - 8) throw std::runtime_error(path + " ends inside its header");
    const auto start = contents_.begin() + 8;
    const auto json = nlohmann::json::parse(start, start + static_cast<std::ptrdiff_t>(header));
    for (const auto& [key, value] : json.items()) {
      if (key == "__metadata__") {
        metadata_ = value.get<std::map<std::string, std::string>>();
        continue;
      }
      const auto range = value.at("data_offsets").get<std::vector<std::size_t>>();
      const std::size_t base = 8 + header;
      if (range.at(1) > contents_.size() - base || range.at(0) > range.at(1)) {
        throw std::runtime_error(std::string(path).append(": ").append(key).append(" lies outside the file"));
      }
      tensors_[key] = {value.at("dtype"), value.at("shape").get<std::vector<std::int64_t>>(),
                       reinterpret_cast<const unsigned char*>(contents_.data()) + base + range[0],
                       range[1] - range[0]};
    }
  }
  GoldenFile(const GoldenFile&) = delete;
  GoldenFile& operator=(const GoldenFile&) = delete;

  bool has(const std::string& key) const { return tensors_.count(key) != 0; }
  const std::string& metadata(const std::string& key) const { return metadata_.at(key); }

  const GoldenTensor& tensor(const std::string& key) const {
    const auto it = tensors_.find(key);
    if (it == tensors_.end()) throw std::runtime_error("no golden tensor " + key);
    return it->second;
  }

  /// The names directly under a folder: children("q/") gives "normal_16x16.bf16", ...; sorted.
  std::vector<std::string> children(const std::string& folder) const {
    std::vector<std::string> names;
    for (auto it = tensors_.lower_bound(folder); it != tensors_.end() && it->first.starts_with(folder);
         ++it) {
      const std::string name =
          it->first.substr(folder.size(), it->first.find('/', folder.size()) - folder.size());
      if (names.empty() || names.back() != name) names.push_back(name);
    }
    return names;
  }

  /// The elements as they are stored: values<std::uint8_t>, values<std::int32_t>, ...
  template <class T>
  std::vector<T> values(const std::string& key) const {
    const GoldenTensor& t = tensor(key);
    std::vector<T> out(t.bytes / sizeof(T));
    std::memcpy(out.data(), t.data, out.size() * sizeof(T));
    return out;
  }

  /// F32 or BF16, as FP32.
  std::vector<float> floats(const std::string& key) const {
    if (tensor(key).dtype == "F32") return values<float>(key);
    if (tensor(key).dtype != "BF16") throw std::runtime_error(key + " is neither F32 nor BF16");
    std::vector<float> out;
    for (const std::uint16_t bits : values<std::uint16_t>(key)) {
      out.push_back(__builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16));
    }
    return out;
  }

 private:
  std::string contents_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, GoldenTensor> tensors_;
};

}  // namespace nibble::testing
