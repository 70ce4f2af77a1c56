// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "io/file.h"
#include "io/hash.h"
#include "io/test_dir.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

void publish(const fs::path& target, const std::string& text) {
  AtomicDir dir(target);
  make_directories(dir.path() / "model");
  write_file(dir.path() / "model" / "weights", text);
  write_file(dir.path() / "state.json", "{}");
  write_file(dir.path() / "empty", "");
  dir.publish();
}

std::vector<fs::path> files_below(const fs::path& root) {
  std::vector<fs::path> out;
  for (const auto& e : fs::recursive_directory_iterator(root)) {
    if (e.is_regular_file()) out.push_back(e.path());
  }
  return out;
}

TEST(AtomicDir, PublishedDirectoryVerifies) {
  const TestDir root;
  publish(root / "step_1", "abc");
  EXPECT_EQ(error_of([&] { verify_dir(root / "step_1"); }), "");
  EXPECT_EQ(read_file(root / "step_1/model/weights"), "abc");
  EXPECT_EQ(files_below(root.path()).size(), 5u);  // three files, manifest.json, COMPLETE
}

TEST(AtomicDir, EveryFlippedBitIsFoundAndItsFileNamed) {
  const TestDir root;
  publish(root / "step_1", "abc");
  for (const fs::path& file : files_below(root.path())) {
    for (std::size_t bit = 0; bit < fs::file_size(file) * 8; ++bit) {
      flip_bit(file, bit);
      EXPECT_THAT(error_of([&] { verify_dir(root / "step_1"); }), HasSubstr(file.string())) << "bit " << bit;
      flip_bit(file, bit);
    }
  }
  EXPECT_EQ(error_of([&] { verify_dir(root / "step_1"); }), "");
}

TEST(AtomicDir, ShortenedAndMissingFilesAreFound) {
  const TestDir root;
  publish(root / "step_1", "abc");
  for (const fs::path& file : files_below(root.path())) {
    const std::string good = read_file(file);
    if (!good.empty()) {
      FileWriter(file).write(good.substr(0, good.size() - 1));
      EXPECT_THAT(error_of([&] { verify_dir(root / "step_1"); }), HasSubstr(file.string()));
    }
    fs::remove(file);
    EXPECT_THAT(error_of([&] { verify_dir(root / "step_1"); }), HasSubstr(file.filename().string()));
    FileWriter(file).write(good);
  }
}

TEST(AtomicDir, UnpublishedDirectoryLeavesNothing) {
  const TestDir root;
  {
    AtomicDir dir(root / "step_1");
    write_file(dir.path() / "a", "a");
  }
  EXPECT_TRUE(fs::is_empty(root.path()));
}

TEST(AtomicDir, PublishingReplacesAnOlderDirectoryWhole) {
  const TestDir root;
  publish(root / "step_1", "old");
  write_file(root / "step_1/leftover", "x");
  publish(root / "step_1", "new");
  EXPECT_EQ(read_file(root / "step_1/model/weights"), "new");
  EXPECT_FALSE(fs::exists(root / "step_1/leftover"));
  EXPECT_EQ(numbered_dirs(root.path(), "step_").size(), 1u);
}

TEST(AtomicDir, LatestCompleteStepsBackOverDamagedAndUnfinished) {
  const TestDir root;
  for (int i : {1, 2, 9, 10}) publish(root / ("step_" + std::to_string(i)), "abc");
  EXPECT_EQ(find_latest_complete(root.path(), "step_").number, 10);  // by number, not by spelling
  fs::remove(root / "step_10/COMPLETE");
  FileWriter(root / "step_9/state.json").write("[]");
  make_directories(root / "step_11.tmp-dead");
  const auto found = find_latest_complete(root.path(), "step_");
  EXPECT_EQ(found.number, 2);
  EXPECT_EQ(found.directory, root / "step_2");
  ASSERT_EQ(found.rejected.size(), 2u);
  EXPECT_THAT(found.rejected[0], AllOf(HasSubstr("step_10"), HasSubstr("COMPLETE")));
  EXPECT_THAT(found.rejected[1], HasSubstr("step_9/state.json"));
  EXPECT_FALSE(find_latest_complete(root / "nowhere", "step_").directory);
}

