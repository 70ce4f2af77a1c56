// SPDX-License-Identifier: Apache-2.0
// Reading: TOML and overrides into a RunConfig.
#include "train/run_config.h"

#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/nearest.h"
#include "train/run_config_keys.h"

namespace nibble {
namespace {

using config::Effect;

/// Where values came from, for errors: "run.toml:12", or the --set that gave the value.
class Origins {
 public:
  explicit Origins(std::string file) : file_(std::move(file)) {}
  void set(const std::string& key, const std::string& text) { sets_[key] = "--set " + text; }
  std::string of(const std::string& key, const toml::node& node) const {
    // What lies inside a value that was set, such as a key of an override, came with it.
    for (std::size_t end = key.size(); end != std::string::npos && end > 0; end = key.rfind('.', end - 1)) {
      const auto found = sets_.find(key.substr(0, end));
      if (found != sets_.end()) return found->second;
    }
    return fmt::format("{}:{}", file_, node.source().begin.line);
  }

 private:
  std::string file_;
  std::map<std::string, std::string> sets_;
};

const char* found_type(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a number";
    case toml::node_type::boolean:
      return "a boolean";
    default:
      return "a date or time";
  }
}

/// Reads the keys of the list out of a table of sections; a missing key keeps its default.
class Reader {
 public:
  Reader(const toml::table& root, const Origins& origins) : root_(root), origins_(origins) {}

  void section(const char* name, const char*) {
    section_ = name;
    const auto dot = section_.find('.');
    table_ = root_[section_.substr(0, dot)].as_table();
    if (dot != std::string::npos && table_ != nullptr)
      table_ = (*table_)[section_.substr(dot + 1)].as_table();
  }
  template <class T>
  void operator()(const char* name, T& value, Effect, const char*) {
    const toml::node* node = table_ == nullptr ? nullptr : table_->get(name);
    if (node != nullptr) assign(section_ + "." + name, *node, value);
  }
  template <class Entry>
  void tables(const char* name, std::vector<Entry>& list, const char*) {
    const toml::node* node = table_ == nullptr ? nullptr : table_->get(name);
    if (node == nullptr) return;
    const std::string key = section_ + "." + name;
    const toml::array* array = node->as_array();
    if (array == nullptr || !array->is_homogeneous(toml::node_type::table)) {
      wrong_type(key, *node, fmt::format("a list of tables, each under [[{}]]", key).c_str());
    }
    const toml::table* outer_table = table_;
    const std::string outer = section_;
    section_ = key;
    for (const toml::node& entry : *array) {
      table_ = entry.as_table();
      config::visit_entry(list.emplace_back(), *this);
    }
    table_ = outer_table;
    section_ = outer;
  }

 private:
  [[noreturn]] void wrong_type(const std::string& key, const toml::node& node, const char* expected) const {
    fail_usage("{}: {} must be {}, not {}", origins_.of(key, node), key, expected, found_type(node));
  }
  void assign(const std::string& key, const toml::node& node, bool& value) const {
    if (!node.is_boolean()) wrong_type(key, node, "true or false");
    value = node.as_boolean()->get();
  }
  void assign(const std::string& key, const toml::node& node, std::int64_t& value) const {
    if (!node.is_integer()) wrong_type(key, node, "an integer");
    value = node.as_integer()->get();
  }
  void assign(const std::string& key, const toml::node& node, double& value) const {
    if (!node.is_number()) wrong_type(key, node, "a number");
    value = *node.value<double>();
  }
  void assign(const std::string& key, const toml::node& node, std::string& value) const {
    if (!node.is_string()) wrong_type(key, node, "a string");
    value = node.as_string()->get();
  }
  void assign(const std::string& key, const toml::node& node, StepMark& value) const {
    if (node.is_integer())
      value.text = std::to_string(node.as_integer()->get());
    else if (node.is_string())
      value.text = node.as_string()->get();
    else
      wrong_type(key, node, "a count of steps, or a share of them such as \"82%\"");
  }
  void assign(const std::string& key, const toml::node& node, std::vector<std::string>& value) const {
    const toml::array* array = node.as_array();
    if (array == nullptr) wrong_type(key, node, "an array of strings");
    value.clear();
    for (const toml::node& entry : *array) assign(key, entry, value.emplace_back());
  }
  template <class T>
  void assign(const std::string& key, const toml::node& node, std::optional<T>& value) const {
    assign(key, node, value.emplace());
  }

