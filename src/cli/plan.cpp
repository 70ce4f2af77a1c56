// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "cli/cli.h"
#include "io/json.h"
#include "plan/plan_text.h"
#include "plan/recipes.h"
#include "plan/storage.h"
#include "plan/throughput_table.h"
#include "report/plan_page.h"

namespace nibble {
namespace {

struct Options {
  std::string config, model, hardware = "gb200", recipe, tokens = "1T", layout, recompute, sweep, html;
  std::string calibration, verdict;
  std::vector<std::string> overrides, compare, peaks;
  std::int64_t gpus = 0, global_batch = 0, micro_batch = 0, sequence = 0;
  double price = 0, gap = -1, switch_share = 0.18;
  bool json = false, storage = false, list = false;
};

std::string list_text() {
  std::string out =
      "hardware (dense TFLOP/s: BF16, FP8, MXFP8, FP4; share reached in a step; GB usable; TB/s)\n";
  for (const Hardware& h : hardware_table()) {
    out += fmt::format("  {:<14}", h.name);
    for (const Rate r : kRates)
      out += h.native(r) ? fmt::format("{:>7.0f} x {:.2f}", h.rate(r).dense, h.rate(r).achieved)
                         : fmt::format("{:>14}", "emulated");
    out += fmt::format("{:>8.0f}{:>6.2f}  {}\n{:18}{}\n", h.usable_gb, h.bandwidth_tb, h.source, "",
                       h.achieved_source);
  }
  out += "models for planning alone, beside the trainer's presets\n";
  for (const PlanModel& m : plan_only_models())
    out += fmt::format("  {:<18}{:>16} parameters  {}\n", m.name, plan_parameters(m), m.summary);
  out += "recipes for planning alone, beside the trainer's\n";
  for (const Recipe& r : plan_recipes()) out += fmt::format("  {:<18}{} {}\n", r.name, r.summary, r.source);
  return out;
}

/// "dp=8,tp=4" into the layout; true for "auto" or nothing.
bool read_layout(const std::string& text, ParallelLayout& layout) {
  if (text.empty() || text == "auto") return true;
  std::int64_t dp = 0;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    const auto equals = part.find('=');
    const std::string key = part.substr(0, equals);
    check_usage(equals != std::string::npos || key == "fsdp",
                "--layout: \"{}\" is not key=value; write auto, or for example dp=8,tp=4,pp=2,vp=2,cp=1,fsdp",
                part);
    const std::int64_t value =
        equals == std::string::npos ? 1 : std::strtol(part.c_str() + equals + 1, nullptr, 10);
    check_usage(value > 0, "--layout: \"{}\" must be a positive number", part);
    if (key == "dp")
      dp = value;
    else if (key == "tp")
      layout.tp = value;
    else if (key == "pp")
      layout.pp = value;
    else if (key == "vp")
      layout.vp = value;
    else if (key == "cp")
      layout.cp = value;
    else if (key == "fsdp")
      layout.fsdp = true;
    else
      fail_usage("--layout: there is no \"{}\"; it has dp, tp, pp, vp, cp and fsdp", key);
  }
  check_usage(
      dp == 0 || dp * layout.tp * layout.pp * layout.cp == layout.gpus,
      "--layout: dp {} x tp {} x pp {} x cp {} is {} GPUs, not {}; leave dp out, it follows from --gpus", dp,
      layout.tp, layout.pp, layout.cp, dp * layout.tp * layout.pp * layout.cp, layout.gpus);
  return false;
}

void read_peaks(const std::vector<std::string>& peaks, Hardware& hardware) {
  for (const std::string& text : peaks) {
    const auto equals = text.find('=');
    bool known = false;
    for (const Rate r : kRates) {
      if (equals == std::string::npos || text.substr(0, equals) != name(r)) continue;
      hardware.rate(r).dense = std::strtod(text.c_str() + equals + 1, nullptr);
      known = true;
    }
    check_usage(
        known, "--peak {}: write bf16, fp8, mxfp8 or fp4 = dense TFLOP/s, for example --peak fp4=9000", text);
  }
}

/// Model, recipe and batch of a run's configuration.
void read_run(const Options& o, PlanRequest& r) {
  const RunConfig config = load_run_config(o.config, o.overrides);
  r.model.name = config.model.preset.empty() ? config.training.name : config.model.preset;
  r.model.dense = model_of(config);
  r.recipe = candidate_recipe(config);
  r.layout.sequence = config.training.sequence;
  r.layout.global_batch = config.training.batch;
  r.layout.micro_batch = config.micro_batch();
  r.layout.gpus = config.parallel.data;
}

PlanRequest make_request(const Options& o) {
  PlanRequest r;
  r.layout.gpus = 8;
  r.layout.head_chunk = 512;  // the trainer's head never holds all logits (layers/head.h)
  r.layout.global_batch = 512;
  check_usage(!o.config.empty() || !o.model.empty(),
              "plan what? Give a run.toml, or --model with a preset (--list)");
  check_usage(o.config.empty() || o.model.empty(), "a run.toml and --model both name a model; give one");
  if (!o.config.empty()) read_run(o, r);
  if (!o.model.empty()) {
    r.model = find_plan_model(o.model);
    r.recipe = find_plan_recipe("nvfp4");
  }
  if (!o.recipe.empty()) r.recipe = find_plan_recipe(o.recipe);
  r.hardware = find_hardware(o.hardware);
  read_peaks(o.peaks, r.hardware);
  if (o.gpus > 0) r.layout.gpus = o.gpus;
  if (o.sequence > 0) r.layout.sequence = o.sequence;
  if (o.global_batch > 0) r.layout.global_batch = o.global_batch;
  if (o.micro_batch > 0) r.layout.micro_batch = o.micro_batch;
  if (!o.recompute.empty()) r.layout.recompute = recompute_from_name(o.recompute);
  r.search_layout = read_layout(o.layout, r.layout) && (o.config.empty() || o.layout == "auto");
  check_usage(
      !r.search_layout || (o.micro_batch == 0 && o.recompute.empty()),
      "--micro-batch and --recompute are chosen by --layout auto; give a layout, for example --layout tp=1");
  r.tokens = parse_tokens(o.tokens);
  r.price = o.price;
  r.switch_share = o.switch_share;
  if (o.gap >= 0) r.gap = Gap{o.gap, "--gap"};
  if (!o.verdict.empty()) r.gap = gap_of_verdict(o.verdict);
  return r;
}

std::vector<SweepPoint> read_sweep(const Options& o, const PlanRequest& request) {
  long long from = 0, to = 0;
  check_usage(std::sscanf(o.sweep.c_str(), "gpus=%lld..%lld", &from, &to) == 2,
              "--sweep \"{}\": write gpus=256..8192; the number doubles from one line to the next", o.sweep);
  return sweep_gpus(request, from, to);
}

void print_sweep(const Options& o, const std::vector<SweepPoint>& points) {
  if (!o.json) {
    fmt::print("{}", sweep_text(points));
    return;
  }
  Json all = Json::array();
  for (const SweepPoint& p : points)
    all.push_back(p.plan ? plan_json(*p.plan) : Json{{"gpus", p.gpus}, {"error", p.why}});
  fmt::print("{}", dump_json(all));
}

void print_plans(const Options& o, const PlanRequest& request, const std::vector<Plan>& plans) {
  if (o.json) {
    Json all = Json::array();
    for (const Plan& p : plans) all.push_back(plan_json(p));
    fmt::print("{}", dump_json(o.compare.empty() ? all.front() : all));
    return;
  }
  if (o.compare.empty()) {
    fmt::print("{}", plan_text(plans.front()));
    return;
  }
  fmt::print("{} on {} {}\n", plans.front().work.model, request.layout.gpus, request.hardware.summary);
  for (const Plan& p : plans) fmt::print("  {:<12} {}\n", p.work.recipe, p.request.layout.text());
  fmt::print("{}", compare_text(plans));
  for (const std::string& line : honest_lines(plans.back())) fmt::print("note: {}\n", line);
}

ExitCode run(const Options& o) {
  if (o.list || o.storage || !o.calibration.empty()) {
    if (o.list) fmt::print("{}", list_text());
    if (o.storage) fmt::print("{}", storage_text());
    if (!o.calibration.empty()) fmt::print("{}", calibration_text(o.calibration));
    return 0;
  }
  const PlanRequest request = make_request(o);
  std::vector<SweepPoint> points;
  if (!o.sweep.empty()) {
    points = read_sweep(o, request);
    print_sweep(o, points);
    if (o.html.empty()) return 0;
  }
  const std::vector<Plan> plans =
      o.compare.empty() ? std::vector<Plan>{make_plan(request)} : compare_plans(request, o.compare);
  if (points.empty()) print_plans(o, request, plans);
  if (!o.html.empty()) write_plan_page(plans, o.html, points);
  return 0;
}

void add_outputs(CLI::App& app, Options& o) {
  app.add_option("--compare", o.compare, "Recipes side by side: bf16,fp8-paper,mxfp8,nvfp4")->delimiter(',');
  app.add_option("--sweep", o.sweep, "Numbers of GPUs, doubling: gpus=256..8192");
  app.add_flag("--json", o.json, "Print JSON");
  app.add_option("--html", o.html, "Write a page with plots to this file");
  app.add_flag("--list", o.list, "Print the hardware, model and recipe tables with their sources");
  app.add_flag("--storage", o.storage, "Print bytes an element of each format, and where they go");
  app.add_option(
      "--calibration", o.calibration,
      "Fit the step-time model to one half of a published table (CSV), print its errors on the other");
}

}  // namespace

