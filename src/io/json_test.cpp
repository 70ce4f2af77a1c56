// SPDX-License-Identifier: Apache-2.0
#include "io/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "io/test_dir.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Json, BareInfinityAndItsObjectFormAreTheSameNumber) {
  const Json j =
      parse_json(R"({"limit": [0.0, Infinity], "low": -Infinity, "odd": NaN, "text": "Infinity, -NaN \" NaN",
                               "object": {"__float__": "Infinity"}, "minus": -1.5})",
                 "config.json");
  EXPECT_EQ(json_get<std::vector<Json>>(j, "limit", "f").size(), 2u);
  EXPECT_EQ(json_double(j["limit"][1], "f"), kInf);
  EXPECT_EQ(json_get<double>(j, "low", "f"), -kInf);
  EXPECT_TRUE(std::isnan(json_get<double>(j, "odd", "f")));
  EXPECT_EQ(json_get<double>(j, "object", "f"), kInf);
  EXPECT_EQ(json_get<double>(j, "minus", "f"), -1.5);
  EXPECT_EQ(json_get<std::string>(j, "text", "f"), "Infinity, -NaN \" NaN");
  EXPECT_EQ(json_double(json_from_double(kInf), "f"), kInf);
}

TEST(Json, ErrorsNameFileAndKey) {
  const Json j = parse_json(R"({"hidden_size": "wide", "layers": 1.5, "negative": -3})", "config.json");
  EXPECT_THAT(error_of([&] { json_get<int>(j, "hidden_size", "config.json"); }),
              AllOf(HasSubstr("config.json"), HasSubstr("\"hidden_size\""), HasSubstr("an integer"),
                    HasSubstr("wide")));
  EXPECT_THAT(error_of([&] { json_get<int>(j, "layers", "config.json"); }), HasSubstr("an integer"));
  EXPECT_THAT(error_of([&] { json_get<unsigned>(j, "negative", "config.json"); }), HasSubstr(">= 0"));
  EXPECT_THAT(error_of([&] { json_get<int>(j, "heads", "config.json"); }), HasSubstr("\"heads\" is missing"));
  EXPECT_THAT(error_of([] { json_get<int>(parse_json("{\"n\": 3000000000}", "f"), "n", "f"); }),
              HasSubstr("smaller"));
  EXPECT_EQ(json_get_or<int>(j, "heads", 7, "config.json"), 7);
  EXPECT_THAT(error_of([] { parse_json("{\n \"a\": 1,\n}", "config.json"); }),
              AllOf(HasSubstr("config.json"), HasSubstr("line 3")));
  EXPECT_THAT(error_of([] { read_json("/nonexistent/config.json"); }), HasSubstr("/nonexistent/config.json"));
}

TEST(Json, DuplicateKeysAreRefusedOnRequestAtAnyDepth) {
  const JsonOptions strict{.refuse_duplicate_keys = true};
  EXPECT_THAT(error_of([&] { parse_json(R"({"a": {"b": 1, "b": 2}})", "f", strict); }),
              HasSubstr("\"b\" appears twice"));
  EXPECT_EQ(error_of([&] { parse_json(R"({"a": {"b": 1}, "b": [{"b": 2}, {"b": 3}]})", "f", strict); }), "");
}

TEST(Json, NumbersReadBackAsTheSameBits) {
  for (const double x : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, 123456789012345680.0}) {
    const double back = Json::parse(json_number(x)).get<double>();
    EXPECT_EQ(std::signbit(back), std::signbit(x));
    EXPECT_EQ(back, x);
  }
  for (const float x : {0.1f, 1.0f / 3, 1e-45f, 3.4028235e38f}) {
    EXPECT_EQ(static_cast<float>(Json::parse(json_number(x)).get<double>()), x);
  }
  EXPECT_EQ(json_number(-kInf), "\"-Infinity\"");
}

}  // namespace
}  // namespace nibble
