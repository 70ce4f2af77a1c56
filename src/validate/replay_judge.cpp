// SPDX-License-Identifier: Apache-2.0
// Whose fault it was, and how it is said.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "telemetry/z_score.h"
#include "validate/replay.h"

namespace nibble {
namespace {

constexpr double kSpike = 4;                // standard deviations
constexpr double kSpikeShare = 0.5;         // of its height, for another arm to have it
constexpr double kGradientFault = 0.2;      // AlarmRules::gradient_fault
constexpr double kOtherBackendLoss = 0.01;  // at equal weights: order of sums and flipped roundings
constexpr int kWindow = 128;

double value_of(const ReplayStep& s, bool loss) { return loss ? s.loss : s.grad_norm; }

const ReplayStep* step_of(const std::vector<ReplayStep>& steps, std::int64_t step) {
  for (const ReplayStep& s : steps)
    if (s.step == step) return &s;
  return nullptr;
}

double mean_of(const std::vector<TrainEvent>& rows, bool loss) {
  double sum = 0;
  for (const TrainEvent& e : rows) sum += loss ? e.loss : e.grad_norm;
  return rows.empty() ? 0 : sum / static_cast<double>(rows.size());
}

std::optional<double> z_of(const std::vector<TrainEvent>& usual, bool loss, double value) {
  ZScore score(kWindow);
  for (const TrainEvent& e : usual) score.push(loss ? e.loss : e.grad_norm);
  return score.push(value);
}

ReplayEvent find_event(const Replay& r, const std::vector<TrainEvent>& usual) {
  const ReplayArm& own = r.arms.front();
  if (own.broken) return {.kind = "non-finite", .step = own.broken->step};
  // The log where there is one: it is what the event was seen in.
  ReplayEvent found{.kind = "none", .step = r.at};
  for (const auto* steps : {&r.logged, &own.steps}) {
    for (const ReplayStep& s : *steps) {
      if (s.step < r.at) continue;
      for (const bool loss : {true, false}) {
        const auto z = z_of(usual, loss, value_of(s, loss));
        if (!z || *z < kSpike || *z <= found.z) continue;
        found = {.kind = loss ? "loss spike" : "gradient spike",
                 .step = s.step,
                 .usual = mean_of(usual, loss),
                 .value = value_of(s, loss),
                 .z = *z};
      }
    }
    if (found.kind != "none") break;
  }
  return found;
}

/// Whether an arm shows the event too. One that broke earlier does.
bool has_event(const ReplayArm& arm, const ReplayEvent& event) {
  if (arm.broken && arm.broken->step <= event.step) return true;
  if (event.kind == "non-finite" || event.kind == "none") return false;
  const ReplayStep* s = step_of(arm.steps, event.step);
  if (s == nullptr) return false;
  return value_of(*s, event.kind == "loss spike") - event.usual > kSpikeShare * (event.value - event.usual);
}

void hold_against_log(Replay& r) {
  r.repeated = 0, r.first_difference.reset(), r.other_batch_at.reset();
  const ReplayArm& own = r.arms.front();
  for (const ReplayStep& logged : r.logged) {
    const ReplayStep* now = step_of(own.steps, logged.step);
    if (now == nullptr) {
      if (own.broken && own.broken->step <= logged.step && !r.first_difference)
        r.first_difference = logged.step;
      continue;
    }
    if (now->batch_hash != logged.batch_hash && !r.other_batch_at) r.other_batch_at = logged.step;
    if (now->loss == logged.loss && now->grad_norm == logged.grad_norm)
      r.repeated += r.first_difference ? 0 : 1;
    else if (!r.first_difference)
      r.first_difference = logged.step;
  }
}

/// Why another backend says that the stack is at fault, or nothing.
std::string backend_objection(const Replay& r) {
  const ReplayArm *own = r.arm("recipe"), *other = r.arm("backend");
  if (other == nullptr) return "";
  if (r.event.kind != "none" && !has_event(*other, r.event))
    return fmt::format("the backend {} does not show it from the same bytes", other->backend);
  if (own->steps.empty() || other->steps.empty()) return "";
  const ReplayStep &a = own->steps.front(), &b = other->steps.front();
  if (std::abs(a.loss - b.loss) > kOtherBackendLoss * std::abs(b.loss) ||
      std::abs(a.grad_norm - b.grad_norm) > kGradientFault * std::abs(b.grad_norm))
    return fmt::format("at equal weights {} gives loss {:.6f} and gradient norm {:.5f}, {} {:.6f} and {:.5f}",
                       own->backend, a.loss, a.grad_norm, other->backend, b.loss, b.grad_norm);
  return "";
}

void blame(Replay& r, Culprit who, const std::string& sentence) {
  if (r.culprit == Culprit::None) r.culprit = who;
  r.sentences.push_back(sentence);
}

void say_event(Replay& r) {
  const ReplayArm& own = r.arms.front();
  if (r.event.kind == "none") {
    r.sentences.push_back(fmt::format("Nothing unusual at step {}: finite, and no spike.", r.at));
  } else if (own.broken) {
    const ReplayBreak& b = *own.broken;
    std::string text = fmt::format("Step {} is not finite.", b.step);
    if (!b.layer.empty())
      text += fmt::format(" The first quantised operand with a NaN or an infinity is {} of {} in {}.",
                          b.operand, b.layer, b.gemm);
    if (!b.gradient.empty())
      text += fmt::format(" Backward spoilt the gradient of {} first; {} of {} parameters are affected.",
                          b.gradient, b.gradients, b.parameters);
    r.sentences.push_back(text);
  } else {
    r.sentences.push_back(fmt::format("A {} at step {}: {:.5f}, usually {:.5f} ({:.1f} standard deviations).",
                                      r.event.kind, r.event.step, r.event.value, r.event.usual, r.event.z));
  }
}

void judge_data(Replay& r) {
  for (const std::string& part : r.changed)
    blame(r, Culprit::Data,
          fmt::format("The {} is not what the checkpoint was trained with: the files changed.", part));
  if (r.other_batch_at)
    blame(r, Culprit::Data,
          fmt::format("The batch of step {} is not the one that was logged: the data or their order changed.",
                      *r.other_batch_at));
}

void judge_stack(Replay& r) {
  const ReplayArm &own = r.arms.front(), *bf16 = r.arm("bf16");
  if (r.first_difference && r.culprit == Culprit::None) {
    std::string text = fmt::format(
        "The same recipe from the same bytes on the same batches does not repeat the log: step {} is the "
        "first "
        "that differs.",
        *r.first_difference);
    text += r.version == r.logged_version ? " Same version of the binary: suspect hardware or a library."
                                          : fmt::format(
                                                " The log is of version {}, this is {}: replay with that "
                                                "one before suspecting the hardware.",
                                                r.logged_version, r.version);
    blame(r, Culprit::Stack, text);
  } else if (r.repeated > 0) {
    r.sentences.push_back(
        fmt::format("The recipe repeats {} logged steps bit for bit: loss and gradient norm.", r.repeated));
  } else if (r.logged.empty()) {
    r.sentences.push_back("The log holds none of these steps on this backend, so nothing could be repeated.");
  }
  for (const AlarmEvent& a : own.faults)
    blame(r, Culprit::Stack, "The arithmetic is not the recipe's: " + a.text);
  r.gradient_ratio = 0;
  if (bf16 != nullptr && !own.steps.empty() && !bf16->steps.empty()) {
    r.gradient_ratio = own.steps.front().grad_norm / bf16->steps.front().grad_norm;
    if (!(std::abs(r.gradient_ratio - 1) <= kGradientFault))
      blame(
          r, Culprit::Stack,
          fmt::format(
              "At equal weights and batch the gradient norm is {:.2f} times that of bf16: gradients are lost "
              "or counted twice, whatever the recipe.",
              r.gradient_ratio));
  }
  if (const std::string why = backend_objection(r); !why.empty())
    blame(r, Culprit::Stack, "The stack: " + why + ".");
}

void judge_event(Replay& r) {
  if (r.event.kind == "none") return;
  const ReplayArm *bf16 = r.arm("bf16"), *other_batch = r.arm("other_batch");
  if (bf16 != nullptr && !has_event(*bf16, r.event)) {
    blame(r, Culprit::Recipe,
          fmt::format("bf16 does not show it on the same batches from the same weights: {} makes it.",
                      r.arms.front().computes_in));
    return;
  }
  if (bf16 != nullptr) r.sentences.push_back("bf16 shows it too, so it is not the recipe.");
  if (other_batch != nullptr && !has_event(*other_batch, r.event)) {
    blame(r, Culprit::Data,
          fmt::format("With another batch in its place step {} is well: it is the batch.", r.event.step));
    return;
  }
  blame(r, Culprit::Stack,
        other_batch != nullptr ? "It comes with another batch as well: what the weights had become (a lower "
                                 "learning rate, an earlier "
                                 "checkpoint), or the code."
                               : "Neither the recipe nor a change of the data explains it: the weights, the "
                                 "learning rate or the code.");
}

std::string verdict(const Replay& r) {
  switch (r.culprit) {
    case Culprit::Recipe:
      return "At fault: the recipe.";
    case Culprit::Data:
      return "At fault: the data.";
    case Culprit::Stack:
      return "At fault: the stack (hardware, software or the state of the weights).";
    case Culprit::None:
      break;
  }
  return "Nothing is at fault.";
}

std::string cell(const ReplayArm& arm, std::int64_t step) {
  if (arm.broken && arm.broken->step == step) return fmt::format("{:>24}", "not finite");
  const ReplayStep* s = step_of(arm.steps, step);
  return s == nullptr ? fmt::format("{:>24}", "")
                      : fmt::format(" {:>12.7f} {:>10.6f}", s->loss, s->grad_norm);
}

Json step_json(const ReplayStep& s) {
  return {{"step", s.step},
          {"loss", json_from_double(s.loss)},
          {"grad_norm", json_from_double(s.grad_norm)},
          {"batch_hash", fmt::format("{:016x}", s.batch_hash)}};
}

Json arm_json(const ReplayArm& a) {
  Json steps = Json::array(), faults = Json::array();
  for (const ReplayStep& s : a.steps) steps.push_back(step_json(s));
  for (const AlarmEvent& f : a.faults)
    faults.push_back({{"rule", f.rule}, {"layer", f.where.layer}, {"gemm", f.where.gemm}, {"text", f.text}});
  Json j = {{"name", a.name},       {"computes_in", a.computes_in},
            {"backend", a.backend}, {"steps", steps},
            {"faults", faults},     {"broken", nullptr}};
  if (a.broken)
    j["broken"] = {{"step", a.broken->step},
                   {"layer", a.broken->layer},
                   {"gemm", a.broken->gemm},
                   {"operand", a.broken->operand},
                   {"gradient", a.broken->gradient},
                   {"gradients", a.broken->gradients},
                   {"parameters", a.broken->parameters}};
  return j;
}

}  // namespace

const char* name(Culprit c) {
  switch (c) {
    case Culprit::Recipe:
      return "recipe";
    case Culprit::Data:
      return "data";
    case Culprit::Stack:
      return "stack";
    case Culprit::None:
      break;
  }
  return "none";
}

int exit_code(Culprit c) { return c == Culprit::None ? 0 : 5 + static_cast<int>(c); }

const ReplayArm* Replay::arm(const std::string& name) const {
  for (const ReplayArm& a : arms)
    if (a.name == name) return &a;
  return nullptr;
}

std::vector<TrainEvent> usual_rows(const RunLog& log, std::int64_t at) {
  std::vector<TrainEvent> out;
  for (const TrainEvent& e : log.train)
    if (e.step < at && e.step >= at - kWindow) out.push_back(e);
  return out;
}

void judge_replay(Replay& r, const std::vector<TrainEvent>& usual) {
  check(!r.arms.empty(), "a replay without arms");
  r.culprit = Culprit::None;
  r.sentences.clear();
  r.event = find_event(r, usual);
  hold_against_log(r);
  say_event(r);
  judge_data(r);
  judge_stack(r);
  if (r.culprit == Culprit::None) judge_event(r);
  r.sentences.push_back(verdict(r));
}

std::string replay_text(const Replay& r) {
  std::string text = fmt::format("{}: steps {} to {} again from {}\n", r.run, r.from + 1, r.until,
                                 r.checkpoint.empty() ? "the start values" : r.checkpoint);
  text += fmt::format("{:>8} {:>18} {:>23}", "step", "batch", "logged loss, norm");
  for (const ReplayArm& a : r.arms)
    text += fmt::format(" {:>23}", a.name == "backend"  ? a.backend
                                   : a.name == "recipe" ? a.computes_in
                                                        : a.name);
  text += "\n";
  const std::int64_t first = std::max(r.from + 1, r.until - 11);
  if (first > r.from + 1)
    text += fmt::format("   (steps {} to {} are in replay.json)\n", r.from + 1, first - 1);
  for (std::int64_t step = first; step <= r.until; ++step) {
    const ReplayStep *logged = step_of(r.logged, step), *now = step_of(r.arms.front().steps, step);
    const std::string hash = now ? fmt::format("{:016x}", now->batch_hash) : "";
    const char* mark = logged && now && logged->batch_hash != now->batch_hash ? "!" : " ";
    text += fmt::format("{:>8} {:>17}{}", step, hash, mark);
    text += logged ? fmt::format(" {:>12.7f} {:>10.6f}", logged->loss, logged->grad_norm)
                   : fmt::format("{:>24}", "");
    for (const ReplayArm& a : r.arms) text += cell(a, step);
    text += "\n";
  }
  for (const std::string& s : r.skipped) text += "not run: " + s + "\n";
  text += "\n";
  for (const std::string& s : r.sentences) text += s + "\n";
  return text;
}

Json replay_json(const Replay& r) {
  Json logged = Json::array(), arms = Json::array();
  for (const ReplayStep& s : r.logged) logged.push_back(step_json(s));
  for (const ReplayArm& a : r.arms) arms.push_back(arm_json(a));
  const auto maybe = [](const auto& v) { return v ? Json(*v) : Json(); };
  return {{"schema", 1},
          {"run", r.run},
          {"checkpoint", r.checkpoint},
          {"at", r.at},
          {"from_step", r.from},
          {"until_step", r.until},
          {"event",
           {{"kind", r.event.kind},
            {"step", r.event.step},
            {"usual", r.event.usual},
            {"value", r.event.value},
            {"z", r.event.z}}},
          {"repeated_steps", r.repeated},
          {"first_difference", maybe(r.first_difference)},
          {"other_batch_at", maybe(r.other_batch_at)},
          {"changed", r.changed},
          {"gradient_ratio", json_from_double(r.gradient_ratio)},
          {"at_fault", name(r.culprit)},
          {"sentences", r.sentences},
          {"skipped", r.skipped},
          {"logged", logged},
          {"arms", arms}};
}

}  // namespace nibble
