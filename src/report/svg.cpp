// SPDX-License-Identifier: Apache-2.0
#include "report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr double kLabelPitch = 14;  // least distance of two names in the margin, px
constexpr double kCharWidth = 6.2;  // of the page's 11 px font, for deciding whether a name fits

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string attribute(const std::string& text) {
  std::string out = escaped(text);
  for (auto at = out.find('\''); at != std::string::npos; at = out.find('\'', at))
    out.replace(at, 1, "&#39;");
  return out;
}

std::vector<double> nice_ticks(Range r, int count) {
  std::vector<double> ticks;
  const double span = r.hi - r.lo;
  if (!(span > 0) || !std::isfinite(span)) return {r.lo};
  const double raw = span / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double m : {1.0, 2.0, 2.5, 5.0}) {
    if (m * power >= raw * 0.999) {
      step = m * power;
      break;
    }
  }
  const auto first = static_cast<long long>(std::ceil(r.lo / step - 1e-9));
  for (long long i = first; static_cast<double>(i) * step <= r.hi + 1e-9 * span; ++i) {
    ticks.push_back(static_cast<double>(i) * step);
  }
  return ticks;
}

double Plot::px(double x) const {
  return frame_.left + (x - x_.lo) / (x_.hi - x_.lo) * (inner_right() - frame_.left);
}

double Plot::py(double y) const {
  return inner_bottom() - (y - y_.lo) / (y_.hi - y_.lo) * (inner_bottom() - frame_.top);
}

void Plot::phase(double x0, double x1, const std::string& label, const std::string& css) {
  const double a = std::max(px(x0), frame_.left), b = std::min(px(x1), inner_right());
  if (b <= a) return;
  body_ += fmt::format("<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' class='{}'/>", a,
                       frame_.top, b - a, inner_bottom() - frame_.top, css);
  if (static_cast<double>(label.size()) * kCharWidth > b - a) return;
  above_ += fmt::format("<text x='{:.1f}' y='{:.1f}' class='t-dim' text-anchor='middle'>{}</text>",
                        (a + b) / 2, frame_.top - 8, escaped(label));
}

void Plot::band(double y0, double y1, const std::string& css) {
  const double top = std::max(py(y1), frame_.top), bottom = std::min(py(y0), inner_bottom());
  if (bottom <= top) return;
  body_ += fmt::format("<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' class='{}'/>", frame_.left,
                       top, inner_right() - frame_.left, bottom - top, css);
}

void Plot::level(double y, const std::string& label, const std::string& css) {
  if (y < y_.lo || y > y_.hi) return;
  segment({x_.lo, y}, {x_.hi, y}, css);
  end_label(y, label, css);
}

void Plot::segment(Point a, Point b, const std::string& css) {
  body_ += fmt::format("<line x1='{:.1f}' y1='{:.1f}' x2='{:.1f}' y2='{:.1f}' class='{}'/>", px(a.x), py(a.y),
                       px(b.x), py(b.y), css);
}

void Plot::line(const std::vector<Point>& points, const std::string& css) {
  std::string path;
  bool down = false;
  for (const auto& p : points) {
    if (!std::isfinite(p.x) || !std::isfinite(p.y)) {
      down = false;
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", down ? "L" : "M", px(p.x), py(p.y));
    down = true;
  }
  body_ += fmt::format("<path d='{}' class='{}'/>", path, css);
}

void Plot::dots(const std::vector<Point>& points, double radius, const std::string& css,
                const std::function<std::string(const Point&)>& hover) {
  for (const auto& p : points) {
    if (!std::isfinite(p.x) || !(p.y >= y_.lo && p.y <= y_.hi)) continue;
    body_ += fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='{}' class='{}'", px(p.x), py(p.y), radius, css);
    body_ += hover ? fmt::format("><title>{}</title></circle>", escaped(hover(p))) : "/>";
  }
}

void Plot::area(const std::vector<Point>& lower, const std::vector<Point>& upper, const std::string& css) {
  if (lower.empty()) return;
  std::string path;
  for (const auto& p : upper)
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px(p.x), py(p.y));
  for (auto p = lower.rbegin(); p != lower.rend(); ++p)
    path += fmt::format("L{:.1f} {:.1f}", px(p->x), py(p->y));
  body_ += fmt::format("<path d='{}Z' class='{}'/>", path, css);
}

void Plot::end_label(double y, const std::string& label, const std::string& css) {
  labels_.push_back({std::clamp(py(y), frame_.top, inner_bottom()), label, css});
}

