// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "validate/curve_reader.h"
#include "validate/verdict.h"

/// Two curves side by side, whoever made them.
///
/// Goals: the gap at checkpoints, an interval that accounts for what evaluations of one run share, and a
/// plain sentence about what a single pair may claim. Non-goals: replacing `validate`, which fixes the rule
/// before the runs: here the rule comes after them, and the text says so.
namespace nibble {

/// Noise of ONE pair of runs: the sd of its gap at one evaluation if there were no difference, as a share of
/// the loss.
struct PairNoise {
  double sigma = 0;
  std::string source;  ///< as a sentence
};

/// 0.30 %: unpaired seeds of an 8B model, between FP8 and FP8 or NVFP4 and NVFP4. Source: [MLPERF51].
PairNoise published_pair_noise();

/// A share ("0.004") or a percentage ("0.4%"). Throws Error{Usage} for anything else.
double share_from(const std::string& text);

/// `text` is a share ("0.004"), a percentage ("0.4%"), or a JSON file: the noise_floor.json of `nibble
/// validate` (2.3 times its A/A gap in the final window, 0.30 % at least, as for a verdict), or any with
/// "noise_floor" (a share) and, if it likes, "noise_source", which a verdict.json has. Throws Error{Usage}
/// for anything else.
PairNoise pair_noise_from(const std::string& text);

struct CompareOptions {
  bool by_tokens = false;    ///< pair points of equal tokens instead of equal steps
  bool interpolate = false;  ///< read the second curve between its points, linearly; said in the result
  double window = 0.25;      ///< the last share of the paired points that the mean gap is taken over
  std::optional<std::int64_t> from;  ///< instead: all pairs from this step (or number of tokens) on
  std::optional<PairNoise> noise;    ///< empty: the files' own deviations, else the published floor
  std::optional<double> limit;       ///< of the relative gap; gives an outcome
};

struct GapRow {
  std::int64_t at = 0;  ///< step, samples or tokens: what the points were paired by
  std::optional<std::int64_t> tokens;
  double a = 0, b = 0;
  double gap = 0;  ///< (b - a) / a
};

struct CurveComparison {
  Curve a, b;             ///< the reference, the candidate; points as read
  std::string paired_by;  ///< "step", "samples" or "tokens"
  bool interpolated = false;
  std::vector<GapRow> rows;            ///< all pairs
  std::size_t only_a = 0, only_b = 0;  ///< points without a partner
  std::size_t window_begin = 0;        ///< first row of the window
  double gap = 0;                      ///< mean over the window
  double spread = 0;                   ///< sample sd of the gaps in the window
  std::vector<double>
      autocorrelation;     ///< lags 1 to 5 of the window's gaps around their own line; may be short
  double correlation = 0;  ///< of neighbours, as used for the interval
  bool correlation_measured = false;  ///< from the window itself; false: the published one
  double independent = 0;             ///< evaluations that the window is worth, 1 at least
  PairNoise noise;
  double standard_error = 0;
  int degrees = 0;                   ///< of freedom of Student's t; 0: normal
  std::array<double, 2> interval{};  ///< two-sided, 95 %
  std::array<double, 2> bounds{};    ///< one-sided, 95 % each
  std::optional<double> extra_tokens;
  std::optional<double> limit;
  Outcome outcome = Outcome::Inconclusive;  ///< with a limit only
  std::vector<std::string> differences;     ///< of what the files say about the runs
  std::vector<std::string> claims;          ///< what this pair may and may not be said to show, as sentences
};

/// Pairs the points, and with g_i the n gaps of the window, s their sd, rho the correlation of neighbours
/// and sigma the noise of one pair:
///
///   n_eff = max(1, n (1 - rho) / (1 + rho)),   se^2 = s^2 / n_eff + sigma^2
///
/// The first term shrinks with more evaluations. The second does not: in public logs three quarters of a
/// pair's variance is an offset that the whole run keeps, which no single pair can see in itself. rho is
/// measured from eight points on (lag 1 around the window's own straight line, with the small-sample
/// correction (1 + 4 rho) / n), else 0.82 is taken [MLPERF51]. The quantile is Student's t with the degrees
/// of Welch and Satterthwaite. Throws Error{Usage} when fewer than three points can be paired,
/// Error{NonFinite} when the reference has a loss in a pair that is not a positive number.
CurveComparison compare_curves(Curve a, Curve b, const CompareOptions& options = {});

/// A table of at most `rows` checkpoints, evenly spread, the last one always in it, and the sentences.
std::string compare_text(const CurveComparison& c, int rows = 12);
Json compare_json(const CurveComparison& c);

}  // namespace nibble
