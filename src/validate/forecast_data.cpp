// SPDX-License-Identifier: Apache-2.0
// The runs that the literature lends, and runs of the user's own from a table.
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "validate/curve_reader.h"
#include "validate/forecast.h"

namespace nibble {
namespace {

/// tests/golden/quartet2/small_runs.csv as a table; a test holds the two equal.
struct LadderPoint {
  double parameters, tokens, bf16;
  std::array<double, 4> loss;  ///< in the order of kLadderRecipes
};

constexpr LadderPoint kLadder[] = {
    {30482560, 749993984, 3.42264, {3.47742, 3.47918, 3.47675, 3.46562}},
    {30482560, 1499987968, 3.3004, {3.36883, 3.36654, 3.3645, 3.3514}},
    {30482560, 2999975936, 3.21161, {3.29032, 3.28653, 3.2831, 3.27071}},
    {30482560, 5999951872, 3.14579, {3.23625, 3.23306, 3.22531, 3.21179}},
    {30482560, 11999903744, 3.09465, {3.19774, 3.19212, 3.18223, 3.16928}},
    {30482560, 23999807488, 3.05769, {3.16224, 3.15775, 3.14518, 3.13256}},
    {49556736, 1249902592, 3.2368, {3.2945, 3.29217, 3.29331, 3.2792}},
    {49556736, 2499805184, 3.14157, {3.21019, 3.20656, 3.20162, 3.19217}},
    {49556736, 4999872512, 3.06987, {3.14895, 3.14296, 3.13665, 3.12512}},
    {49556736, 9999745024, 3.01431, {3.10066, 3.09504, 3.08651, 3.0765}},
    {49556736, 19999752192, 2.9694, {3.06417, 3.05754, 3.04697, 3.03608}},
    {49556736, 39999766528, 2.93448, {3.02919, 3.02369, 3.01066, 3.00107}},
    {102777856, 2499805184, 3.02959, {3.08647, 3.08141, 3.08499, 3.07156}},
    {102777856, 4999872512, 2.94175, {3.00759, 3.00201, 3.00343, 2.98983}},
    {102777856, 9999745024, 2.87536, {2.94816, 2.94342, 2.94083, 2.92817}},
    {102777856, 19999752192, 2.8263, {2.90532, 2.90077, 2.89418, 2.88187}},
    {102777856, 39999766528, 2.7905, {2.87021, 2.86517, 2.8554, 2.84522}},
    {102777856, 79999795200, 2.76417, {2.84414, 2.83839, 2.82721, 2.81822}},
    {203188480, 4999872512, 2.8351, {2.88924, 2.88794, 2.88748, 2.87658}},
    {203188480, 9999745024, 2.7604, {2.82003, 2.81916, 2.81687, 2.80446}},
    {203188480, 19999752192, 2.7062, {2.76771, 2.76579, 2.76093, 2.75142}},
};

}  // namespace

const std::vector<std::string> kLadderRecipes = {"nvidia", "nvidia_4over6", "tetrajet_v2", "quartet2"};

std::vector<GapRun> ladder_runs(const std::string& recipe) {
  const auto it = std::find(kLadderRecipes.begin(), kLadderRecipes.end(), recipe);
  check(it != kLadderRecipes.end(), "the public ladder has no recipe \"{}\"", recipe);
  const auto column = static_cast<std::size_t>(it - kLadderRecipes.begin());
  std::vector<GapRun> out;
  for (const LadderPoint& p : kLadder)
    out.push_back(
        {.name = recipe, .parameters = p.parameters, .tokens = p.tokens, .gap = p.loss[column] / p.bf16 - 1});
  return out;
}

GapLaw ladder_law() { return GapLaw::fit(ladder_runs("nvidia")); }
GapLaw literature_prior() { return ladder_law().for_another_setup(); }

const std::vector<PublishedRun>& published_runs() {
  // Parameters without embedding and head where the model is known, else as published.
  static const std::vector<PublishedRun> kRuns = {
      {"0.56B, 11B tokens", "nvidia", 0.56e9, 11e9, 0.0156, false, "nanochat, bits per byte [QUARTET2]"},
      {"0.56B, 11B tokens", "nvidia_4over6", 0.56e9, 11e9, 0.0151, false,
       "nanochat, bits per byte [QUARTET2]"},
      {"0.56B, 11B tokens", "tetrajet_v2", 0.56e9, 11e9, 0.0172, false, "nanochat, bits per byte [QUARTET2]"},
      {"0.56B, 11B tokens", "quartet2", 0.56e9, 11e9, 0.0126, false, "nanochat, bits per byte [QUARTET2]"},
      {"1.9B, 38B tokens", "nvidia", 1.9e9, 38e9, 0.0192, false, "nanochat, bits per byte [QUARTET2]"},
      {"1.9B, 38B tokens", "nvidia_4over6", 1.9e9, 38e9, 0.0176, false, "nanochat, bits per byte [QUARTET2]"},
      {"1.9B, 38B tokens", "tetrajet_v2", 1.9e9, 38e9, 0.0172, false, "nanochat, bits per byte [QUARTET2]"},
      {"1.9B, 38B tokens", "quartet2", 1.9e9, 38e9, 0.0144, false, "nanochat, bits per byte [QUARTET2]"},
      {"8B, 1.2B tokens", "nvidia", 6.98e9, 1.208e9, 0.0080, false,
       "against FP8, no RHT, FP8 attention [MLPERF51]"},
      {"8B, 160B tokens", "nvidia", 7e9, 160e9, 0.0087, true, "last 4 blocks in BF16 [MXFP4-NATIVE]"},
      {"0.6B, 100B tokens", "nvidia", 0.44e9, 100e9, 0.0205, true,
       "NVIDIA's recipe as its baseline [AVERIS]"},
      {"8B hybrid, 1T tokens", "nvidia", 7e9, 1e12, 0.015, true, "last 8 of 52 blocks in BF16 [NVFP4]"},
      {"12B hybrid, 10T tokens", "nvidia", 11e9, 10e12, 0.015, true,
       "first 2 and last 8 of 62 blocks in BF16, against FP8 [NVFP4]"},
  };
  return kRuns;
}

Remedy kept_blocks_remedy(const GapLaw& law, const std::string& without) {
  Remedy r{.what = "the last 15 % of the blocks in BF16", .before_the_run = true};
  double sum = 0, count = 0;
  r.range = {1e300, 0};
  for (const PublishedRun& p : published_runs()) {
    if (!p.kept_blocks || p.name == without) continue;
    const double ratio = p.gap / law.predict(p.parameters, p.tokens).gap;
    sum += std::log(ratio), count += 1;
    r.range = {std::min(r.range[0], ratio), std::max(r.range[1], ratio)};
  }
  r.factor = std::exp(sum / count);
  r.source = fmt::format("{:.0f} published runs against this law [NVFP4] [MXFP4-NATIVE] [AVERIS]", count);
  return r;
}

std::vector<Remedy> remedies(const GapLaw& law) {
  return {kept_blocks_remedy(law),
          {"the forward products in BF16 for the last 18 % of the tokens",
           1.0 / 3,
           {1.0 / 3, 1.0 / 3},
           "1.5 % became 0.5 % at 12B and 10T tokens, one run [NVFP4]",
           false},
          {"everything in BF16 for the last 18 % of the tokens",
           0,
           {0, 0},
           "reached the baseline's loss at 12B and 10T tokens, one run [NVFP4]",
           false}};
}

namespace {

struct Table {
  std::vector<std::string> header;
  std::vector<std::pair<std::int64_t, std::vector<std::string>>> rows;  ///< with line numbers

