// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "numeric/bf16.h"
#include "numeric/random_key.h"
#include "quant/format_names.h"
#include "quant/four_over_six.h"
#include "quant/nvfp4.h"

namespace nibble {
namespace {

constexpr Profile kProfiles[] = {Profile::Te,      Profile::Te213,    Profile::Exact,
                                 Profile::TorchAo, Profile::ModelOpt, Profile::Ct};

using Block = float[16];

float fill_normal(Block& x, std::uint64_t seed, float size) {
  float amax = 0;
  for (int j = 0; j < 16; ++j) {
    x[j] = bf16::nearest(size * static_cast<float>(initial_normal(seed, 0, static_cast<std::uint64_t>(j))))
               .value();
    amax = amax_dropping_nan(amax, x[j]);
  }
  return amax;
}

float scale_of(Profile p, float tensor_amax, float block_amax) {
  return block_scale(block_amax, TensorScale::from_amax(tensor_amax), p).value();
}

std::string codes_of(const Nvfp4Block& b) {
  std::string text;
  for (int j = 0; j < 16; ++j) text += "0123456789abcdef"[unpack_code(b.codes, j).code];
  return text;
}

TEST(Nvfp4Profiles, OrderOfOperationsDecidesTheScaleWhereBf16DataMeetsATie) {
  struct Case {
    float tensor, block, te, te213, torchao, modelopt, ct;
  };
  for (const Case& c :
       {Case{4.0625f, 3.046875f, 352, 320, 320, 320, 320}, Case{4.375f, 2.265625f, 240, 224, 224, 224, 224},
        Case{4.375f, 2.65625f, 288, 288, 256, 256, 288}}) {
    EXPECT_EQ(scale_of(Profile::Te, c.tensor, c.block), c.te);
    EXPECT_EQ(scale_of(Profile::Exact, c.tensor, c.block), c.te);
    EXPECT_EQ(scale_of(Profile::Te213, c.tensor, c.block), c.te213);
    EXPECT_EQ(scale_of(Profile::TorchAo, c.tensor, c.block), c.torchao);
    EXPECT_EQ(scale_of(Profile::ModelOpt, c.tensor, c.block), c.modelopt);
    EXPECT_EQ(scale_of(Profile::Ct, c.tensor, c.block), c.ct);
  }
}

TEST(Nvfp4Profiles, ZeroBlocksAndUnderflowsHaveTheScaleThatEachSourceGivesThem) {
  struct Case {
    Profile profile;
    std::uint8_t zero, underflow;
  };
  for (const Case& c : {Case{Profile::Te, 0x00, 0x00}, Case{Profile::Te213, 0x00, 0x00},
                        Case{Profile::Exact, 0x00, 0x00}, Case{Profile::TorchAo, 0x08, 0x08},
                        Case{Profile::ModelOpt, 0x38, 0x01}, Case{Profile::Ct, 0x20, 0x20}}) {
    const TensorScale g = TensorScale::from_amax(1.0f);
    EXPECT_EQ(block_scale(0.0f, g, c.profile).bits, c.zero) << profile_name(c.profile);
    EXPECT_EQ(block_scale(1e-6f, g, c.profile).bits, c.underflow) << profile_name(c.profile);
  }
}

TEST(Nvfp4Profiles, AZeroTensorHasZeroCodesAndDecodesToZeroUnderEveryProfile) {
  const Block x = {};
  for (Profile p : kProfiles) {
    for (float amax : {0.0f, 1e-45f, 1.0f}) {
      const TensorScale g = TensorScale::from_amax(amax);
      const Nvfp4Block b = encode_block(x, g, p, NearestEven{});
      EXPECT_EQ(codes_of(b), "0000000000000000") << profile_name(p) << " " << amax;
      EXPECT_EQ(decode(unpack_code(b.codes, 0), b.scale, amax), 0.0f);
    }
  }
}

TEST(Nvfp4Profiles, TiesGoToEvenOrAwayAsAskedUnderEveryProfile) {
  const Block x = {6.0f,  5.0f,   3.5f,   2.5f,   1.75f,  1.25f, 0.75f, 0.25f,
                   -0.0f, -0.25f, -0.75f, -1.25f, -1.75f, -2.5f, -3.5f, -5.0f};
  const TensorScale g = TensorScale::from_amax(2688.0f);
  for (Profile p : kProfiles) {
    const Nvfp4Block even = encode_block(x, g, p, NearestEven{}), away = encode_block(x, g, p, NearestAway{});
    EXPECT_EQ(even.scale.value(), 1.0f) << profile_name(p);
    EXPECT_EQ(codes_of(even), "7664422088aaccee") << profile_name(p);
    EXPECT_EQ(codes_of(away), "7765432189abcdef") << profile_name(p);
  }
}

TEST(Nvfp4Profiles, WithTheTensorsAmaxInTheBlockTheWholeRangeIsUsed) {
  Block x = {0.37f};
  for (Profile p : kProfiles) {
    const Nvfp4Block b = encode_block(x, TensorScale::from_amax(0.37f), p, NearestEven{});
    EXPECT_EQ(b.scale.bits, 0x7E) << profile_name(p);
    EXPECT_EQ(unpack_code(b.codes, 0).code, 7) << profile_name(p);
  }
}

/// The code that decodes nearest to x, in exact arithmetic on integers: |x| 2688 against m scale G.
int nearest_by_integers(float x, E4M3 scale, float amax) {
  const long double p = std::abs(static_cast<long double>(x)) * 2688;
  const long double unit = static_cast<long double>(scale.value()) * static_cast<long double>(amax);
  const long double ties[] = {0.25L, 0.75L, 1.25L, 1.75L, 2.5L, 3.5L, 5.0L};
  int code = 0;
  for (int i = 0; i < 7; ++i) code += i % 2 == 1 ? p >= ties[i] * unit : p > ties[i] * unit;
  return code | (std::signbit(x) ? 8 : 0);
}

TEST(Nvfp4Exact, EveryCodeIsTheNearestInExactArithmetic) {
  int differs = 0, from = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    Block x;
    const float amax = fill_normal(x, seed, 1.0f);
    const float tensor = amax * (1.0f + static_cast<float>(seed % 9) / 8);
    const TensorScale g = TensorScale::from_amax(tensor);
    const Nvfp4Block exact = encode_block(x, g, Profile::Exact, NearestEven{});
    const Nvfp4Block te = encode_block(x, g, Profile::Te, NearestEven{});
    EXPECT_EQ(exact.scale, te.scale);
    for (int j = 0; j < 16; ++j) {
      ASSERT_EQ(unpack_code(exact.codes, j).code, nearest_by_integers(x[j], exact.scale, tensor))
          << seed << " " << j;
      differs += unpack_code(exact.codes, j) == unpack_code(te.codes, j) ? 0 : 1;
      ++from;
    }
  }
  EXPECT_LT(differs, from / 100) << "Te rounds twice, which moves codes at ties only";
}

TEST(Nvfp4Exact, DiffersFromTeWhereItsRoundingsMoveATie) {
  // 1 and 2 lie on the ties 1.75 and 3.5 of scale 384 under amax 4, exactly; Te's product falls below them.
  const TensorScale g = TensorScale::from_amax(4.0f);
  for (const auto& [x, te, exact] : {std::tuple{1.0f, 3, 4}, {2.0f, 5, 6}}) {
    const Block block = {3.328125f, x};
    EXPECT_EQ(unpack_code(encode_block(block, g, Profile::Te, NearestEven{}).codes, 1).code, te);
    EXPECT_EQ(unpack_code(encode_block(block, g, Profile::Exact, NearestEven{}).codes, 1).code, exact);
  }
}

TEST(Nvfp4Profiles, DecodedValuesAreWithinOneScaleOfTheInput) {
  for (Profile p : kProfiles) {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
      Block x;
      const float amax = fill_normal(x, seed, std::ldexp(1.0f, static_cast<int>(seed % 60) - 30));
      const float tensor = amax * 3;
      const Nvfp4Block b = encode_block(x, TensorScale::from_amax(tensor), p, NearestEven{});
      const float unit = decode_factor(b.scale, tensor);
      for (int j = 0; j < 16; ++j) {
        ASSERT_LE(std::abs(decode(unpack_code(b.codes, j), b.scale, tensor) - x[j]), unit * 1.0001f)
            << profile_name(p) << " " << seed;
      }
    }
  }
}

