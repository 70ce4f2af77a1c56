// SPDX-License-Identifier: Apache-2.0
// Planted faults in the quantiser: what telemetry makes of them, for data of many shapes.
#include "train/quant_monitor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "ops/health/quant_stats.h"
#include "quant/nvfp4.h"

namespace nibble {
namespace {

constexpr std::int64_t kRows = 128, kCols = 64;

enum class Fault { None, StuckAtZero, ScaleTwiceTooLarge, ScaleHalf, DecodedHalf };

const LinearInfo& linear() {
  static const LinearInfo kLinear{.name = "blocks.1.mlp.up", .kind = "mlp.up", .block = 1, .blocks = 4};
  return kLinear;
}

/// Quantises x with the codec, the fault planted, and measures it with the op that telemetry uses.
QuantStats quantised(const std::vector<float>& x, Rounding rounding, Fault fault) {
  HostDevice host;
  Stream stream(BackendKind::Cpu, host, 1);
  std::vector<std::uint8_t> codes(x.size() / 2), scales(x.size() / 16);
  float amax = 0;
  for (const float v : x) amax = std::max(amax, std::abs(v));
  const TensorScale g = TensorScale::from_amax(amax);
  std::mt19937 random(9);
  for (std::size_t b = 0; b < scales.size(); ++b) {
    float block[16], block_amax = 0;
    for (int j = 0; j < 16; ++j) {
      block[j] = x[16 * b + static_cast<std::size_t>(j)];
      block_amax = std::max(block_amax, std::abs(block[j]));
    }
    E4M3 scale = block_scale(block_amax, g);
    if (fault == Fault::ScaleTwiceTooLarge) scale = E4M3::nearest(std::min(2 * scale.value(), 448.0f));
    if (fault == Fault::ScaleHalf) scale = E4M3::nearest(scale.value() / 2);
    Stochastic<16> sr{};
    if (fault != Fault::StuckAtZero)
      for (auto& r : sr.random) r = static_cast<std::uint8_t>(random());
    std::uint8_t packed[8];
    const float multiplier = block_multiplier(scale, g);
    if (rounding == Rounding::Stochastic)
      encode_codes(block, multiplier, sr, packed);
    else
      encode_codes(block, multiplier, NearestEven{}, packed);
    std::copy(std::begin(packed), std::end(packed), codes.begin() + static_cast<std::ptrdiff_t>(8 * b));
    if (fault == Fault::DecodedHalf) scale = E4M3::nearest(scale.value() / 2);
    scales[b] = scale.bits;
  }
  QuantStats stats;
  const float scale = 1;
  measure_quant(stream, {.x_RC = View<const float>(x.data(), kRows, kCols),
                         .codes = View<const std::uint8_t>(codes.data(), kRows, kCols / 2),
                         .scales = View<const std::uint8_t>(scales.data(), kRows, kCols / 16),
                         .spec = {.format = Format::Nvfp4, .rounding = rounding},
                         .amax = &amax,
                         .scale = &scale,
                         .out = &stats});
  return stats;
}

struct Alarms : Sink {
  void on(const AlarmEvent& a) override {
    if (a.severity == Severity::Fault) faults.push_back(a);
  }
  using Sink::on;
  std::vector<AlarmEvent> faults;
};

/// The faults that a step with this operand raises.
std::vector<AlarmEvent> faults_of(const std::vector<float>& x, Rounding rounding, Fault fault) {
  HostDevice host;
  QuantMonitor monitor(host, {}, {});
  monitor.operand(linear(), Gemm::Dgrad, Operand::A, {.format = Format::Nvfp4, .rounding = rounding})
      ->quantised = quantised(x, rounding, fault);
  monitor.issued();
  Alarms alarms;
  monitor.finish_step(7, alarms);
  return alarms.faults;
}

/// Gaussian, Laplace, heavy-tailed, sparse with one sign, rows of very different sizes, mostly zero.
std::vector<std::pair<std::string, std::vector<float>>> data() {
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  std::exponential_distribution<double> exponential;
  const auto fill = [](const std::function<double(std::size_t row)>& draw) {
    std::vector<float> x(kRows * kCols);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(draw(i / kCols));
    return x;
  };
  std::vector<double> sizes(kRows);
  for (double& s : sizes) s = std::exp(2 * normal(random));
  std::student_t_distribution<double> heavy(3);
  return {{"gauss", fill([&](std::size_t) { return normal(random); })},
          {"laplace", fill([&](std::size_t) { return exponential(random) * (random() % 2 ? 1 : -1); })},
          {"heavy", fill([&](std::size_t) { return heavy(random); })},
          {"relu2", fill([&](std::size_t) { return std::pow(std::max(normal(random), 0.0), 2); })},
          {"rows", fill([&](std::size_t row) { return sizes[row] * normal(random); })},
          {"sparse", fill([&](std::size_t) { return random() % 20 ? 0.0 : 1e-6 * normal(random); })}};
}

struct Log : Sink {
  void on(const QuantEvent& e) override { operands.push_back(e); }
  void on(const GemmEvent& e) override { gemms.push_back(e); }
  void on(const WeightEvent& e) override { weights.push_back(e); }
  void on(const LayerEvent& e) override { layers.push_back(e); }
  using Sink::on;
  std::vector<QuantEvent> operands;
  std::vector<GemmEvent> gemms;
  std::vector<WeightEvent> weights;
  std::vector<LayerEvent> layers;
};

TEST(QuantMonitor, SumsMeetBeforeTheRatioAndStepsInFlightStayApart) {
  HostDevice host;
  QuantMonitor monitor(host, {}, {});
  const QuantSpec spec{.format = Format::Nvfp4};
  for (const double error : {3.0, 1.0}) {  // two micro-batches: one large and wrong, one small and right
    QuantStats s;
    s.count = 10, s.sum_x2 = error * error, s.sum_e2 = error == 3 ? 9e-2 : 0;
    monitor.operand(linear(), Gemm::Fprop, Operand::A, spec)->quantised.merge(s);
    DifferenceSums d;
    d.sum_e2 = error == 3 ? 0.9 : 0, d.sum_b2 = error * error;
    monitor.product(linear(), Gemm::Fprop)->merge(d);
  }
  monitor.issued();
  monitor.operand(linear(), Gemm::Fprop, Operand::A, spec)->quantised.amax = 5;
  monitor.issued();
  Log first, second;
  monitor.finish_step(1, first);
  monitor.finish_step(2, second);
  ASSERT_EQ(first.operands.size(), 1u);
  EXPECT_NEAR(first.operands[0].sqnr_db, 10 * std::log10(10 / 9e-2), 1e-9);
  EXPECT_NEAR(first.gemms.at(0).output_error, 0.3, 1e-9);
  EXPECT_EQ(second.operands.at(0).amax, 5);
  EXPECT_TRUE(second.gemms.empty());
}

TEST(QuantMonitor, MeasuresWhatIsSelectedAlone) {
  HostDevice host;
  QuantMonitor monitor(
      host, {},
      {.layers = {"blocks.1.*"}, .gemms = {"dgrad"}, .tensors = {"gradient"}, .statistics = {"mse"}});
  const QuantSpec spec{.format = Format::Nvfp4};
  EXPECT_NE(monitor.operand(linear(), Gemm::Dgrad, Operand::A, spec), nullptr);
  EXPECT_EQ(monitor.operand(linear(), Gemm::Dgrad, Operand::B, spec), nullptr);
  QuantMonitor transposed(host, {}, {.tensors = {"dy"}});
  EXPECT_NE(transposed.operand(linear(), Gemm::Wgrad, Operand::A, spec), nullptr) << "dy^T is dy";
  EXPECT_EQ(monitor.operand(linear(), Gemm::Wgrad, Operand::A, spec), nullptr);
  EXPECT_EQ(monitor.product(linear(), Gemm::Dgrad), nullptr);
  EXPECT_EQ(monitor.weight(linear(), spec), nullptr);
  EXPECT_EQ(monitor.residual("blocks.1.mlp", 1), nullptr);
  EXPECT_EQ(monitor.logits("blocks.1.attention", 1), nullptr);
}

TEST(QuantMonitor, AWeightThatMovesWithItsCodesHasAnOscillationOfOne) {
  HostDevice host;
  QuantMonitor monitor(host, {}, {});
  WeightSums& w = *monitor.weight(linear(), {.format = Format::Nvfp4});
  w.update.add(1.1f, 1.0f);
  w.decoded.add(1.5f, 1.0f);
  w.gradient.add(0);
  w.gradient.add(2);
  monitor.residual("blocks.1.mlp", 1)->add(-3);
  monitor.issued();
  Log log;
  monitor.finish_step(1, log);
  ASSERT_EQ(log.weights.size(), 1u);
  EXPECT_NEAR(log.weights[0].oscillation, 5, 1e-5);
  EXPECT_EQ(log.weights[0].gradient_zeros, 0.5);
  EXPECT_EQ(log.weights[0].changed, 1);
  ASSERT_EQ(log.layers.size(), 1u);
  EXPECT_EQ(log.layers[0].residual_rms, 3);
  EXPECT_TRUE(std::isnan(log.layers[0].attention_logit_max));
}

TEST(PlantedFault, NoneIsSeenInASoundQuantiserWhateverTheData) {
  for (const auto& [name, x] : data()) {
    for (const Rounding r : {Rounding::NearestEven, Rounding::Stochastic}) {
      const auto faults = faults_of(x, r, Fault::None);
      EXPECT_TRUE(faults.empty()) << name << ": " << (faults.empty() ? "" : faults[0].text);
    }
  }
}

TEST(PlantedFault, RandomBitsStuckAtZeroAreSeenInEveryOperandAndItIsNamed) {
  for (const auto& [name, x] : data()) {
    const auto faults = faults_of(x, Rounding::Stochastic, Fault::StuckAtZero);
    ASSERT_FALSE(faults.empty()) << name;
    EXPECT_TRUE(faults[0].rule == "rounding_bias" || faults[0].rule == "operand_gain") << name;
    EXPECT_EQ(faults[0].text.rfind("blocks.1.mlp.up dgrad operand dy: ", 0), 0u) << faults[0].text;
    EXPECT_EQ(faults[0].step, 7);
  }
}

TEST(PlantedFault, ABlockScaleOneBinadeOffIsSeenWhereverItIsOff) {
  for (const auto& [name, x] : data()) {
    for (const Rounding r : {Rounding::NearestEven, Rounding::Stochastic}) {
      const auto rule = [&, &values = x](Fault f) {
        const auto faults = faults_of(values, r, f);
        return faults.empty() ? std::string("none") : faults[0].rule;
      };
      EXPECT_EQ(rule(Fault::DecodedHalf), "operand_gain") << name;
      EXPECT_EQ(rule(Fault::ScaleHalf), "operand_gain") << name;
      EXPECT_EQ(rule(Fault::ScaleTwiceTooLarge), "unused_range") << name;
    }
  }
}

}  // namespace
}  // namespace nibble
