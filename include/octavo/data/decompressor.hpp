/// @file
/// Decompressing gzip and Zstandard data in pieces. gzip needs zlib: link octavo::zlib, or define
/// OCTAVO_WITH_ZLIB=1 and link -lz. Zstandard needs libzstd: link octavo::zstd, or define
/// OCTAVO_WITH_ZSTD=1 and link -lzstd. All source files of a program must define the same macros.
#pragma once

#include <octavo/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#if defined(OCTAVO_WITH_ZLIB)
#include <limits>

#include <zlib.h>
#endif
#if defined(OCTAVO_WITH_ZSTD)
#include <zstd.h>
#endif

namespace octavo OCTAVO_ABI::detail {

/// Decompresses a stream of one or several members (gzip) or frames (Zstandard).
class Decompressor {
 public:
  /// The result of decompressing a piece.
  struct Step {
    std::size_t consumed = 0;     ///< bytes of the input
    std::size_t written = 0;      ///< bytes of the output
    const char* fault = nullptr;  ///< the reason why the input is invalid
  };

  Decompressor() = default;
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;
  virtual ~Decompressor() = default;

  /// Decompresses until the input is consumed and nothing more can be written, or the output is
  /// full.
  [[nodiscard]] virtual Step step(std::span<const std::uint8_t> input,
                                  std::span<std::uint8_t> output) = 0;
  /// Whether the consumed bytes end with a member or frame.
  [[nodiscard]] virtual bool is_complete() const = 0;
};

#if defined(OCTAVO_WITH_ZLIB)

/// Decompresses gzip data. Source: RFC 1952
class GzipDecompressor final : public Decompressor {
 public:
  GzipDecompressor() {
    constexpr int gzip_of_any_window = 16 + MAX_WBITS;
    require<IoError>(::inflateInit2(&stream_, gzip_of_any_window) == Z_OK,
                     "zlib cannot start: out of memory");
  }
  ~GzipDecompressor() override { (void)::inflateEnd(&stream_); }

  [[nodiscard]] Step step(std::span<const std::uint8_t> input,
                          std::span<std::uint8_t> output) override {
    // Between members and after the last, gzip and Python skip zeros, which pad files on tapes.
    std::size_t padding = 0;
    while (is_complete_ && padding < input.size() && input[padding] == 0) ++padding;
    input = input.subspan(padding);
    input = input.first(std::min<std::size_t>(input.size(), max_bytes));
    output = output.first(std::min<std::size_t>(output.size(), max_bytes));
    if (is_complete_ && !input.empty()) {
      (void)::inflateReset(&stream_);  // the next member
      is_complete_ = false;
    }
    stream_.next_in = const_cast<Bytef*>(input.data());
    stream_.avail_in = static_cast<uInt>(input.size());
    stream_.next_out = output.data();
    stream_.avail_out = static_cast<uInt>(output.size());
    const int status = is_complete_ ? Z_OK : ::inflate(&stream_, Z_NO_FLUSH);
    is_complete_ = is_complete_ || status == Z_STREAM_END;
    const bool is_valid = status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR;
    const char* const reason = stream_.msg != nullptr ? stream_.msg : "invalid data";
    return {padding + input.size() - stream_.avail_in, output.size() - stream_.avail_out,
            is_valid ? nullptr : reason};
  }
  [[nodiscard]] bool is_complete() const override { return is_complete_; }

 private:
  static constexpr std::size_t max_bytes = std::numeric_limits<uInt>::max();

  z_stream stream_{};
  bool is_complete_ = false;
};

#endif
#if defined(OCTAVO_WITH_ZSTD)

/// Decompresses Zstandard data. Source: RFC 8878
class ZstdDecompressor final : public Decompressor {
 public:
  ZstdDecompressor() : context_(::ZSTD_createDCtx(), &::ZSTD_freeDCtx) {
    require<IoError>(context_ != nullptr, "Zstandard cannot start: out of memory");
  }

  [[nodiscard]] Step step(std::span<const std::uint8_t> input,
                          std::span<std::uint8_t> output) override {
    ZSTD_inBuffer in{input.data(), input.size(), 0};
    ZSTD_outBuffer out{output.data(), output.size(), 0};
    // A call may end with a frame, although more frames follow.
    while (out.pos < out.size && (in.pos < in.size || next_input_size_ != 0)) {
      const std::size_t before = in.pos + out.pos;
      const std::size_t status = ::ZSTD_decompressStream(context_.get(), &out, &in);
      if (::ZSTD_isError(status) != 0) return {in.pos, out.pos, ::ZSTD_getErrorName(status)};
      next_input_size_ = status;
      if (in.pos + out.pos == before) break;
    }
    return {in.pos, out.pos};
  }
  [[nodiscard]] bool is_complete() const override { return next_input_size_ == 0; }

 private:
  std::unique_ptr<ZSTD_DCtx, decltype(&::ZSTD_freeDCtx)> context_;
  std::size_t next_input_size_ = 0;  ///< 0 after a complete frame, else positive
};

#endif

/// The compression of a file.
struct Compression {
  std::string_view name;  ///< empty: not compressed
  /// The Debian package of the library that decompresses it, if this build lacks the library.
  std::string_view missing_package{};
};

/// Returns the compression of a file that begins with `bytes`, which are 4 bytes or the whole file.
/// Source: RFC 1952, section 2.3.1; RFC 8878, sections 3.1.1 and 3.1.2
inline Compression compression_of(std::string_view bytes) {
  if (bytes.starts_with("\x1f\x8b")) {
#if defined(OCTAVO_WITH_ZLIB)
    return {"gzip"};
#else
    return {"gzip", "zlib1g-dev"};
#endif
  }
  // The second begins a skippable frame, which pzstd writes first.
  if (bytes.starts_with("\x28\xb5\x2f\xfd") || bytes.starts_with("\x50\x2a\x4d\x18")) {
#if defined(OCTAVO_WITH_ZSTD)
    return {"Zstandard"};
#else
    return {"Zstandard", "libzstd-dev"};
#endif
  }
  return {};
}

/// Returns a decompressor, or null for data that are not compressed or need a missing library.
inline std::unique_ptr<Decompressor> decompressor_of([[maybe_unused]] const Compression& kind) {
#if defined(OCTAVO_WITH_ZLIB)
  if (kind.name == "gzip") return std::make_unique<GzipDecompressor>();
#endif
#if defined(OCTAVO_WITH_ZSTD)
  if (kind.name == "Zstandard") return std::make_unique<ZstdDecompressor>();
#endif
  return nullptr;
}

}  // namespace octavo OCTAVO_ABI::detail
