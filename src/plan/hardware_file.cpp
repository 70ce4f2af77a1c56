// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <toml++/toml.h>

#include <functional>
#include <map>

#include "base/error.h"
#include "base/nearest.h"
#include "io/file.h"
#include "plan/hardware.h"

namespace nibble {
namespace {

using Numbers = std::map<std::string, double*>;

Numbers numbers(Hardware& h) {
  return {{"memory_gb", &h.memory_gb},         {"usable_gb", &h.usable_gb}, {"bandwidth_tb", &h.bandwidth_tb},
          {"copy_fraction", &h.copy_fraction}, {"nvlink_gb", &h.nvlink_gb}, {"pcie_gb", &h.pcie_gb},
          {"nic_gbit", &h.nic_gbit},           {"watts", &h.watts}};
}

std::map<std::string, std::string*> texts(Hardware& h) {
  return {{"name", &h.name},
          {"summary", &h.summary},
          {"source", &h.source},
          {"achieved_source", &h.achieved_source}};
}

double number(const toml::node& node, const std::string& where) {
  const auto value = node.value<double>();
  check_usage(value.has_value(), "{} must be a number", where);
  return *value;
}

template <class Map>
[[noreturn]] void refuse_key(const std::string& where, const Map& known, std::vector<std::string> more) {
  for (const auto& entry : known) more.push_back(entry.first);
  const std::string key = where.substr(where.rfind(' ') + 1);
  fail_usage("{} is not a key of a hardware file{}", where, did_you_mean(key, more));
}

void read_rate(const toml::table& table, RateInfo& rate, const std::string& where) {
  const Numbers fields = {{"dense", &rate.dense}, {"sparse", &rate.sparse}, {"achieved", &rate.achieved}};
  for (const auto& [key, node] : table) {
    const std::string k(key.str());
    const auto it = fields.find(k);
    if (it == fields.end()) refuse_key(fmt::format("{} {}", where, k), fields, {});
    *it->second = number(node, fmt::format("{} {}", where, k));
  }
}

void read_key(const std::string& key, const toml::node& node, Hardware& h, const std::string& source) {
  const std::string where = source + ": " + key;
  for (const Rate r : kRates) {
    if (key != name(r)) continue;
    const toml::table* table = node.as_table();
    check_usage(table != nullptr, "{} must be a table with dense, sparse and achieved", where);
    return read_rate(*table, h.rate(r), where);
  }
  const auto words = texts(h);
  if (const auto it = words.find(key); it != words.end()) {
    const auto text = node.value<std::string>();
    check_usage(text.has_value(), "{} must be a text", where);
    *it->second = *text;
    return;
  }
  if (key == "nvlink_domain") {
    h.nvlink_domain = static_cast<int>(number(node, where));
    return;
  }
  const Numbers fields = numbers(h);
  const auto it = fields.find(key);
  if (it == fields.end())
    refuse_key(where, fields,
               {"base", "name", "summary", "source", "bf16", "fp8", "mxfp8", "fp4", "nvlink_domain"});
  *it->second = number(node, where);
}

}  // namespace

Hardware parse_hardware(const std::string& text, const std::string& source) {
  toml::table table;
  try {
    table = toml::parse(text, source);
  } catch (const toml::parse_error& e) {
    fail_usage("{}:{}: {}", source, e.source().begin.line, std::string(e.description()));
  }
  Hardware h;
  h.copy_fraction = 0.85;
  if (const auto base = table["base"].value<std::string>()) {
    h = find_hardware(*base);
    h.source = fmt::format("{} over {}", source, *base);
  }
  for (const auto& [key, node] : table) {
    if (key.str() != "base") read_key(std::string(key.str()), node, h, source);
  }
  check_usage(!h.name.empty(), "{}: name is missing", source);
  if (h.usable_gb == 0) h.usable_gb = h.memory_gb;
  check_hardware(h);
  return h;
}

Hardware read_hardware(const std::filesystem::path& path) {
  return parse_hardware(read_file(path), path.string());
}

std::string to_toml(const Hardware& hardware) {
  Hardware h = hardware;
  std::string out;
  for (const auto& [key, text] : texts(h)) {
    toml::value<std::string> quoted(*text);
    std::ostringstream stream;
    stream << toml::toml_formatter(toml::table{{"x", quoted}});
    out += fmt::format("{}{}\n", key, stream.str().substr(1));
  }
  for (const auto& [key, value] : numbers(h)) out += fmt::format("{} = {}\n", key, *value);
  out += fmt::format("nvlink_domain = {}\n", h.nvlink_domain);
  for (const Rate r : kRates) {
    const RateInfo& info = h.rate(r);
    out += fmt::format("\n[{}]\ndense = {}\nsparse = {}\nachieved = {}\n", name(r), info.dense, info.sparse,
                       info.achieved);
  }
  return out;
}

}  // namespace nibble
