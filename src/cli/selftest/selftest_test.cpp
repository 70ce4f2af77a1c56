// SPDX-License-Identifier: Apache-2.0
#include "cli/selftest/selftest.h"

#include <gtest/gtest.h>

#include <map>

#include "base/simd.h"
#include "cli/selftest/machine.h"

namespace nibble {
namespace {

class SelfTests : public ::testing::TestWithParam<BackendKind> {
 protected:
  HostDevice host_;
  Stream stream_{GetParam(), host_, 2};
};

TEST_P(SelfTests, AllPassOnThisMachine) {
  for (const SelfTestResult& r : run_self_tests(stream_)) {
    EXPECT_TRUE(r.passed) << r.name << ": " << r.detail;
    EXPECT_FALSE(r.detail.empty()) << r.name;
    EXPECT_TRUE(r.remedy.empty()) << r.name;
  }
}

TEST_P(SelfTests, EachNoticesAFaultAndSaysWhatToDo) {
  for (const SelfTest& t : self_tests()) {
    const SelfTestResult r = run_self_test(t, stream_, true);
    EXPECT_FALSE(r.passed) << t.name << " did not see the fault";
    EXPECT_FALSE(r.detail.empty()) << t.name;
    EXPECT_FALSE(r.remedy.empty()) << t.name;
  }
}

TEST_P(SelfTests, OnlyTheNamedOneIsFalsified) {
  for (const SelfTestResult& r : run_self_tests(stream_, "hadamard"))
    EXPECT_EQ(r.passed, r.name != "hadamard");
}

TEST_P(SelfTests, LeaveTheInstructionSetAsItWas) {
  const SimdLevel before = simd_level();
  for (const bool fault : {false, true}) {
    for (const SelfTest& t : self_tests())
      if (std::string_view(t.name) == "quantiser bytes") run_self_test(t, stream_, fault);
    EXPECT_EQ(simd_level(), before);
  }
}

TEST_P(SelfTests, AnUnknownNameIsAUsageErrorWithTheNearestName) {
  try {
    run_self_tests(stream_, "e4m3 codek");
    FAIL() << "an unknown self-test was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Usage);
    EXPECT_NE(std::string(e.what()).find("e4m3 codec"), std::string::npos) << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SelfTests, ::testing::Values(BackendKind::Ref, BackendKind::Cpu),
                         [](const auto& i) { return std::string(name_of(i.param)); });

TEST(Machine, SaysWhatEveryKindOfProductIs) {
  Machine m = describe_machine();
  EXPECT_FALSE(m.cpu.empty());
  EXPECT_GT(m.memory, 0);
  EXPECT_LE(m.available, m.memory);
  m.native_bf16 = false;
  for (const GemmKind& g : gemm_kinds(BackendKind::Cpu, m))
    EXPECT_EQ(g.how, g.name == "fp32" ? "native" : "emulated-exact") << g.name;
  m.native_bf16 = true;
  for (const GemmKind& g : gemm_kinds(BackendKind::Cpu, m))
    EXPECT_EQ(g.how, g.name == "fp32" || g.name == "bf16" ? "native" : "emulated-exact") << g.name;
}

TEST(Machine, SaysWhatACardMultipliesItselfAndWhy) {
  const auto of = [](int capability) {
    Gpu gpu{.name = "a card", .compute_capability = capability, .native = native_gemm(capability)};
    std::map<std::string, GemmKind> kinds;
    for (const GemmKind& g : gemm_kinds(gpu)) kinds[g.name] = g;
    return kinds;
  };
  const auto ampere = of(80), hopper = of(90), blackwell = of(100);
  EXPECT_EQ(ampere.at("fp8").how, "emulated-exact");
  EXPECT_NE(ampere.at("fp8").detail.find("8.0 has no FP8"), std::string::npos) << ampere.at("fp8").detail;
  EXPECT_EQ(hopper.at("fp8").how, "native");
  EXPECT_NE(blackwell.at("nvfp4").detail.find("precision.native_fp4"), std::string::npos);
  EXPECT_NE(blackwell.at("mxfp8").detail.find("precision.native_mxfp8"), std::string::npos);
  EXPECT_EQ(blackwell.at("mxfp4").how, "emulated-exact") << "there is no product of such codes";
  for (const char* kind : {"nvfp4", "mxfp8"}) {
    EXPECT_NE(hopper.at(kind).detail.find("9.0 has no"), std::string::npos) << hopper.at(kind).detail;
    EXPECT_NE(blackwell.at(kind).detail.find("not run on such a card"), std::string::npos)
        << blackwell.at(kind).detail;
    EXPECT_EQ(hopper.at(kind).how, "emulated-exact");
    EXPECT_EQ(blackwell.at(kind).how, "native");
  }
}

}  // namespace
}  // namespace nibble
