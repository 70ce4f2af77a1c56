// SPDX-License-Identifier: Apache-2.0
// What a person gets wrong: one clear message with a remedy, and the documented exit code.
#include <gtest/gtest.h>

#include "run_tool.h"

namespace nibble::e2e {
namespace {

struct Case {
  const char* name;
  const char* arguments;
  int code;
  std::vector<const char*> says;
};

class WrongInput : public ::testing::TestWithParam<Case> {};

TEST_P(WrongInput, GivesOneMessageWithARemedyAndTheDocumentedExitCode) {
  const Workspace w;
  w.write("bad.toml", w.read("run.toml") + "[trainning]\nsteps = 3\n");
  w.write("badkey.toml", "[training]\nstepss = 3\n");
  const Outcome o = w.nibble(GetParam().arguments);
  EXPECT_EQ(o.code, GetParam().code) << o.output;
  for (const char* text : GetParam().says)
    EXPECT_NE(o.output.find(text), std::string::npos) << text << "\n" << o.output;
  EXPECT_EQ(o.output.find("terminate called"), std::string::npos) << o.output;
}

INSTANTIATE_TEST_SUITE_P(
    Cli, WrongInput,
    ::testing::Values(
        Case{"unknown_key", "train badkey.toml", 2, {"badkey.toml", "stepss", "steps"}},
        Case{"unknown_section", "train bad.toml", 2, {"trainning", "training"}},
        Case{"missing_config", "train nowhere.toml", 2, {"nowhere.toml"}},
        Case{"missing_text", "train run.toml --set 'data.files=[\"gone.txt\"]'", 2, {"gone.txt"}},
        Case{"small_vocabulary", "train run.toml --set model.vocab_size=128", 2, {"vocab", "128"}},
        Case{"long_sequence",
             "train run.toml --set training.sequence=65536 --set model.max_sequence=65536",
             2,
             {"65536"}},
        Case{"odd_dimension", "train run.toml --set model.ffn=40", 2, {"40", "16", "mlp.up"}},
        Case{"pattern_without_match",
             "train run.toml --set 'precision.keep_bf16=[\"*.mlpp.*\"]'",
             2,
             {"*.mlpp.*"}},
        Case{"unknown_recipe", "train run.toml --set precision.recipe=nvfp5", 2, {"nvfp5", "nvfp4"}},
        Case{"narrow_gradient_of_fp32",
             "bench --residual-gradient bf16",
             2,
             {"recipe fp32", "leave it out of --recipes"}},
        Case{"unknown_backend", "train run.toml --backend tpu", 2, {"tpu", "cpu"}},
        Case{"unknown_verb", "trian run.toml", 2, {"trian"}},
        Case{"nan_under_nvfp4",
             "train run.toml --set faults.inject_nan_step=5",
             5,
             {"step 5", "dgrad", "NaN", "step_00000005"}},
        Case{"nan_under_bf16",
             "train run.toml --set faults.inject_nan_step=5 --set precision.recipe=bf16",
             5,
             {"step 5", "gradient norm", "step_00000005"}},
        Case{"sparse_peak", "plan --model llama-3.1-8b --peak fp4=20000", 2, {"dense", "use 10000"}},
        Case{"no_layout",
             "plan --model llama-3-70b --gpus 8 --layout tp=1",
             2,
             {"GiB a GPU", "nearest layout that fits"}},
        Case{"no_report", "report nowhere", 2, {"nowhere"}}),
    [](const auto& info) { return info.param.name; });

/// A binary without the backend says so; one with it on a machine without a GPU says that. Neither computes
/// elsewhere instead.
TEST(Backend, CudaThatIsNotThereIsAClearError) {
  const Workspace w;
  const Outcome o = w.nibble("train run.toml --backend cuda");
#ifdef NIBBLE_WITH_CUDA
  if (o.code == 0) return;  // there is a GPU
  EXPECT_EQ(o.code, 1) << o.output;
  EXPECT_NE(o.output.find("there is no GPU"), std::string::npos) << o.output;
#else
  EXPECT_EQ(o.code, 2) << o.output;
  EXPECT_NE(o.output.find("built without it"), std::string::npos) << o.output;
#endif
}

TEST(Help, EveryVerbHasHelpAndTheVersionIsPrinted) {
  const Workspace w;
  for (const char* verb : {"validate", "train", "explain", "plan", "compare", "forecast", "report",
                           "quantize", "verify-model", "doctor", "bench"}) {
    const Outcome o = w.nibble(std::string("help ") + verb);
    EXPECT_EQ(o.code, 0) << o.output;
    EXPECT_NE(o.output.find("--help"), std::string::npos) << verb;
  }
  const Outcome list = w.nibble("help");
  EXPECT_EQ(list.code, 0);
  for (const char* word : {"validate", "verify-model", "Exit codes"})
    EXPECT_NE(list.output.find(word), std::string::npos) << word << list.output;
  EXPECT_EQ(w.nibble("").code, 2);
  EXPECT_NE(w.nibble("help presets").output.find("paper-12b"), std::string::npos);
  EXPECT_NE(w.nibble("help config").output.find("warmup_steps"), std::string::npos);
  EXPECT_NE(w.nibble("--version").output.find("nibble "), std::string::npos);
}

TEST(Bench, WritesTheMachinesCeilingsInTheFormThatThePlannerReads) {
  const Workspace w;
  const Outcome bench = w.nibble("bench --no-quantizers --no-products --no-steps --hardware here.toml");
  ASSERT_EQ(bench.code, 0) << bench.output;
  const Outcome plan = w.nibble("plan --model hybrid-tiny --hardware here.toml --gpus 1 --tokens 1M");
  EXPECT_EQ(plan.code, 0) << plan.output << w.read("here.toml");
}

}  // namespace
}  // namespace nibble::e2e