Verb add_plan(CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option("FILE.toml", o->config, "A run's configuration: model, recipe and batch come from it");
  app.add_option("--set", o->overrides, "Override a key of it: --set model.preset=paper-12b")->take_all();
  app.add_option("--model", o->model, "A preset, or a model for planning alone (--list)");
  app.add_option("--recipe", o->recipe, "A recipe (--list); nvfp4 if not said");
  app.add_option("--hardware", o->hardware, "A GPU (--list), or a .toml file that describes one")
      ->capture_default_str();
  app.add_option("--peak", o->peaks, "Another dense peak: fp4=9000 (TFLOP/s)")->take_all();
  app.add_option("--gpus", o->gpus, "How many; 8 if not said, or the run's own");
  app.add_option(
      "--layout", o->layout,
      "auto (the fastest that fits; the default with --model), or tp=4,pp=2,vp=2,cp=1,fsdp; dp follows");
  app.add_option("--recompute", o->recompute, "none, selective or full, with a given layout");
  app.add_option("--micro-batch", o->micro_batch, "Sequences, with a given layout");
  app.add_option("--global-batch", o->global_batch, "Sequences a step; 512 if not said");
  app.add_option("--sequence", o->sequence, "Tokens of a sequence; 8192 if not said");
  app.add_option("--tokens", o->tokens, "Tokens to train: 300M, 50G, 10T")->capture_default_str();
  app.add_option("--price", o->price, "Of a GPU-hour, in any unit");
  app.add_option("--gap", o->gap, "Relative loss gap of the recipe, instead of the published one: 0.005");
  app.add_option("--verdict", o->verdict, "verdict.json of your own pair of runs: its gap");
  app.add_option("--switch", o->switch_share, "Share of the tokens, at the end, in BF16")
      ->capture_default_str();
  add_outputs(app, *o);
  return [o] { return run(*o); };
}

}  // namespace nibble
