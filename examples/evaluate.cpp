// Measures how well a model predicts a text, and how many HellaSwag questions it answers correctly.
//
//   evaluate --model hf:downloads/Llama-3.2-1B --precision bf16 --data text.txt --hellaswag val.bin
//
// Exit codes: 0 done, 1 an error while running, 2 bad input.
#include <octavo/comm/same_on_all_ranks.hpp>
#include <octavo/core/json_line.hpp>
#include <octavo/data/data.hpp>
#include <octavo/inference/checkpoint.hpp>
#include <octavo/inference/hugging_face.hpp>
#include <octavo/io/atomic_file.hpp>
#include <octavo/run/chat_evaluation_batches.hpp>
#include <octavo/run/evaluation_batches.hpp>

#include <common/tokenizer.hpp>
#include <evaluate/choices.hpp>
#include <evaluate/hellaswag.hpp>
#include <evaluate/options.hpp>
#include <evaluate/progress.hpp>
#include <evaluate/text.hpp>
#include <train_llama/chats.hpp>
#include <train_llama/checkpoints.hpp>
#include <train_llama/documents.hpp>
#include <train_llama/ranks.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

namespace evaluate {
namespace {

enum ExitCode { success = 0, failure = 1, bad_input = 2 };

/// A row of the table.
struct Metric {
  std::string task, name;
  double value = 0;
  std::optional<double> error{};  ///< standard error
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The model and the data to evaluate.
struct Setup {
  std::filesystem::path checkpoint;
  std::unique_ptr<octavo::Tokenizer> tokenizer;
  std::string tokenizer_name;
  octavo::Data data;
  std::optional<EvaluatedText> text;
  octavo::ChatData chats;  ///< those of --chats are for validation
  std::int32_t chat_filler = 0;
  std::vector<Choice> choices;
  octavo::BatchShape shape;
  std::shared_ptr<octavo::TrainingSession> session;
  std::optional<octavo::EvaluationBatches> text_batches;
  std::optional<octavo::ChatEvaluationBatches> chat_batches;
  std::optional<ChoiceBatches> choice_batches;
};

void read_chats(Setup& setup, const Options& options, Index vocabulary,
                const octavo::Context<octavo::Cpu>& context) {
  const octavo::ChatEncoder encoder(octavo::chat_template(options.chats.chat_template),
                                    *setup.tokenizer);
  octavo::ChatRequest request =
      trainer::chat_request(options.chats, options.sequence_length, vocabulary);
  request.validation = options.chats.files;
  setup.chats = octavo::load_chats(request, encoder, context);
  setup.chat_filler = encoder.end_of_turn();
}

void read_inputs(Setup& setup, const Options& options, const trainer::Instance& instance) {
  const octavo::Context<octavo::Cpu> context(options.threads);
  setup.tokenizer_name = options.tokenizer;
  if (options.tokenizer.empty()) {
    const std::string own =
        options.load_hf.empty() ? std::string() : programs::tokenizer_in(options.load_hf);
    setup.tokenizer_name = own.empty() ? "bytes" : own;
  }
  const Index vocabulary = instance.shape.vocabulary;
  const octavo::BatchShape shape{options.batch, options.sequence_length, options.most_documents};
  trainer::require_documents(options.document_end, shape, vocabulary);
  const bool has_lines = std::filesystem::path(options.hellaswag).extension() == ".jsonl";
  // A text of bytes is tokenised as by the trainer; otherwise a token follows each document.
  const bool has_bytes = setup.tokenizer_name == "bytes";
  std::optional<std::int32_t> end_of_each;
  if (options.document_end >= 0 && !has_bytes) end_of_each = options.document_end;
  if (!options.data.empty()) {
    octavo::DataRequest request;
    request.train = options.data;
    request.vocabulary = vocabulary;
    if (options.document_end >= 0 && has_bytes) {
      request.between = static_cast<std::uint8_t>(options.document_end);
    }
    setup.data = octavo::load_data(request);
    if (setup.data.is_text && has_bytes) {
      trainer::require_documents(options.document_end, shape, octavo::ByteTokenizer::vocabulary);
    }
  }
  // Token files need no tokenizer.
  if (setup.data.is_text || has_lines || !options.chats.files.empty()) {
    if (options.tokenizer.empty()) {
      setup.tokenizer_name = programs::tokenizer_of_model(options.load_hf, vocabulary);
    }
    setup.tokenizer = programs::open_tokenizer(setup.tokenizer_name);
  } else {
    setup.tokenizer = std::make_unique<octavo::ByteTokenizer>();
    setup.tokenizer_name.clear();
  }
  trainer::require_documents_of(setup.data, options.document_end, shape,
                                setup.tokenizer->vocabulary_size());
  if (!options.data.empty())
    setup.text = evaluated_text(setup.data, *setup.tokenizer, end_of_each, vocabulary, context);
  if (!options.chats.files.empty()) read_chats(setup, options, vocabulary, context);
  if (options.hellaswag.empty()) return;
  setup.choices = has_lines ? read_hellaswag_lines(options.hellaswag, *setup.tokenizer, vocabulary)
                            : read_hellaswag(options.hellaswag, vocabulary);
}

/// Returns the request for the session, with the smallest optimizer, which is not used. Ranks shard
/// weights, gradients and state as in training, so that a model that ranks can train also fits for
/// evaluation.
trainer::SessionRequest session_request(const Options& options, octavo::BatchShape shape,
                                        int ranks) {
  trainer::SessionRequest request;
  request.threads = options.threads;
  request.gpu = options.gpu;
  request.formats = {"bf16", "8bit"};
  request.options.batch = shape;
  request.options.model.recompute = octavo::Recompute::block;
  request.options.sharding.zero = octavo::Zero::weights;
  // Kept copies would be of all weights on each rank.
  if (ranks > 1) request.options.model.weight_copies = octavo::WeightCopies::remade;
  return request;
}

/// Creates the batches of this rank, each of which may have too many documents.
void make_batches(Setup& setup, const Options& options, const trainer::Ranks& ranks) {
  const int groups = ranks.groups(options.tensor_parallel);
  const int group = ranks.rank() / options.tensor_parallel;
  setup.shape = {options.batch, options.sequence_length, options.most_documents};
  if (setup.text.has_value() && setup.choices.empty() && options.chats.files.empty()) {
    // A shorter text would be padded.
    const Index longest = std::max<Index>(1, setup.text->tokens.size() - 1);
    setup.shape.tokens = std::min(setup.shape.tokens, longest);
  }
  if (!setup.choices.empty()) {
    setup.shape.most_documents = std::max(setup.shape.most_documents, max_choices(setup.shape));
    setup.choice_batches.emplace(setup.choices, setup.shape, group, groups);
  }
  if (!options.chats.files.empty()) {
    octavo::ChatEvaluationOptions batches;
    batches.batch = trainer::chat_shape(options.chats, options.batch, options.sequence_length);
    batches.rank = group;
    batches.ranks = groups;
    if (options.batches > 0) batches.batches = options.batches;
    batches.filler = setup.chat_filler;
    setup.shape.most_documents = std::max(setup.shape.most_documents, batches.batch.most_documents);
    setup.chat_batches.emplace(std::move(setup.chats.validation), batches);
  }
  if (setup.text.has_value()) {
    octavo::EvaluationOptions batches{.batch = setup.shape, .rank = group, .ranks = groups};
    if (options.batches > 0) batches.batches = options.batches;
    if (options.document_end >= 0) batches.document_end = options.document_end;
    trainer::name_document_flags([&] { setup.text_batches.emplace(setup.text->tokens, batches); });
  }
}

/// Throws if ranks evaluate different inputs, whose losses cannot be summed.
/// @throws CommError  naming the ranks that differ, and how
void require_same(trainer::Ranks& ranks, const Setup& setup, const Options& options) {
  if (ranks.size() == 1) return;
  const octavo::BatchShape& shape = setup.shape;
  octavo::require_same_on_all_ranks(
      ranks,
      {{"octavo", octavo::version_string},
       {"model", octavo::message(options.model, " in ", options.precision)},
       {"weights", trainer::digests_of(options.load_hf)},  // each rank reads them separately
       {"batches", octavo::message(shape.sequences, " x ", shape.tokens, " tokens, ",
                                   shape.most_documents, " documents at most")},
       {"text", setup.text_batches.has_value()
                    ? octavo::message(setup.text->tokens.size(), " tokens, hash ",
                                      setup.text_batches->hash())
                    : ""},
       {"chats", setup.chat_batches.has_value()
                     ? octavo::message(setup.chat_batches->evaluated_chats(), ", hash ",
                                       setup.chat_batches->hash())
                     : ""},
       {"questions", octavo::message(setup.choices.size(), ", hash ", hash_of(setup.choices))}});
}

/// Creates the session. All ranks must call it; the others would wait for a rank that failed
/// before.
void make_session(Setup& setup, const CLI::App& app, const Options& options,
                  const trainer::Instance& instance, trainer::Ranks& ranks) {
  trainer::SessionRequest request = session_request(options, setup.shape, ranks.size());
  ranks.join(request, app.count("--gpu") != 0);
  request.options.sharding.ranks = ranks.groups(options.tensor_parallel);
  try {
    setup.session = instance.make(request);
  } catch (const octavo::MemoryError& error) {
    throw octavo::ConfigError(
        octavo::message("--batch ", setup.shape.sequences, " of --seq-len ", setup.shape.tokens,
                        ": the model and a batch of this size do not fit in memory: ",
                        programs::memory_error_text(error), "; pass smaller values"));
  }
  if (!setup.checkpoint.empty()) {
    (void)octavo::load_checkpoint_weights(setup.checkpoint, *setup.session);
  } else if (!options.load_hf.empty()) {
    octavo::load_hugging_face(*setup.session, instance.shape, options.load_hf);
  }
}

/// Calibrates the scales by a step with learning rate 0, which changes no weight.
/// @return whether calibration was needed
bool calibrate(Setup& setup) {
  if (!setup.session->must_calibrate()) return false;
  const octavo::Batch batch = setup.text_batches.has_value()   ? setup.text_batches->get(0)
                              : setup.chat_batches.has_value() ? setup.chat_batches->get(0)
                                                               : setup.choice_batches->first();
  octavo::require<octavo::ConfigError>(!setup.session->step(batch, 0.0).skipped,
                                       "the first batch has an Inf or NaN, so scales cannot be "
                                       "calibrated; choose another precision");
  return true;
}

octavo::JsonLine evaluate_text(Setup& setup, bool is_first, std::vector<Metric>& table) {
  const auto start = std::chrono::steady_clock::now();
  octavo::LossSum loss;
  {
    Progress progress("perplexity", is_first);
    loss = setup.text_batches->evaluate(*setup.session, std::ref(progress));
  }
  std::vector<std::string> files;
  files.reserve(setup.data.read.size());
  for (const octavo::TextFile& file : setup.data.read) files.push_back(file.path.string());
  table.push_back({"perplexity", "tokens", static_cast<double>(loss.tokens)});
  const bool has_targets = loss.tokens != 0;
  if (has_targets) table.push_back({"perplexity", "loss (nats per token)", loss.mean()});
  if (has_targets) table.push_back({"perplexity", "perplexity", std::exp(loss.mean())});
  octavo::JsonLine line;
  line.add("files", std::span<const std::string>(files))
      .add("tokens", loss.tokens)
      .add("sequence_length", setup.shape.tokens)
      .add("loss", loss.mean())
      .add("perplexity", std::exp(loss.mean()));
  // The bytes of the predicted tokens, in proportion to all.
  if (setup.text->bytes.has_value()) {
    const double share =
        static_cast<double>(loss.tokens) / static_cast<double>(setup.text->tokens.size());
    const double bits =
        loss.sum / (std::numbers::ln2 * share * static_cast<double>(*setup.text->bytes));
    if (has_targets) table.push_back({"perplexity", "bits per byte", bits});
    line.add("bits_per_byte", bits);
  }
  line.add("seconds", seconds_since(start));
  return line;
}

octavo::JsonLine evaluate_chats(Setup& setup, const Options& options, bool is_first,
                                std::vector<Metric>& table) {
  const auto start = std::chrono::steady_clock::now();
  octavo::LossSum loss;
  {
    Progress progress("chats", is_first);
    loss = setup.chat_batches->evaluate(*setup.session, std::ref(progress));
  }
  const Index chats = setup.chat_batches->evaluated_chats();
  table.push_back({"chats", "chats", static_cast<double>(chats)});
  table.push_back({"chats", "tokens", static_cast<double>(loss.tokens)});
  table.push_back({"chats", "loss (nats per token)", loss.mean()});
  table.push_back({"chats", "perplexity", std::exp(loss.mean())});
  octavo::JsonLine line;
  line.add("files", std::span<const std::string>(options.chats.files))
      .add("chats", chats)
      .add("cut_chats", setup.chats.cut)
      .add("dropped_chats", setup.chats.dropped)
      .add("tokens", loss.tokens)
      .add("sequence_length", setup.shape.tokens)
      .add("loss", loss.mean())
      .add("perplexity", std::exp(loss.mean()))
      .add("seconds", seconds_since(start));
  return line;
}

octavo::JsonLine evaluate_choices(Setup& setup, const Options& options, bool is_first,
                                  std::vector<Metric>& table) {
  const auto start = std::chrono::steady_clock::now();
  ChoiceScore score;
  {
    Progress progress("hellaswag", is_first);
    score = setup.choice_batches->evaluate(*setup.session, std::ref(progress));
  }
  const auto questions = static_cast<double>(score.questions);
  octavo::JsonLine line;
  line.add("file", options.hellaswag).add("questions", score.questions);
  table.push_back({"hellaswag", "questions", questions});
  line.add("questions_without_loss", score.without_loss);
  if (score.without_loss > 0) {
    table.push_back(
        {"hellaswag", "questions without a finite loss", static_cast<double>(score.without_loss)});
  }
  const auto add = [&](const char* name, const char* key, Index right) {
    if (score.without_loss > 0) {  // a fraction of the other questions would look like a score
      line.add(key, nullptr);
      return;
    }
    const double share = static_cast<double>(right) / questions;
    const double error = questions > 1 ? std::sqrt(share * (1 - share) / (questions - 1)) : 0.0;
    table.push_back({"hellaswag", name, share, error});
    line.add(key, share);
  };
  add("accuracy", "accuracy", score.by_sum);
  add("accuracy, by tokens", "accuracy_by_tokens", score.by_tokens);
  if (score.has_characters) {
    add("accuracy, by characters", "accuracy_by_characters", score.by_characters);
  }
  line.add("seconds", seconds_since(start));
  return line;
}

void print(const std::vector<Metric>& table) {
  std::vector<std::vector<std::string>> rows{{"task", "metric", "value"}};
  for (const Metric& metric : table) {
    const bool is_count =
        metric.name == "tokens" || metric.name == "chats" || metric.name.starts_with("questions");
    rows.push_back({metric.task, metric.name,
                    (is_count                      ? fmt::format("{:.0f}", metric.value)
                     : std::isfinite(metric.value) ? fmt::format("{:.6f}", metric.value)
                                                   : "not finite") +
                        (metric.error.has_value() ? fmt::format(" ± {:.6f}", *metric.error) : "")});
  }
  trainer::detail::print_table(rows);
  programs::flush_output();
}

int run(Setup& setup, const Options& options, const trainer::Instance& instance,
        trainer::Ranks& ranks) {
  octavo::TrainingSession& session = *setup.session;
  if (ranks.is_first() && setup.checkpoint.empty() && options.load_hf.empty()) {
    programs::print_stderr(
        "evaluate: warning: the weights are random; pass --checkpoint FOLDER or --model hf:FOLDER "
        "to evaluate a trained model\n");
  }
  if (ranks.is_first() && !options.tokenizer.empty() && setup.tokenizer_name.empty()) {
    programs::print_stderr("evaluate: warning: --tokenizer {} has no effect on token files\n",
                           programs::visible(options.tokenizer));
  }
  const std::string weights = !setup.checkpoint.empty() ? setup.checkpoint.string()
                              : options.load_hf.empty() ? "random, from the default seed"
                                                        : options.load_hf;
  fmt::print("octavo {} | {} | {} on {} | {} parameters | weights: {}\n", octavo::version_string,
             instance.model, instance.precision, instance.device, session.facts().parameters,
             programs::visible(weights));
  const std::size_t peak = session.facts().memory.peak;
  fmt::print("memory | {:.2f} MiB{}\n", static_cast<double>(peak) / (1024.0 * 1024.0),
             ranks.size() == 1
                 ? ""
                 : fmt::format(" on each of {} ranks, which share the weights", ranks.size()));
  if (!setup.tokenizer_name.empty()) {
    fmt::print("tokenizer | {}\n", programs::visible(setup.tokenizer_name));
  }
  if (setup.shape.tokens < options.sequence_length) {
    fmt::print("batch | the text has {} tokens: sequences have {}, not --seq-len {}\n",
               setup.text->tokens.size(), setup.shape.tokens, options.sequence_length);
  }
  if (options.batches > 0 && setup.text.has_value()) {
    const Index targets = setup.text->tokens.size() - 1;
    const Index rows = setup.shape.rows();
    const Index all = (targets + rows - 1) / rows;
    if (options.batches < all) {
      fmt::print("batch | {} of {} batches of --data: sequences at equal distances in the text\n",
                 options.batches, all);
    }
  }
  trainer::print_long_chats(setup.chats.cut, setup.chats.dropped);
  const std::string note = octavo::run_shape_note(setup.shape.tokens, session.facts().run_shape);
  if (!note.empty()) fmt::print("batch | {}\n", note);
  programs::flush_output();  // the following steps take long
  if (calibrate(setup)) {
    fmt::print("scales | delayed scales were calibrated on the first batch\n");
    programs::flush_output();
  }
  const bool is_first = ranks.is_first();
  std::vector<Metric> table;
  octavo::JsonLine results;
  results.add("octavo", octavo::version_string)
      .add("model", instance.model)
      .add("weights", weights)
      .add("precision", options.precision)
      .add("recipe", session.facts().precision)
      .add("device", instance.device)
      .add("ranks", ranks.size())
      .add("peak_bytes", peak);
  const auto add = [&](const char* name, const octavo::JsonLine& line) {
    results.add(name, line);
    print(table);
    table.clear();
  };
  if (setup.text_batches.has_value()) add("perplexity", evaluate_text(setup, is_first, table));
  if (setup.chat_batches.has_value()) {
    add("chats", evaluate_chats(setup, options, is_first, table));
  }
  if (setup.choice_batches.has_value()) {
    add("hellaswag", evaluate_choices(setup, options, is_first, table));
  }
  if (ranks.is_first() && !options.json.empty()) {
    octavo::write_file_atomically(options.json, results.str() + '\n');
  }
  return success;
}

int run(CLI::App& app, Options& options) {
  std::optional<trainer::Ranks> ranks;  // outlives the session, which uses it to its end
  Setup setup;
  const trainer::Instance* instance = nullptr;
  try {
    require_consistent(app, options);
    trainer::require_device_flags(app, options);
    setup.checkpoint = trainer::resolve_checkpoint(app, options.checkpoint, options, "evaluate");
    trainer::find_preset_of_folder(app, options);
    instance = &trainer::find_instance(app, options);
    ranks.emplace(options, "evaluate");
    (void)ranks->groups(options.tensor_parallel);
  } catch (const octavo::Error& error) {
    programs::print_stderr("evaluate: {}\n", programs::visible(error.what()));
    return bad_input;
  }
  try {
    const auto succeeds_on_all_ranks = [&](const auto& part, bool exchanges) {
      std::string wrong;
      try {
        part();
      } catch (const octavo::CommError&) {
        throw;
      } catch (const octavo::Error& error) {
        wrong = programs::visible(error.what());
      }
      if (!wrong.empty()) programs::print_stderr("{}{}\n", ranks->name(), wrong);
      return ranks->all_succeeded(wrong, exchanges);
    };
    if (!succeeds_on_all_ranks([&] { read_inputs(setup, options, *instance); },
                               /*exchanges=*/false))
      return bad_input;
    if (!succeeds_on_all_ranks([&] { make_batches(setup, options, *ranks); }, /*exchanges=*/false))
      return bad_input;
    require_same(*ranks, setup, options);
    if (!succeeds_on_all_ranks([&] { make_session(setup, app, options, *instance, *ranks); },
                               /*exchanges=*/true))
      return bad_input;
    // Only rank 0 prints.
    if (!ranks->is_first() && std::freopen("/dev/null", "w", stdout) == nullptr) return failure;
    return run(setup, options, *instance, *ranks);
  } catch (const std::exception& error) {
    ranks->abort("evaluate: " + programs::text_of(error));
    throw;
  }
}

}  // namespace
}  // namespace evaluate

int main(int argc, char** argv) {
  CLI::App app("Measures how well a model predicts text and answers questions.", "evaluate");
  evaluate::Options options;
  evaluate::declare(app, options);
  if (const auto code = programs::parse(app, argc, argv)) return *code;
  try {
    return evaluate::run(app, options);
  } catch (const std::exception& error) {
    programs::print_stderr("evaluate: {}\n", programs::text_of(error));
    return evaluate::failure;
  }
}