  int column(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      const auto it = std::find(header.begin(), header.end(), name);
      if (it != header.end()) return static_cast<int>(it - header.begin());
    }
    return -1;
  }
};

Table read_table(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  Table t;
  std::string_view rest = text;
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.empty() || line[0] == '#') continue;
    auto cells = detail::csv_cells(line);
    if (t.header.empty()) {
      t.header = std::move(cells);
      continue;
    }
    check_usage(cells.size() == t.header.size(), "{}:{}: {} cells under a header of {}", path.string(),
                number, cells.size(), t.header.size());
    t.rows.emplace_back(number, std::move(cells));
  }
  return t;
}

}  // namespace

std::vector<GapRun> read_gap_runs(const std::filesystem::path& path) {
  const Table t = read_table(path);
  const int size = t.column({"parameters"}), tokens = t.column({"tokens"});
  const int percent = t.column({"gap_percent"}), share = t.column({"gap"});
  const int bf16 = t.column({"bf16_loss"}), loss = t.column({"loss"});
  const int noise = t.column({"noise_percent"}), name = t.column({"name", "recipe"});
  const int recipe = t.column({"recipe"});
  check_usage(
      size >= 0 && tokens >= 0 && (percent >= 0 || share >= 0 || (bf16 >= 0 && loss >= 0)),
      "{}: needs columns parameters, tokens, and gap_percent (or gap, or bf16_loss and loss); it has {}",
      path.string(), fmt::join(t.header, ", "));
  std::vector<GapRun> out;
  for (const auto& row : t.rows) {
    const std::int64_t line = row.first;
    const std::vector<std::string>& cells = row.second;
    const auto number = [&](int column) {
      const std::string& text = cells[static_cast<std::size_t>(column)];
      double value = 0;
      const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
      check_usage(result.ec == std::errc() && result.ptr == text.data() + text.size(),
                  "{}:{}: \"{}\" in column {} is not a number", path.string(), line, text,
                  t.header[static_cast<std::size_t>(column)]);
      return value;
    };
    GapRun r{.name = name >= 0 ? cells[static_cast<std::size_t>(name)] : fmt::format("line {}", line),
             .parameters = number(size),
             .tokens = number(tokens)};
    r.gap = percent >= 0 ? number(percent) / 100
            : share >= 0 ? number(share)
                         : number(loss) / number(bf16) - 1;
    if (noise >= 0) r.noise = number(noise) / 100;
    if (recipe >= 0) r.recipe = cells[static_cast<std::size_t>(recipe)];
    out.push_back(std::move(r));
  }
  check_usage(!out.empty(), "{} holds no runs", path.string());
  return out;
}

std::vector<GapRun> runs_of_recipe(const std::vector<GapRun>& runs, const std::string& recipe) {
  std::set<std::string> known;
  std::vector<GapRun> out;
  for (const GapRun& r : runs) {
    known.insert(r.recipe);
    if (recipe.empty() || r.recipe == recipe) out.push_back(r);
  }
  check_usage(!out.empty(), "no pilot has the recipe \"{}\"; there are {}", recipe, fmt::join(known, ", "));
  check_usage(!recipe.empty() || known.size() == 1,
              "the pilots are of several recipes ({}), and a law has one level: choose with --recipe",
              fmt::join(known, ", "));
  return out;
}

std::string gap_runs_csv(const std::vector<GapRun>& runs) {
  std::string out =
      "# Pilots for nibble forecast: parameters without embedding and head, gaps of the validation loss.\n"
      "name,parameters,tokens,gap_percent,noise_percent\n";
  for (const GapRun& r : runs)
    out += fmt::format("{},{},{},{},{}\n", r.name, json_number(r.parameters), json_number(r.tokens),
                       json_number(100 * r.gap), json_number(100 * r.noise));
  return out;
}

}  // namespace nibble
