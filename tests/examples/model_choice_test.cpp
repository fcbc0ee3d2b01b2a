// How a program is built with a model that it lacks, and keeps those that it has.
#include <train_llama/model_choice.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_folder.hpp"

namespace model_choice_test {

using trainer::Instance;
using trainer::ModelChoice;

/// With instances of the test's own.
class CompiledModels : public support::TemporaryFolder {
 protected:
  CompiledModels() {
    add("llama_tiny", "bf16", "cpu");
    add("llama_tiny", "fp8-delayed", "cpu");
    add("llama_tiny", "bf16", "cpu").has_adapters = true;
    add("llama_tiny", "bf16", "cpu").tensor_parallel = 2;
    add("llama3_small", "bf16", "cpu");
    add("llama3_small", "fp8-delayed", "cpu");
    add("model_of_a_folder", "bf16", "cpu");
    add("llama3_8b", "fp8-rowwise", "cuda");
  }
  ~CompiledModels() override { std::swap(trainer::instances(), before_); }

  /// What is said of a choice.
  /// @param flags  of ranks
  static std::string said_of(ModelChoice choice, const std::string& flags = "") {
    CLI::App app("", "a_program");
    ModelChoice declared;
    int zero = 0;
    std::string reduce;
    trainer::declare_model(app, declared);
    app.add_option("--zero", zero);
    app.add_option("--reduce", reduce);
    app.parse(flags);
    try {
      trainer::find_preset_of_folder(app, choice);
      (void)trainer::find_instance(app, choice);
    } catch (const octavo::ConfigError& error) {
      return error.what();
    }
    return "nothing";
  }
  static void expect_built_with(const ModelChoice& choice, const std::string& options,
                                const std::string& flags = "") {
    const std::string said = said_of(choice, flags);
    EXPECT_NE(said.find("; build again: cmake BUILD_FOLDER " + options +
                        " && cmake --build BUILD_FOLDER --target a_program (quickstart's is "),
              std::string::npos)
        << said;
  }
  /// That a folder's shape is built in a folder of its own, in one precision.
  static void expect_built_apart(const ModelChoice& choice, const std::string& preset,
                                 const std::string& options, const std::string& flags = "") {
    const std::string said = said_of(choice, flags);
    EXPECT_TRUE(said.ends_with("; build it in Octavo's folder: cmake --preset " + preset +
                               " -B build/my_model " + options +
                               " && cmake --build build/my_model --target a_program"))
        << said;
  }

  Instance& add(const std::string& model, const std::string& precision, const std::string& device) {
    Instance& added = trainer::instances().emplace_back();
    added.model = model;
    added.precision = precision;
    added.device = device;
    return added;
  }

