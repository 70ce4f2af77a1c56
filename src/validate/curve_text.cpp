// SPDX-License-Identifier: Apache-2.0
// MLPerf logs, CSV, and lines of any text that name a step and a loss.
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "base/error.h"
#include "io/json.h"
#include "validate/curve_reader.h"

namespace nibble {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string_view trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

/// Calls `f(line, number)` for each line.
template <class F>
void each_line(std::string_view text, F f) {
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    f(line, number);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
}

std::optional<double> number_of(std::string_view text) {
  text = trim(text);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

/// A count may be written as 1200 or as 1.2e3, never as 1200.5.
std::int64_t count_of(std::string_view text, const std::string& where) {
  const auto value = number_of(text);
  check(value && *value == std::floor(*value) && std::abs(*value) < 9e15, "{}: \"{}\" is not a whole number",
        where, text);
  return static_cast<std::int64_t>(*value);
}

bool wants_training(const CurveSource& source) {
  const auto it = source.options.find("metric");
  if (it == source.options.end()) return false;
  check_usage(it->second == "train" || it->second == "validation",
              "{}: metric={} is neither train nor validation", source.text, it->second);
  return it->second == "train";
}

// MLPerf ------------------------------------------------------------------------------------------

constexpr const char* kCounts[] = {"samples_count", "step_num", "epoch_num"};

/// What a log line counts by: samples where it says so. epoch_num holds samples in the language-model
/// benchmarks that have no samples_count.
std::optional<std::int64_t> mlperf_count(const Json& metadata) {
  for (const char* key : kCounts) {
    const auto it = metadata.find(key);
    if (it != metadata.end() && it->is_number()) return static_cast<std::int64_t>(it->get<double>());
  }
  return {};
}

bool is_one_of(const std::string& word, std::initializer_list<const char*> list) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

}  // namespace

Curve detail::read_mlperf_log(const CurveSource& source, std::string_view text) {
  check_options(source, {"metric"}, "an MLPerf log");
  Curve curve{.source = source.text, .format = "MLPerf log", .step_name = "samples"};
  const bool train = wants_training(source);
  curve.validation = !train;
  curve.metric = train ? "train_loss" : "eval_accuracy (the benchmark's validation loss)";
  constexpr std::string_view kMark = ":::MLLOG";
  std::int64_t sequence = 0;
  each_line(text, [&](std::string_view line, std::int64_t number) {
    const auto at = line.find(kMark);
    if (at == std::string_view::npos) return;
    const std::string where = fmt::format("{}:{}", source.path.string(), number);
    const Json event = parse_json(line.substr(at + kMark.size()), where);
    const auto key = json_get<std::string>(event, "key", where);
    const Json value = event.contains("value") ? event.at("value") : Json();
    if (is_one_of(key, {"seed", "global_batch_size", "max_sequence_length", "submission_org"}) &&
        !value.is_null())
      curve.identity[key] = value.is_string() ? value.get<std::string>() : value.dump();
    if (key == "max_sequence_length" && value.is_number()) sequence = value.get<std::int64_t>();
    const bool wanted = train ? is_one_of(key, {"train_loss"})
                              : is_one_of(key, {"eval_accuracy", "eval_loss", "validation_loss"});
    if (!wanted || !value.is_number()) return;
    const auto count = mlperf_count(event.contains("metadata") ? event.at("metadata") : Json::object());
    check(count.has_value(), "{}: the metadata of {} has none of {}", where, key, fmt::join(kCounts, ", "));
    curve.points.push_back({.step = *count, .tokens = {}, .loss = value.get<double>()});
  });
  if (sequence > 0)
    for (CurvePoint& p : curve.points) p.tokens = p.step * sequence;
  return curve;
}

// CSV ---------------------------------------------------------------------------------------------

std::vector<std::string> detail::csv_cells(std::string_view line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  line = trim(line);
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"') {
      const bool doubled = quoted && i + 1 < line.size() && line[i + 1] == '"';
      if (doubled) cells.back() += line[++i];
      quoted = doubled ? quoted : !quoted;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

namespace {

constexpr int kNone = -1;

/// The columns of a table, by the names that training tools give them.
struct CsvColumns {
  int step = kNone, loss = kNone, tokens = kNone, deviation = kNone, runs = kNone;
};

class Csv {
 public:
  Csv(const CurveSource& source, std::string_view text) : source_(source) {
    each_line(text, [&](std::string_view line, std::int64_t number) {
      if (trim(line).empty() || line[0] == '#') return;
      std::vector<std::string> cells = detail::csv_cells(line);
      if (header_.empty()) {
        header_ = std::move(cells);
        return;
      }
      check(cells.size() == header_.size(), "{}:{}: {} cells under a header of {}", source.path.string(),
            number, cells.size(), header_.size());
      rows_.push_back({number, std::move(cells)});
    });
    columns_.loss = column("loss", {"val_loss", "validation_loss", "eval_loss", "mean_val_loss",
                                    "final_val_loss", "loss", "mean", "train_loss", "training_loss"});
    columns_.step = column("step", {"step", "steps", "iteration", "iter", "global_step", "_step", "samples"});
    columns_.tokens = column("tokens", {"tokens", "consumed_tokens", "tokens_seen"});
    columns_.deviation = column("sd", {"sd", "std", "sd_val_loss", "std_val_loss"});
    columns_.runs = column("runs", {"runs", "n_runs", "seeds"});
    check_usage(columns_.loss != kNone, "{}: no column is called a loss; name it: {}#loss=NAME. Columns: {}",
                source.text, source.path.string(), fmt::join(header_, ", "));
    check_usage(columns_.step != kNone || columns_.tokens != kNone,
                "{}: no column counts steps or tokens; name it: {}#step=NAME. Columns: {}", source.text,
                source.path.string(), fmt::join(header_, ", "));
    select_rows();
  }

  Curve curve() {
    Curve out{.source = source_.text, .format = "CSV", .metric = header_[columns_.loss]};
    const std::string name = lower(out.metric);
    out.validation = name.find("val") != std::string::npos || columns_.deviation != kNone;
    if (columns_.step == kNone)
      out.step_name = header_[columns_.tokens];
    else if (lower(header_[columns_.step]) == "samples")
      out.step_name = "samples";
    std::size_t empty = 0;
    for (const Row& row : rows_) {
      const auto loss = number_of(row.cells[columns_.loss]);
      if (trim(row.cells[columns_.loss]).empty()) {
        ++empty;
        continue;
      }
      check(loss.has_value(), "{}:{}: \"{}\" in column {} is not a number", source_.path.string(), row.number,
            row.cells[columns_.loss], out.metric);
      out.points.push_back(point_of(row, *loss, out));
    }
    if (empty > 0) out.notes.push_back(fmt::format("{} rows without a loss were passed over", empty));
    refuse_ambiguity(out);
    return out;
  }

 private:
  struct Row {
    std::int64_t number;
    std::vector<std::string> cells;
  };

  int find(const std::string& name) const {
    const auto it = std::find_if(header_.begin(), header_.end(), [&](const std::string& h) {
      return trim(h) == name || lower(trim(h)) == name;
    });
    return it == header_.end() ? kNone : static_cast<int>(it - header_.begin());
  }

  int column(const char* role, std::initializer_list<const char*> names) {
    roles_.insert(role);
    const auto asked = source_.options.find(role);
    if (asked != source_.options.end()) {
      const int at = find(asked->second);
      check_usage(at != kNone, "{}: there is no column \"{}\"; there are {}", source_.text, asked->second,
                  fmt::join(header_, ", "));
      return at;
    }
    for (const char* name : names)
      if (const int at = find(name); at != kNone) return at;
    return kNone;
  }

  void select_rows() {
    for (const auto& entry : source_.options) {
      const std::string &key = entry.first, &value = entry.second;
      if (roles_.contains(key) || key == "tokens_per_step") continue;
      const int at = find(key);
      check_usage(at != kNone, "{}: there is no column \"{}\" to choose rows by; there are {}", source_.text,
                  key, fmt::join(header_, ", "));
      std::set<std::string> values;
      for (const Row& r : rows_) values.emplace(trim(r.cells[at]));
      std::erase_if(rows_, [&](const Row& r) { return trim(r.cells[at]) != value; });
      check_usage(!rows_.empty(), "{}: no row has {}={}; there are {}", source_.text, key, value,
                  fmt::join(values, ", "));
    }
  }

  CurvePoint point_of(const Row& row, double loss, Curve& out) const {
    const std::string where = fmt::format("{}:{}", source_.path.string(), row.number);
    CurvePoint p{.loss = loss};
    if (columns_.tokens != kNone) p.tokens = count_of(row.cells[columns_.tokens], where);
    p.step = columns_.step != kNone ? count_of(row.cells[columns_.step], where) : *p.tokens;
    if (columns_.runs != kNone) out.runs = static_cast<double>(count_of(row.cells[columns_.runs], where));
    if (columns_.deviation != kNone && columns_.runs != kNone) {
      const auto sd = number_of(row.cells[columns_.deviation]);
      check(sd && *sd >= 0 && out.runs > 0, "{}: a deviation or a number of runs is not a number", where);
      p.standard_error = *sd / std::sqrt(out.runs);
    }
    return p;
  }

  /// Two rows of one step with two losses are two runs in one table.
  void refuse_ambiguity(const Curve& curve) const {
    std::map<std::int64_t, double> seen;
    for (const CurvePoint& p : curve.points) {
      const auto [it, fresh] = seen.emplace(p.step, p.loss);
      if (fresh || it->second == p.loss) continue;
      std::vector<std::string> varying;
      for (std::size_t c = 0; c < header_.size(); ++c) {
        std::set<std::string> values;
        for (const Row& r : rows_) values.insert(r.cells[c]);
        // Columns of numbers vary along any run; those of words tell runs apart.
        if (values.size() > 1 && !number_of(*values.begin()))
          varying.push_back(fmt::format("{} ({})", header_[c], fmt::join(values, " ")));
      }
      fail_usage(
          "{}: {} {} stands there with several losses: the table holds several runs. Choose one: "
          "{}#column=value{}{}",
          source_.text, curve.step_name, p.step, source_.path.string(), varying.empty() ? "" : ", by ",
          fmt::join(varying, "; "));
    }
  }

  const CurveSource& source_;
  std::vector<std::string> header_;
  std::vector<Row> rows_;
  CsvColumns columns_;
  std::set<std::string> roles_;
};

}  // namespace

Curve detail::read_csv(const CurveSource& source, std::string_view text) { return Csv(source, text).curve(); }

// Text --------------------------------------------------------------------------------------------

namespace {

/// Without the escape sequences that colour a terminal.
std::string without_colours(std::string_view line) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
      while (i < line.size() && !std::isalpha(static_cast<unsigned char>(line[i]))) ++i;
      continue;
    }
    out += line[i];
  }
  return out;
}

