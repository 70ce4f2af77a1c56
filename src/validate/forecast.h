// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// What four bits will cost at a size and a length that nobody has paid for yet.
///
/// Goals: one law with few constants, fitted in the open, with an interval that was tested on held-out runs
/// and a plain word when it is asked for more than it knows. Non-goals: absolute losses; mixtures of experts.
namespace nibble {

/// One finished pair of runs, or the mean of several.
struct GapRun {
  std::string name;       ///< recipe, or what tells it apart
  double parameters = 0;  ///< N: without embedding and head, of the matrices that tokens are multiplied by
  double tokens = 0;      ///< D
  double gap = 0;         ///< (candidate - BF16) / BF16 of the validation loss
  double noise = 0;       ///< sd of `gap` between seeds; 0: only the law's own scatter
  std::string recipe;     ///< where a table names one
};

/// Where the fit has seen runs, as natural logarithms.
struct FitRange {
  double parameters[2] = {1e300, -1e300}, per_parameter[2] = {1e300, -1e300};
  void add(double parameters, double tokens);
  void add(const FitRange& other);
};

enum class Reach { Inside, Beyond, TooFar };

struct GapForecast {
  double gap = 0;                    ///< the median of the prediction
  std::array<double, 2> interval{};  ///< prediction interval of one more run
  double sd = 0;                     ///< of ln(gap), the t's scale
  double degrees = 0;
  Reach reach = Reach::Inside;
  std::vector<std::string> warnings;  ///< how far it extrapolates, as sentences
};

/// gap = a N^b (D / N)^c. Linear in y = ln gap with x = (1, ln N / 10^8, ln D / (100 N)), so the posterior is
/// closed: beta ~ t(mean, s^2 V), and a new run is
///
///   y ~ t_nu( x mean,  s^2 (w + x V x) + (0.15 h)^2 )
///
/// with w = 1 + (noise / (gap s0))^2 of a measurement (1 for the forecast itself) and h = |ln| of how far D /
/// N lies outside the fitted range. The last term is what the power law misses when it runs on: on the public
/// ladder the gap flattens from about 400 tokens a parameter, and fits to shorter runs overshoot by 0.06 to
/// 0.19 of ln a factor e [QUARTET2].
class GapLaw {
 public:
  /// Ordinary least squares. Throws Error{Usage} for fewer than 5 runs, or without two sizes and two lengths.
  static GapLaw fit(const std::vector<GapRun>& runs);
  /// `prior` moved by a handful of runs: Bayes with a conjugate prior, so none at all is allowed. Runs whose
  /// gap is not above their noise have no logarithm worth the name: the caller leaves them out (see usable).
  static GapLaw update(const GapLaw& prior, const std::vector<GapRun>& runs);
  /// For another model, data or optimizer: the level may differ by 25 %, each slope by 0.05 (one sd). The
  /// four recipes of the ladder differ among each other by 0.01 in b and 0.02 in c.
  GapLaw for_another_setup() const;

  GapForecast predict(double parameters, double tokens, double confidence = 0.90) const;

