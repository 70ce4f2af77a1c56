// SPDX-License-Identifier: Apache-2.0
// Tasks as a user meets them: a verb, a section of a training run, a part of a comparison.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "run_tool.h"

namespace nibble::e2e {
namespace {

using nlohmann::json;

void write_tasks(const Workspace& w) {
  std::filesystem::create_directories(w.path() / "tasks");
  w.write("tasks/tasks.jsonl",
          "{\"task\": \"words\", \"kind\": \"multiple_choice\"}\n{\"task\": \"text\", \"kind\": \"text\"}\n");
  std::string rows;
  for (const char* subject : {"the cat", "a dog", "the mat", "dogs and the cat"})
    rows +=
        "{\"query\": \"" + std::string(subject) + "\", \"choices\": [\"sat on\", \"zqx!\"], \"gold\": 0}\n";
  w.write("tasks/words.jsonl", rows);
  w.write("tasks/text.jsonl", "{\"text\": \"the cat sat on a mat and saw dogs run.\"}\n");
}

TEST(Eval, ScoresARunInEveryPrecisionAndWritesWhatItFound) {
  const Workspace w;
  write_tasks(w);
  ASSERT_EQ(w.nibble("train run.toml --set eval.tasks=tasks --set eval.every_steps=10").code, 0);
  for (const char* precision : {"bf16", "fp32", "w4a4", "w4a16"}) {
    const Outcome o =
        w.nibble(std::string("eval runs/tiny --tasks tasks --json out.json --samples s.jsonl ") +
                 "--precision " + precision);
    EXPECT_EQ(o.code, 0) << o.output;
    const json results = json::parse(w.read("out.json")).at("results");
    EXPECT_GT(results.at("words").at("acc,none").get<double>(), 0.5) << precision;
    EXPECT_GT(results.at("text").at("bits_per_byte,none").get<double>(), 0) << precision;
  }
  const std::string samples = w.read("s.jsonl");
  EXPECT_EQ(std::count(samples.begin(), samples.end(), '\n'), 5);

  // What training logged at its end is what the verb says of the checkpoint.
  ASSERT_EQ(w.nibble("eval runs/tiny --tasks tasks --json out.json").code, 0);
  const json verb = json::parse(w.read("out.json")).at("results");
  std::istringstream log(w.read("runs/tiny/metrics.jsonl"));
  std::vector<json> lines;
  for (std::string line; std::getline(log, line);)
    if (json::parse(line).at("type") == "task") lines.push_back(json::parse(line));
  ASSERT_EQ(lines.size(), 4u) << "two tasks at steps 10 and 20";
  EXPECT_EQ(lines[2].at("step"), 20);
  EXPECT_EQ(lines[2].at("acc"), verb.at("words").at("acc,none"));
  EXPECT_NEAR(lines[3].at("bits_per_byte").get<double>(),
              verb.at("text").at("bits_per_byte,none").get<double>(), 1e-3);
  EXPECT_FALSE(w.read("runs/tiny/eval/step_00000010.json").empty());
}

TEST(Eval, ValidateComparesTheArmsOnTasksOfTheFrozenProtocol) {
  const Workspace w;
  write_tasks(w);
  const Outcome o = w.nibble(
      "validate run.toml --quiet --set training.steps=60 --set eval.tasks=tasks --set protocol.aa_arm=false");
  EXPECT_TRUE(o.code == 0 || o.code == 3 || o.code == 4) << o.code << o.output;
  const json v = json::parse(w.read("runs/tiny/verdict.json"));
  const json p = json::parse(w.read("runs/tiny/protocol.json"));
  EXPECT_EQ(p.at("tasks").at("names"), json({"words", "text"}));
  EXPECT_EQ(p.at("tasks").at("steps").size(), 3u);
  ASSERT_EQ(v.at("tasks").size(), 7u) << "four metrics of a choice, three of a text";
  for (const json& t : v.at("tasks")) {
    EXPECT_LE(t.at("ci95").at(0).get<double>(), t.at("difference").get<double>() + 1e-12);
    EXPECT_GE(t.at("ci95").at(1).get<double>(), t.at("difference").get<double>() - 1e-12);
  }
  EXPECT_NE(w.read("runs/tiny/report.html").find("<h2>Tasks</h2>"), std::string::npos);
}

TEST(Eval, SaysWhatIsMissingOrMalformed) {
  const Workspace w;
  write_tasks(w);
  Outcome o = w.nibble("train run.toml --set eval.tasks=nowhere");
  EXPECT_EQ(o.code, 2) << "before a step is trained: " << o.output;
  EXPECT_NE(o.output.find("tasks.jsonl"), std::string::npos) << o.output;
  ASSERT_EQ(w.nibble("train run.toml --set training.steps=5").code, 0);
  o = w.nibble("eval runs/tiny --tasks tasks --precision w4a8");
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(o.output.find("w4a4"), std::string::npos) << o.output;
  o = w.nibble("eval tasks --tasks tasks");
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(o.output.find("tasks is no model"), std::string::npos) << o.output;
  w.write("tasks/words.jsonl", "{\"query\": \"a\", \"choices\": [\"b\", \"c\"], \"gold\": 5}\n");
  o = w.nibble("eval runs/tiny --tasks tasks");
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(o.output.find("tasks/words.jsonl:1: \"gold\" is 5"), std::string::npos) << o.output;
  const std::string model = "runs/tiny/checkpoints/step_00000005/model";
  write_tasks(w);
  std::filesystem::copy(w.path() / model, w.path() / "bare");
  std::filesystem::remove(w.path() / "bare/tokenizer.json");
  o = w.nibble("eval bare --tasks tasks");
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(o.output.find("bare/tokenizer.json is not there"), std::string::npos) << o.output;
  EXPECT_EQ(w.nibble("eval bare --tasks tasks --tokenizer " + model).code, 0);
}

}  // namespace
}  // namespace nibble::e2e
