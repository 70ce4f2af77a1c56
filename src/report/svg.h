// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace nibble {

/// Escapes text for HTML and SVG.
std::string escaped(const std::string& text);
/// The same for an attribute between single quotes.
std::string attribute(const std::string& text);

struct Point {
  double x = 0, y = 0;
};

struct Range {
  double lo = 0, hi = 1;
};

/// About `count` round numbers inside a range: multiples of 1, 2, 2.5 or 5 times a power of ten.
std::vector<double> nice_ticks(Range r, int count);

/// One chart as inline SVG. Colours come from CSS classes of the page, so one drawing serves light, dark and
/// print. Drawn in the order of the calls; axes and labels come last. Points that are not finite are left
/// out.
class Plot {
 public:
  using Format = std::function<std::string(double)>;
  struct Frame {
    double width = 1040, height = 300;
    double left = 64, right = 132, top = 26, bottom = 44;
    std::string x_title, y_title;
    Format x_format, y_format;
    int x_ticks = 8, y_ticks = 5;  ///< 0: no ticks and no grid on this axis
  };

  Plot(Frame frame, Range x, Range y) : frame_(std::move(frame)), x_(x), y_(y) {}

  /// A vertical stretch with its name above the frame, where there is room for it.
  void phase(double x0, double x1, const std::string& label, const std::string& css);
  void band(double y0, double y1, const std::string& css);
  /// A horizontal line with its name in the right margin; names never overlap.
  void level(double y, const std::string& label, const std::string& css);
  void segment(Point a, Point b, const std::string& css);
  void line(const std::vector<Point>& points, const std::string& css);
  /// `hover`: what the pointer on a point shows.
  void dots(const std::vector<Point>& points, double radius, const std::string& css,
            const std::function<std::string(const Point&)>& hover = {});
  void area(const std::vector<Point>& lower, const std::vector<Point>& upper, const std::string& css);
  /// Text in the right margin beside a value, for naming a curve at its end.
  void end_label(double y, const std::string& label, const std::string& css);
  /// Text in the left margin, for a chart whose rows have names instead of numbers.
  void row_label(double y, const std::string& label);
  void mark(double x, const std::string& label, const std::string& css);

  std::string svg(const std::string& description) const;

 private:
  struct Label {
    double y;
    std::string text, css;
  };
  double px(double x) const;
  double py(double y) const;
  double inner_right() const { return frame_.width - frame_.right; }
  double inner_bottom() const { return frame_.height - frame_.bottom; }
  std::vector<double> y_ticks() const;
  std::string axes() const;
  std::string margin_labels() const;

  Frame frame_;
  Range x_, y_;
  std::string body_, above_;
  std::vector<Label> labels_;
};

}  // namespace nibble
