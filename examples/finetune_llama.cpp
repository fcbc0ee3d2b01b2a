// Trains a Llama on chats. The loss covers only the assistant's messages. This is the trainer of
// train_llama with other data.
//
//   finetune_llama --model hf:downloads/SmolLM2-135M-Instruct --chats chats.jsonl
//                  --chat-template smollm2 --precision bf16 --epochs 2 --save-hf tuned
#include <octavo/core/json_line.hpp>
#include <octavo/data/chat_template.hpp>
#include <octavo/data/chat_tokens.hpp>
#include <octavo/inference/generate.hpp>
#include <octavo/run/chat_batches.hpp>
#include <octavo/run/interrupt.hpp>

#include <common/text.hpp>
#include <common/tokenizer.hpp>
#include <train_llama/chats.hpp>
#include <train_llama/program.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trainer {
namespace {

void declare_chats(CLI::App& app, Options& options) {
  using namespace programs;
  options.learning_rate = 2e-5;
  ChatOptions& chats = options.chats;
  const FlagGroup group(app, data_group);
  group.add_without_default(
      "--chats", chats.files,
      "file of chats, JSON Lines or a JSON array, possibly compressed; required, repeatable");
  group.add_without_default("--validation-chats", chats.validation_files,
                            "validation files; replaces --validation-fraction");
  declare_chat_form(group, chats);
  group.add_without_default(
      "--tokenizer", chats.tokenizer,
      "bytes, a tokenizer.json, or a tokenizer.model (SentencePiece, or Llama 3's); by default, "
      "tokenizer.json in the folder of --model hf:FOLDER");
  group
      .add_without_default("--epochs", chats.epochs,
                           "number of passes over the chats; replaces --steps")
      ->check(at_least_one());
}

void require_chats(const Options& options) {
  octavo::require<octavo::ConfigError>(
      !options.chats.files.empty(),
      "--chats is required: pass a file with one chat per line, or a JSON array of chats",
      or_configuration(options));
  require_chat_files(options.chats);
}

/// Opens --tokenizer, or the tokenizer in the folder of --model hf:FOLDER.
std::unique_ptr<octavo::Tokenizer> tokenizer_of(const Options& options) {
  std::string name = options.chats.tokenizer;
  if (name.empty()) {
    octavo::require<octavo::ConfigError>(!options.load_hf.empty(),
                                         "--tokenizer is required, except with --model hf:FOLDER: "
                                         "pass the model's tokenizer");
    name = programs::tokenizer_in(options.load_hf);
    octavo::require<octavo::ConfigError>(!name.empty(), options.load_hf,
                                         " contains neither tokenizer.json nor tokenizer.model; "
                                         "pass --tokenizer, or copy the model's tokenizer there");
  }
  return programs::open_tokenizer(name);
}

/// Facts about the chats that were read.
struct ChatFacts {
  std::vector<octavo::ChatData::File> files;
  octavo::Index cut = 0;
  octavo::Index dropped = 0;
};

/// The chats of a run, and their batches.
class ChatRun final : public RunDataOf<octavo::ChatBatches> {
 public:
  ChatRun(octavo::ChatBatches batches, ChatFacts facts,
          std::unique_ptr<octavo::Tokenizer> tokenizer, std::int32_t end_of_turn)
      : RunDataOf(std::move(batches)),
        facts_(std::move(facts)),
        tokenizer_(std::move(tokenizer)),
        end_of_turn_(end_of_turn) {}

  [[nodiscard]] std::size_t training_tokens() const override {
    return static_cast<std::size_t>(batches_.train().tokens());
  }
  [[nodiscard]] std::size_t validation_tokens() const override {
    return static_cast<std::size_t>(batches_.validation().tokens());
  }

