// Feeds bytes to the parsers of files that others write: fuzz TARGET CORPUS... with libFuzzer's
// options. scripts/fuzz builds and runs it. A parser may read what it is given or refuse it with an
// octavo::Error; all else is a fault.
#include <octavo/checkpoint/checkpoint_manifest.hpp>
#include <octavo/core/json_reader.hpp>
#include <octavo/data/byte_tokenizer.hpp>
#include <octavo/data/chats.hpp>
#include <octavo/data/data_files.hpp>
#include <octavo/data/tokenizer_json.hpp>
#include <octavo/gemm/gemm_plans.hpp>
#include <octavo/io/hugging_face_config.hpp>
#include <octavo/io/peft_config.hpp>
#include <octavo/io/safetensors.hpp>

#include <common/flags_file.hpp>
#include <plan_memory/measure.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace fuzz {

namespace fs = std::filesystem;
using Bytes = std::span<const std::uint8_t>;

/// Ends the program, so that libFuzzer keeps the input.
void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fault: %s\n", what);
  std::abort();
}

/// A file in memory, under a name of its own, whose content changes from input to input.
class InputFile {
 public:
  explicit InputFile(const char* name) : descriptor_(::memfd_create(name, 0)) {
    std::string folder = (fs::temp_directory_path() / "octavo_fuzz_XXXXXX").string();
    require(descriptor_ >= 0 && ::mkdtemp(folder.data()) != nullptr, "no file for inputs");
    folder_ = folder;
    path_ = folder_ / name;
    fs::create_symlink("/proc/self/fd/" + std::to_string(descriptor_), path_);
  }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile() {
    fs::remove_all(folder_);
    ::close(descriptor_);
  }

  [[nodiscard]] const fs::path& path() const { return path_; }

  const fs::path& with(Bytes bytes) {
    const auto size = static_cast<::ssize_t>(bytes.size());
    require(::ftruncate(descriptor_, size) == 0 &&
                ::pwrite(descriptor_, bytes.data(), bytes.size(), 0) == size,
            "an input cannot be written");
    return path_;
  }

 private:
  int descriptor_;
  fs::path folder_;
  fs::path path_;
};

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
Bytes bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

void read_json(octavo::JsonReader& json) {
  using Kind = octavo::JsonReader::Kind;
  switch (json.peek()) {
    case Kind::object:
      return json.object([&](const std::string&) { read_json(json); });
    case Kind::array:
      return json.array([&] { read_json(json); });
    case Kind::number:
      return static_cast<void>(json.number());
    default:
      return json.skip();
  }
}

void json(Bytes bytes) {
  octavo::JsonReader skipped(text_of(bytes), "skipped");
  skipped.skip();
  skipped.end();
  octavo::JsonReader read(text_of(bytes), "read");
  read_json(read);
  read.end();
}

/// Returns whether the text of a file may be longer than the file. `compressed` covers such files.
bool may_grow(Bytes bytes) {
  return !octavo::detail::compression_of(
              text_of(bytes.first(std::min<std::size_t>(bytes.size(), 4))))
              .name.empty();
}

void json_lines(Bytes bytes) {
  if (may_grow(bytes)) return;
  static InputFile file("text.jsonl");
  const octavo::Text text = octavo::load_text({file.with(bytes)});
  require(text.bytes.size() <= bytes.size(), "texts are longer than their lines");
}

void safetensors(Bytes bytes) {
  static InputFile file("tensors.safetensors");
  const octavo::SafetensorsFile tensors(file.with(bytes));
  std::vector<std::byte> read;
  for (const octavo::SafetensorsEntry& entry : tensors.tensors()) {
    read.resize(entry.bytes());
    tensors.read(entry, 0, read);
  }
}

void read_tokens(const fs::path& path) {
  constexpr octavo::Index vocabulary = 50'000;
  const octavo::Tokens tokens = octavo::open_token_file(path, vocabulary);
  std::vector<std::int32_t> read(static_cast<std::size_t>(tokens.size()));
  tokens.read(0, read);
  const bool fit = std::all_of(read.begin(), read.end(),
                               [](std::int32_t token) { return token >= 0 && token < vocabulary; });
  require(fit, "a token outside of the vocabulary");
}

void token_file(Bytes bytes) {
  static InputFile file("tokens.bin");
  read_tokens(file.with(bytes));
}