  std::array<double, 3> mean{};                       ///< ln a at 10^8 and 100 tokens a parameter, b, c
  std::array<std::array<double, 3>, 3> covariance{};  ///< V
  double scatter = 0;                                 ///< s
  double degrees = 0;                                 ///< nu
  FitRange range;
  std::size_t runs = 0;
};

/// Finite, positive sizes, and a gap above its own noise.
bool usable(const GapRun& run);

/// Columns parameters, tokens, and gap_percent, gap (a share) or both bf16_loss and loss; recipe or name, and
/// noise_percent where there is one. Throws Error{Usage} naming line and column.
std::vector<GapRun> read_gap_runs(const std::filesystem::path& csv);
/// The runs of `recipe`; with an empty one all of them, which must then be of one recipe: a law has one
/// level. Throws Error{Usage} listing the recipes of the table.
std::vector<GapRun> runs_of_recipe(const std::vector<GapRun>& runs, const std::string& recipe);
std::string gap_runs_csv(const std::vector<GapRun>& runs);

/// The public ladder: 30 M to 200 M parameters, 0.75 G to 80 G tokens, one seed a run, all decoder linears in
/// NVFP4 [QUARTET2]. Recipes: nvidia, nvidia_4over6, tetrajet_v2, quartet2.
extern const std::vector<std::string> kLadderRecipes;
std::vector<GapRun> ladder_runs(const std::string& recipe);

/// The law of NVIDIA's recipe on the whole ladder, and as a prior for a setup that is not the ladder's.
GapLaw ladder_law();
GapLaw literature_prior();

/// A published run that is larger than the ladder's.
struct PublishedRun {
  std::string name, recipe;  ///< recipe as on the ladder
  double parameters = 0, tokens = 0, gap = 0;
  bool kept_blocks = false;  ///< about the last 15 % of the blocks in BF16
  std::string source;
};
const std::vector<PublishedRun>& published_runs();

/// What a measure leaves of the gap, as a factor.
struct Remedy {
  std::string what;
  double factor = 1;
  std::array<double, 2> range{};  ///< of the runs that it was taken from; equal: one run
  std::string source;
  bool before_the_run = false;  ///< has to be decided at the start
};

/// The last 15 % of the blocks in BF16: geometric mean of published gap over the law's forecast of the same
/// run with everything quantised. Indirect, since no pair with and without was published at scale, and the
/// law's own error at that distance is in it. A run called `without` is left out, for judging it.
Remedy kept_blocks_remedy(const GapLaw& law, const std::string& without = "");
/// That, and the late switches of the 12B run [NVFP4].
std::vector<Remedy> remedies(const GapLaw& law);

// What the law is worth ----------------------------------------------------------------------------

struct CheckRow {
  std::string what;
  double parameters = 0, tokens = 0, published = 0;
  GapForecast forecast;
  double error() const { return forecast.gap - published; }
  bool inside() const { return forecast.interval[0] <= published && published <= forecast.interval[1]; }
};

struct CheckSummary {
  std::size_t rows = 0, inside = 0;
  double worst = 0, median = 0;  ///< of |error|, a share
};
CheckSummary summary_of(const std::vector<CheckRow>& rows);

struct ForecastCheck {
  std::vector<CheckRow> held_out;  ///< 200M rows, from the rows up to 100M of the same recipe
  std::vector<CheckRow> sizes;     ///< every row, from the rows of the other three sizes
  std::vector<CheckRow> horizons;  ///< rows above 300 tokens a parameter, from the shorter ones
  std::vector<CheckRow>
      handful;                   ///< 200M rows of the other recipes, from six small pilots and NVIDIA's prior
  std::vector<CheckRow> larger;  ///< published, everything quantised, from the rows up to 200M
  std::vector<CheckRow> kept;    ///< published with kept blocks: literature prior x factor of the other runs
};
ForecastCheck check_forecast();
std::string check_text(const ForecastCheck& check);

// For a person -------------------------------------------------------------------------------------

struct ForecastReport {
  std::string model;
  double parameters = 0, tokens = 0;
  std::vector<GapRun> pilots, left_out;
  GapForecast forecast;
  /// Tokens over `tokens` for the baseline's loss, at the forecast and at both ends of its interval.
  std::array<double, 3> token_ratio{};  ///< lower end, forecast, upper end
  std::vector<Remedy> remedies;
  std::vector<double> remedy_token_ratio;  ///< at the forecast
  GapLaw law;
};
/// Law, forecast and remedies; token ratios are left for the caller, who has a loss law.
ForecastReport make_forecast(const std::string& model, double parameters, double tokens,
                             const std::vector<GapRun>& pilots);
std::string forecast_text(const ForecastReport& r);

}  // namespace nibble
