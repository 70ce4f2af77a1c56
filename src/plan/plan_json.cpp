// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_text.h"

namespace nibble {
namespace {

Json layout_json(const ParallelLayout& l) {
  return {{"gpus", l.gpus},
          {"dp", l.dp()},
          {"tp", l.tp},
          {"pp", l.pp},
          {"cp", l.cp},
          {"fsdp", l.fsdp},
          {"micro_batch", l.micro_batch},
          {"global_batch", l.global_batch},
          {"sequence", l.sequence},
          {"recompute", std::string(name(l.recompute))}};
}

Json model_json(const Plan& p) {
  const double sequence = static_cast<double>(p.request.layout.sequence);
  Json kinds = Json::array();
  for (const KindShare& k : shares_by_kind(p.work, sequence)) {
    kinds.push_back({{"kind", k.kind},
                     {"precision", k.precision},
                     {"parameters", k.parameters},
                     {"flops_per_token", k.flops},
                     {"share", k.share}});
  }
  return {{"name", p.work.model},
          {"parameters", p.work.parameters},
          {"flops_per_token", p.work.flops(sequence)},
          {"flops_convention", "6 per matmul parameter, causal attention halved, recomputation not counted"},
          {"kinds", kinds}};
}

Json hardware_json(const Hardware& h) {
  Json rates;
  for (const Rate r : kRates) {
    if (!h.native(r)) continue;
    const RateInfo& info = h.rate(r);
    rates[std::string(name(r))] = {
        {"dense_tflops", info.dense}, {"sparse_tflops", info.sparse}, {"achieved", info.achieved}};
  }
  return {{"name", h.name},           {"rates", rates},
          {"usable_gb", h.usable_gb}, {"bandwidth_tb", h.bandwidth_tb},
          {"source", h.source},       {"achieved_source", h.achieved_source}};
}

Json items_json(const Plan& p) {
  Json step = Json::array(), memory = Json::array();
  for (const TimeItem& t : p.time.items) step.push_back({{"name", t.name}, {"seconds", t.seconds}});
  for (const MemoryItem& m : p.memory.items) memory.push_back({{"name", m.name}, {"bytes", m.bytes}});
  return {{"step", step}, {"memory", memory}};
}

}  // namespace

Json plan_json(const Plan& p) {
  Json out = items_json(p);
  out["model"] = model_json(p);
  out["recipe"] = p.work.recipe;
  out["hardware"] = hardware_json(p.request.hardware);
  out["layout"] = layout_json(p.request.layout);
  out["step_seconds"] = p.time.seconds;
  out["tokens_per_gpu_s"] = p.time.tokens_per_gpu_s;
  out["model_tflops_per_gpu"] = p.time.model_tflops;
  out["mfu_bf16"] = p.time.mfu_bf16;
  out["mfu_mix"] = p.time.mfu_mix;
  out["mix_peak_tflops"] = p.time.mix_peak;
  out["memory_bytes"] = p.memory.total;
  out["usable_bytes"] = p.memory.usable;
  out["largest_micro_batch"] = p.largest_micro_batch ? Json(*p.largest_micro_batch) : Json(nullptr);
  out["tokens"] = p.request.tokens;
  out["hours"] = p.hours;
  out["cost"] = p.cost;
  out["energy_mwh"] = p.energy_mwh;
  out["equal_loss"] = {{"gap", p.gap.relative},
                       {"source", p.gap.source},
                       {"token_ratio", json_from_double(p.equal.token_ratio)},
                       {"hours", json_from_double(p.equal.hours)},
                       {"switched_hours", p.equal.switched_hours},
                       {"switch_share", p.request.switch_share},
                       {"cost", json_from_double(p.equal_cost)}};
  out["notes"] = honest_lines(p);
  return out;
}

}  // namespace nibble