/// "lm loss: 5.2E+00 | ..." as the words before a number and the number. NaN and inf are numbers too: a run
/// that diverged must not look shorter than it was.
struct Labelled {
  std::string label;  ///< words in lower case, one blank between
  double value = 0;
  bool whole = false;  ///< written without point and exponent
};

bool is_word(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }

std::vector<Labelled> labelled_numbers(const std::string& line) {
  std::vector<Labelled> out;
  std::string label;
  const auto digit_at = [&](std::size_t i) {
    return i < line.size() && std::isdigit(static_cast<unsigned char>(line[i]));
  };
  for (std::size_t i = 0; i < line.size();) {
    const char c = line[i];
    if (is_word(c)) {
      std::size_t end = i;
      // Digits inside a word belong to it: "fp8", "layer3".
      while (end < line.size() && (is_word(line[end]) || (end > i && digit_at(end)))) ++end;
      const std::string word = lower(std::string_view(line).substr(i, end - i));
      i = end;
      if (!label.empty() && is_one_of(word, {"nan", "inf", "infinity"})) {
        out.push_back({label, word == "nan" ? std::nan("") : HUGE_VAL, false});
        label.clear();
        continue;
      }
      if (!label.empty()) label += ' ';
      label += word;
    } else if (digit_at(i) || ((c == '-' || c == '+' || c == '.') && digit_at(i + 1))) {
      double value = 0;
      const char* first = line.data() + i + (c == '+' ? 1 : 0);
      const auto [end, error] = std::from_chars(first, line.data() + line.size(), value);
      const std::string_view text(first, error == std::errc() ? end - first : 1);
      out.push_back({label, value, text.find_first_of(".eE") == std::string_view::npos});
      label.clear();
      i = static_cast<std::size_t>(text.data() + text.size() - line.data());
    } else {
      if (c == '|' || c == ',' || c == ';') label.clear();
      ++i;
    }
  }
  return out;
}