  void print() const override {
    for (const octavo::ChatData::File& file : facts_.files) {
      fmt::print("chats | {} of {}\n", file.chats, programs::visible(file.path.string()));
    }
    const auto print_part = [](const char* what, const octavo::Chats& chats) {
      fmt::print("chats | {} {}: {} tokens, {} of them by the assistant\n", chats.size(), what,
                 chats.tokens(), chats.targets());
    };
    print_part("to train on", batches_.train());
    print_part("for validation", batches_.validation());
    print_long_chats(facts_.cut, facts_.dropped);
    const double room =
        static_cast<double>(batches_.sequences()) * static_cast<double>(batches_.shape().tokens);
    fmt::print("chats | packed into {} sequences, {:.1f} % full\n", batches_.sequences(),
               100 * static_cast<double>(batches_.train().tokens()) / room);
  }

  void describe(octavo::JsonLine& line) const override {
    line.add("files", facts_.files.size())
        .add("chats", batches_.train().size())
        .add("validation_chats", batches_.validation().size())
        .add("cut_chats", facts_.cut)
        .add("dropped_chats", facts_.dropped)
        .add("training_targets", batches_.train().targets());
  }

  /// Returns the start of the first validation chat, with the model's answer.
  [[nodiscard]] std::string sample(octavo::TrainingSession& session,
                                   const Options& options) const override {
    const octavo::Chats& chats = batches_.validation();
    std::vector<std::int32_t> text(static_cast<std::size_t>(chats.length(0)));
    std::vector<std::int32_t> targets(text.size());
    chats.read(0, text, targets);
    const auto first = std::ranges::find_if(targets, [](auto target) { return target >= 0; });
    text.resize(static_cast<std::size_t>(first - targets.begin()) + 1);
    const std::vector<std::int32_t> answer = octavo::generate(
        session, text, options.sequence_length,
        {.tokens = options.sample,
         .sampling = {.temperature = options.temperature},
         .seed = options.seed,
         .vocabulary = std::min(tokenizer_->vocabulary_size(), session.facts().vocabulary),
         .stop_tokens = {end_of_turn_},
         .stop = [&] { return session.ranks().largest(octavo::InterruptGuard::received()) != 0; }});
    text.insert(text.end(), answer.begin(), answer.end());
    return tokenizer_->decode(text);
  }

 private:
  ChatFacts facts_;
  std::unique_ptr<octavo::Tokenizer> tokenizer_;
  std::int32_t end_of_turn_;
};

std::unique_ptr<RunData> read_chats(Options& options, const Instance& instance,
                                    const Ranks& ranks) {
  auto tokenizer = tokenizer_of(options);
  const octavo::ChatEncoder encoder(octavo::chat_template(options.chats.chat_template), *tokenizer);
  const octavo::Context<octavo::Cpu> context(options.threads != 0 ? options.threads
                                                                  : ranks.threads());
  octavo::ChatRequest request =
      chat_request(options.chats, options.sequence_length, instance.shape.vocabulary);
  request.train = options.chats.files;
  request.validation = options.chats.validation_files;
  request.validation_fraction = options.validation_fraction;
  octavo::ChatData data = octavo::load_chats(request, encoder, context);
  octavo::ChatBatchesOptions batches;
  batches.batch = chat_shape(options.chats, options.batch, options.sequence_length);
  options.most_documents = batches.batch.most_documents;
  batches.micro_batches = options.micro_batches;
  batches.rank = ranks.rank() / options.tensor_parallel;
  batches.ranks = options.ranks;
  batches.validation_batches = options.validation_batches;
  batches.seed = options.seed;
  batches.filler = encoder.end_of_turn();
  octavo::ChatBatches packed_chats(std::move(data.train), std::move(data.validation), batches);
  if (options.chats.epochs != 0) options.steps = packed_chats.steps_of(options.chats.epochs);
  return std::make_unique<ChatRun>(std::move(packed_chats),
                                   ChatFacts{std::move(data.files), data.cut, data.dropped},
                                   std::move(tokenizer), encoder.end_of_turn());
}

}  // namespace

const Program& program() {
  static const Program chats{
      .name = "finetune_llama",
      .description = "Trains a language model on chats, in the chosen precision.",
      .declare_data = declare_chats,
      .require_data = require_chats,
      .read = read_chats};
  return chats;
}

}  // namespace trainer