 private:
  std::vector<Instance> before_ = std::exchange(trainer::instances(), {});
};

TEST_F(CompiledModels, AreFoundByEveryChoice) {
  add("llama_tiny", "bf16", "cuda");
  CLI::App app;
  ModelChoice declared;
  trainer::declare_model(app, declared);
  for (const Instance& one : trainer::instances()) {
    const ModelChoice choice{.model = one.model,
                             .precision = one.precision,
                             .device = one.device,
                             .lora = one.has_adapters ? 8 : 0,
                             .tensor_parallel = one.tensor_parallel};
    EXPECT_EQ(&trainer::find_instance(app, choice), &one) << one.model << " on " << one.device;
  }
}

TEST_F(CompiledModels, SuggestsAddingPresetToBuild) {
  EXPECT_EQ(said_of({.model = "llama_tiny", .precision = "bf16"}), "nothing");
  expect_built_with({.model = "gpt2_tiny", .precision = "bf16"},
                    "-DOCTAVO_PRESETS=\"llama_tiny;llama3_small;gpt2_tiny\"");
  expect_built_with({.model = "gpt2_tiny", .precision = "bf16", .device = "cuda"},
                    "-DOCTAVO_CUDA_PRESETS=\"llama3_8b;gpt2_tiny\" "
                    "-DOCTAVO_CUDA_PRECISIONS=\"fp8-rowwise;bf16\"");
}

TEST_F(CompiledModels, SuggestsAddingPrecisionToBuild) {
  expect_built_with({.model = "llama_tiny", .precision = "fp32"},
                    "-DOCTAVO_PRECISIONS=\"bf16;fp8-delayed;fp32\"");
}

TEST_F(CompiledModels, SuggestsPrecisionsOfAnyType) {
  const std::string type = "Layerwise<First<2, Bf16>, Fp8Recipe<Delayed>>";
  expect_built_with({.model = "llama_tiny", .precision = type},
                    "-DOCTAVO_PRECISIONS=\"bf16;fp8-delayed;" + type + '"');
  // A shell would read the brackets.
  expect_built_with({.model = "llama_tiny", .precision = type, .device = "cuda"},
                    "-DOCTAVO_CUDA_PRESETS=\"llama3_8b;llama_tiny\" "
                    "-DOCTAVO_CUDA_PRECISIONS=\"fp8-rowwise;" +
                        type + '"');
  EXPECT_EQ(programs::build_list("OCTAVO_PRECISIONS", {}, type),
            "-DOCTAVO_PRECISIONS=\"" + type + '"');
  add("llama_tiny", type, "cpu");
  EXPECT_EQ(said_of({.model = "llama_tiny", .precision = type}), "nothing");
}

TEST_F(CompiledModels, SuggestsPrecisionsPerDevice) {
  // In this precision there are models of the other device alone.
  expect_built_with({.model = "llama_tiny", .precision = "fp8-rowwise"},
                    "-DOCTAVO_PRECISIONS=\"bf16;fp8-delayed;fp8-rowwise\"");
}

/// In a program of one device.
class CompiledModelsWithoutCuda : public CompiledModels {
 protected:
  CompiledModelsWithoutCuda() {
    std::erase_if(trainer::instances(), [](const Instance& one) { return one.device == "cuda"; });
  }
  static std::string built_with(const std::string& nccl) {
    return "-DOCTAVO_CUDA=ON " + nccl +
           "-DOCTAVO_CUDA_PRESETS=llama3_70b -DOCTAVO_CUDA_PRECISIONS=fp8-delayed";
  }
#if defined(OCTAVO_PROGRAM_HAS_NCCL)
  std::string built_for_ranks_ = built_with("");
#else
  std::string built_for_ranks_ = built_with("-DOCTAVO_NCCL=ON ");
#endif
  std::string built_ = built_with("");
  ModelChoice large_{.model = "llama3_70b", .precision = "fp8-delayed", .device = "cuda"};
};

TEST_F(CompiledModelsWithoutCuda, SuggestsCudaTogetherWithModel) {
  expect_built_with(large_, built_);
  expect_built_with(large_, built_for_ranks_, "--zero 3");
  // A format that there is in no build.
  expect_built_with(
      large_,
      built_ + ' ' + programs::build_list("OCTAVO_REDUCE", trainer::reductions, "of_my_own"),
      "--reduce of_my_own");
  for (const int degree : {2, 4}) {
    large_.tensor_parallel = degree;
    expect_built_with(
        large_, octavo::message(built_for_ranks_, " -DOCTAVO_TENSOR_PARALLEL=\"llama_tiny:bf16:2;",
                                "llama3_70b:fp8-delayed:", degree, "\""));
  }
}

TEST_F(CompiledModelsWithoutCuda, SuggestsRanksBuildUnderLauncher) {
  const std::array names{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
  const auto launched = [&](const std::array<const char*, 4>& values) {
    for (std::size_t i = 0; i < names.size(); ++i) ::setenv(names[i], values[i], 1);
  };
  launched({"1", "2", "1", "2"});
  expect_built_with(large_, built_for_ranks_);
  launched({"0", "1", "0", "1"});
  expect_built_with(large_, built_);
  for (const char* name : names) ::unsetenv(name);
}

TEST_F(CompiledModelsWithoutCuda, SuggestsCudaForModelsCompiledForCpu) {
  expect_built_with({.model = "llama_tiny", .precision = "bf16", .device = "cuda"},
                    "-DOCTAVO_CUDA=ON -DOCTAVO_CUDA_PRESETS=llama_tiny "
                    "-DOCTAVO_CUDA_PRECISIONS=bf16");
  expect_built_with({.model = "model_of_a_folder", .precision = "bf16", .device = "cuda"},
                    "-DOCTAVO_CUDA=ON -DOCTAVO_CUDA_PRECISIONS=bf16");
}

TEST_F(CompiledModelsWithoutCuda, SuggestsCudaForFolderModel) {
  std::filesystem::copy_file("tests/golden/hugging_face/llama.5.json", folder_ / "config.json");
  expect_built_apart({.model = "hf:" + folder_.string(), .precision = "bf16", .device = "cuda"},
                     "quickstart-cuda",
                     "-DOCTAVO_MODELS=my_model:" + folder_.string() +
                         " -DOCTAVO_PRESETS= -DOCTAVO_PRECISIONS= -DOCTAVO_CUDA_PRESETS= "
                         "-DOCTAVO_CUDA_PRECISIONS=bf16 -DOCTAVO_LORA= -DOCTAVO_TENSOR_PARALLEL=");
}

TEST_F(CompiledModels, RejectsAdaptersAndTensorParallelForGpt2) {
  std::filesystem::copy_file("tests/golden/hugging_face/gpt2.5.json", folder_ / "config.json");
  trainer::instances().back().model = "gpt2_of_a_folder";
  trainer::instances().back().shape = octavo::description_of(octavo::gpt2_tiny);
  for (const std::string& model :
       {std::string("gpt2_tiny"), std::string("gpt2_of_a_folder"), "hf:" + folder_.string()}) {
    EXPECT_EQ(said_of({.model = model, .precision = "bf16", .lora = 8})
                  .find("--lora does not support gpt2"),
              0U)
        << model;
    EXPECT_EQ(said_of({.model = model, .precision = "bf16", .tensor_parallel = 2})
                  .find("--tensor-parallel 2: tensor parallelism does not support gpt2"),
              0U)
        << model;
  }
}

// No build has these, so none is advised.
TEST_F(CompiledModels, NamesPrecisionsOfShapesThatOthersDoNotFit) {
  const std::string blocks = said_of({.model = "gpt2_1558m", .precision = "fp8-blockwise"});
  EXPECT_TRUE(
      blocks.starts_with("--precision fp8-blockwise: gpt2_1558m does not support it, "
                         "because the features of its linear layers are not multiples of "
                         "128: their common divisor is 1600; choose fp32, bf16, "))
      << blocks;
  EXPECT_EQ(blocks.find("fp8-blockwise", 20), std::string::npos) << blocks;
  const std::string biases = said_of({.model = "gpt2_tiny", .precision = "fp8-delayed-fastest"});
  EXPECT_NE(biases.find("MLPs have biases, experts or adapters"), std::string::npos) << biases;
  const std::string half =
      said_of({.model = "llama3_small", .precision = "fp8-blockwise", .tensor_parallel = 2});
  EXPECT_NE(half.find("their common divisor is 64"), std::string::npos) << half;
  expect_built_with({.model = "gpt2_1558m", .precision = "fp8-delayed"},
                    "-DOCTAVO_PRESETS=\"llama_tiny;llama3_small;gpt2_1558m\"");
  expect_built_with({.model = "gpt2_124m", .precision = "fp8-blockwise"},
                    "-DOCTAVO_PRESETS=\"llama_tiny;llama3_small;gpt2_124m\" "
                    "-DOCTAVO_PRECISIONS=\"bf16;fp8-delayed;fp8-blockwise\"");
}

// A list of precisions is for all presets.
TEST(BuiltModels, OmitNamedPrecisionsThatDoNotCompile) {
  using octavo::PrecisionNamed;
  using trainer::is_built;
  using trainer::limits_of;
  using Blockwise = PrecisionNamed<"fp8-blockwise">;
  using Fastest = PrecisionNamed<"fp8-delayed-fastest">;
  EXPECT_FALSE(is_built<Blockwise>("fp8-blockwise", limits_of(octavo::gpt2_1558m)));
  EXPECT_TRUE(is_built<Blockwise>("fp8-blockwise", limits_of(octavo::gpt2_124m)));
  EXPECT_TRUE(is_built<Blockwise>("Fp8Recipe<Blockwise>", limits_of(octavo::gpt2_1558m)));
  EXPECT_FALSE(is_built<Fastest>("fp8-delayed-fastest", limits_of(octavo::gpt2_124m)));
  EXPECT_FALSE(is_built<Fastest>("fp8-delayed-fastest", limits_of(octavo::mixtral_8x7b)));
  EXPECT_TRUE(is_built<Fastest>("fp8-delayed-fastest", limits_of(octavo::llama3_8b)));
  EXPECT_TRUE(is_built<PrecisionNamed<"fp8-delayed-bf16-edges">>("fp8-delayed-bf16-edges",
                                                                 limits_of(octavo::gpt2_1558m)));
}

TEST_F(CompiledModels, ReportsWhatIsNotCompiledIn) {
  const auto expect_said = [](const ModelChoice& choice, const std::string& text) {
    const std::string said =
        said_of(choice, "--model " + choice.model + " --precision " + choice.precision);
    EXPECT_NE(said.find(text), std::string::npos) << said;
  };
  ModelChoice choice{.model = "llama3_small", .precision = "bf16"};
  choice.lora = 8;
  expect_said(choice, "on cpu is not compiled in with adapters, which --lora needs; build again");
  choice.lora = 0;
  choice.tensor_parallel = 4;
  expect_said(choice, "on cpu is not compiled in for --tensor-parallel 4; build again");
  expect_said({.model = "model_of_a_folder", .precision = "fp8-delayed"},
              "on cpu is not compiled in; build again");
  expect_said({.model = "gpt2_tiny", .precision = "bf16"},
              "--model: 'gpt2_tiny' is not compiled in, only: llama_tiny, ");
  expect_said({.model = "gpt2_tiny", .precision = "bf16"}, "(quickstart's is build/quickstart)");
  expect_said({.model = "gpt2_tiny", .precision = "bf16", .device = "cuda"},
              "(quickstart's is build/quickstart-cuda)");
  // Of what no flag gives: a default, and what a checkpoint gave.
  const ModelChoice unless_said;
  EXPECT_EQ(said_of({.model = unless_said.model, .precision = "mxfp8"})
                .find("precision 'mxfp8' is not compiled in, only: "),
            0U);
  std::erase_if(trainer::instances(),
                [&](const Instance& one) { return one.model == unless_said.model; });
  EXPECT_EQ(said_of({.model = unless_said.model, .precision = "bf16"})
                .find("--model: '" + unless_said.model + "' is not compiled in, only: "),
            0U);
  // What there is not is said before what is not compiled in.
  expect_said({.model = "gpt2_tiny", .precision = "fp9"}, "--precision: 'fp9' is not one of ");
}

TEST_F(CompiledModels, SuggestsAdapterAndTensorParallelBuilds) {
  expect_built_with({.model = "llama3_small", .precision = "bf16", .lora = 8},
                    "-DOCTAVO_LORA=\"llama_tiny:bf16;llama3_small:bf16\"");
  expect_built_with({.model = "llama_tiny", .precision = "fp8-delayed", .tensor_parallel = 4},
                    "-DOCTAVO_TENSOR_PARALLEL=\"llama_tiny:bf16:2;llama_tiny:fp8-delayed:4\"");
}

TEST_F(CompiledModels, SuggestsPresetMatchingFolderShape) {
  std::ofstream(folder_ / "config.json")
      << octavo::hugging_face_config(octavo::description_of(octavo::llama3_1b), "bfloat16");
  const ModelChoice choice{.model = "hf:" + folder_.string(), .precision = "bf16"};
  expect_built_with(choice, "-DOCTAVO_PRESETS=\"llama_tiny;llama3_small;llama3_1b\"");
}

// Two numbers that change no size are easily overlooked.
TEST_F(CompiledModels, ReportsDifferencesFromNearestPreset) {
  octavo::ModelDescription shape = octavo::description_of(octavo::llama_tiny);
  add("llama_tiny", "bf16", "cpu").shape = shape;
  shape.norm_epsilon = 1e-6f;
  shape.rope_theta = 5e5f;
  std::ofstream(folder_ / "config.json") << octavo::hugging_face_config(shape, "bfloat16");
  const std::string said = said_of({.model = "hf:" + folder_.string(), .precision = "bf16"});
  EXPECT_NE(said.find("its shape (nearest is llama_tiny, but the folder's norm_epsilon is "),
            std::string::npos)
      << said;
  EXPECT_NE(said.find(", rope_theta is 500000, not 10000); "), std::string::npos) << said;
}

TEST_F(CompiledModels, SuggestsSeparateBuildForFolderModel) {
  std::filesystem::copy_file("tests/golden/hugging_face/llama.5.json", folder_ / "config.json");
  ModelChoice choice{.model = "hf:" + folder_.string(), .precision = "fp8-rowwise"};
  std::string options = "-DOCTAVO_MODELS=my_model:" + folder_.string() +
                        " -DOCTAVO_PRESETS= -DOCTAVO_PRECISIONS=fp8-rowwise";
  expect_built_apart(choice, "quickstart", options + " -DOCTAVO_LORA= -DOCTAVO_TENSOR_PARALLEL=");
  choice.tensor_parallel = 2;
  expect_built_apart(choice, "quickstart",
                     options + " -DOCTAVO_LORA= -DOCTAVO_TENSOR_PARALLEL=my_model:fp8-rowwise:2");
  choice.tensor_parallel = 1;
  choice.lora = 8;
  options += " -DOCTAVO_LORA=my_model:fp8-rowwise -DOCTAVO_TENSOR_PARALLEL=";
  expect_built_apart(choice, "quickstart", options);
  expect_built_apart(
      choice, "quickstart",
      options + ' ' + programs::build_list("OCTAVO_REDUCE", trainer::reductions, "of_my_own"),
      "--reduce of_my_own");
}

TEST_F(CompiledModels, QuotesFoldersAndTypesForTheShell) {
  const std::filesystem::path spaced = folder_ / "my (own) model";
  std::filesystem::create_directory(spaced);
  std::filesystem::copy_file("tests/golden/hugging_face/llama.5.json", spaced / "config.json");
  expect_built_apart({.model = "hf:" + spaced.string(),
                      .precision = "Fp8Recipe<Delayed>",
                      .lora = 8,
                      .tensor_parallel = 2},
                     "quickstart",
                     "-DOCTAVO_MODELS=\"my_model:" + spaced.string() +
                         "\" -DOCTAVO_PRESETS= -DOCTAVO_PRECISIONS=\"Fp8Recipe<Delayed>\""
                         " -DOCTAVO_LORA=\"my_model:Fp8Recipe<Delayed>\""
                         " -DOCTAVO_TENSOR_PARALLEL=\"my_model:Fp8Recipe<Delayed>:2\"");
}

}  // namespace model_choice_test