/// The word that says what the number is: the last of the label that is one of ours.
enum class Kind { Other, Step, Tokens, Loss };

Kind kind_of(const std::string& label) {
  Kind kind = Kind::Other;
  std::size_t start = 0;
  while (start < label.size()) {
    const auto end = std::min(label.find(' ', start), label.size());
    const std::string word = label.substr(start, end - start);
    if (is_one_of(word, {"step", "iteration", "iter", "it", "global_step", "steps"})) {
      kind = Kind::Step;
    } else if (is_one_of(word, {"tokens", "consumed_tokens"})) {
      kind = Kind::Tokens;
    } else if (word == "loss" || word.ends_with("_loss")) {
      kind = Kind::Loss;
    } else if (is_one_of(word, {"ppl", "perplexity", "scale", "aux", "time", "norm", "per", "s", "ms"})) {
      kind = Kind::Other;  // "loss scale", "step time", "tokens per s" are other things
    }
    start = end + 1;
  }
  return kind;
}

struct LossLine {
  std::optional<std::int64_t> step, tokens;
  std::optional<double> train, validation;
};

LossLine read_loss_line(const std::string& line) {
  LossLine out;
  bool validation = false;
  for (const Labelled& n : labelled_numbers(line)) {
    if (n.label.find("val") != std::string::npos) validation = true;  // val, valid, validation, eval
    if (n.label.find("train") != std::string::npos) validation = false;
    const Kind kind = kind_of(n.label);
    if (kind == Kind::Step && n.whole && !out.step) out.step = static_cast<std::int64_t>(n.value);
    if (kind == Kind::Tokens && n.whole && !out.tokens) out.tokens = static_cast<std::int64_t>(n.value);
    if (kind == Kind::Loss) {
      auto& slot = validation ? out.validation : out.train;
      if (!slot) slot = n.value;
    }
  }
  return out;
}

