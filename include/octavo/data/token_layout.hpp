/// @file
/// The layouts of the token files of Megatron-LM, llm.c and nanoGPT, recognised by their headers.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/data/open_file.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

namespace octavo OCTAVO_ABI {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian; read them on a little-endian processor");

/// The type of stored tokens. The numbers are Megatron's, except the last.
enum class TokenType : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8, u32 = 9 };

/// Returns the size of a token in bytes.
[[nodiscard]] constexpr std::size_t width_of(TokenType type) {
  switch (type) {
    case TokenType::u8:
    case TokenType::i8:
      return 1;
    case TokenType::i16:
    case TokenType::u16:
      return 2;
    case TokenType::i64:
      return 8;
    default:
      return 4;
  }
}

/// The position of the tokens in a file.
struct TokenLayout {
  std::filesystem::path path;         ///< file of the tokens
  std::filesystem::path declared_in;  ///< source of the layout: the file itself, or its index
  TokenType type = TokenType::u16;
  std::uint64_t begin = 0;   ///< byte of the first token
  Index count = 0;           ///< tokens
  const char* program = "";  ///< program whose format the file has
};

namespace detail {

/// Returns the value at byte `offset`, which needs no alignment.
template <class T>
T value_at(const OpenFile& file, std::uint64_t offset) {
  std::array<std::byte, sizeof(T)> bytes;
  file.read_at(offset, bytes);
  return std::bit_cast<T>(bytes);
}

/// Reads an array of a file piece by piece.
/// @param visitor  called with the index and the value of each element
template <class T, class Visitor>
void for_each_value(const OpenFile& file, std::uint64_t offset, std::uint64_t count,
                    const Visitor& visitor) {
  std::array<T, 2048> values;
  for (std::uint64_t first = 0; first < count; first += values.size()) {
    const auto part =
        std::span(values).first(std::min<std::uint64_t>(values.size(), count - first));
    file.read_at(offset + first * sizeof(T), std::as_writable_bytes(part));
    for (std::size_t i = 0; i < part.size(); ++i) visitor(first + i, part[i]);
  }
}

inline constexpr std::array<char, 9> megatron_magic{'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
inline constexpr std::uint64_t megatron_header_bytes = 34;

inline bool has_megatron_magic(const OpenFile& file) {
  return file.size() >= megatron_magic.size() &&
         value_at<std::array<char, 9>>(file, 0) == megatron_magic;
}

/// The parts of a Megatron index. Their positions are sums, which are checked against its size.
struct MegatronIndex {
  TokenType type;
  std::uint64_t sequences;
  std::uint64_t documents;
};

inline MegatronIndex megatron_header(const OpenFile& file) {
  const auto refuse = [&](const auto&... what) {
    throw IoError(message(file.path().string(), what...));
  };
  if (!has_megatron_magic(file))
    refuse(": is not a Megatron index: it does not begin with MMIDIDX");
  if (file.size() < megatron_header_bytes)
    refuse(": must have at least ", megatron_header_bytes, " bytes for a Megatron index, but has ",
           file.size(), "; write it again");
  const auto version = value_at<std::uint64_t>(file, 9);
  if (version != 1) refuse(": its version, at byte 9, must be 1, but is ", version);
  const auto code = value_at<std::uint8_t>(file, 17);
  const bool is_whole = (code >= 1 && code <= 5) || code == 8;
  if (!is_whole)
    refuse(": the type of its tokens, at byte 17, must be an integer (1 to 5, or 8), but is ",
           static_cast<int>(code));
  const MegatronIndex index{static_cast<TokenType>(code), value_at<std::uint64_t>(file, 18),
                            value_at<std::uint64_t>(file, 26)};
  const std::uint64_t most = file.size();  // beyond it, products could overflow
  if (index.sequences > most || index.documents > most ||
      megatron_header_bytes + 12 * index.sequences + 8 * index.documents != file.size())
    refuse(": its ", file.size(), " bytes do not match ", index.sequences,
           " sequences (byte 18) and ", index.documents, " documents (byte 26); write it again");
  return index;
}

/// @throws IoError  unless sequences are consecutive and documents consist of whole sequences
inline TokenLayout megatron_layout(const std::filesystem::path& path) {
  const OpenFile file(path);
  const MegatronIndex index = megatron_header(file);
  const auto refuse = [&](const char* what, std::uint64_t offset, std::int64_t value) {
    throw IoError(message(path.string(), ": ", what, ", at byte ", offset, ", is ", value,
                          "; write it again"));
  };
  const auto width = static_cast<std::int64_t>(width_of(index.type));
  const std::uint64_t lengths = megatron_header_bytes;
  const std::uint64_t pointers = lengths + 4 * index.sequences;
  const std::uint64_t documents = pointers + 8 * index.sequences;
  std::int64_t end = 0;  // offset in bytes at which the next sequence begins
  std::uint64_t chunk = 0;
  std::array<std::int64_t, 2048> begins;
  for_each_value<std::int32_t>(
      file, lengths, index.sequences, [&](std::uint64_t i, std::int32_t length) {
        if (i % begins.size() == 0) {
          chunk = std::min<std::uint64_t>(begins.size(), index.sequences - i);
          file.read_at(pointers + 8 * i, std::as_writable_bytes(std::span(begins).first(chunk)));
        }
        if (length < 0) refuse("the length of a sequence", lengths + 4 * i, length);
        if (begins[i % begins.size()] != end)
          refuse("the position of a sequence, which must be the end of the previous one",
                 pointers + 8 * i, begins[i % begins.size()]);
        end += length * width;
      });
  std::int64_t last = 0;
  for_each_value<std::int64_t>(
      file, documents, index.documents, [&](std::uint64_t i, std::int64_t at) {
        const bool fits = i == 0 ? at == 0 : at >= last;
        const bool ends =
            i + 1 != index.documents || at == static_cast<std::int64_t>(index.sequences);
        if (!fits || !ends) refuse("the first sequence of a document", documents + 8 * i, at);
        last = at;
      });
  std::filesystem::path tokens = path;
  return {tokens.replace_extension(".bin"), path, index.type, 0, end / width, "Megatron"};
}

inline constexpr std::int32_t llm_c_gpt2 = 20240520;
inline constexpr std::int32_t llm_c_llama3 = 20240801;
inline constexpr std::uint64_t llm_c_header_bytes = 1024;

/// Whether a number looks like a date in 2024, with which llm.c's files begin. GPT-2's tokens
/// without a header cannot begin with it: the first would be above 50256.
inline bool looks_like_llm_c(std::int32_t magic) { return magic >= 20240101 && magic <= 20241231; }

inline TokenLayout llm_c_layout(const OpenFile& file) {
  const std::string name = file.path().string();
  require<IoError>(file.size() >= llm_c_header_bytes, name, ": must have at least ",
                   llm_c_header_bytes, " bytes for a header of llm.c, but has ", file.size(),
                   "; write it again");
  const auto magic = value_at<std::int32_t>(file, 0);
  const auto version = value_at<std::int32_t>(file, 4);
  const auto count = value_at<std::int32_t>(file, 8);
  const bool is_gpt2 = magic == llm_c_gpt2;
  const std::int32_t expected = is_gpt2 ? 1 : 7;
  require<IoError>(version == expected, name, ": its version, at byte 4, must be ", expected,
                   " for files of ", magic, ", but is ", version);
  require<IoError>(count >= 0, name,
                   ": its number of tokens, at byte 8, must not be negative, but is ", count,
                   "; write it again, as several files if there are 2^31 tokens or more");
  return {file.path(),        file.path(), is_gpt2 ? TokenType::u16 : TokenType::u32,
          llm_c_header_bytes, count,       "llm.c"};
}

/// Whether tokens of 16 bits look like halves of 32-bit tokens: every second one is below 4, like
/// the upper half of a token below 2^18, and not all others are.
inline bool are_halves(const OpenFile& file) {
  constexpr std::uint64_t fewest = 32;
  constexpr std::uint64_t most = 4096;
  if (file.size() / 2 < fewest) return false;
  bool are_small = true;
  bool are_others_small = true;
  for_each_value<std::uint16_t>(file, 0, std::min(file.size() / 2, most),
                                [&](std::uint64_t i, std::uint16_t token) {
                                  if (token >= 4)
                                    (i % 2 == 1 ? are_small : are_others_small) = false;
                                });
  return are_small && !are_others_small;
}

/// Returns the kind of a file that does not begin with tokens; "" if it is not recognised.
inline std::string foreign_format(const OpenFile& file) {
  struct Known {
    std::string_view begin;
    const char* name;
  };
  constexpr std::array known{Known{"\x93NUMPY", "an array of NumPy"},
                             Known{"PK\x03\x04", "a ZIP file, as torch.save writes"},
                             Known{"\x28\xb5\x2f\xfd", "a Zstandard file"},
                             Known{"PAR1", "a Parquet file"}};
  std::array<char, 8> bytes{};
  const auto begin = std::span(bytes).first(std::min<std::uint64_t>(bytes.size(), file.size()));
  file.read_at(0, std::as_writable_bytes(begin));
  for (const Known& one : known) {
    if (std::string_view(begin.data(), begin.size()).starts_with(one.begin)) return one.name;
  }
  // Formats like llm.c's have magic, version and a count, followed by zeros.
  constexpr std::uint64_t used = 12;
  if (file.size() < llm_c_header_bytes) return {};
  const auto magic = value_at<std::int32_t>(file, 0);
  bool is_empty = magic != 0;
  for_each_value<std::uint8_t>(file, used, llm_c_header_bytes - used,
                               [&](std::uint64_t, std::uint8_t byte) { is_empty &= byte == 0; });
  if (!is_empty) return {};
  return message("a header of an unknown kind, with ", magic, " and zeros from byte ", used, " to ",
                 llm_c_header_bytes);
}

inline TokenLayout raw_layout(const OpenFile& file) {
  const std::string other = foreign_format(file);
  require<IoError>(other.empty(), file.path().string(), ": begins as ", other,
                   "; write it with a header of llm.c, which begins with ", llm_c_gpt2, " or ",
                   llm_c_llama3);
  require<IoError>(file.size() % 2 == 0, file.path().string(), ": has ", file.size(),
                   " bytes, but without a header each token has 2 bytes; write it again");
  require<IoError>(!are_halves(file), file.path().string(),
                   ": without a header each token has 2 bytes, but these look like tokens of 4 or "
                   "8 bytes; add Megatron's index, with the same name and .idx, or write it with "
                   "a header");
  return {file.path(),          file.path(), TokenType::u16, 0, static_cast<Index>(file.size() / 2),
          "nanoGPT (no header)"};
}

}  // namespace detail

/// Recognises the format of a token file by its header:
/// - Megatron-LM: tokens in NAME.bin, and an index in NAME.idx that begins with MMIDIDX; either
/// name
///   opens both. Integer types only; sequences must be consecutive, without a gap.
/// - llm.c: a header of 1024 bytes that begins with 20240520 (GPT-2, 16 bits per token) or 20240801
///   (Llama 3, 32 bits).
/// - nanoGPT: 16 bits per token and no header, so the name must end in .bin. Files that look like
///   Megatron's tokens without an index, or that have another header, are errors.
/// @return nothing if the file has none of these formats
/// @throws IoError  naming file and byte, if a header is damaged, or its version or type is not
///                  supported
[[nodiscard]] inline std::optional<TokenLayout> find_token_layout(
    const std::filesystem::path& path) {
  const detail::OpenFile file(path);
  const bool is_bin = path.extension() == ".bin";
  if (path.extension() == ".idx") return detail::megatron_layout(path);
  std::filesystem::path index = path;
  std::error_code ignored;
  if (is_bin && std::filesystem::exists(index.replace_extension(".idx"), ignored))
    return detail::megatron_layout(index);
  const auto magic = file.size() < 4 ? 0 : detail::value_at<std::int32_t>(file, 0);
  if (magic == detail::llm_c_gpt2 || magic == detail::llm_c_llama3)
    return detail::llm_c_layout(file);
  if (!is_bin) return std::nullopt;
  require<IoError>(!detail::looks_like_llm_c(magic), path.string(),
                   ": a token file of llm.c must begin with ", detail::llm_c_gpt2, " (GPT-2) or ",
                   detail::llm_c_llama3, " (Llama 3), but it begins with ", magic,
                   "; name a token file");
  return detail::raw_layout(file);
}

}  // namespace octavo
