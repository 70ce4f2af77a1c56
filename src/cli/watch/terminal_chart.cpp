// SPDX-License-Identifier: Apache-2.0
#include "cli/watch/terminal_chart.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "telemetry/console_sink.h"

namespace nibble {
namespace {

constexpr const char* kColours[] = {"\033[36m", "\033[33m", "\033[35m", "\033[32m", "\033[34m", "\033[31m"};
constexpr char kMarks[] = {'*', '+', 'o', 'x', '#', '@'};
constexpr std::size_t kKinds = 6;
constexpr int kLeft = 9;  // the axis
/// The share of a run that is left out of the vertical range: losses fall from ln(vocabulary) at first.
constexpr double kFirstShown = 0.04;

struct Range {
  double lo = HUGE_VAL, hi = -HUGE_VAL;
  void take(double v) {
    if (std::isfinite(v)) lo = std::min(lo, v), hi = std::max(hi, v);
  }
};

std::int64_t last_step(const std::vector<WatchedRun>& runs) {
  std::int64_t last = 1;
  for (const WatchedRun& r : runs)
    if (!r.rows.empty()) last = std::max(last, r.rows.back().step);
  return last;
}

Range loss_range(const std::vector<WatchedRun>& runs, std::int64_t last) {
  Range range;
  const auto first = static_cast<double>(last) * kFirstShown;
  for (const WatchedRun& r : runs)
    for (const WatchRow& row : r.rows)
      if (static_cast<double>(row.step) >= first) range.take(row.loss);
  if (range.lo > range.hi) return {0, 1};
  if (range.hi - range.lo < 1e-9) range.lo -= 0.5, range.hi += 0.5;
  return range;
}

/// Points on a grid that is finer than the characters: 2 x 4 a cell in braille, one otherwise.
class Canvas {
 public:
  Canvas(int columns, int rows, bool braille)
      : columns_(columns),
        rows_(rows),
        fine_x_(braille ? 2 : 1),
        fine_y_(braille ? 4 : 1),
        dots_(static_cast<std::size_t>(columns) * static_cast<std::size_t>(rows), 0),
        run_(dots_.size(), -1) {}

  /// x and y from 0 to 1, y upwards.
  void dot(double x, double y, int run) {
    const int px = nearest(x, columns_ * fine_x_), py = nearest(1 - y, rows_ * fine_y_);
    const std::size_t cell = cell_at(py / fine_y_, px / fine_x_);
    constexpr int kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    dots_[cell] |= kBits[py % fine_y_][px % fine_x_];
    run_[cell] = run;
  }
  int fine_columns() const { return columns_ * fine_x_; }

  std::string line(int row, const TerminalStyle& style) const {
    std::string out;
    int colour = -1;
    for (int c = 0; c < columns_; ++c) {
      const std::size_t cell = cell_at(row, c);
      const int run = run_[cell];
      if (style.colour && run != colour) {
        out += run < 0 ? "\033[0m" : kColours[static_cast<std::size_t>(run) % kKinds];
        colour = run;
      }
      out += run < 0         ? " "
             : style.braille ? braille(dots_[cell])
                             : std::string(1, kMarks[static_cast<std::size_t>(run) % kKinds]);
    }
    return style.colour && colour >= 0 ? out + "\033[0m" : out;
  }

 private:
  /// The place of a share of `count` places.
  static int nearest(double share, int count) {
    return static_cast<int>(std::clamp(std::lround(share * (count - 1)), 0L, count - 1L));
  }
  std::size_t cell_at(int row, int column) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(columns_) +
           static_cast<std::size_t>(column);
  }

