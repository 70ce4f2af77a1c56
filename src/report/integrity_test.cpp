// SPDX-License-Identifier: Apache-2.0
#include "report/integrity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "report/fixture.h"
#include "train/run_config.h"
#include "train/setup.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A folder with the run.toml of a fixture's comparison.
class Folder {
 public:
  explicit Folder(const std::string& name) : folder_(std::filesystem::path(::testing::TempDir()) / name) {
    std::filesystem::create_directories(folder_);
    data = fixture::comparison();
    write(RunConfig{});
    data.protocol.contract["precision"] = maths_hash(RunConfig{}, true);
    for (auto& arm : data.arms) arm.header.protocol = protocol_hash(data.protocol);
    data.verdict.protocol_hash = protocol_hash(data.protocol);
  }
  ~Folder() { std::filesystem::remove_all(folder_); }
  void write(const RunConfig& c) const { std::ofstream(folder_ / "run.toml") << to_toml(c); }
  std::vector<std::string> changes() const { return changes_after_run(folder_, data); }

  ReportData data;

 private:
  std::filesystem::path folder_;
};

TEST(ChangesAfterRun, AreNoneForARunAsItWas) { EXPECT_THAT(Folder("as_it_was").changes(), IsEmpty()); }

TEST(ChangesAfterRun, FindAnEditedProtocol) {
  Folder run("edited_protocol");
  run.data.protocol.windows.back().limit = 0.2;
  run.data.protocol.windows.front().limit = 0.2;
  const auto changes = run.changes();
  ASSERT_FALSE(changes.empty());
  EXPECT_THAT(changes[0], HasSubstr("is not the protocol that was frozen before step 0"));
  EXPECT_THAT(changes[0], HasSubstr("baseline, candidate, candidate_aa"));
}

TEST(ChangesAfterRun, FindAnEditedConfiguration) {
  Folder run("edited_config");
  RunConfig c;
  c.optimizer.lr *= 2;
  run.write(c);
  EXPECT_THAT(run.changes(), ElementsAre(HasSubstr("not the configuration that was trained")));
  c = RunConfig{};
  c.protocol.limit = 0.2;
  run.write(c);
  EXPECT_THAT(run.changes(), ElementsAre(HasSubstr("a limit of 20 %, the protocol has 3.5 %")));
}

TEST(ChangesAfterRun, FindAVerdictUnderAnotherProtocol) {
  Folder run("other_verdict");
  run.data.verdict.protocol_hash = "0123";
  EXPECT_THAT(run.changes(), ElementsAre(HasSubstr("the verdict was given under another protocol")));
}

TEST(ChangeBanner, OpensEveryFormOfTheReport) {
  ReportData d = fixture::comparison();
  EXPECT_EQ(change_banner(d), "");
  d.changes = {"protocol.json is another"};
  const std::string banner = change_banner(d);
  EXPECT_THAT(banner, HasSubstr("NOT PRE-REGISTERED: protocol.json is another."));
  EXPECT_TRUE(summary_text(d).starts_with(banner + "\n"));
  EXPECT_TRUE(summary_markdown(d).starts_with("**" + banner)) << summary_markdown(d);
  const std::string html = report_html(d);
  EXPECT_LT(html.find(banner), html.find("<h1>")) << "the page opens with it";
}

}  // namespace
}  // namespace nibble
