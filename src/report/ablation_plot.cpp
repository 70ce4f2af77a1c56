// SPDX-License-Identifier: Apache-2.0
#include "report/ablation_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "report/page_style.h"
#include "report/svg.h"

namespace nibble {
namespace {

constexpr double kRow = 44, kTop = 64, kBottom = 52, kWidth = 1040;

std::string tick(double v) {
  if (std::abs(v) < 1e-12) return "0";
  return fmt::format("{}{:.3g}", v < 0 ? "−" : "+", std::abs(v));
}

/// All that the chart shows, in per cent, zero and the noise band included, with a margin.
Range reach_of(const Ablation& a) {
  const double noise = 100 * a.noise.sigma;
  double lo = -noise, hi = noise;
  for (const AblationRow& r : a.rows) {
    for (const auto* g : {&r.gap, &r.against_full}) {
      if (!*g) continue;
      lo = std::min(lo, 100 * (*g)->ci95[0]), hi = std::max(hi, 100 * (*g)->ci95[1]);
    }
  }
  const double pad = std::max(0.06 * (hi - lo), 1e-3);
  return {lo - pad, hi + pad};
}

void draw(Plot& plot, const std::optional<GapEstimate>& g, double y, const char* css) {
  if (!g) return;
  const double lo = 100 * g->ci95[0], hi = 100 * g->ci95[1];
  plot.segment({lo, y}, {hi, y}, css);
  for (const double end : {lo, hi}) plot.segment({end, y - 0.08}, {end, y + 0.08}, css);
  plot.dots({{100 * g->mean, y}}, 4.5, css);
}

std::string loss_label(const AblationRow& r) {
  if (!r.finished) return "not finished yet";
  return r.loss ? fmt::format("loss {:.4f}", *r.loss) : r.broken;
}

std::string heading(const Ablation& a) {
  const std::string title = fmt::format("{}: what each ingredient is worth ({}, {} seed{})", a.protocol.name,
                                        a.protocol.model, a.seeds, a.seeds == 1 ? "" : "s");
  return fmt::format(
      "<text x='14' y='20' class='t-head'>{}</text>"
      "<circle cx='18' cy='36' r='4.5' class='cand'/><text x='28' y='40'>gap to the baseline</text>"
      "<circle cx='158' cy='36' r='4.5' class='aa'/><text x='168' y='40'>gap to the full recipe</text>"
      "<text x='308' y='40' class='t-dim'>bars: 95 % intervals, {}; blue band: noise of one seed</text>",
      escaped(title), a.spread ? "Student t over the seeds" : "from an assumed noise");
}

/// A page's inline drawing as a file: name space, size, colours and heading of its own.
std::string as_file(const std::string& inline_svg, double height, const std::string& inside) {
  constexpr std::string_view kOpen = "<svg class='plot' ";
  check(inline_svg.starts_with(kOpen), "the chart does not begin as an inline drawing");
  const std::size_t body = inline_svg.find('>') + 1;
  return fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0:.0f}' height='{1:.0f}' {2}<style><![CDATA[{3}"
      "svg text{{font-family:system-ui,\"Segoe "
      "UI\",Roboto,Arial,sans-serif}}.paper{{fill:var(--bg)}}]]></style>"
      "<rect width='{0:.0f}' height='{1:.0f}' class='paper'/>{4}{5}",
      kWidth, height, inline_svg.substr(kOpen.size(), body - kOpen.size()), kPageStyle, inside,
      inline_svg.substr(body));
}

}  // namespace

std::string ablation_svg(const Ablation& a) {
  const auto rows = static_cast<double>(a.rows.size());
  std::size_t longest = 0;
  for (const AblationRow& r : a.rows) longest = std::max(longest, r.name.size());
  Plot::Frame f;
  f.width = kWidth, f.height = kTop + kBottom + kRow * rows, f.top = kTop, f.bottom = kBottom;
  f.left = std::min(40 + 6.6 * static_cast<double>(longest), 320.0), f.right = 170;
  f.x_title = "relative gap of the validation loss, % (positive: worse)", f.x_format = tick;
  f.y_ticks = 0;
  Plot plot(f, reach_of(a), {0, rows});
  plot.phase(-100 * a.noise.sigma, 100 * a.noise.sigma, "", "p-w");
  plot.segment({0, 0}, {0, rows}, "zero");
  for (std::size_t i = 0; i < a.rows.size(); ++i) {
    const AblationRow& r = a.rows[i];
    const double y = rows - 0.5 - static_cast<double>(i);
    draw(plot, r.gap, y + 0.16, "cand");
    draw(plot, r.against_full, y - 0.16, "aa");
    plot.row_label(y, r.name);
    plot.end_label(y, loss_label(r), r.broken.empty() ? "ink" : "limit");
  }
  return as_file(plot.svg("Gap of every arm to the baseline and to the full recipe"), f.height, heading(a));
}

}  // namespace nibble