void Plot::row_label(double y, const std::string& label) {
  above_ += fmt::format("<text x='{:.1f}' y='{:.1f}' class='t-label' text-anchor='end'>{}</text>",
                        frame_.left - 12, py(y) + 4, escaped(label));
}

std::vector<double> Plot::y_ticks() const {
  return frame_.y_ticks > 0 ? nice_ticks(y_, frame_.y_ticks) : std::vector<double>{};
}

void Plot::mark(double x, const std::string& label, const std::string& css) {
  body_ += fmt::format("<line x1='{0:.1f}' y1='{1:.1f}' x2='{0:.1f}' y2='{2:.1f}' class='{3}'/>", px(x),
                       frame_.top, inner_bottom(), css);
  const bool left = px(x) > (frame_.left + inner_right()) / 2;
  above_ += fmt::format("<text x='{:.1f}' y='{:.1f}' class='t-label' text-anchor='{}'>{}</text>",
                        px(x) + (left ? -6 : 6), frame_.top + 14, left ? "end" : "start", escaped(label));
}

std::string Plot::margin_labels() const {
  auto labels = labels_;
  std::stable_sort(labels.begin(), labels.end(), [](const Label& a, const Label& b) { return a.y < b.y; });
  // Push names down until none overlaps, then the whole tail up if it left the frame.
  for (std::size_t i = 1; i < labels.size(); ++i)
    labels[i].y = std::max(labels[i].y, labels[i - 1].y + kLabelPitch);
  double floor = inner_bottom();
  for (auto l = labels.rbegin(); l != labels.rend(); ++l, floor -= kLabelPitch) l->y = std::min(l->y, floor);
  std::string out;
  for (const auto& l : labels) {
    out += fmt::format("<text x='{:.1f}' y='{:.1f}' class='t-label k-{}'>{}</text>", inner_right() + 8,
                       l.y + 4, l.css, escaped(l.text));
  }
  return out;
}

std::string Plot::axes() const {
  std::string out;
  for (const double t : nice_ticks(x_, frame_.x_ticks)) {
    out += fmt::format("<text x='{:.1f}' y='{:.1f}' class='t-tick' text-anchor='middle'>{}</text>", px(t),
                       inner_bottom() + 17, frame_.x_format(t));
    out += fmt::format("<line x1='{0:.1f}' y1='{1:.1f}' x2='{0:.1f}' y2='{2:.1f}' class='axis'/>", px(t),
                       inner_bottom(), inner_bottom() + 4);
  }
  for (const double t : y_ticks()) {
    out += fmt::format("<text x='{:.1f}' y='{:.1f}' class='t-tick' text-anchor='end'>{}</text>",
                       frame_.left - 8, py(t) + 4, frame_.y_format(t));
  }
  out += fmt::format("<line x1='{:.1f}' y1='{:.1f}' x2='{:.1f}' y2='{:.1f}' class='axis'/>", frame_.left,
                     inner_bottom(), inner_right(), inner_bottom());
  out += fmt::format("<text x='{:.1f}' y='{:.1f}' class='t-title' text-anchor='end'>{}</text>", inner_right(),
                     frame_.height - 8, escaped(frame_.x_title));
  out += fmt::format(
      "<text transform='translate(13 {:.1f}) rotate(-90)' class='t-title' text-anchor='middle'>{}</text>",
      (frame_.top + inner_bottom()) / 2, escaped(frame_.y_title));
  return out;
}

std::string Plot::svg(const std::string& description) const {
  std::string grid;
  for (const double t : y_ticks()) {
    grid += fmt::format("<line x1='{:.1f}' y1='{:.1f}' x2='{:.1f}' y2='{:.1f}' class='grid'/>", frame_.left,
                        py(t), inner_right(), py(t));
  }
  // A nested svg clips what leaves the frame without ids, which would have to be unique over the page.
  const double w = inner_right() - frame_.left, h = inner_bottom() - frame_.top;
  return fmt::format(
      "<svg class='plot' viewBox='0 0 {0:.0f} {1:.0f}' role='img' aria-label='{2}'>{3}"
      "<svg x='{4:.1f}' y='{5:.1f}' width='{6:.1f}' height='{7:.1f}' viewBox='{4:.1f} {5:.1f} {6:.1f} "
      "{7:.1f}'>{8}</svg>"
      "{9}{10}{11}</svg>\n",
      frame_.width, frame_.height, attribute(description), grid, frame_.left, frame_.top, w, h, body_, above_,
      axes(), margin_labels());
}

}  // namespace nibble