TEST(AtomicDir, PruneKeepsTheLastValidOnes) {
  const TestDir root;
  for (int i = 1; i <= 5; ++i) publish(root / ("step_" + std::to_string(i)), "abc");
  fs::remove(root / "step_5/COMPLETE");
  prune(root.path(), "step_", 2);
  std::vector<std::string> left;
  for (const auto& d : numbered_dirs(root.path(), "step_")) left.push_back(d.filename());
  EXPECT_EQ(left, (std::vector<std::string>{"step_5", "step_4", "step_3"}));
  fs::remove(root / "step_4/COMPLETE");
  prune(root.path(), "step_", 1);
  EXPECT_EQ(find_latest_complete(root.path(), "step_").number, 3);
  EXPECT_NE(error_of([&] { prune(root.path(), "step_", 0); }), "");
}

TEST(AtomicDir, CleanTemporaryRemovesOnlyWhatCrashesLeave) {
  const TestDir root;
  publish(root / "step_1", "abc");
  make_directories(root / "step_2.tmp-abc123/model");
  make_directories(root / "other.tmp-abc123");
  clean_temporary(root.path(), "step_");
  EXPECT_TRUE(fs::exists(root / "step_1"));
  EXPECT_FALSE(fs::exists(root / "step_2.tmp-abc123"));
  EXPECT_TRUE(fs::exists(root / "other.tmp-abc123"));
}

/// Lets files grow to `bytes` and no further while it lives: the nearest thing to a full disk without being
/// root.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    previous_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &previous_);
    const rlimit limit{bytes, previous_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &previous_);
    std::signal(SIGXFSZ, previous_handler_);
  }

 private:
  rlimit previous_{};
  void (*previous_handler_)(int) = nullptr;
};

TEST(AtomicDir, FailedWriteLeavesTheOldDirectoryGood) {
  const TestDir root;
  publish(root / "step_1", "abc");
  std::string error;
  {
    const FileSizeLimit limit(1000);
    error = error_of([&] { publish(root / "step_1", std::string(5000, 'x')); });
  }
  EXPECT_THAT(error, AllOf(HasSubstr("model/weights"), HasSubstr("write elsewhere")));
  EXPECT_EQ(error_of([&] { verify_dir(root / "step_1"); }), "");
  EXPECT_EQ(read_file(root / "step_1/model/weights"), "abc");
  EXPECT_EQ(std::distance(fs::directory_iterator(root.path()), {}), 1);
}

TEST(FileWriter, FullDiskIsNamedWithItsRemedy) {
  FileWriter full("/dev/full");
  EXPECT_THAT(error_of([&] { full.write("x"); }),
              AllOf(HasSubstr("/dev/full"), HasSubstr("no space left"), HasSubstr("Free some space")));
}

TEST(FileWriter, AtomicReplacementKeepsTheOldFileWhenItFails) {
  const TestDir root;
  write_file_atomically(root / "a", "old");
  {
    const FileSizeLimit limit(100);
    EXPECT_NE(error_of([&] { write_file_atomically(root / "a", std::string(500, 'x')); }), "");
  }
  EXPECT_EQ(read_file(root / "a"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(root.path()), {}), 1);
}

TEST(Xxh3, KnownValuesAndStreamingAgree) {
  EXPECT_EQ(hex64(xxh3_64("")), "2d06800538d394c2");  // values of the XXH3 specification for empty input
  EXPECT_EQ(xxh3_128_hex(""), "99aa06d3014798d86001c324468d497f");
  std::string text(3000, 'a');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7);
  Xxh3 hash;
  hash.update(std::string_view(text).substr(0, 1)).update(std::string_view(text).substr(1));
  EXPECT_EQ(hash.digest64(), xxh3_64(text));
  EXPECT_EQ(hash.digest128_hex(), xxh3_128_hex(text));
}

}  // namespace
}  // namespace nibble
