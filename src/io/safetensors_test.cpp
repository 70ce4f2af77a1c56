// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "io/json.h"
#include "io/test_dir.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A file with this header and this much data.
std::filesystem::path raw_file(const TestDir& dir, const std::string& header, std::size_t data_bytes) {
  std::string text(8, '\0');
  const std::uint64_t n = header.size();
  std::memcpy(text.data(), &n, 8);
  write_file(dir / "raw.safetensors", text + header + std::string(data_bytes, 'x'));
  return dir / "raw.safetensors";
}

std::string open_error(const std::string& header, std::size_t data_bytes) {
  const TestDir dir;
  return error_of([&] { Safetensors::open_file(raw_file(dir, header, data_bytes)); });
}

TEST(Safetensors, WhatWasWrittenIsRead) {
  const TestDir dir;
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<std::uint8_t> b = {7, 8, 9};
  SafetensorsWriter writer(dir / "m.safetensors", {{"b", DType::U8, {3}},
                                                   {"a", DType::F32, {2, 3}},
                                                   {"scalar", DType::I64, {}},
                                                   {"empty", DType::BF16, {0, 4}}});
  writer.write("b", std::span<const std::uint8_t>(b));
  writer.write("a", std::span<const float>(a).first(2));  // in two parts, as a converter streams them
  writer.write("a", std::span<const float>(a).subspan(2));
  const std::int64_t number = -5;
  writer.write("scalar", std::span<const std::int64_t>(&number, 1));
  writer.finish();

  const auto file = Safetensors::open_file(dir / "m.safetensors");
  EXPECT_EQ(file.entries().size(), 4u);
  EXPECT_EQ(file.at("a").copy_as<float>(), a);
  EXPECT_EQ(file.at("a").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(file.at("b").copy_as<std::uint8_t>(), b);
  EXPECT_EQ(file.at("scalar").copy_as<std::int64_t>().at(0), -5);
  EXPECT_EQ(file.at("empty").dtype, DType::BF16);
  EXPECT_EQ(file.at("empty").numel(), 0);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST(Safetensors, DataStartsAtAMultipleOfEight) {
  const TestDir dir;
  for (const char* name : {"a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg"}) {
    SafetensorsWriter writer(dir / "m.safetensors", {{name, DType::F64, {1}}});
    const double x = 1.5;
    writer.write(name, std::span<const double>(&x, 1));
    writer.finish();
    const auto file = Safetensors::open_file(dir / "m.safetensors");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.at(name).bytes.data()) % 8, 0u) << name;
  }
}

TEST(Safetensors, WriterRefusesMissingAndSurplusBytes) {
  const TestDir dir;
  SafetensorsWriter writer(dir / "m.safetensors", {{"a", DType::F32, {2}}});
  const std::vector<float> three(3);
  EXPECT_THAT(error_of([&] { writer.write("a", std::span<const float>(three)); }),
              HasSubstr("more than its 8 bytes"));
  writer.write("a", std::span<const float>(three).first(1));
  EXPECT_THAT(error_of([&] { writer.finish(); }), HasSubstr("\"a\" got 4 of its 8 bytes"));
  EXPECT_THAT(error_of([&] { writer.write("b", std::span<const float>(three)); }), HasSubstr("not declared"));
}

TEST(Safetensors, RefusesEveryBrokenHeader) {
  const std::string ok = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(open_error(ok, 8), "");
  EXPECT_THAT(open_error(ok, 7),
              AllOf(HasSubstr("raw.safetensors"), HasSubstr("\"a\""), HasSubstr("outside")));
  EXPECT_THAT(open_error(ok, 9), HasSubstr("1 bytes after the last tensor"));
  EXPECT_THAT(open_error(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8),
              HasSubstr("needs 12 bytes"));
  EXPECT_THAT(open_error(R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", 8), HasSubstr("F31"));
  EXPECT_THAT(open_error(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8),
              HasSubstr("out of range"));
  EXPECT_THAT(open_error(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0),
              HasSubstr("more elements"));
  EXPECT_THAT(open_error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8),
              HasSubstr("outside"));
  EXPECT_THAT(open_error(R"({"a":{"dtype":"F32","shape":[2]}})", 8), HasSubstr("data_offsets"));
  EXPECT_THAT(open_error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                         R"("b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})",
                         9),
              AllOf(HasSubstr("\"b\""), HasSubstr("hole")));
  EXPECT_THAT(open_error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                         R"("b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
                         7),
              AllOf(HasSubstr("\"b\""), HasSubstr("overlaps")));
  EXPECT_THAT(open_error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                         R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                         4),
              HasSubstr("\"a\" appears twice"));
  EXPECT_THAT(open_error("[1]", 0), HasSubstr("'{'"));
  EXPECT_THAT(open_error("{\"a\":", 0), HasSubstr("not valid JSON"));
}