/// "1200 3.4567": a step and its loss, nothing else.
std::optional<CurvePoint> bare_pair(const std::string& line) {
  const std::string_view text = trim(line);
  const auto gap = text.find_first_of(" \t");
  if (gap == std::string_view::npos) return {};
  const auto step = number_of(text.substr(0, gap)), loss = number_of(text.substr(gap));
  if (!step || !loss || *step != std::floor(*step)) return {};
  return CurvePoint{.step = static_cast<std::int64_t>(*step), .tokens = {}, .loss = *loss};
}

}  // namespace

Curve detail::read_text_log(const CurveSource& source, std::string_view text) {
  check_options(source, {"metric"}, "a text log");
  std::vector<CurvePoint> train, validation, bare;
  std::size_t unused = 0;
  each_line(text, [&](std::string_view raw, std::int64_t) {
    const std::string line = without_colours(raw);
    if (trim(line).empty() || line[0] == '#') return;
    const LossLine l = read_loss_line(line);
    if (l.step && l.train) train.push_back({.step = *l.step, .tokens = l.tokens, .loss = *l.train});
    if (l.step && l.validation)
      validation.push_back({.step = *l.step, .tokens = l.tokens, .loss = *l.validation});
    if (l.step && (l.train || l.validation)) return;
    if (const auto pair = bare_pair(line))
      bare.push_back(*pair);
    else
      ++unused;
  });
  Curve curve{.source = source.text, .format = "text log"};
  const bool labelled = !train.empty() || !validation.empty();
  curve.validation = labelled && !wants_training(source) && !validation.empty();
  curve.metric = curve.validation ? "validation loss" : labelled ? "training loss" : "loss";
  curve.points = curve.validation ? validation : labelled ? train : bare;
  check(!curve.points.empty(),
        "{}: no line has both a step and a {}; lines like \"step 100 loss 3.21\" or \"100 3.21\" can be read",
        source.text, curve.metric);
  if (labelled && unused + bare.size() > 0)
    curve.notes.push_back(
        fmt::format("{} lines without a step and a loss were passed over", unused + bare.size()));
  const bool some = std::any_of(curve.points.begin(), curve.points.end(),
                                [](const CurvePoint& p) { return p.tokens.has_value(); });
  const bool all = std::all_of(curve.points.begin(), curve.points.end(),
                               [](const CurvePoint& p) { return p.tokens.has_value(); });
  if (some && !all)
    for (CurvePoint& p : curve.points) p.tokens.reset();  // half a column cannot be paired by
  return curve;
}

}  // namespace nibble