/// An index of Megatron, beside a file of as many tokens as it says, where these are few.
void megatron_index(Bytes bytes) {
  static InputFile index("tokens.idx");
  static const fs::path tokens = fs::path(index.path()).replace_extension(".bin");
  index.with(bytes);
  const auto layout = octavo::find_token_layout(index.path());
  const auto size = static_cast<std::uint64_t>(layout->count) * octavo::width_of(layout->type);
  constexpr std::uint64_t most = 4096;
  static const int descriptor = ::open(tokens.c_str(), O_RDWR | O_CREAT, 0600);
  require(::ftruncate(descriptor, static_cast<off_t>(std::min(size, most))) == 0,
          "a file of tokens cannot be made");
  read_tokens(index.path());
}

void config(Bytes bytes) {
  static InputFile file("config.json");
  const octavo::ModelDescription model = octavo::read_hugging_face_config(file.with(bytes));
  (void)octavo::hugging_face_config(model, "bfloat16");
}

/// Plans the memory of a model of any shape, in one precision with Muon's state in 8 bits, on two
/// ranks with tensor parallelism if the shape allows it.
void plan(Bytes bytes) {
  static InputFile file("config.json");
  const planner::Shape shape{"config.json", octavo::read_hugging_face_config(file.with(bytes))};
  planner::Request request;
  request.session.batch = {2, 128};
  request.tensor_parallel = shape.shared_by() % 2 == 0 ? 2 : 1;
  request.session.sharding = octavo::sharding_of_rank({.zero = octavo::Zero::weights}, 0, 2,
                                                      static_cast<int>(request.tensor_parallel));
  request.optimizer = "muon";
  request.moments = "8bit";
  const octavo::MemoryPlan memory =
      planner::detail::memory<octavo::Fp8Recipe<octavo::Delayed>, octavo::Cuda>(shape, request);
  const std::size_t largest = *std::max_element(memory.by_kind.begin(), memory.by_kind.end());
  require(memory.peak >= largest && shape.facts().parameters > 0, "the plan is too small");
}

void adapter_config(Bytes bytes) {
  static InputFile file("adapter_config.json");
  const octavo::PeftConfig read = octavo::read_peft_config(file.with(bytes));
  const std::string text = octavo::peft_config(read);
  const octavo::PeftConfig again = octavo::read_peft_config(file.with(bytes_of(text)));
  require(octavo::peft_config(again) == text, "the adapters differ when read back");
}

/// Text of a few kinds of characters, short: patterns may try each way to match it.
constexpr std::string_view sample = "aB 1\n\xc3\xa9\xff";

void require_round_trip(const octavo::Tokenizer& tokenizer) {
  const std::vector<std::int32_t> tokens = tokenizer.encode(sample);
  for (const std::int32_t token : tokens)
    require(token >= 0 && token < tokenizer.vocabulary_size(), "a token that there is not");
  (void)tokenizer.decode(tokens);
}

void tokenizer_json(Bytes bytes) {
  static InputFile file("tokenizer.json");
  require_round_trip(octavo::load_tokenizer_json(file.with(bytes)));
}

void sentencepiece(Bytes bytes) {
  static InputFile file("sentencepiece.model");
  require_round_trip(octavo::load_sentencepiece(file.with(bytes)));
}

void tiktoken(Bytes bytes) {
  static InputFile file("tokenizer.model");
  static const octavo::TiktokenOptions options{"\\p{L}+|\\s+|.", {"<|end|>"}};
  require_round_trip(octavo::load_tiktoken(file.with(bytes), options));
}

/// Reads a template and encodes a chat with it, without its special tokens.
void chat_template(Bytes bytes) {
  static InputFile file("template.json");
  static const octavo::ByteTokenizer tokenizer;
  octavo::ChatTemplate read = octavo::chat_template(file.with(bytes).string());
  read.special_tokens.clear();
  const octavo::ChatEncoder encoder(std::move(read), tokenizer);
  const std::vector<octavo::ChatMessage> chat{{.role = "user", .content = " a "},
                                              {.role = "assistant", .content = "<think>b</think>c"},
                                              {.role = "user", .content = std::string(sample)},
                                              {.role = "assistant", .content = "\n"}};
  const octavo::ChatTokens tokens = encoder.encode(chat);
  require(tokens.tokens.size() == tokens.targets.size(), "a token without a target");
  require(std::ranges::count(tokens.targets, encoder.end_of_turn()) > 0, "a turn without an end");
  (void)encoder.encode_prompt(chat);
}

