/// @file
/// TensorBoard event files.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/io/appended_file.hpp>
#include <octavo/io/crc32c.hpp>
#include <octavo/io/protobuf.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <time.h>
#include <unistd.h>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Returns a TFRecord record: length, masked checksum of the length, data, masked checksum of the
/// data. Source: TensorFlow, `tensorflow/core/lib/io/record_writer.cc`.
inline std::string event_record(std::string_view data) {
  const auto append_checksum = [](std::string& record, std::string_view bytes) {
    const std::uint32_t sum = crc32c(std::as_bytes(std::span(bytes)));
    append_little_endian(record, (sum >> 15 | sum << 17) + 0xa282ead8u);
  };
  std::string record;
  append_little_endian(record, std::uint64_t{data.size()});
  const std::string length = record;
  append_checksum(record, length);
  record += data;
  append_checksum(record, data);
  return record;
}

/// Returns the `HistogramProto` message of finite values, with one bucket per power of 2 and sign.
/// Source: TensorFlow, `tensorflow/core/framework/summary.proto`.
inline std::string histogram_of(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  double sum = 0;
  double squares = 0;
  std::vector<double> limits;
  std::vector<double> counts;
  for (const double value : sorted) {
    sum += value;
    squares += value * value;
    // Bucket limits are powers of 2; adjacent empty buckets are merged.
    int exponent = 0;
    const bool is_power = std::frexp(std::abs(value), &exponent) == 0.5;
    const double end =
        value == 0
            ? 0.0
            : std::copysign(std::ldexp(1.0, exponent - (value < 0 || is_power ? 1 : 0)), value);
    const double begin = value < 0 ? 2 * end : end / 2;
    if (!limits.empty() && limits.back() < begin) {
      limits.push_back(begin);
      counts.push_back(0);
    }
    if (limits.empty() || limits.back() < end) {
      limits.push_back(end);
      counts.push_back(0);
    }
    ++counts.back();
  }
  return ProtobufMessage{}
      .add_double(1, sorted.empty() ? 0 : sorted.front())
      .add_double(2, sorted.empty() ? 0 : sorted.back())
      .add_double(3, static_cast<double>(sorted.size()))
      .add_double(4, sum)
      .add_double(5, squares)
      .add_doubles(6, limits)
      .add_doubles(7, counts)
      .bytes();
}

}  // namespace detail

/// The values of one step for TensorBoard: `EventSummary{}.add_scalar("train/loss", 2.5)`.
class EventSummary {
 public:
  EventSummary& add_scalar(std::string_view tag, double value) {
    return add(detail::ProtobufMessage{}.add_bytes(1, tag).add_float(2, static_cast<float>(value)));
  }

  /// Adds a histogram of values, without those that are not finite.
  EventSummary& add_histogram(std::string_view tag, std::vector<double> values) {
    std::erase_if(values, [](double value) { return !std::isfinite(value); });
    if (values.empty()) return *this;
    return add(
        detail::ProtobufMessage{}.add_bytes(1, tag).add_bytes(5, detail::histogram_of(values)));
  }

  /// Adds text, which TensorBoard shows as Markdown.
  EventSummary& add_text(std::string_view tag, std::string_view text) {
    using Message = detail::ProtobufMessage;
    constexpr std::uint64_t type_of_strings = 7;
    const Message plugin = Message{}.add_bytes(1, "text");
    const Message metadata = Message{}.add_bytes(1, plugin.bytes());
    const Message dimension = Message{}.add_varint(1, 1);
    const Message shape = Message{}.add_bytes(2, dimension.bytes());
    const Message tensor =
        Message{}.add_varint(1, type_of_strings).add_bytes(2, shape.bytes()).add_bytes(8, text);
    return add(
        Message{}.add_bytes(1, tag).add_bytes(8, tensor.bytes()).add_bytes(9, metadata.bytes()));
  }

  [[nodiscard]] const std::string& bytes() const { return summary_.bytes(); }

 private:
  EventSummary& add(const detail::ProtobufMessage& value) {
    summary_.add_bytes(1, value.bytes());
    return *this;
  }

  detail::ProtobufMessage summary_;
};

/// Returns the current time in seconds since 1970, as events store it.
[[nodiscard]] inline double event_time() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Writes an event file, which TensorBoard finds in its log directory.
/// Source: TensorFlow, `tensorflow/core/util/event.proto`.
class EventFile {
 public:
  /// Creates a file in an existing folder, named after the time, the host and the process.
  /// @param time  of its start, as `event_time` returns it
  /// @throws IoError  if it cannot be created
  explicit EventFile(const std::filesystem::path& folder, double time = event_time())
      : file_(folder / name(time)) {
    append(detail::ProtobufMessage{}.add_double(1, time).add_bytes(3, "brain.Event:2"));
  }

  /// Appends the values of a step.
  /// @throws IoError  if they cannot be written completely; the file then contains none of them
  void write(std::int64_t step, const EventSummary& summary, double time = event_time()) {
    detail::ProtobufMessage event;
    event.add_double(1, time);
    if (step != 0) event.add_varint(2, static_cast<std::uint64_t>(step));
    append(event.add_bytes(5, summary.bytes()));
  }

  /// Marks the step from which the run continues: earlier records of this and later steps, also in
  /// older files of this folder, no longer belong to the run. TensorBoard's Python reader
  /// (`--load_fast=false`) then hides them. When a tag is written again, its default reader drops
  /// that tag's earlier points from that step on.
  /// @param step  the first of these steps
  /// @throws IoError  as `write`
  void begin_steps(std::int64_t step, double time = event_time()) {
    constexpr std::uint64_t start = 1;  // SessionLog.SessionStatus
    detail::ProtobufMessage event;
    event.add_double(1, time);
    if (step != 0) event.add_varint(2, static_cast<std::uint64_t>(step));
    append(event.add_bytes(7, detail::ProtobufMessage{}.add_varint(1, start).bytes()));
  }

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

 private:
  static std::string name(double time) {
    std::array<char, 256> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
    return message("events.out.tfevents.", static_cast<long long>(time), '.',
                   host[0] == '\0' ? "host" : host.data(), '.', ::getpid());
  }

  void append(const detail::ProtobufMessage& event) {
    file_.append(detail::event_record(event.bytes()));
  }

  AppendedFile file_;
};

}  // namespace octavo
