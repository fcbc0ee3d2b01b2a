// Presets that octavo_add_model makes of configurations are what the library reads of them.
#include <octavo/io/hugging_face_config.hpp>
#include <octavo_models/added_family_gemma3.hpp>
#include <octavo_models/added_family_mistral.hpp>
#include <octavo_models/added_family_mixtral.hpp>
#include <octavo_models/added_family_qwen2.hpp>
#include <octavo_models/added_family_qwen3_moe.hpp>
#include <octavo_models/added_gpt2_4.hpp>
#include <octavo_models/added_gpt2_5.hpp>
#include <octavo_models/added_llama_4.hpp>
#include <octavo_models/added_llama_5.hpp>
#include <octavo_models/added_llama_scaled_4.hpp>
#include <octavo_models/added_llama_scaled_5.hpp>
#include <octavo_models/added_qwen3_4.hpp>
#include <octavo_models/added_qwen3_5.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/golden.hpp"

namespace added_models_test {

using namespace octavo;
using namespace octavo_models;

TEST(AddedModels, ShapesMatchConfigurations) {
  const auto check = [](const auto& config) {
    std::string name = config.name.text().substr(std::string("added_").size());
    name[name.size() - 2] = '.';
    const ModelDescription there =
        read_hugging_face_config(reference::golden_path("hugging_face/" + name + ".json"));
    EXPECT_EQ(differences(description_of(config), there), std::vector<std::string>{}) << name;
  };
  check(added_llama_4);
  check(added_llama_5);
  check(added_llama_scaled_4);
  check(added_llama_scaled_5);
  check(added_qwen3_4);
  check(added_qwen3_5);
  check(added_gpt2_4);
  check(added_gpt2_5);
}

TEST(AddedModels, ShapesMatchFolders) {
  const auto check = [](const auto& config) {
    const std::string name = config.name.text().substr(std::string("added_family_").size());
    const ModelDescription there =
        read_hugging_face_config(reference::golden_path("families/" + name + "/config.json"));
    EXPECT_EQ(differences(description_of(config), there), std::vector<std::string>{}) << name;
  };
  check(added_family_gemma3);
  check(added_family_mistral);
  check(added_family_mixtral);
  check(added_family_qwen2);
  check(added_family_qwen3_moe);
}

}  // namespace added_models_test
