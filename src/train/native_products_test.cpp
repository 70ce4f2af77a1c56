// SPDX-License-Identifier: Apache-2.0
// Which products a run makes of stored codes: said by its keys, held by its identity, written in its log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/usage_error_testing.h"
#include "telemetry/jsonl_sink.h"
#include "train/checkpoint.h"
#include "train/learner.h"
#include "train/run_config.h"
#include "train/run_log.h"
#include "train/tiny_model.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using testing::usage_error;

TEST(NativeProducts, UnsetKeysMultiplyCodesAndLeaveTheIdentityOfOlderRuns) {
  const RunConfig unset;
  EXPECT_EQ(unset.precision.native(), (NativeGemm{.fp8 = true, .fp4 = true, .mxfp8 = true}));
  for (const char* key : {"precision.native_fp4", "precision.native_mxfp8"}) {
    EXPECT_FALSE(maths_values(unset).contains(key));
    const RunConfig set = parse_run_config("", "run.toml", {std::string(key) + "=false"});
    EXPECT_EQ(maths_values(set).at(key), "false");
    EXPECT_EQ(parse_run_config(to_toml(set), "run.toml", {}), set);
    EXPECT_THAT(usage_error([&] { check_can_resume(unset, set); }),
                HasSubstr(std::string(key) + " was unset and is false"));
  }
  EXPECT_FALSE(parse_run_config("", "run.toml", {"precision.native_fp4=false"}).precision.native().fp4);
  EXPECT_THAT(usage_error([] { parse_run_config("", "run.toml", {"precision.native_fp=false"}); }),
              HasSubstr("native_fp"));
}

TEST(NativeProducts, ALearnerHasThoseOfItsDeviceAlone) {
  const auto learner = [](NativeGemm allowed, bool decode) {
    HostDevice host;
    Stream stream(BackendKind::Cpu, host, 1);
    return Learner(stream, {.model = tiny_model(3, 32, 16),
                            .recipe = find_recipe("bf16"),
                            .optimizer = {},
                            .schedule = {.peak = 1e-3, .steps = 4},
                            .sequence = 16,
                            .batch = 2,
                            .micro_batch = 2,
                            .native = allowed,
                            .decode_codes = decode})
        .native();
  };
  constexpr NativeGemm kAll{.fp8 = true, .fp4 = true, .mxfp8 = true};
  EXPECT_EQ(learner(kAll, false), NativeGemm{}) << "a host has no such tensor cores";
  EXPECT_EQ(learner(kAll, true), kAll);
  EXPECT_EQ(learner({.mxfp8 = true}, true), NativeGemm{.mxfp8 = true});
}

TEST(NativeProducts, ACheckpointIsNotContinuedWithOtherProducts) {
  const CheckpointState plain{.step = 1, .tokens = 2, .identity = {{"data", "d"}}},
      native{.step = 1, .tokens = 2, .identity = {{"data", "d"}, {kNativeIdentity, "nvfp4"}}};
  EXPECT_NO_THROW(check_identity(plain, {{"data", "d"}}, "at"));
  EXPECT_NO_THROW(check_identity(native, {{"data", "d"}, {kNativeIdentity, "nvfp4"}}, "at"));
  EXPECT_THAT(usage_error([&] {
                check_identity(native, {{"data", "d"}}, "at");
              }),
              HasSubstr("the checkpoint has nvfp4, this run nothing"));
  EXPECT_THAT(usage_error([&] {
                check_identity(plain, {{"data", "d"}, {kNativeIdentity, "nvfp4"}}, "at");
              }),
              HasSubstr("the checkpoint has nothing, this run nvfp4"));
}

TEST(NativeProducts, TheLogSaysHowTheyWereMade) {
  const HeaderEvent header{
      .run = "r",
      .emulated = true,
      .products = "3 of 4 quantised GEMMs native, 1 emulated-exact (both operands are E5M2: 1)"};
  const std::string line = json_line(header);
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "native_products.jsonl";
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text << '\n';
    return read_run_log(path).header;
  };
  EXPECT_EQ(read(line).products, header.products);
  const std::string older = line.substr(0, line.find(",\"products\"")) + "}";
  EXPECT_EQ(read(older).products, "") << "logs of before products were counted are read";
  EXPECT_TRUE(read(older).emulated);
}

}  // namespace
}  // namespace nibble