  /// U+2800 + dots as UTF-8.
  static std::string braille(int dots) {
    return {static_cast<char>(0xE2), static_cast<char>(0xA0 | dots >> 6),
            static_cast<char>(0x80 | (dots & 0x3F))};
  }
  int columns_, rows_, fine_x_, fine_y_;
  std::vector<int> dots_, run_;
};

void draw(Canvas& canvas, const WatchedRun& run, int index, std::int64_t last, const Range& range) {
  // The mean of the rows that share a column: a curve, and not a cloud.
  const auto columns = static_cast<std::size_t>(canvas.fine_columns());
  std::vector<double> sum(columns, 0);
  std::vector<int> count(columns, 0);
  for (const WatchRow& row : run.rows) {
    if (!std::isfinite(row.loss)) continue;
    const double x = static_cast<double>(row.step) / static_cast<double>(last);
    const auto c = std::min(static_cast<std::size_t>(x * static_cast<double>(columns)), columns - 1);
    sum[c] += row.loss, ++count[c];
  }
  for (std::size_t c = 0; c < columns; ++c) {
    if (count[c] == 0) continue;
    const double y = (sum[c] / count[c] - range.lo) / (range.hi - range.lo);
    if (y <= 1) canvas.dot(static_cast<double>(c) / static_cast<double>(columns), y, index);
  }
}

std::string number(double v, int digits) {
  return std::isfinite(v) ? fmt::format("{:.{}f}", v, digits) : "not finite";
}

/// The first `columns` characters of a line of ASCII.
std::string cut(const std::string& line, int columns) {
  return line.substr(0, static_cast<std::size_t>(std::max(columns, 0)));
}

std::string summary(const WatchedRun& run, int index, const TerminalStyle& style) {
  std::string mark =
      style.braille && style.colour ? "--" : std::string(2, kMarks[static_cast<std::size_t>(index) % kKinds]);
  std::string text = fmt::format(" {:<14}", run.name);
  if (run.rows.empty()) {
    text += " no step yet";
  } else {
    const WatchRow& row = run.rows.back();
    text += fmt::format(" step {}/{} loss {}", row.step, run.steps, number(row.loss, 4));
    if (!run.evaluations.empty()) text += fmt::format(" val {}", number(run.evaluations.back().loss, 4));
    text += fmt::format(" norm {} {} tok/s", number(row.grad_norm, 3), short_count(row.tokens_per_s));
    if (run.steps > row.step && std::isfinite(row.step_ms))
      text += " eta " + short_duration(static_cast<double>(run.steps - row.step) * row.step_ms / 1e3);
    if (!run.alarms.empty()) text += fmt::format(" {} notes", run.alarms.size());
  }
  text = cut(text, style.columns - 2);
  if (style.colour) mark = kColours[static_cast<std::size_t>(index) % kKinds] + mark + "\033[0m";
  return mark + text + "\n";
}

bool is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string text = value;
    return text.find("UTF-8") != text.npos || text.find("utf8") != text.npos;
  }
  return false;
}

}  // namespace

TerminalStyle terminal_style() {
  const ConsoleOptions console = console_options_for(stdout, 1);
  TerminalStyle style{.braille = is_utf8(), .colour = console.colour};
  winsize size{};
  if (console.live && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0)
    style.columns = size.ws_col, style.rows = size.ws_row;
  return style;
}

std::string terminal_frame(const std::vector<WatchedRun>& runs, const TerminalStyle& asked) {
  TerminalStyle style = asked;
  style.columns = std::max(style.columns, 40), style.rows = std::max(style.rows, 10);
  // Runs can only be told apart in braille by their colour.
  style.braille = style.braille && (style.colour || runs.size() < 2);
  const std::size_t shown = std::min(runs.size(), static_cast<std::size_t>(style.rows - 7));
  const int height = std::max(style.rows - static_cast<int>(shown) - 3, 4);
  const std::int64_t last = last_step(runs);
  const Range range = loss_range(runs, last);
  Canvas canvas(style.columns - kLeft - 1, height, style.braille);
  for (std::size_t i = 0; i < shown; ++i) draw(canvas, runs[i], static_cast<int>(i), last, range);
  std::string out = "training loss, nats a token\n";
  for (int row = 0; row < height; ++row) {
    const bool labelled = row == 0 || row == height - 1 || row == height / 2;
    const double value = range.hi - (range.hi - range.lo) * row / (height - 1);
    out += (labelled ? fmt::format("{:>{}.3f} ", value, kLeft - 1) : std::string(kLeft, ' ')) +
           canvas.line(row, style) + "\n";
  }
  const std::string end = fmt::format("step {}", last);
  out += std::string(kLeft, ' ') + "0" +
         fmt::format("{:>{}}\n", end, static_cast<std::size_t>(style.columns - kLeft - 2));
  for (std::size_t i = 0; i < shown; ++i) out += summary(runs[i], static_cast<int>(i), style);
  return out;
}

}  // namespace nibble
