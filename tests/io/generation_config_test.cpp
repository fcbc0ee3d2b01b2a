// What a generation_config.json says of how texts end and how tokens are drawn.
#include <octavo/io/generation_config.hpp>

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/temporary_folder.hpp"

namespace generation_config_test {

class GenerationConfig : public support::TemporaryFolder {
 protected:
  octavo::GenerationConfig read(const std::string& text) {
    std::ofstream(folder_ / "g.json") << text;
    return octavo::read_generation_config(folder_ / "g.json");
  }
  std::string refusal(const std::string& text) {
    try {
      (void)read(text);
    } catch (const octavo::ConfigError& error) {
      return error.what();
    }
    return "read";
  }
};

// As Qwen2.5-Instruct has it.
TEST_F(GenerationConfig, ReadsEndOfTextAndSampling) {
  const auto config = read(R"({"bos_token_id": 151643, "pad_token_id": 151643, "do_sample": true,
    "eos_token_id": [151645, 151643], "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8,
    "top_k": 20, "transformers_version": "4.37.0"})");
  EXPECT_EQ(config.end_of_text, (std::vector<octavo::Index>{151645, 151643}));
  EXPECT_EQ(config.temperature, 0.7);
  EXPECT_EQ(config.top_k, 20);
  EXPECT_EQ(config.top_p, 0.8);
  EXPECT_EQ(config.unsupported, std::vector<std::string>{"repetition_penalty"});
}

TEST_F(GenerationConfig, AllowsMissingFileAndKeys) {
  for (const auto& config : {read("{}"), octavo::read_generation_config(folder_ / "absent.json"),
                             read(R"({"temperature": null, "min_p": 0.0, "num_beams": 1})")}) {
    EXPECT_TRUE(config.end_of_text.empty() && config.unsupported.empty());
    EXPECT_FALSE(config.temperature || config.top_k || config.top_p);
  }
  EXPECT_EQ(read(R"({"eos_token_id": 2})").end_of_text, std::vector<octavo::Index>{2});
}

TEST_F(GenerationConfig, TemperatureIsZeroWithoutSampling) {
  EXPECT_EQ(read(R"({"do_sample": false, "temperature": 0.7})").temperature, 0);
}

TEST_F(GenerationConfig, ReportsInvalidValues) {
  for (const std::string wrong : {R"("temperature": -1)", R"("temperature": "hot")",
                                  R"("top_p": 0)", R"("top_k": 1.5)", R"("eos_token_id": ["a"])"}) {
    const std::string key = wrong.substr(1, wrong.find(':') - 2);
    EXPECT_NE(refusal('{' + wrong + '}').find("g.json: " + key + " must be "), std::string::npos)
        << refusal('{' + wrong + '}');
  }
}

}  // namespace generation_config_test
