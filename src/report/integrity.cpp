// SPDX-License-Identifier: Apache-2.0
#include "report/integrity.h"

#include <cmath>

#include "base/error.h"
#include "train/run_config.h"
#include "train/setup.h"

namespace nibble {
namespace {

void check_protocol(const ReportData& d, std::vector<std::string>& out) {
  const std::string now = protocol_hash(d.protocol);
  std::string arms, carried;
  for (const ArmSeries& arm : d.arms) {
    if (arm.header.protocol == now) continue;
    carried = arm.header.protocol;
    arms += (arms.empty() ? "" : ", ") + (arm.pair == 1 ? "" : fmt::format("pair {} ", arm.pair)) + arm.name;
  }
  if (!arms.empty()) {
    out.push_back(fmt::format(
        "protocol.json ({}) is not the protocol that was frozen before step 0 ({}, carried by {})", now,
        carried, arms));
  } else if (d.verdict.protocol_hash != now) {
    out.push_back(fmt::format("the verdict was given under another protocol ({}) than the arms carry ({})",
                              d.verdict.protocol_hash, now));
  }
}

void check_config(const RunConfig& c, const ReportData& d, std::vector<std::string>& out) {
  const Protocol& p = d.protocol;
  const auto frozen = p.contract.find("precision");
  if (frozen != p.contract.end() && frozen->second != maths_hash(c, true))
    out.push_back(
        "run.toml is not the configuration that was trained: a key that changes what is computed differs");
  const double limit = c.protocol.limit > 0 ? c.protocol.limit : final_limit(p.parameters);
  if (std::abs(limit - p.final_window().limit) > 1e-12) {
    out.push_back(fmt::format("run.toml means a limit of {:.4g} %, the protocol has {:.4g} %", 100 * limit,
                              100 * p.final_window().limit));
  }
  if (c.protocol.pairs != p.pairs()) {
    out.push_back(fmt::format("run.toml means {} pair(s), the protocol has {}", c.protocol.pairs, p.pairs()));
  }
}

}  // namespace

std::vector<std::string> changes_after_run(const std::filesystem::path& run, const ReportData& data) {
  std::vector<std::string> out;
  check_protocol(data, out);
  const std::filesystem::path config = run / "run.toml";
  if (!std::filesystem::exists(config)) return out;  // taken away, not changed: the protocol still vouches
  try {
    check_config(load_run_config(config), data, out);
  } catch (const Error& e) {
    out.push_back(fmt::format("run.toml cannot be read any more: {}", e.what()));
  }
  return out;
}

std::string change_banner(const ReportData& data) {
  if (data.changes.empty() && data.verdict.preregistered) return "";
  std::string text = "CHANGED AFTER THE RUN, NOT PRE-REGISTERED: ";
  for (const std::string& change : data.changes)
    text += (&change == &data.changes.front() ? "" : "; ") + change;
  if (data.changes.empty()) text += "the arms carry another protocol than the one they were judged by";
  return text + ".";
}

}  // namespace nibble
