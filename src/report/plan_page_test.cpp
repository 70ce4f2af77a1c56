// SPDX-License-Identifier: Apache-2.0
#include "report/plan_page.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <regex>

#include "io/file.h"
#include "plan/recipes.h"

namespace nibble {
namespace {

std::vector<Plan> plans(const char* model, const char* hardware) {
  PlanRequest r;
  r.model = find_plan_model(model);
  r.recipe = find_plan_recipe("nvfp4");
  r.hardware = find_hardware(hardware);
  r.layout.gpus = 64;
  r.layout.global_batch = 512;
  r.search_layout = true;
  r.price = 3;
  return compare_plans(r, {"bf16", "fp8-paper", "mxfp8", "mxfp4", "nvfp4"});
}

TEST(PlanPage, HasEveryRecipeAndEverySectionAndNothingFromTheNetwork) {
  const std::string page = plan_page(plans("llama-3-70b", "gb300"));
  for (const char* part :
       {"bf16", "fp8-paper", "mxfp8", "mxfp4", "nvfp4", "Where the time goes", "Where the memory goes",
        "Time to equal loss", "sparse, never reached", "1.0 to 1.5 times"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos);
}

TEST(PlanPage, EveryPartOfHybridsMixturesAndEmulationHasAColour) {
  for (const char* model : {"paper-12b", "nemotron-3-super", "llama-1.2b"}) {
    for (const char* hardware : {"gb200", "h200"})
      EXPECT_NO_THROW(plan_page(plans(model, hardware))) << model << hardware;
  }
}

TEST(PlanPage, BarsAddUpToTheStep) {
  const std::vector<Plan> all = plans("llama-3.1-8b", "gb200");
  const std::string page = plan_page(all);
  const std::regex part("<title>[^<:]*: ([0-9.e+-]+) µs");
  double sum = 0, expected = 0;
  for (auto it = std::sregex_iterator(page.begin(), page.end(), part); it != std::sregex_iterator(); ++it)
    sum += std::stod((*it)[1]);
  for (const Plan& p : all) expected += 1e6 / p.time.tokens_per_gpu_s;
  EXPECT_NEAR(sum, expected, 0.01 * expected) << "three digits are printed of each part";
}

TEST(PlanPage, IsWrittenWhole) {
  const auto path =
      std::filesystem::temp_directory_path() / ("nibble_plan_page_" + std::to_string(::getpid()) + ".html");
  const std::vector<Plan> all = plans("llama-1.2b", "b200");
  write_plan_page(all, path);
  EXPECT_EQ(read_file(path), plan_page(all));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace nibble
