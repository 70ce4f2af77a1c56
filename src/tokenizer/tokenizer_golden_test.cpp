// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "io/json.h"
#include "tokenizer/tokenizer.h"

namespace nibble {
namespace {

/// Files trained and encoded by the library `tokenizers`; see tests/golden/tokenizers/README.md.
class TokenizerGolden : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder() const {
    return std::filesystem::path(NIBBLE_SOURCE_DIR "/tests/golden/tokenizers") / GetParam();
  }
};

TEST_P(TokenizerGolden, AwkwardStringsGetTheSameIdsAndComeBackTheSame) {
  const Tokenizer tokenizer = Tokenizer::load(folder());
  const Json rows = read_json(folder() / "golden.json");
  EXPECT_GE(rows.size(), 39u);
  for (const Json& row : rows) {
    const auto text = row.at("text").get<std::string>();
    const auto ids = row.at("ids").get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer.encode(text), ids) << json_quote(text);
    EXPECT_EQ(tokenizer.decode(ids), row.at("decoded").get<std::string>()) << json_quote(text);
  }
}

TEST_P(TokenizerGolden, DecodingOnesOwnEncodingGivesTheTextExceptForNormalisation) {
  const Tokenizer tokenizer = Tokenizer::load(folder());
  for (const Json& row : read_json(folder() / "golden.json")) {
    const auto text = row.at("text").get<std::string>();
    const std::string back = tokenizer.decode(tokenizer.encode(text));
    if (GetParam() == "tok_qwen")
      EXPECT_EQ(tokenizer.encode(back), tokenizer.encode(text)) << json_quote(text);
    else
      EXPECT_EQ(back, text);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerGolden,
                         ::testing::Values("tok_gpt2", "tok_llama3", "tok_qwen", "tok_tekken"));

}  // namespace
}  // namespace nibble
