// train_llama: the trainer on text and token files.
#include <train_llama/data.hpp>

namespace trainer {

const Program& program() {
  static const Program text{
      .name = "train_llama",
      .description = "Trains a language model on text, in the chosen precision.",
      .declare_data = declare_text,
      .require_data = require_text,
      .read = [](Options& options, const Instance& instance,
                 const Ranks& ranks) -> std::unique_ptr<RunData> {
        const octavo::Index vocabulary = instance.shape.vocabulary;
        return std::make_unique<TextData>(load_data(options, vocabulary), options, ranks,
                                          vocabulary);
      }};
  return text;
}

}  // namespace trainer
