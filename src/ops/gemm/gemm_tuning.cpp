// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/gemm_tuning.h"

#include <array>
#include <sstream>

namespace nibble {
namespace {

constexpr std::string_view kFirst = "nibble-gemm-tuning 1, ";
constexpr std::size_t kNumbers = 22;
using Numbers = std::array<std::int64_t, kNumbers>;

Numbers numbers_of(const LtProduct& p) {
  Numbers out{};
  std::size_t i = 0;
  for (const LtMatrix* m : {&p.a, &p.b, &p.d})
    for (std::int64_t x : {static_cast<std::int64_t>(m->type), m->rows, m->cols, m->ld,
                           static_cast<std::int64_t>(m->alignment)})
      out[i++] = x;
  for (std::int64_t x : {static_cast<std::int64_t>(p.transpose_a), static_cast<std::int64_t>(p.transpose_b),
                         static_cast<std::int64_t>(p.scale), static_cast<std::int64_t>(p.accumulate),
                         static_cast<std::int64_t>(p.bias), static_cast<std::int64_t>(p.alpha_on_device),
                         static_cast<std::int64_t>(p.fast_accumulation)})
    out[i++] = x;
  return out;
}

LtProduct product_of(const Numbers& n) {
  LtProduct p;
  std::size_t i = 0;
  for (LtMatrix* m : {&p.a, &p.b, &p.d}) {
    *m = {static_cast<LtType>(n[i]), n[i + 1], n[i + 2], n[i + 3], static_cast<int>(n[i + 4])};
    i += 5;
  }
  p.transpose_a = n[15] != 0;
  p.transpose_b = n[16] != 0;
  p.scale = static_cast<LtScale>(n[17]);
  p.accumulate = n[18] != 0;
  p.bias = n[19] != 0;
  p.alpha_on_device = n[20] != 0;
  p.fast_accumulation = n[21] != 0;
  return p;
}

}  // namespace

std::string GemmTuning::text() const {
  std::string out = fmt::format("{}{}\n", kFirst, machine);
  for (const auto& choice : choices) {
    for (std::int64_t x : numbers_of(choice.first)) out += fmt::format("{} ", x);
    out += fmt::format("{}\n", choice.second);
  }
  return out;
}

GemmTuning GemmTuning::parse(std::string_view text) {
  GemmTuning tuning;
  std::istringstream lines{std::string(text)};
  std::string line;
  std::getline(lines, line);
  check_usage(line.starts_with(kFirst), "gemm tuning: the first line is \"{}\", but must begin with \"{}\"",
              line, kFirst);
  tuning.machine = line.substr(kFirst.size());
  for (int number = 2; std::getline(lines, line); ++number) {
    std::istringstream words(line);
    Numbers n{};
    for (std::int64_t& x : n) words >> x;
    int choice = -1;
    words >> choice;
    std::string more;
    check_usage(!words.fail() && choice >= 0 && !(words >> more),
                "gemm tuning: line {} is not {} numbers and a choice: \"{}\"; measure again", number,
                kNumbers, line);
    tuning.choices[product_of(n)] = choice;
  }
  return tuning;
}

#ifndef NIBBLE_WITH_CUDA
void use_gemm_tuning(Device&, const GemmTuning&) {
  fail_usage("gemm tuning is for the cuda backend, without which this binary was built");
}
GemmTuning tune_gemms(Stream&, double) {
  fail_usage("gemm tuning is for the cuda backend, without which this binary was built");
}
#endif

}  // namespace nibble
