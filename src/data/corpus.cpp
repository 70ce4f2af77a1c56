// SPDX-License-Identifier: Apache-2.0
#include "data/corpus.h"

#include "base/error.h"
#include "base/nearest.h"

namespace nibble {

Corpus bundled_corpus(std::string_view name, const std::filesystem::path& root) {
  check_usage(name == "austen", "unknown corpus \"{}\"; bundled is austen{}", name,
              did_you_mean(name, {"austen"}));
  const auto novel = [&](const char* file) { return root / "austen" / file; };
  return {
      .name = "austen",
      .train = {{novel("sense_and_sensibility.txt")},
                {novel("pride_and_prejudice.txt")},
                {novel("mansfield_park.txt")},
                {novel("emma.txt")},
                {novel("northanger_abbey.txt"), 0.0, 0.9}},
      .validation = {{novel("northanger_abbey.txt"), 0.9, 1.0}},
      .evaluation = {{novel("persuasion.txt")}},
  };
}

Corpus corpus_of_files(const std::string& name, const std::vector<std::filesystem::path>& train,
                       const std::vector<std::filesystem::path>& validation, double held_out) {
  check_usage(!train.empty(), "corpus {}: no training files given", name);
  Corpus corpus{.name = name};
  for (const auto& path : train) corpus.train.push_back({path});
  for (const auto& path : validation) corpus.validation.push_back({path});
  if (validation.empty()) {
    check_usage(held_out > 0 && held_out < 1, "corpus {}: the held-out share {} is not between 0 and 1", name,
                held_out);
    corpus.train.back().end_fraction = 1 - held_out;
    corpus.validation = {{train.back(), 1 - held_out, 1.0}};
  }
  return corpus;
}

}  // namespace nibble
