// SPDX-License-Identifier: Apache-2.0
// Writing: the resolved file, the keys that change the maths, the reference table.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "train/run_config.h"
#include "train/run_config_keys.h"

namespace nibble {
namespace {

using config::Effect;

std::string toml_text(bool value) { return value ? "true" : "false"; }
std::string toml_text(std::int64_t value) { return std::to_string(value); }

/// The shortest decimal that reads back as the same double, with a mark that it is no integer.
std::string toml_text(double value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

std::string toml_text(const std::string& value) {
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\u{:04X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string toml_text(const std::vector<std::string>& values) {
  std::vector<std::string> parts;
  for (const std::string& value : values) parts.push_back(toml_text(value));
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

/// A count as the integer it is.
std::string toml_text(const StepMark& value) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const bool count = std::all_of(value.text.begin(), value.text.end(), digit);
  return count ? value.text : toml_text(value.text);
}

template <class T>
std::string toml_text(const std::optional<T>& value) {
  return value ? toml_text(*value) : "";
}

class Writer {
 public:
  void section(const char* name, const char*) {
    out_ += fmt::format("{}[{}]\n", out_.empty() ? "" : "\n", name);
  }
  template <class T>
  void operator()(const char* name, const T& value, Effect, const char*) {
    const std::string text = toml_text(value);
    if (!text.empty()) out_ += fmt::format("{} = {}\n", name, text);
  }
  template <class Entry>
  void tables(const char* name, const std::vector<Entry>& list, const char*) {
    for (const Entry& entry : list) {
      out_ += fmt::format("\n[[precision.{}]]\n", name);
      config::visit_entry(entry, *this);
    }
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

class MathsCollector {
 public:
  void section(const char* name, const char*) { section_ = name; }
  template <class T>
  void operator()(const char* name, const T& value, Effect effect, const char*) {
    const std::string text = effect == Effect::None ? "" : toml_text(value);
    if (effect == Effect::Maths || !text.empty()) values_[section_ + "." + name] = text;
  }
  template <class Entry>
  void tables(const char* name, const std::vector<Entry>& list, const char*) {
    const std::string outer = section_;
    for (std::size_t i = 0; i < list.size(); ++i) {
      section_ = fmt::format("{}.{}[{}]", outer, name, i);
      config::visit_entry(list[i], *this);
    }
    section_ = outer;
  }
  std::map<std::string, std::string> take() { return std::move(values_); }

 private:
  std::string section_;
  std::map<std::string, std::string> values_;
};

const char* type_name(const bool&) { return "boolean"; }
const char* type_name(const std::int64_t&) { return "integer"; }
const char* type_name(const double&) { return "number"; }
const char* type_name(const std::string&) { return "string"; }
const char* type_name(const std::vector<std::string>&) { return "strings"; }
const char* type_name(const StepMark&) { return "step"; }
template <class T>
const char* type_name(const std::optional<T>&) {
  return type_name(T{});
}

class KeyCollector {
 public:
  void section(const char* name, const char* meaning) {
    section_ = name;
    meanings_.emplace_back(name, meaning);
  }
  template <class T>
  void operator()(const char* name, const T& value, Effect effect, const char* meaning) {
    const std::string text = toml_text(value);
    keys_.push_back({section_, name, type_name(value), text.empty() ? "unset" : text, meaning,
                     effect != Effect::None, in_list_});
  }
  template <class Entry>
  void tables(const char* name, const std::vector<Entry>&, const char* meaning) {
    const std::string outer = section_;
    section_ = outer + "." + name;
    meanings_.emplace_back(section_, meaning);
    const Entry defaults;
    in_list_ = true;
    config::visit_entry(defaults, *this);
    in_list_ = false;
    section_ = outer;
  }
  std::vector<ConfigKey> keys_;
  std::vector<std::pair<std::string, std::string>> meanings_;

 private:
  std::string section_;
  bool in_list_ = false;
};

KeyCollector collect_keys() {
  KeyCollector collector;
  const RunConfig defaults;
  config::visit_keys(defaults, collector);
  return collector;
}

}  // namespace

std::string to_toml(const RunConfig& config) {
  Writer writer;
  config::visit_keys(config, writer);
  return writer.take();
}

std::map<std::string, std::string> maths_values(const RunConfig& config) {
  MathsCollector collector;
  config::visit_keys(config, collector);
  return collector.take();
}

void check_can_resume(const RunConfig& before, const RunConfig& now) {
  const std::map<std::string, std::string> old_values = maths_values(before), new_values = maths_values(now);
  std::vector<std::string> differences;
  const auto show = [](const std::map<std::string, std::string>& values, const std::string& key) {
    const auto found = values.find(key);
    return found == values.end() || found->second.empty() ? std::string("unset") : found->second;
  };
  std::map<std::string, std::string> all = old_values;
  all.insert(new_values.begin(), new_values.end());
  for (const auto& [key, value] : all) {
    const std::string was = show(old_values, key), is = show(new_values, key);
    if (was != is) differences.push_back(fmt::format("{} was {} and is {}", key, was, is));
  }
  check_usage(
      differences.empty(),
      "the run cannot be resumed, because its configuration computes something else now: {}; restore the old "
      "values, or start a run with another training.name",
      fmt::join(differences, "; "));
}

std::vector<ConfigKey> config_keys() { return collect_keys().keys_; }

std::string config_reference() {
  const KeyCollector collector = collect_keys();
  std::string out =
      "Keys marked * change what is computed: a run can only be resumed with the same values.\n";
  std::string section;
  for (const ConfigKey& key : collector.keys_) {
    if (key.section != section) {
      section = key.section;
      std::string meaning;
      for (const auto& [name, text] : collector.meanings_) {
        if (name == section) meaning = text;
      }
      const bool list = key.in_list;
      out += fmt::format("\n{}{}{}  {}\n", list ? "[[" : "[", section, list ? "]]" : "]", meaning);
    }
    out += fmt::format("  {:<24}{} {:<8} {:<12} {}\n", key.name, key.maths ? '*' : ' ', key.type,
                       key.default_text, key.meaning);
  }
  return out;
}

}  // namespace nibble