void chats(Bytes bytes) {
  if (may_grow(bytes)) return;
  static InputFile file("chats.jsonl");
  static const octavo::ByteTokenizer tokenizer;
  static const octavo::Context<octavo::Cpu> context(1);
  static const octavo::ChatEncoder encoder(
      [] {
        octavo::ChatTemplate plain{.name = "plain"};
        for (const char* role : {"system", "user", "assistant"}) plain.turns[role] = {role, "\n"};
        return plain;
      }(),
      tokenizer);
  const octavo::ChatData data = octavo::load_chats({.train = {file.with(bytes).string()},
                                                    .validation_fraction = 0.5,
                                                    .longest = 64,
                                                    .vocabulary = 256},
                                                   encoder, context);
  require(data.train.size() > 0 && data.train.targets() > 0, "chats without a target");
}

/// Reads text that may be compressed, in pieces: a few bytes can expand to megabytes.
void compressed(Bytes bytes) {
  static InputFile file("text.gz");
  octavo::detail::TextStream text(file.with(bytes));
  std::array<std::uint8_t, 1000> piece{};
  std::size_t count = 0;
  constexpr std::size_t most = std::size_t{1} << 24;
  for (std::size_t added = 1; added > 0 && count < most; count += added) added = text.read(piece);
  require(text.file_bytes() <= bytes.size(), "more bytes than the file has");
  require(text.is_compressed() || count == bytes.size(), "bytes of a text are missing");
}

/// The input is what stands before the checksum.
void manifest(Bytes bytes) {
  static InputFile file("manifest.json");
  const std::string text(text_of(bytes));
  file.with(bytes_of(text + octavo::detail::manifest_end(text)));
  (void)octavo::detail::read_manifest(file.path().parent_path()).bytes();
}

void flags(Bytes bytes) {
  struct Values {
    std::vector<std::string> names;
    std::string name;
    double rate = 0;
    std::int64_t count = 0;
    bool is_on = false;
  };
  static Values values;
  static CLI::App app;
  static const bool declared = [] {
    app.add_option("--names", values.names);
    app.add_option("--name", values.name);
    app.add_option("--rate", values.rate)->check(programs::above_zero());
    app.add_option("--count", values.count)->check(programs::non_negative_integer());
    app.add_flag("--on", values.is_on);
    app.set_config("--config", "flags.toml");
    return true;
  }();
  require(declared, "no flags");
  std::istringstream text{std::string(text_of(bytes))};
  for (const CLI::ConfigItem& item : programs::FlagsFile(app).from_config(text))
    require(!item.inputs.empty(), "a key without a value");
}

/// The input is a line without its checksum.
void gemm_plans(Bytes bytes) {
  const std::string line(text_of(bytes));
  const auto read = [](const std::string& text) { return octavo::read_gemm_plans(text, "plans"); };
  const auto records =
      read(octavo::gemm_plans_text({}) + line + " checksum=" +
           octavo::detail::hexadecimal_digits(octavo::detail::text_checksum(line), 8) + "\n");
  const std::string text = octavo::gemm_plans_text(records);
  require(octavo::gemm_plans_text(read(text)) == text, "the plans differ when read back");
}

struct Target {
  std::string_view name;
  void (*parse)(Bytes);
};
constexpr std::array targets{Target{"adapter-config", adapter_config},
                             Target{"chat-template", chat_template},
                             Target{"chats", chats},
                             Target{"compressed", compressed},
                             Target{"config", config},
                             Target{"flags", flags},
                             Target{"gemm-plans", gemm_plans},
                             Target{"json", json},
                             Target{"json-lines", json_lines},
                             Target{"manifest", manifest},
                             Target{"megatron-index", megatron_index},
                             Target{"plan", plan},
                             Target{"safetensors", safetensors},
                             Target{"sentencepiece", sentencepiece},
                             Target{"tiktoken", tiktoken},
                             Target{"token-file", token_file},
                             Target{"tokenizer-json", tokenizer_json}};

const Target* chosen = nullptr;

}  // namespace fuzz

/// Takes the target's name off the arguments; without one it prints all names.
extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  char** const names = *arguments;
  const auto* const found = std::find_if(
      fuzz::targets.begin(), fuzz::targets.end(),
      [&](const fuzz::Target& target) { return *count > 1 && target.name == names[1]; });
  if (found == fuzz::targets.end()) {
    for (const fuzz::Target& target : fuzz::targets) std::puts(target.name.data());
    std::exit(*count > 1 ? 2 : 0);
  }
  fuzz::chosen = found;
  std::rotate(names + 1, names + 2, names + *count);
  --*count;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  try {
    fuzz::chosen->parse({bytes, size});
  } catch (const octavo::Error&) {
  }
  return 0;
}
