// How a program is built with a model that it lacks, and keeps those that it has.
#include <train_llama/model_choice.hpp>

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_folder.hpp"

namespace model_choice_test {

using trainer::Instance;
using trainer::ModelChoice;

/// With instances of the test's own.
class ModelsOfAProgram : public support::TemporaryFolder {
 protected:
  ModelsOfAProgram() {
    add("llama_tiny", "bf16", "cpu");
    add("llama_tiny", "fp8-delayed", "cpu");
    add("llama_tiny", "bf16", "cpu").has_adapters = true;
    add("llama_tiny", "bf16", "cpu").tensor_parallel = 2;
    add("llama3_small", "bf16", "cpu");
    add("llama3_small", "fp8-delayed", "cpu");
    add("model_of_a_folder", "bf16", "cpu");
    add("llama3_8b", "fp8-rowwise", "cuda");
  }
  ~ModelsOfAProgram() override { std::swap(trainer::instances(), before_); }

  /// What is said of a choice.
  static std::string said_of(ModelChoice choice) {
    CLI::App app;
    ModelChoice declared;
    trainer::declare_model(app, declared);
    try {
      trainer::find_preset_of_folder(app, choice);
      (void)trainer::find_instance(app, choice);
    } catch (const octavo::ConfigError& error) {
      return error.what();
    }
    return "nothing";
  }
  static void expect_built_with(const ModelChoice& choice, const std::string& options) {
    const std::string said = said_of(choice);
    EXPECT_NE(said.find("; build again: cmake BUILD_FOLDER " + options + " && cmake --build "),
              std::string::npos)
        << said;
  }

 private:
  Instance& add(const std::string& model, const std::string& precision, const std::string& device) {
    Instance& added = trainer::instances().emplace_back();
    added.model = model;
    added.precision = precision;
    added.device = device;
    return added;
  }

  std::vector<Instance> before_ = std::exchange(trainer::instances(), {});
};

TEST_F(ModelsOfAProgram, ArePresetsThatStayBesideOneThatIsAdded) {
  EXPECT_EQ(said_of({.model = "llama_tiny", .precision = "bf16"}), "nothing");
  expect_built_with({.model = "gpt2_tiny", .precision = "bf16"},
                    "-DOCTAVO_PRESETS=\"llama_tiny;llama3_small;gpt2_tiny\"");
  expect_built_with({.model = "gpt2_tiny", .precision = "bf16", .device = "cuda"},
                    "-DOCTAVO_CUDA_PRESETS=\"llama3_8b;gpt2_tiny\"");
}

TEST_F(ModelsOfAProgram, ArePrecisionsThatStayBesideOneThatIsAdded) {
  expect_built_with({.model = "llama_tiny", .precision = "fp32"},
                    "-DOCTAVO_PRECISIONS=\"bf16;fp8-delayed;fp32\"");
}

TEST_F(ModelsOfAProgram, AreBothOfADevice) {
  expect_built_with({.model = "llama_tiny", .precision = "fp8-rowwise"},
                    "-DOCTAVO_PRESETS=\"llama_tiny;llama3_small\" "
                    "-DOCTAVO_PRECISIONS=\"bf16;fp8-delayed;fp8-rowwise\"");
}

TEST_F(ModelsOfAProgram, AreThoseWithAdaptersAndThoseThatRanksShare) {
  expect_built_with({.model = "llama3_small", .precision = "bf16", .lora = 8},
                    "-DOCTAVO_LORA=\"llama_tiny:bf16;llama3_small:bf16\"");
  expect_built_with({.model = "llama_tiny", .precision = "fp8-delayed", .tensor_parallel = 4},
                    "-DOCTAVO_TENSOR_PARALLEL=\"llama_tiny:bf16:2;llama_tiny:fp8-delayed:4\"");
}

TEST_F(ModelsOfAProgram, AreThoseOfOtherFolders) {
  std::filesystem::copy_file("tests/golden/hugging_face/llama.5.json", folder_ / "config.json");
  const std::string said = said_of({.model = "hf:" + folder_.string(), .precision = "bf16"});
  EXPECT_NE(said.find("-DOCTAVO_MODELS=my_model:" + folder_.string() + " && "), std::string::npos)
      << said;
  EXPECT_NE(said.find("there, too, or they are gone: model_of_a_folder"), std::string::npos)
      << said;
}

}  // namespace model_choice_test