  const toml::table& root_;
  const Origins& origins_;
  const toml::table* table_ = nullptr;
  std::string section_;
};

struct KnownNames {
  std::vector<std::string> sections;  ///< "training"
  std::vector<std::string> keys;      ///< "training.steps"
  std::set<std::string> texts;        ///< the keys that hold a string
  std::set<std::string> lists;        ///< the keys that hold a list of tables: "precision.override"
  std::set<std::string> tables;       ///< the keys that hold a table: "telemetry.alarms"

  KnownNames() {
    for (const ConfigKey& key : config_keys()) {
      const bool nested = key.section.find('.') != std::string::npos;
      if (nested) (key.in_list ? lists : tables).insert(key.section);
      if (!nested && std::find(sections.begin(), sections.end(), key.section) == sections.end())
        sections.push_back(key.section);
      keys.push_back(key.section + "." + key.name);
      if (key.type == "string") texts.insert(keys.back());
    }
    keys.insert(keys.end(), lists.begin(), lists.end());
    keys.insert(keys.end(), tables.begin(), tables.end());
  }
  bool has_section(const std::string& name) const {
    return std::find(sections.begin(), sections.end(), name) != sections.end();
  }
  bool has_key(const std::string& name) const {
    return std::find(keys.begin(), keys.end(), name) != keys.end();
  }
};

[[noreturn]] void unknown_key(const std::string& where, const std::string& section, const std::string& name,
                              const KnownNames& known) {
  std::vector<std::string> here;
  for (const std::string& key : known.keys) {
    if (key.compare(0, section.size() + 1, section + ".") == 0)
      here.push_back(key.substr(section.size() + 1));
  }
  const std::vector<std::string> near = nearest_names(name, here, 1);
  // The same name in another section is a likelier meaning than a misspelling; the tables of lists have keys
  // that resemble each other's.
  for (const std::string& key : known.keys) {
    if ((near.empty() || known.lists.count(section) == 0) && key.substr(key.rfind('.') + 1) == name) {
      fail_usage("{}: unknown key \"{}.{}\"; did you mean \"{}\"?", where, section, name, key);
    }
  }
  if (!near.empty()) {
    fail_usage("{}: unknown key \"{}.{}\"; did you mean \"{}.{}\"?", where, section, name, section, near[0]);
  }
  fail_usage("{}: unknown key \"{}.{}\"{} The keys of [{}] are: {}.", where, section, name,
             did_you_mean(section + "." + name, known.keys, 1), section, fmt::join(here, ", "));
}

void check_table_keys(const std::string& section, const toml::table& table, const KnownNames& known,
                      const Origins& origins) {
  for (const auto& [name, node] : table) {
    const std::string key = section + "." + std::string(name.str());
    if (!known.has_key(key)) unknown_key(origins.of(key, node), section, std::string(name.str()), known);
  }
}

void check_names(const toml::table& root, const KnownNames& known, const Origins& origins) {
  for (const auto& [name, node] : root) {
    const std::string section(name.str());
    const std::string where = origins.of(section, node);
    if (!node.is_table()) {
      for (const std::string& key : known.keys) {
        check_usage(key.substr(key.rfind('.') + 1) != section,
                    "{}: \"{}\" stands outside any section; did you mean \"{}\"?", where, section, key);
      }
    }
    check_usage(known.has_section(section) && node.is_table(),
                "{}: unknown section \"{}\"{} The sections are: {}.", where, section,
                did_you_mean(section, known.sections, 1), fmt::join(known.sections, ", "));
    check_table_keys(section, *node.as_table(), known, origins);
    for (const std::string& list : known.lists) {
      if (list.compare(0, section.size() + 1, section + ".") != 0) continue;
      const toml::array* entries = (*node.as_table())[list.substr(section.size() + 1)].as_array();
      if (entries == nullptr) continue;
      for (const toml::node& entry : *entries) {
        if (entry.is_table()) check_table_keys(list, *entry.as_table(), known, origins);
      }
    }
    for (const std::string& name : known.tables) {
      if (name.compare(0, section.size() + 1, section + ".") != 0) continue;
      const toml::node* inner = node.as_table()->get(name.substr(section.size() + 1));
      if (inner == nullptr) continue;
      check_usage(inner->is_table(), "{}: {} must be a table, under [{}]", origins.of(name, *inner), name,
                  name);
      check_table_keys(name, *inner->as_table(), known, origins);
    }
  }
}

/// The value as TOML, or as a plain string when it is not one TOML value (shells eat quotes), or when the key
/// holds a string: a run may be called nan, 7 or 2024-01-01.
toml::table parse_set_value(const std::string& value, bool is_text) {
  toml::table parsed;
  try {
    parsed = toml::parse("value = " + value);
  } catch (const toml::parse_error&) {
  }
  const bool other_type = is_text && parsed.contains("value") && !parsed.get("value")->is_string();
  if (parsed.size() != 1 || other_type) parsed = toml::table{{"value", value}};
  return parsed;
}

/// "a.b=value".
void apply_set(toml::table& root, const std::string& text, const KnownNames& known, Origins& origins) {
  const std::size_t equals = text.find('=');
  const std::string key = text.substr(0, equals);
  const std::size_t dot = key.find('.');
  check_usage(equals != std::string::npos && dot != std::string::npos && dot > 0 && dot + 1 < key.size(),
              "--set {}: expected section.key=value, for example --set training.steps=200", text);
  std::string section = key.substr(0, dot), name = key.substr(dot + 1);
  const std::string value = text.substr(equals + 1);
  check_usage(known.has_section(section), "--set {}: unknown section \"{}\"{}", text, section,
              did_you_mean(section, known.sections, 1));
  if (!known.has_key(key)) unknown_key("--set " + text, section, name, known);
  const std::string table_name = key.substr(0, key.rfind('.'));
  const bool is_nested = known.tables.count(table_name) != 0;
  if (is_nested) name = key.substr(key.rfind('.') + 1);
  const bool is_switch = key.compare(0, 17, "precision.switch.") == 0;
  check_usage(
      name.find('.') == std::string::npos,
      "--set {}: {} is an entry of a list; give the list, for example --set 'precision.{}]', or write it "
      "in the file",
      text, is_switch ? "a switch" : "an override",
      is_switch ? "switch=[{at=\"82%\", recipe=\"bf16\"}"
                : "override=[{layers=\"*.mlp.*\", format=\"bf16\"}");
  origins.set(key, text);
  toml::table parsed = parse_set_value(value, known.texts.count(key) != 0);
  if (root.get(section) == nullptr) root.insert_or_assign(section, toml::table{});
  toml::table* table = root[section].as_table();
  check_usage(table != nullptr, "--set {}: \"{}\" is not a section in the file", text, section);
  if (is_nested) {
    const std::string inner = table_name.substr(section.size() + 1);
    if (table->get(inner) == nullptr) table->insert_or_assign(inner, toml::table{});
    table = (*table)[inner].as_table();
    check_usage(table != nullptr, "--set {}: \"{}\" is not a table in the file", text, table_name);
  }
  parsed.get("value")->visit([&](auto& node) { table->insert_or_assign(name, std::move(node)); });
}

}  // namespace

RunConfig parse_run_config(const std::string& text, const std::string& source,
                           const std::vector<std::string>& sets) {
  toml::table root;
  try {
    root = toml::parse(text, source);
  } catch (const toml::parse_error& e) {
    fail_usage("{}:{}: not valid TOML: {}", source, e.source().begin.line, e.description());
  }
  Origins origins(source);
  const KnownNames known;
  check_names(root, known, origins);
  for (const std::string& set : sets) apply_set(root, set, known, origins);
  check_names(root, known, origins);  // a set override brings keys of its own
  RunConfig config;
  Reader reader(root, origins);
  config::visit_keys(config, reader);
  check_run_config(config);
  return config;
}

RunConfig load_run_config(const std::filesystem::path& path, const std::vector<std::string>& sets) {
  std::ifstream in(path, std::ios::binary);
  check_usage(in.good(), "cannot read the configuration {}: no such file, or no permission", path.string());
  std::stringstream text;
  text << in.rdbuf();
  return parse_run_config(text.str(), path.string(), sets);
}

}  // namespace nibble