TEST(ProfileNames, LeadBackToTheirProfilesAndAnUnknownOneIsAUsageError) {
  for (Profile p : kProfiles) EXPECT_EQ(profile_from_name(profile_name(p)), p);
  EXPECT_EQ(profile_names().size(), std::size(kProfiles));
  EXPECT_THROW(profile_from_name("nvfp4.tea"), Error);
  EXPECT_EQ(arithmetic_name({.format = Format::Nvfp4, .profile = Profile::Ct}), "nvfp4.ct");
  EXPECT_EQ(arithmetic_name({.format = Format::Mxfp4, .scale_rule = MxScaleRule::Floor}), "mxfp4.floor");
  EXPECT_EQ(arithmetic_name({.format = Format::Nvfp4, .four_over_six = FourOverSix::Mse, .scale_bound = 256}),
            "nvfp4.te 4over6-mse/256");
}

TEST(FourOverSixBlock, TakesFourWhereItDecodesBetterAndSixOnATie) {
  const Block tens = {10, 20, 30, 40, 10, 20, 30, 40, 10, 20, 30, 40, 10, 20, 30, 40};
  const Block sixes = {6, 4, 3, 2, 1, 0.5f, 0, 6, 4, 3, 2, 1, 0.5f, 0, 6, 6};
  constexpr float kRange = 1536;
  const TensorScale g = TensorScale::from_amax(kRange, kRange);
  for (FourOverSix measure : {FourOverSix::Mae, FourOverSix::Mse}) {
    const Nvfp4Block b = encode_four_over_six(tens, 40, g, kRange, measure, NearestEven{});
    EXPECT_EQ(b.scale.value(), 10.0f);
    EXPECT_EQ(codes_of(b), "2456245624562456");
    EXPECT_EQ(encode_four_over_six(sixes, 6, g, kRange, measure, NearestEven{}).scale.value(), 1.0f);
    const Block zeros = {};
    EXPECT_EQ(codes_of(encode_four_over_six(zeros, 0, g, kRange, measure, NearestEven{})),
              "0000000000000000");
  }
}

