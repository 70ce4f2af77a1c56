// SPDX-License-Identifier: Apache-2.0
#include "report/plan_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "io/atomic_dir.h"
#include "io/file.h"
#include "plan/plan_text.h"
#include "report/page_style.h"
#include "report/svg.h"

namespace nibble {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;

/// Colours of the parts, beyond the page's own.
constexpr const char* kPartStyle = R"css(
:root{--s0:#0b62c4;--s1:#3f8fdd;--s2:#8cbcec;--s3:#6b7280;--s4:#b98a2c;--s5:#7a5ea8;--s6:#cf5b3a;--s7:#8fa08a;--s8:#c9a3b4;--s9:#cfd4da}
@media (prefers-color-scheme:dark){:root{--s0:#5aa2f5;--s1:#3d7cc4;--s2:#2b5587;--s3:#a3acb7;--s4:#d8ab4e;--s5:#a78bd4;--s6:#ec7f5f;--s7:#7d9278;--s8:#b58397;--s9:#454e59}}
svg rect{stroke:var(--card);stroke-width:1}
.s0{fill:var(--s0);background:var(--s0)}.s1{fill:var(--s1);background:var(--s1)}.s2{fill:var(--s2);background:var(--s2)}
.s3{fill:var(--s3);background:var(--s3)}.s4{fill:var(--s4);background:var(--s4)}.s5{fill:var(--s5);background:var(--s5)}
.s6{fill:var(--s6);background:var(--s6)}.s7{fill:var(--s7);background:var(--s7)}.s8{fill:var(--s8);background:var(--s8)}
.s9{fill:var(--s9);background:var(--s9)}
.legend i.box{width:14px;margin-right:6px}
)css";

/// One colour a group of parts, so that recipes with other parts still compare.
struct Group {
  const char *label, *css, *prefixes;  ///< names that begin with one of these, '|' between them
};
constexpr Group kTimeGroups[] = {
    {"products in FP4", "s0", "products, fp4"},
    {"products in MXFP8 or FP8", "s1", "products, mxfp8|products, fp8"},
    {"products in BF16", "s3", "products, bf16"},
    {"head", "s9", "head"},
    {"attention and scan", "s5", "attention|scan"},
    {"quantise passes", "s6", "quantise"},
    {"norms, activations, loss", "s4", "norms|loss"},
    {"traffic between GPUs, exposed", "s7", "tensor|gradient|sharded|expert"},
    {"pipeline bubble, gaps, optimizer", "s8", "pipeline|gaps|optimizer"},
};
constexpr Group kMemoryGroups[] = {
    {"weights in BF16", "s3", "weights, BF16|weights, gathered"},
    {"quantised copies", "s0", "weights, quantised"},
    {"gradients", "s6", "gradients"},
    {"master and moments", "s5", "master|optimizer"},
    {"activations", "s4", "activations|temporaries|gradient of"},
    {"logits", "s7", "logits"},
    {"context, fragmentation", "s9", "context|fragmentation"},
};

bool begins_with_one(const std::string& name, const std::string& prefixes) {
  std::size_t at = 0;
  while (at <= prefixes.size()) {
    const std::size_t bar = std::min(prefixes.find('|', at), prefixes.size());
    if (name.starts_with(prefixes.substr(at, bar - at))) return true;
    at = bar + 1;
  }
  return false;
}

struct Bar {
  std::string label, end;
  std::vector<double> parts;
};

template <std::size_t N, class Items, class Value>
std::vector<double> grouped(const Group (&groups)[N], const Items& items, Value value) {
  std::vector<double> parts(N, 0.0);
  for (const auto& item : items) {
    const auto it = std::find_if(std::begin(groups), std::end(groups),
                                 [&](const Group& g) { return begins_with_one(item.name, g.prefixes); });
    check(it != std::end(groups), "the page has no group for \"{}\"", item.name);
    parts[static_cast<std::size_t>(it - std::begin(groups))] += value(item);
  }
  return parts;
}

/// Horizontal stacked bars; `limit` draws a line, as for the memory of a card.
template <std::size_t N>
std::string bars(const Group (&groups)[N], const std::vector<Bar>& list, const std::string& unit,
                 double limit, const std::string& description) {
  constexpr double kLeft = 110, kRight = 130, kWidth = 1040, kPitch = 34, kTop = 8;
  double longest = limit;
  for (const Bar& b : list) {
    double sum = 0;
    for (const double p : b.parts) sum += p;
    longest = std::max(longest, sum);
  }
  const double scale = (kWidth - kLeft - kRight) / longest;
  const double bottom = kTop + kPitch * static_cast<double>(list.size());
  std::string body;
  for (const double tick : nice_ticks({0, longest}, 6)) {
    const double x = kLeft + tick * scale;
    body += fmt::format(
        "<line x1='{0:.1f}' y1='{1}' x2='{0:.1f}' y2='{2:.1f}' class='grid'/>"
        "<text x='{0:.1f}' y='{3:.1f}' class='t-tick' text-anchor='middle'>{4:g}</text>",
        x, kTop, bottom, bottom + 16, tick);
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const double y = kTop + kPitch * static_cast<double>(i) + 5;
    double x = kLeft;
    body += fmt::format("<text x='{:.1f}' y='{:.1f}' class='t-label' text-anchor='end'>{}</text>", kLeft - 10,
                        y + 16, escaped(list[i].label));
    for (std::size_t p = 0; p < N; ++p) {
      const double w = list[i].parts[p] * scale;
      if (w <= 0) continue;
      body += fmt::format(
          "<rect x='{:.2f}' y='{:.1f}' width='{:.2f}' height='23' class='{}'><title>{}: {:.3g} {}</title>"
          "</rect>",
          x, y, w, groups[p].css, escaped(groups[p].label), list[i].parts[p], unit);
      x += w;
    }
    // A figure never stands across the limit.
    const double edge = kLeft + limit * scale;
    const double at = limit > 0 && x < edge && x + 70 > edge ? edge + 8 : x + 8;
    body +=
        fmt::format("<text x='{:.1f}' y='{:.1f}' class='t-head'>{}</text>", at, y + 16, escaped(list[i].end));
  }
  if (limit > 0)
    body += fmt::format("<line x1='{0:.1f}' y1='{1}' x2='{0:.1f}' y2='{2:.1f}' class='limit'/>",
                        kLeft + limit * scale, kTop - 4, bottom + 2);
  std::string legend;
  for (std::size_t p = 0; p < N; ++p) {
    if (std::any_of(list.begin(), list.end(), [&](const Bar& b) { return b.parts[p] > 0; }))
      legend += fmt::format("<span><i class='box {}'></i>{}</span>", groups[p].css, escaped(groups[p].label));
  }
  return fmt::format(
      "<svg class='plot' viewBox='0 0 {} {:.0f}' role='img' aria-label='{}'>{}<text x='{}' y='{:.1f}' "
      "class='t-title' text-anchor='end'>{}</text></svg><div class='legend'>{}</div>",
      kWidth, bottom + 36, escaped(description), body, kWidth - kRight, bottom + 32, escaped(unit), legend);
}

std::string section(const std::string& title, const std::string& intro, const std::string& body) {
  return fmt::format("<section><h2>{}</h2><p class='note'>{}</p>{}</section>\n", escaped(title), intro, body);
}

std::string time_section(const std::vector<Plan>& plans) {
  std::vector<Bar> list;
  for (const Plan& p : plans) {
    const double scale = 1e6 / (p.time.tokens_per_gpu_s * p.time.seconds);  // microseconds a token
    list.push_back(
        {p.work.recipe, fmt::format("{:.0f} tokens/s", p.time.tokens_per_gpu_s),
         grouped(kTimeGroups, p.time.items, [&](const TimeItem& t) { return t.seconds * scale; })});
  }
  std::string tables;
  for (const Plan& p : plans) {
    tables += fmt::format(
        "<details><summary>{}: {}</summary><table><tr><th>part</th><th class='n'>seconds a step</th>"
        "<th class='n'>share</th><th></th></tr>",
        escaped(p.work.recipe), escaped(p.request.layout.text()));
    for (const TimeItem& t : p.time.items)
      tables += fmt::format(
          "<tr><td>{}</td><td class='n'>{:.4f}</td><td class='n'>{:.1f}&nbsp;%</td><td>{}</td></tr>",
          escaped(t.name), t.seconds, 100 * t.seconds / p.time.seconds, escaped(t.note));
    tables += "</table></details>";
  }
  return section("Where the time goes",
                 "Microseconds of one GPU for one token. Only the blue parts shrink with the "
                 "format of the linear layers.",
                 bars(kTimeGroups, list, "µs a token on one GPU", 0, "Step time by part") + tables);
}

std::string memory_section(const std::vector<Plan>& plans) {
  std::vector<Bar> list;
  for (const Plan& p : plans)
    list.push_back(
        {p.work.recipe, fmt::format("{:.1f} GiB", p.memory.total / kGib),
         grouped(kMemoryGroups, p.memory.items, [](const MemoryItem& m) { return m.bytes / kGib; })});
  return section("Where the memory goes",
                 fmt::format("GiB of the fullest GPU. The line is what a process can use of {}.",
                             escaped(plans.front().request.hardware.name)),
                 bars(kMemoryGroups, list, "GiB", plans.front().memory.usable / kGib, "Memory by kind"));
}

std::string ratio(double x) { return std::isfinite(x) ? fmt::format("{:.2f}", x) : "∞"; }

std::string loss_section(const std::vector<Plan>& plans) {
  std::string rows;
  const bool priced = plans.front().request.price > 0;
  for (const Plan& p : plans) {
    rows += fmt::format(
        "<tr><td><b>{}</b></td><td class='n'>{}</td><td class='n'>{:.2f}&nbsp;%</td><td class='n'>{}</td>"
        "<td class='n'>{}</td><td class='n'>{}</td><td class='n'><b>{:.2f}</b></td>",
        escaped(p.work.recipe), hours_text(p.hours), 100 * p.gap.relative, ratio(p.equal.token_ratio),
        hours_text(p.equal.hours), p.equal.switched_hours > 0 ? hours_text(p.equal.switched_hours) : "–",
        plans.front().equal.best_hours() / p.equal.best_hours());
    if (priced) rows += fmt::format("<td class='n'>{:.0f}</td>", p.equal_cost);
    rows += fmt::format("<td class='n'>{:.0f}</td><td>{}</td></tr>", p.energy_mwh, escaped(p.gap.source));
  }
  return section(fmt::format("Time to equal loss, {} tokens", tokens_text(plans.front().request.tokens)),
                 fmt::format("A loss gap becomes extra tokens by the loss law of Chinchilla, which "
                             "overstates long runs (1.53 times "
                             "where 1.36 was published). The other way is to finish in BF16: the last "
                             "{:.0f}&nbsp;% of the tokens, as "
                             "published at 12B. Speed-up is over {}, the better way of each.",
                             100 * plans.front().request.switch_share, escaped(plans.front().work.recipe)),
                 "<div class='scroll'><table><tr><th>recipe</th><th class='n'>time</th><th "
                 "class='n'>gap</th><th class='n'>tokens ×</th>"
                 "<th class='n'>to the end</th><th class='n'>with switch</th><th class='n'>speed-up</th>" +
                     std::string(priced ? "<th class='n'>cost</th>" : "") +
                     "<th class='n'>MWh</th><th>gap from</th></tr>" + rows + "</table></div>");
}

/// Millions of tokens a second against GPUs, both doubling, beside what the first point would give if it
/// scaled.
std::string sweep_section(const std::vector<SweepPoint>& sweep) {
  std::vector<Point> real, ideal;
  std::string rows;
  for (const SweepPoint& s : sweep) {
    if (!s.plan) {
      rows += fmt::format("<tr><td class='n'>{}</td><td colspan='5'>{}</td></tr>", s.gpus, escaped(s.why));
      continue;
    }
    const Plan& p = *s.plan;
    const double gpus = static_cast<double>(s.gpus), speed = p.time.tokens_per_gpu_s * gpus * 1e-6;
    real.push_back({std::log2(gpus), std::log2(speed)});
    ideal.push_back({std::log2(gpus), real[0].y + std::log2(gpus) - real[0].x});
    rows += fmt::format(
        "<tr><td class='n'>{}</td><td class='n'>{:.0f}</td><td class='n'>{:.2f}</td><td class='n'>{}</td>"
        "<td class='n'>{}</td><td>{}</td></tr>",
        s.gpus, p.time.tokens_per_gpu_s, speed, hours_text(p.hours), hours_text(p.equal.best_hours()),
        escaped(p.request.layout.text()));
  }
  std::string plot;
  if (real.size() > 1) {
    const auto power = [](double v) { return fmt::format("{:.4g}", std::exp2(v)); };
    Plot chart({.x_title = "GPUs",
                .y_title = "million tokens a second",
                .x_format = power,
                .y_format = power,
                .x_ticks = static_cast<int>(real.size()),
                .y_ticks = 5},
               {real.front().x - 0.1, real.back().x + 0.1}, {real.front().y - 0.3, ideal.back().y + 0.3});
    chart.line(ideal, "base");
    chart.line(real, "cand");
    chart.dots(real, 3.5, "cand");
    chart.end_label(ideal.back().y, "if it scaled", "k-base");
    chart.end_label(real.back().y, "predicted", "k-cand");
    plot = chart.svg("Tokens a second against GPUs");
  }
  return section(
      "More GPUs",
      "The global batch stays, so more GPUs mean smaller shares of it each, more splitting and "
      "more traffic.",
      plot +
          "<div class='scroll'><table><tr><th class='n'>GPUs</th><th class='n'>tokens/s a GPU</th><th "
          "class='n'>Mtokens/s</th><th class='n'>time</th><th class='n'>equal loss</th><th>layout</th></tr>" +
          rows + "</table></div>");
}

std::string kinds_section(const Plan& p) {
  std::string rows;
  for (const KindShare& k : shares_by_kind(p.work, static_cast<double>(p.request.layout.sequence))) {
    const bool four = k.precision.find("fp4") != std::string::npos;
    rows += fmt::format(
        "<tr><td>{}</td><td><span class='tag{}'>{}</span></td><td class='n'>{:.1f}&nbsp;M</td><td "
        "class='n'>{:.3f}</td><td class='n'>{:.1f}&nbsp;%</td></tr>",
        escaped(k.kind), four ? " four" : "", escaped(k.precision), k.parameters * 1e-6, k.flops * 1e-9,
        100 * k.share);
  }
  return section(
      fmt::format("What {} computes in", p.work.recipe),
      "From the resolver that the trainer uses. Causal attention counts as half, recomputation never.",
      "<table><tr><th>layer</th><th>products in</th><th class='n'>parameters</th><th class='n'>GFLOP a "
      "token</th><th class='n'>share</th></tr>" +
          rows + "</table>");
}

std::string figures(const Plan& p) {
  const auto figure = [](const std::string& value, const std::string& what) {
    return fmt::format("<div><b>{}</b><span>{}</span></div>", value, escaped(what));
  };
  return "<div class='figures'>" + figure(fmt::format("{:.0f}", p.time.tokens_per_gpu_s), "tokens/s a GPU") +
         figure(fmt::format("{:.0f}", p.time.model_tflops), "model TFLOP/s a GPU") +
         figure(fmt::format("{:.1f} %", 100 * p.time.mfu_mix), "of the dense peak of its products") +
         figure(fmt::format("{:.1f} GiB", p.memory.total / kGib), "of the fullest GPU") +
         figure(hours_text(p.hours), tokens_text(p.request.tokens) + " tokens") +
         figure(hours_text(p.equal.best_hours()), "to equal loss") + "</div>";
}

std::string sources(const Hardware& h) {
  std::string rows;
  for (const Rate r : kRates) {
    if (!h.native(r)) continue;
    rows += fmt::format(
        "<tr><td>{}</td><td class='n'>{:.0f}</td><td class='n'>{}</td><td class='n'>{:.1f}&nbsp;%</td></tr>",
        name(r), h.rate(r).dense, h.rate(r).sparse > 0 ? fmt::format("{:.0f}", h.rate(r).sparse) : "–",
        100 * h.rate(r).achieved);
  }
  return section("The card", escaped(h.source) + ". Shares reached: " + escaped(h.achieved_source) + ".",
                 "<table><tr><th>products</th><th class='n'>dense TFLOP/s</th><th class='n'>sparse, never "
                 "reached</th><th "
                 "class='n'>reached in a step</th></tr>" +
                     rows + "</table>");
}

}  // namespace

std::string plan_page(const std::vector<Plan>& plans, const std::vector<SweepPoint>& sweep) {
  check(!plans.empty(), "a page needs a plan");
  const Plan& p = plans.back();
  std::string notes;
  for (const std::string& line : honest_lines(p)) notes += "<li>" + escaped(line) + "</li>";
  std::string out = fmt::format(
      "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
      "content='width=device-width'><title>Plan: {} on "
      "{}</title><style>{}{}</style></head><body><main><h1>{} on {} {}</h1>"
      "<p class='sub'>{} · {}</p>",
      escaped(p.work.model), escaped(p.request.hardware.name), kPageStyle, kPartStyle, escaped(p.work.model),
      p.request.layout.gpus, escaped(p.request.hardware.summary), escaped(p.work.recipe),
      escaped(p.request.layout.text()));
  out += figures(p) + (notes.empty() ? "" : "<ul>" + notes + "</ul>");
  out += time_section(plans) + memory_section(plans) + loss_section(plans);
  if (!sweep.empty()) out += sweep_section(sweep);
  out += kinds_section(p) + sources(p.request.hardware);
  return out +
         "<footer>nibble plan. A step-time model: on held-out published rows of dense models its median "
         "error is "
         "about 4 %, its worst 30 %.</footer></main></body></html>\n";
}

void write_plan_page(const std::vector<Plan>& plans, const std::filesystem::path& html,
                     const std::vector<SweepPoint>& sweep) {
  write_file_atomically(html, plan_page(plans, sweep));
}

}  // namespace nibble
