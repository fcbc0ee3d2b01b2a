// Generates text or chat answers with a trained model.
//
//   generate --model hf:trained --prompt "Once upon a time"
//
// Exit codes: 0 done, 1 an error while running, 2 bad input, 128 + n stopped by signal n.
#include <common/needs.hpp>
#include <common/paths.hpp>
#include <common/tokenizer.hpp>
#include <octavo/comm/launch.hpp>
#include <octavo/data/chat_tokens.hpp>
#include <octavo/inference/inference.hpp>
#include <octavo/io/generation_config.hpp>
#include <octavo/io/hugging_face_config.hpp>
#include <octavo/run/interrupt.hpp>
#include <train_llama/checkpoints.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <unistd.h>

namespace generating {
namespace {

using octavo::Index;

enum ExitCode { success = 0, failure = 1, bad_input = 2, by_signal = 128 };

struct Options : trainer::ModelChoice {
  std::string checkpoint;
  std::string tokenizer;
  std::string prompt;
  std::string begin = "none";
  std::string chat;
  std::string system;
  Index context = 0;
  Index max_tokens = 200;
  octavo::SamplingOptions sampling;
  std::uint64_t seed = 0;
  std::vector<std::string> stops;
};

void declare(CLI::App& app, Options& options) {
  using namespace programs;
  options.precision = "bf16";
  trainer::declare_model(app, options);
  trainer::declare_checkpoint(app, options.checkpoint);
  const FlagGroup text(app, "Text");
  const FlagGroup sampling(app, "Sampling");
  text.add_without_default("--prompt", options.prompt,
                           "start of the text; - reads it from standard input");
  text.add_without_default(
      "--tokenizer", options.tokenizer,
      "bytes, tokenizer.json or tokenizer.model; by default, tokenizer.json in the hf: folder, "
      "otherwise bytes if the model has at most 256 tokens");
  text.add("--begin", options.begin, "special token before the prompt, or none");
  text.add_without_default(
      "--chat", options.chat,
      "chat template: " +
          programs::joined(
              {octavo::chat_template_names.begin(), octavo::chat_template_names.end()}) +
          ", or a JSON file; --prompt is the question, or each line of standard input without "
          "--prompt");
  text.add_without_default("--system", options.system, "system message of the chat");
  text.add("--context", options.context,
           "maximum length of the whole text in tokens, for which memory is allocated; 0 fits the "
           "prompt and --max-tokens, or 4096 in a chat")
      ->check(non_negative_integer());
  text.add("--max-tokens", options.max_tokens,
           "maximum number of tokens to generate, in a chat per answer")
      ->check(at_least_one());
  text.add_without_default(
      "--stop", options.stops,
      "string or special token that ends the text, in addition to the model's EOS tokens; "
      "repeatable");
  sampling
      .add("--temperature", options.sampling.temperature,
           "sampling temperature; 0 chooses the most likely token")
      ->check(non_negative_number());
  sampling
      .add("--top-k", options.sampling.top_k,
           "sample only from this many of the most likely tokens; 0 disables the limit")
      ->check(non_negative_integer());
  sampling
      .add("--top-p", options.sampling.top_p,
           "sample only from the most likely tokens whose probabilities sum to at least this; 1 "
           "disables the limit")
      ->check(finite_number("is not a number above 0 and at most 1",
                            [](double v) { return v > 0 && v <= 1; }));
  sampling
      .add_without_default("--seed", options.seed,
                           "random seed for sampling; different in each run by default")
      ->check(non_negative_integer());
}

/// The session, tokenizer and stop conditions of a generation.
struct Setup {
  std::shared_ptr<octavo::Inferring> session;
  std::unique_ptr<octavo::Tokenizer> tokenizer;
  std::vector<std::int32_t> stop_tokens;
  std::vector<std::string> stop_texts;
  std::optional<octavo::ChatEncoder> chat;  ///< empty without --chat
  std::string defaults;                     ///< line about generation_config.json, or ""
};

std::unique_ptr<octavo::Tokenizer> open_tokenizer(const Options& options, Index vocabulary) {
  return programs::open_tokenizer(options.tokenizer.empty()
                                      ? programs::tokenizer_of_model(options.load_hf, vocabulary)
                                      : options.tokenizer);
}

/// Collects what ends a text: the EOS tokens of the model's folder, and --stop.
void find_stops(Setup& setup, const Options& options) {
  if (!options.load_hf.empty()) {
    const octavo::ModelDescription model =
        octavo::read_hugging_face_config(std::filesystem::path(options.load_hf) / "config.json");
    for (const Index token : model.end_of_text) {
      setup.stop_tokens.push_back(static_cast<std::int32_t>(token));
    }
  }
  for (const std::string& stop : options.stops) {
    octavo::require<octavo::ConfigError>(
        !stop.empty(), "--stop must not be empty; pass a text, or the name of a special token");
    if (setup.tokenizer->special_tokens().contains(stop)) {
      setup.stop_tokens.push_back(setup.tokenizer->special_token(stop));
    } else {
      setup.stop_texts.push_back(stop);
    }
  }
}

/// Takes the end of text and the sampling of the folder's generation_config.json. Flags override
/// the sampling.
void take_generation_config(Setup& setup, const CLI::App& app, Options& options) {
  if (options.load_hf.empty()) return;
  const std::filesystem::path path =
      std::filesystem::path(options.load_hf) / "generation_config.json";
  const octavo::GenerationConfig config = octavo::read_generation_config(path);
  std::vector<std::string> taken;
  for (const Index token : config.end_of_text) {
    setup.stop_tokens.push_back(static_cast<std::int32_t>(token));
    taken.push_back(octavo::message("end of text ", token));
  }
  const auto take = [&](const std::string& name, const auto& value, auto& option) {
    if (!value.has_value() || app.count("--" + name) != 0) return;
    option = *value;
    taken.push_back(octavo::message(name, ' ', *value));
  };
  take("temperature", config.temperature, options.sampling.temperature);
  take("top-k", config.top_k, options.sampling.top_k);
  take("top-p", config.top_p, options.sampling.top_p);
  for (const char* flag : {"--top-k", "--top-p", "--seed"}) {
    octavo::require<octavo::ConfigError>(
        app.count(flag) == 0 || options.sampling.temperature > 0, flag,
        " needs --temperature above 0, but ", path.string(),
        " chooses the most likely token; pass --temperature, or leave ", flag, " out");
  }
  for (const std::string& key : config.unsupported) taken.push_back(key + " (not supported)");
  if (!taken.empty()) setup.defaults = path.string() + " | " + programs::joined(taken);
}

void make_session(Setup& setup, const Options& options, const trainer::Instance& instance,
                  const std::filesystem::path& checkpoint, Index longest) {
  try {
    setup.session = instance.infer({{.longest = longest}, options.threads, options.gpu});
  } catch (const octavo::MemoryError& error) {
    const bool is_by_context = options.context != 0 || !options.chat.empty();
    throw octavo::ConfigError(
        octavo::message(is_by_context ? "--context " : "--max-tokens ",
                        is_by_context ? longest : options.max_tokens,
                        ": the model and a text of this length do not fit in memory: ",
                        programs::memory_error_text(error), "; pass a smaller value"));
  }
  if (checkpoint.empty()) {
    octavo::load_hugging_face(*setup.session, instance.shape, options.load_hf);
  } else {
    octavo::load_checkpoint_weights(checkpoint, *setup.session);
  }
  programs::print_stderr("octavo {} | {} | weights in {} on {} | {:.2f} MiB for {}\n",
                         octavo::version_string, instance.model, instance.precision,
                         instance.device,
                         static_cast<double>(setup.session->memory().peak) / (1024.0 * 1024.0),
                         programs::counted(static_cast<std::uint64_t>(longest), "token"));
  if (!setup.defaults.empty()) programs::print_stderr("{}\n", programs::visible(setup.defaults));
}

double seconds_between(std::chrono::steady_clock::time_point begin,
                       std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// Continues the session's text, and prints it as it is generated.
/// @return the generated tokens
std::vector<std::int32_t> print_text(const Setup& setup, const Options& options,
                                     std::span<const std::int32_t> prompt) {
  using Clock = std::chrono::steady_clock;
  octavo::TextStream stream(setup.stop_texts);
  const auto print = [](const std::string& text) {
    fmt::print("{}", programs::visible(text, programs::LineBreaks::keep));
    programs::flush_output();
  };
  const auto start = Clock::now();
  std::optional<Clock::time_point> first;
  bool is_full = false;
  const Index before = setup.session->length();
  const Index known =
      std::min(setup.tokenizer->vocabulary_size(), setup.session->facts().vocabulary);
  std::vector<std::int32_t> tokens = octavo::generate(
      *setup.session, prompt,
      {.tokens = options.max_tokens,
       .sampling = options.sampling,
       .seed = options.seed,
       .vocabulary = known,
       .stop_tokens = setup.stop_tokens,
       .stop =
           [&] {
             const bool ends = stream.is_stopped() || octavo::InterruptGuard::received() != 0;
             is_full = !ends && first && setup.session->length() == setup.session->longest();
             return ends;
           },
       .take =
           [&](std::int32_t token) {
             const bool begins_answer = !first && !options.chat.empty();
             if (!first) first = Clock::now();
             print(stream.add(setup.tokenizer->decode(
                 std::span(&token, 1),
                 begins_answer ? octavo::TextPosition::start : octavo::TextPosition::after_text)));
           }});
  const auto end = Clock::now();
  if (!stream.is_stopped()) print(stream.end());
  fmt::print("\n");
  programs::flush_output();
  const Index processed = setup.session->length() - before;
  if (processed < static_cast<Index>(prompt.size())) {
    programs::print_stderr("generate: stopped after {} of the prompt's {}\n",
                           programs::grouped(static_cast<std::uint64_t>(processed)),
                           programs::counted(prompt.size(), "token"));
    return tokens;
  }
  const auto count = static_cast<double>(tokens.size());
  const double decoding = first ? seconds_between(*first, end) : 0;
  const bool is_drawn = options.sampling.temperature > 0;
  programs::print_stderr(
      "{}prompt of {} in {:.3f} s | {}", is_drawn ? fmt::format("seed {} | ", options.seed) : "",
      programs::counted(prompt.size(), "token"), seconds_between(start, first.value_or(end)),
      programs::counted(tokens.size(), "token"));
  if (count > 1 && decoding > 0)
    programs::print_stderr(", {:.1f} tokens/s", (count - 1) / decoding);
  programs::print_stderr("\n");
  if (is_full) {
    programs::print_stderr(
        "generate: the text stops here: the context has room for {}, but --max-tokens {} need "
        "more; pass --context {}\n",
        programs::counted(static_cast<std::uint64_t>(setup.session->longest()), "token"),
        options.max_tokens,
        setup.session->longest() + options.max_tokens - static_cast<Index>(tokens.size()));
  }
  return tokens;
}

/// Returns the exit code of a text that ended, or was ended by a signal.
int exit_code() {
  const int signal = octavo::InterruptGuard::received();
  return signal == 0 ? success : by_signal + signal;
}

std::string read_prompt(const Options& options) {
  if (options.prompt != "-") return options.prompt;
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

/// Throws if the prompt does not fit the context.
/// @param tokens   number of tokens of the prompt and all text before it
/// @param longest  maximum number of tokens of the session
/// @throws ConfigError  with a context that also fits --max-tokens
void require_room(std::size_t tokens, Index longest, const Options& options) {
  const Index count = static_cast<Index>(tokens);
  octavo::require<octavo::ConfigError>(count <= longest, "the prompt must have at most ", longest,
                                       " tokens, but has ", count, "; pass --context ",
                                       count + options.max_tokens - 1);
}

/// Answers a chat whose last message is a question. Reuses the session's KV cache of earlier
/// messages.
/// @param cached  tokens in the KV cache
/// @throws ConfigError  if the question cannot be encoded or is too long
octavo::ChatMessage answer(const Setup& setup, const Options& options,
                           const std::vector<octavo::ChatMessage>& messages,
                           std::vector<std::int32_t>& cached) {
  const std::vector<std::int32_t> prompt = setup.chat->encode_prompt(messages);
  require_room(prompt.size(), setup.session->longest(), options);
  cached.resize(static_cast<std::size_t>(setup.session->length()));
  const auto differs = std::ranges::mismatch(cached, prompt).in1 - cached.begin();
  const auto common = std::min<Index>(differs, static_cast<Index>(prompt.size()) - 1);
  setup.session->truncate(common);
  cached.resize(static_cast<std::size_t>(common));
  std::vector<std::int32_t> tokens =
      print_text(setup, options, std::span(prompt).subspan(static_cast<std::size_t>(common)));
  cached = prompt;
  cached.insert(cached.end(), tokens.begin(), tokens.end());
  return {"assistant", "", std::move(tokens)};
}

/// Answers questions until there are no more. Leaves a line of standard input that cannot be
/// answered out of the chat, with a message.
int chat(const Setup& setup, const Options& options) {
  std::vector<octavo::ChatMessage> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system});
  std::vector<std::int32_t> cached;
  const bool is_asked_once = !options.prompt.empty();
  const bool on_terminal = ::isatty(STDIN_FILENO) != 0 && !is_asked_once;
  for (;;) {
    std::string question = is_asked_once ? read_prompt(options) : "";
    if (on_terminal) programs::print_stderr("> ");
    if (!is_asked_once && !std::getline(std::cin, question)) return exit_code();
    octavo::require<octavo::ConfigError>(!is_asked_once || !question.empty(),
                                         "--prompt is empty: pass a question");
    if (question.empty()) continue;
    messages.push_back({"user", question});
    try {
      messages.push_back(answer(setup, options, messages, cached));
    } catch (const octavo::StoppedError&) {
      return exit_code();
    } catch (const octavo::ConfigError& error) {
      if (is_asked_once) throw;
      programs::print_stderr("generate: this line was left out of the chat: {}\n",
                             programs::visible(error.what()));
      messages.pop_back();
      setup.session->truncate(std::min(setup.session->length(), static_cast<Index>(cached.size())));
    }
    if (is_asked_once || octavo::InterruptGuard::received() != 0) return exit_code();
  }
}

/// Returns the tokens of the prompt, with the token of --begin.
/// @throws ConfigError  if there are none
std::vector<std::int32_t> tokens_of_prompt(const octavo::Tokenizer& tokenizer,
                                           const Options& options) {
  std::vector<std::int32_t> tokens;
  if (options.begin != "none") tokens.push_back(tokenizer.special_token(options.begin));
  const std::vector<std::int32_t> text = tokenizer.encode(read_prompt(options));
  tokens.insert(tokens.end(), text.begin(), text.end());
  octavo::require<octavo::ConfigError>(
      !tokens.empty(), "--prompt is empty: pass a text, or a special token with --begin");
  return tokens;
}

/// @throws ConfigError  if a launcher started several ranks, each of which would generate
///                      separately
void require_single_rank() {
  const octavo::Launch launch = octavo::read_launch();
  octavo::require<octavo::ConfigError>(
      launch.size == 1, octavo::name_of(launch.launcher), " started ", launch.size,
      " ranks, but generate runs on one GPU, or the host's processors; start it without a "
      "launcher");
}

int run(CLI::App& app, Options& options) {
  Setup setup;
  std::vector<std::int32_t> prompt;
  try {
    require_single_rank();
    const bool is_chat = !options.chat.empty();
    programs::require_effects(app,
                              {{{"--system"}, is_chat, "--chat", "TEMPLATE"},
                               {{"--begin"}, !is_chat, "--chat", ""},
                               {{"--top-k", "--top-p", "--seed"},
                                app.count("--temperature") == 0 || options.sampling.temperature > 0,
                                "--temperature",
                                "above 0"}});
    trainer::require_device_flags(app, options);
    const std::filesystem::path checkpoint =
        trainer::resolve_checkpoint(app, options.checkpoint, options, "generate");
    trainer::find_preset_of_folder(app, options);
    octavo::require<octavo::ConfigError>(
        !options.load_hf.empty() || !checkpoint.empty(),
        "a preset has no weights; pass --model hf:FOLDER or --checkpoint FOLDER");
    const trainer::Instance& instance = trainer::find_instance(app, options);
    if (app.count("--seed") == 0) options.seed = std::random_device()() >> 1;  // --seed accepts it
    setup.tokenizer = open_tokenizer(options, instance.shape.vocabulary);
    find_stops(setup, options);
    take_generation_config(setup, app, options);
    constexpr Index context_of_chat = 4096;
    Index longest = options.context;
    if (options.chat.empty()) {
      prompt = tokens_of_prompt(*setup.tokenizer, options);
      if (longest == 0) longest = static_cast<Index>(prompt.size()) + options.max_tokens - 1;
      require_room(prompt.size(), longest, options);
    } else {
      programs::require_chat_template("--chat", options.chat);
      setup.chat.emplace(octavo::chat_template(options.chat), *setup.tokenizer);
      setup.stop_tokens.push_back(setup.chat->end_of_turn());
      const Index positions = instance.shape.positions;
      if (longest == 0) {
        longest = positions == 0 ? context_of_chat : std::min(positions, context_of_chat);
      }
    }
    make_session(setup, options, instance, checkpoint, longest);
  } catch (const octavo::Error& error) {
    programs::print_stderr("generate: {}\n", programs::visible(error.what()));
    return bad_input;
  }
  const octavo::InterruptGuard guard("");
  if (!options.chat.empty()) return chat(setup, options);
  fmt::print("{}", programs::visible(setup.tokenizer->decode(prompt), programs::LineBreaks::keep));
  programs::flush_output();
  (void)print_text(setup, options, prompt);
  return exit_code();
}

}  // namespace
}  // namespace generating

int main(int argc, char** argv) {
  CLI::App app("Generates text or chat answers with a trained model.", "generate");
  generating::Options options;
  generating::declare(app, options);
  if (const auto code = programs::parse(app, argc, argv)) return *code;
  try {
    return generating::run(app, options);
  } catch (const octavo::ConfigError& error) {
    programs::print_stderr("generate: {}\n", programs::visible(error.what()));
    return generating::bad_input;
  } catch (const std::exception& error) {
    programs::print_stderr("generate: {}\n", programs::text_of(error));
    return generating::failure;
  }
}