TEST(Safetensors, RefusesHeaderLongerThanFileOrFormatAllows) {
  const TestDir dir;
  for (const std::uint64_t n : {std::uint64_t{100}, std::uint64_t{100'000'001}, ~std::uint64_t{0}}) {
    std::string text(8, '\0');
    std::memcpy(text.data(), &n, 8);
    write_file(dir / "m.safetensors", text + "{}");
    EXPECT_THAT(error_of([&] { Safetensors::open_file(dir / "m.safetensors"); }), HasSubstr("header")) << n;
  }
  write_file(dir / "m.safetensors", "short");
  EXPECT_THAT(error_of([&] { Safetensors::open_file(dir / "m.safetensors"); }), HasSubstr("too few"));
}

void write_one(const std::filesystem::path& path, const std::string& name, float value) {
  SafetensorsWriter writer(path, {{name, DType::F32, {1}}});
  writer.write(name, std::span<const float>(&value, 1));
  writer.finish();
}

TEST(Safetensors, DamagedFilesNeverReadOutsideThemselves) {
  const TestDir dir;
  SafetensorsWriter writer(dir / "m.safetensors", {{"a", DType::F32, {2, 3}}, {"b", DType::U8, {3}}});
  writer.write("a", std::span<const float>(std::vector<float>(6, 1.0f)));
  writer.write("b", std::span<const std::uint8_t>(std::vector<std::uint8_t>(3, 1)));
  writer.finish();
  const auto size = std::filesystem::file_size(dir / "m.safetensors");
  for (std::size_t bit = 0; bit < size * 8; ++bit) {
    flip_bit(dir / "m.safetensors", bit);
    error_of([&] {  // refused with an Error, or still a file whose every byte may be read
      const auto file = Safetensors::open_file(dir / "m.safetensors");
      for (const auto& e : file.entries()) {
        EXPECT_EQ(e.bytes.size(), static_cast<std::size_t>(e.numel()) * size_of(e.dtype));
      }
    });
    flip_bit(dir / "m.safetensors", bit);
  }
  const auto file = Safetensors::open_file(dir / "m.safetensors");
  EXPECT_EQ(file.entries().size(), 2u);
}

TEST(Safetensors, ShardsReadAsOneModel) {
  const TestDir dir;
  write_one(dir / "model-00001-of-00002.safetensors", "x", 1);
  write_one(dir / "model-00002-of-00002.safetensors", "y", 2);
  write_safetensors_index(
      dir.path(), {{"x", "model-00001-of-00002.safetensors"}, {"y", "model-00002-of-00002.safetensors"}}, 8);
  const auto model = Safetensors::open_model(dir.path());
  EXPECT_EQ(model.at("x").copy_as<float>().at(0), 1);
  EXPECT_EQ(model.at("y").copy_as<float>().at(0), 2);
}

TEST(Safetensors, IndexAndShardsMustAgree) {
  const TestDir dir;
  write_one(dir / "one.safetensors", "x", 1);
  const auto error = [&] { return error_of([&] { Safetensors::open_model(dir.path()); }); };
  EXPECT_THAT(error(), HasSubstr("neither"));
  write_safetensors_index(dir.path(), {{"x", "one.safetensors"}, {"z", "one.safetensors"}}, 4);
  EXPECT_THAT(error(), HasSubstr("\"z\" is not in one.safetensors"));
  write_safetensors_index(dir.path(), {{"z", "one.safetensors"}}, 4);
  EXPECT_THAT(error(), HasSubstr("\"x\" of one.safetensors is not listed"));
  write_safetensors_index(dir.path(), {{"x", "../one.safetensors"}}, 4);
  EXPECT_THAT(error(), HasSubstr("not a file name beside the index"));
  write_safetensors_index(dir.path(), {{"x", "two.safetensors"}}, 4);
  EXPECT_THAT(error(), HasSubstr("two.safetensors"));
}

TEST(Safetensors, MissingTensorNamesANearMiss) {
  const TestDir dir;
  write_one(dir / "m.safetensors", "backbone.norm.weight", 1);
  const auto file = Safetensors::open_file(dir / "m.safetensors");
  EXPECT_THAT(error_of([&] { file.at("model.norm.weight"); }),
              HasSubstr("did you mean \"backbone.norm.weight\""));
}

}  // namespace
}  // namespace nibble
