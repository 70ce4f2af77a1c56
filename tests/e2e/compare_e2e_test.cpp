// SPDX-License-Identifier: Apache-2.0
// Runs of others side by side, and forecasts, as a person asks for them.
#include <gtest/gtest.h>

#include <algorithm>

#include "run_tool.h"

namespace nibble::e2e {
namespace {

constexpr const char* kCurves = NIBBLE_SOURCE_DIR "/tests/golden/mlperf51/llama31_8b_val_loss.csv";

std::string curve(const char* recipe, const char* system) {
  return std::string("'") + kCurves + "#recipe=" + recipe + ",system=" + system + "' ";
}

TEST(Compare, PublishedCurvesGiveTheirGapAndAVerdictByExitCode) {
  const Workspace w;
  const std::string pair = curve("fp8", "uf_b200") + curve("nvfp4", "nvidia_gb200") + "--by tokens ";
  const Outcome plain = w.nibble("compare " + pair + "--json out.json --text out.txt");
  EXPECT_EQ(plain.code, 0) << plain.output;
  EXPECT_NE(plain.output.find("nothing interpolated"), std::string::npos) << plain.output;
  EXPECT_EQ(w.read("out.txt"), plain.output);
  EXPECT_NE(w.read("out.json").find("\"relative_gap\": 0.00989"), std::string::npos) << w.read("out.json");
  EXPECT_EQ(w.nibble("compare " + pair + "--limit 1.5%").code, 0);
  EXPECT_EQ(w.nibble("compare " + pair + "--limit 0.3%").code, 3);
  EXPECT_EQ(w.nibble("compare " + pair + "--limit 1%").code, 4);
}

TEST(Compare, ArmsOfAComparisonAreLaidSideBySide) {
  const Workspace w;
  ASSERT_NE(w.nibble("validate run.toml --quiet --set protocol.aa_arm=false --set training.steps=40").code,
            1);
  const Outcome o = w.nibble("compare runs/tiny/baseline runs/tiny/candidate --noise runs/tiny/verdict.json");
  EXPECT_EQ(o.code, 0) << o.output;
  for (const char* text :
       {"recipe: bf16 and nvfp4", "same bytes with the same seed", "One pair", "verdict.json"})
    EXPECT_NE(o.output.find(text), std::string::npos) << text << "\n" << o.output;
  const Outcome train =
      w.nibble("compare 'runs/tiny/baseline#metric=train' 'runs/tiny/candidate#metric=train'");
  EXPECT_EQ(train.code, 0) << train.output;
  EXPECT_NE(train.output.find("40 points paired by step"), std::string::npos) << train.output;
}

TEST(Compare, SaysWhatItMustBeTold) {
  const Workspace w;
  w.write("a.log", "step 1 loss 3\nstep 2 loss 2\nstep 3 loss 1\n");
  w.write("b.log", "step 10 loss 3\nstep 20 loss 2\n");
  const Outcome table = w.nibble(std::string("compare a.log ") + kCurves);
  EXPECT_EQ(table.code, 2);
  EXPECT_NE(table.output.find("recipe (fp8 nvfp4)"), std::string::npos) << table.output;
  const Outcome steps = w.nibble("compare a.log b.log");
  EXPECT_EQ(steps.code, 2);
  EXPECT_NE(steps.output.find("--by tokens"), std::string::npos) << steps.output;
  EXPECT_EQ(w.nibble("compare a.log nothing.log").code, 1);
}

TEST(Forecast, FromTheLiteratureItSaysHowFarItReaches) {
  const Workspace w;
  const Outcome o = w.nibble("forecast --model llama-3.1-8b --tokens 1T");
  EXPECT_EQ(o.code, 0) << o.output;
  for (const char* text :
       {"expected gap", "90 % of such runs between", "EXTRAPOLATES TOO FAR", "last 15 %", "[NVFP4]"})
    EXPECT_NE(o.output.find(text), std::string::npos) << text << "\n" << o.output;
  const Outcome check = w.nibble("forecast --check");
  EXPECT_EQ(check.code, 0);
  EXPECT_NE(check.output.find("12 of  12 inside"), std::string::npos) << check.output;
  EXPECT_EQ(w.nibble("forecast").code, 2);
  EXPECT_EQ(w.nibble("forecast --model deepseek-v3").code, 2);
}

TEST(Forecast, PilotsAreRunKeptAndReadAgain) {
  const Workspace w;
  const std::string pilots =
      "forecast --model llama-124m --tokens 2.5B --pilot run.toml --set protocol.aa_arm=false "
      "--size model.hidden=32,model.ffn=64 --size model.hidden=64,model.ffn=128 --steps 40,60";
  const Outcome first = w.nibble(pilots);
  EXPECT_EQ(first.code, 0) << first.output;
  const std::string table = w.read("runs/tiny-pilots.csv");
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 6) << table;
  EXPECT_NE(table.find("tiny-pilot-2-60"), std::string::npos) << table;
  const Outcome again = w.nibble(pilots + " --resume");
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_NE(again.output.find("(run before)"), std::string::npos) << again.output;
  const Outcome read = w.nibble("forecast --model llama-124m --tokens 2.5B --pilots runs/tiny-pilots.csv");
  EXPECT_EQ(read.code, 0) << read.output;
  const auto tail = first.output.find("llama-124m:");
  ASSERT_NE(tail, std::string::npos) << first.output;
  EXPECT_EQ(read.output, first.output.substr(tail));
}

}  // namespace
}  // namespace nibble::e2e
