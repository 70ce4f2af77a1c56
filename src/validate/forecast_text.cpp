// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "validate/forecast.h"

namespace nibble {
namespace {

std::string percent(double share) { return fmt::format("{:.2f} %", 100 * share); }

std::string extra(double ratio) {
  return std::isfinite(ratio) ? fmt::format("{:+.0f} %", 100 * (ratio - 1))
                              : std::string("no number of tokens");
}

std::string count_text(double n) {
  if (n >= 1e12) return fmt::format("{:.3g}T", n / 1e12);
  if (n >= 1e9) return fmt::format("{:.3g}B", n / 1e9);
  return n >= 1e6 ? fmt::format("{:.3g}M", n / 1e6) : fmt::format("{:.3g}k", n / 1e3);
}

/// The published runs that lie nearest in size and length.
std::vector<const PublishedRun*> nearest(double parameters, double tokens) {
  std::vector<const PublishedRun*> all;
  for (const PublishedRun& p : published_runs())
    if (p.recipe == "nvidia") all.push_back(&p);
  const auto distance = [&](const PublishedRun* p) {
    return std::abs(std::log(p->parameters / parameters)) +
           std::abs(std::log(p->tokens / p->parameters * parameters / tokens));
  };
  std::sort(all.begin(), all.end(),
            [&](const PublishedRun* a, const PublishedRun* b) { return distance(a) < distance(b); });
  all.resize(3);
  return all;
}

std::string reach_line(const GapForecast& f) {
  if (f.reach == Reach::Inside) return "Inside the sizes and lengths that were fitted.\n";
  std::string out = f.reach == Reach::TooFar
                        ? "EXTRAPOLATES TOO FAR: read the number as an opinion, not as a forecast.\n"
                        : "Extrapolates, as far as held-out runs have borne it out.\n";
  for (const std::string& w : f.warnings) out += "  - " + w + "\n";
  return out;
}

}  // namespace

ForecastReport make_forecast(const std::string& model, double parameters, double tokens,
                             const std::vector<GapRun>& pilots) {
  ForecastReport r{.model = model, .parameters = parameters, .tokens = tokens};
  for (const GapRun& p : pilots) (usable(p) ? r.pilots : r.left_out).push_back(p);
  r.law = r.pilots.empty() ? literature_prior() : GapLaw::update(literature_prior(), r.pilots);
  r.forecast = r.law.predict(parameters, tokens);
  r.remedies = remedies(ladder_law());
  // Pilots are runs of the user's own recipe: whatever it keeps in BF16 is in them.
  if (!r.pilots.empty()) std::erase_if(r.remedies, [](const Remedy& x) { return x.before_the_run; });
  return r;
}

std::string forecast_text(const ForecastReport& r) {
  const GapForecast& f = r.forecast;
  std::string out =
      fmt::format("{}: {} parameters without embedding and head, {} tokens ({:.3g} a parameter)\n", r.model,
                  count_text(r.parameters), count_text(r.tokens), r.tokens / r.parameters);
  if (r.pilots.empty() && !r.left_out.empty())
    out += "NO PILOT HAS A GAP ABOVE ITS NOISE: train longer, or with more pairs. So this is\n";
  out += r.pilots.empty()
             ? "from the literature alone: NVIDIA's recipe, all linears in NVFP4\n"
             : fmt::format("from {} pilots and the literature as a prior; the recipe is the pilots'\n",
                           r.pilots.size());
  for (const GapRun& p : r.pilots) {
    const double fitted = r.law.predict(p.parameters, p.tokens).gap;
    out += fmt::format("  {:<28}{:>8}{:>9}  gap {:>7}, the law says {:>7}\n", p.name,
                       count_text(p.parameters), count_text(p.tokens), percent(p.gap), percent(fitted));
  }
  for (const GapRun& p : r.left_out)
    out += fmt::format(
        "  {:<28}{:>8}{:>9}  gap {:>7}, left out: not above its noise ({}); without it the law rather "
        "says too much\n",
        p.name, count_text(p.parameters), count_text(p.tokens), percent(p.gap), percent(p.noise));
  out += fmt::format("law: {:.2f} % at 100M and 100 tokens a parameter, N^{:+.3f}, (D/N)^{:+.3f}\n\n",
                     100 * std::exp(r.law.mean[0]), r.law.mean[1], r.law.mean[2]);
  out += fmt::format("expected gap    {}   90 % of such runs between {} and {}\n", percent(f.gap),
                     percent(f.interval[0]), percent(f.interval[1]));
  out += fmt::format("tokens it costs {}   between {} and {} [CHINCHILLA]; for long runs an upper end\n",
                     extra(r.token_ratio[1]), extra(r.token_ratio[0]), extra(r.token_ratio[2]));
  out += reach_line(f);
  out += "\nWhat would take some of it off\n";
  for (std::size_t i = 0; i < r.remedies.size(); ++i) {
    const Remedy& m = r.remedies[i];
    out += fmt::format("  {:<60} {} left", m.what, m.factor > 0 ? percent(f.gap * m.factor) : "nothing");
    if (m.range[0] < m.range[1])
      out += fmt::format(" ({} to {})", percent(f.gap * m.range[0]), percent(f.gap * m.range[1]));
    if (i < r.remedy_token_ratio.size()) out += fmt::format(", tokens {}", extra(r.remedy_token_ratio[i]));
    out += fmt::format("\n    {}\n", m.source);
  }
  out += "\nPublished runs that lie nearest (NVIDIA's recipe)\n";
  for (const PublishedRun* p : nearest(r.parameters, r.tokens))
    out += fmt::format("  {:<24}{:>7}  {}{}\n", p->name, percent(p->gap), p->source,
                       p->kept_blocks ? "" : "; everything quantised");
  return out;
}

}  // namespace nibble
