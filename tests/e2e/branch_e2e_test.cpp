// SPDX-License-Identifier: Apache-2.0
// What one does around a run that exists: branch it, replay a step, read its metrics elsewhere, watch it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "run_tool.h"

namespace nibble::e2e {
namespace {

class AroundARun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    place_ = new Workspace;
    const Outcome o = place_->nibble(
        "train run.toml --set checkpoint.keep=9 --set metrics.tensorboard=true --set "
        "faults.inject_nan_step=-1");
    ASSERT_EQ(o.code, 0) << o.output;
  }
  static void TearDownTestSuite() {
    delete place_;
    place_ = nullptr;
  }
  static nlohmann::json json(const std::string& file) { return nlohmann::json::parse(place_->read(file)); }
  static Workspace* place_;
};
Workspace* AroundARun::place_ = nullptr;

TEST_F(AroundARun, BranchWritesFiguresPageAndArms) {
  const Outcome o =
      place_->nibble("branch runs/tiny/checkpoints/step_00000010 --steps 8 --aa --quiet --limit 50%");
  ASSERT_EQ(o.code, 0) << o.output;
  const auto j = json("runs/tiny/branches/step_00000010_bf16/branch.json");
  EXPECT_EQ(j.at("from_step"), 10);
  EXPECT_EQ(j.at("repeated_steps"), 8);
  EXPECT_EQ(j.at("evaluations").at(0).at("gap"), 0.0);
  EXPECT_EQ(j.at("verdict"), "pass");
  const std::string page = place_->read("runs/tiny/branches/step_00000010_bf16/branch.html");
  EXPECT_NE(page.find("Health check at step 10"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos) << "the page loads something";
  EXPECT_NE(o.output.find("bit for bit"), std::string::npos) << o.output;

  // The forward alone; a folder of a run means its newest checkpoint, which is at the end.
  const Outcome forward =
      place_->nibble("branch runs/tiny/checkpoints/step_00000010 --steps 6 --gemms fprop --quiet");
  EXPECT_EQ(forward.code, 0) << forward.output;
  EXPECT_NE(forward.output.find("nvfp4, fprop in bf16"), std::string::npos) << forward.output;
  EXPECT_EQ(place_->nibble("branch runs/tiny --steps 6").code, 2);
  EXPECT_EQ(place_->nibble("branch runs/missing").code, 2);
  EXPECT_EQ(place_->nibble("branch runs/tiny/checkpoints/step_00000010 --recipe bf61").code, 2);
}

TEST_F(AroundARun, ReplayRepeatsTheLog) {
  const Outcome o = place_->nibble("replay runs/tiny --at 13 --other none");
  ASSERT_EQ(o.code, 0) << o.output;
  const auto j = json("runs/tiny/replays/step_00000013.json");
  EXPECT_EQ(j.at("at_fault"), "none");
  EXPECT_EQ(j.at("repeated_steps"), 4);
  EXPECT_EQ(place_->nibble("replay runs/tiny --at 21").code, 2);
}

TEST_F(AroundARun, ReplayNamesAPlantedNanAndItsExitCodeSaysWhose) {
  const Outcome train =
      place_->nibble("train run.toml --set faults.inject_nan_step=7 --set training.name=nan");
  ASSERT_EQ(train.code, 5) << train.output;
  const Outcome o = place_->nibble("replay runs/nan --at 7 --other none");
  EXPECT_EQ(o.code, 8) << o.output;
  EXPECT_NE(o.output.find("Step 8 is not finite."), std::string::npos) << o.output;
}

TEST_F(AroundARun, MetricsAreReadElsewhere) {
  ASSERT_EQ(place_->nibble("report runs/tiny --csv metrics.csv").code, 0);
  EXPECT_EQ(place_->read("metrics.csv").rfind("arm,step,tokens,loss,", 0), 0u);
  // The event files and the table hold the same curve.
  const Outcome o =
      place_->nibble("compare runs/tiny/tensorboard 'metrics.csv#loss=val_loss' --json same.json");
  ASSERT_EQ(o.code, 0) << o.output;
  EXPECT_NEAR(json("same.json").at("relative_gap").get<double>(), 0, 1e-6);
}

TEST_F(AroundARun, WatchDrawsInATerminal) {
  const Outcome o = place_->nibble("watch runs/tiny --terminal --once");
  ASSERT_EQ(o.code, 0) << o.output;
  EXPECT_NE(o.output.find("step 20/20"), std::string::npos) << o.output;
  EXPECT_EQ(place_->nibble("watch run.toml --terminal --once").code, 2);
}

}  // namespace
}  // namespace nibble::e2e