TEST(FourOverSixBlock, NeverHasALargerErrorThanMappingToSix) {
  int four = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Block x;
    const float amax = fill_normal(x, seed, 1.0f), tensor = 2 * amax;
    const TensorScale g = TensorScale::from_amax(tensor, 1536);
    const Nvfp4Block b = encode_four_over_six(x, amax, g, 1536, FourOverSix::Mse, NearestEven{});
    Nvfp4Block six{.scale = candidate_scales(amax, g).six};
    encode_codes(x, block_multiplier(six.scale, g), NearestEven{}, six.codes);
    const auto error = [&](const Nvfp4Block& block) {
      return coding_error(x, block.codes, block.scale, tensor, 1536, FourOverSix::Mse);
    };
    ASSERT_LE(error(b), error(six));
    four += b.scale == six.scale ? 0 : 1;
  }
  EXPECT_NEAR(four / 2000.0, 0.45, 0.05) << "the published share of Gaussian blocks that map to 4";
}

TEST(FourOverSixBlock, UnderTheBound448TheLargestBlockCannotMapToFour) {
  const Block tens = {10, 20, 30, 40, 10, 20, 30, 40, 10, 20, 30, 40, 10, 20, 30, 40};
  const CandidateScales at448 = candidate_scales(40, TensorScale::from_amax(40, 2688));
  EXPECT_EQ(at448.six, at448.four) << "1.5 times 448 saturates";
  const CandidateScales at256 = candidate_scales(40, TensorScale::from_amax(40, 1536));
  EXPECT_EQ(at256.four.value(), 384.0f);
  EXPECT_EQ(at256.six.value(), 256.0f);
  EXPECT_EQ(
      encode_four_over_six(tens, 40, TensorScale::from_amax(40, 1536), 1536, FourOverSix::Mse, NearestEven{})
          .scale.value(),
      384.0f);
}

}  // namespace
}  // namespace nibble
