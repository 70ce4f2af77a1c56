// SPDX-License-Identifier: Apache-2.0
#include "io/jsonl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "io/test_dir.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST(Jsonl, LineKeepsOrderAndTypes) {
  JsonLine line;
  line.add("step", 3).add("loss", 0.1f).add("name", "a\"b").add("ok", true);
  line.add("inf", std::numeric_limits<double>::infinity()).add("list", std::vector<int>{1, 2});
  EXPECT_EQ(
      line.text(),
      "{\"step\":3,\"loss\":0.1,\"name\":\"a\\\"b\",\"ok\":true,\"inf\":\"Infinity\",\"list\":[1,2]}\n");
}

TEST(Jsonl, TornLastLineIsDroppedAndBadLineIsNamed) {
  const TestDir dir;
  write_file(dir / "m.jsonl", "{\"step\":1}\n{\"step\":2}\n{\"ste");
  EXPECT_EQ(read_jsonl(dir / "m.jsonl").size(), 2u);
  write_file(dir / "m.jsonl", "{\"step\":1}\n{\"ste\n{\"step\":3}\n");
  EXPECT_THAT(error_of([&] { read_jsonl(dir / "m.jsonl"); }), HasSubstr("m.jsonl: line 2"));
}

TEST(Jsonl, ResumeGivesTheFileOfAnUninterruptedRun) {
  const TestDir dir;
  const auto log = [](const std::filesystem::path& path, int begin, int end) {
    JsonlWriter writer(path);
    for (int i = begin; i < end; ++i) writer.write(JsonLine().add("step", i).add("loss", 1.0 / (i + 3)));
    writer.sync();
  };
  log(dir / "whole", 0, 10);
  log(dir / "parts", 0, 8);
  FileWriter(dir / "parts", FileWriter::Mode::Append).write("{\"step\":8,\"lo");  // killed here
  truncate_jsonl_after(dir / "parts", "step", 4);
  log(dir / "parts", 5, 10);
  EXPECT_EQ(read_file(dir / "parts"), read_file(dir / "whole"));
  truncate_jsonl_after(dir / "absent", "step", 4);
  EXPECT_FALSE(std::filesystem::exists(dir / "absent"));
}

}  // namespace
}  // namespace nibble
