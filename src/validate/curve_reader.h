// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/crc32c.h"

/// Loss curves out of whatever a training run left behind.
///
/// Goals: any two runs can be laid side by side; what was read, and what was passed over, is said.
/// Non-goals: guessing. Where a file holds several curves, the reader lists them and asks which.
namespace nibble {

struct CurvePoint {
  std::int64_t step = 0;
  std::optional<std::int64_t> tokens;  ///< trained so far; nothing where the file does not say
  double loss = 0;                     ///< nats a token, or what the file calls loss
  /// Standard error of `loss` where the file gives a mean over seeds with its deviation.
  std::optional<double> standard_error;
  bool operator==(const CurvePoint&) const = default;
};

struct Curve {
  std::string source;              ///< as it was asked for
  std::string format;              ///< "nibble run", "TensorBoard events", "MLPerf log", "CSV", "text log"
  std::string metric;              ///< "validation loss", or the tag or column it came from
  bool validation = false;         ///< not a training loss
  std::string step_name = "step";  ///< what `step` counts: "step", "samples"
  std::vector<CurvePoint> points;  ///< ascending in step, no step twice (the one logged last counts)
  /// What the file says about the run: seed, data, init, batch. Only keys that it has.
  std::map<std::string, std::string> identity;
  std::vector<std::string> notes;  ///< what was passed over or assumed, as sentences
  double runs = 1;                 ///< seeds that a point is the mean of
};

/// PATH or PATH#key=value,key=value. Keys:
///   metric=train|validation   of a nibble run, an MLPerf log or a text log (validation where there is one)
///   tag=NAME                  of TensorBoard event files
///   step= loss= tokens=       names of CSV columns; any other key selects rows by that column
///   tokens_per_step=N         tokens of a step, where the file does not say
struct CurveSource {
  std::filesystem::path path;
  std::map<std::string, std::string> options;
  std::string text;  ///< as typed
};
CurveSource parse_curve_source(const std::string& text);

/// Reads a curve. The format is recognised by content: a nibble arm's folder (metrics.jsonl) or such a file,
/// a folder with or a file of TensorBoard events, an MLPerf log, CSV with a header, any text with "step" and
/// "loss" in its lines. Throws Error{Usage} when it must be told which of several curves is meant (and lists
/// them), Error{Runtime} for damaged or unreadable files, naming place and remedy.
Curve read_curve(const std::string& source);

/// One scalar of a TensorBoard event file.
struct ScalarEvent {
  std::string tag;
  std::int64_t step = 0;
  double value = 0;
  bool operator==(const ScalarEvent&) const = default;
};

/// The scalars of one event file, in the order of the file: `simple_value` of a summary, or a tensor with one
/// float or double. Every record's two checksums are checked. A record that is cut off at the end (the run is
/// being written, or was killed) ends the list and is said in `notes`; a wrong checksum throws.
std::vector<ScalarEvent> read_event_file(std::string_view bytes, const std::string& name,
                                         std::vector<std::string>& notes);

namespace detail {
Curve read_tensorboard(const CurveSource& source, const std::vector<std::filesystem::path>& files);
Curve read_mlperf_log(const CurveSource& source, std::string_view text);
Curve read_csv(const CurveSource& source, std::string_view text);
Curve read_text_log(const CurveSource& source, std::string_view text);

/// Cells of one line of CSV (RFC 4180 without line feeds inside quotes).
std::vector<std::string> csv_cells(std::string_view line);
/// Sorts by step and drops all but the last of equal steps, with a note.
void finish_points(Curve& curve);
/// Throws Error{Usage} for options that this format does not know.
void check_options(const CurveSource& source, const std::vector<std::string>& known, const char* format);
}  // namespace detail

}  // namespace nibble
