/// @file
/// What tests of the `Cuda` device's kernels share: memory on either device, operands, comparisons.
#pragma once

#include <octavo/cuda.cuh>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "support/on_gpu.cuh"

namespace octavo::support {

/// The context of a device and the arrays of one test. Each array has its own allocation, so that a
/// sanitizer detects accesses outside of it.
template <Device D>
class TestDevice {
 public:
  explicit TestDevice(std::size_t workspace = 0) {
    if (workspace == 0) return;
    context_.bind_workspace({make<std::byte>(static_cast<Index>(workspace)), workspace});
  }

  [[nodiscard]] const Context<D>& context() const { return context_; }
  [[nodiscard]] Context<D>& context() { return context_; }

  /// Returns `count` uninitialised elements, so that a sanitizer detects reads of them.
  template <class T>
  T* make(Index count) {
    buffers_.emplace_back(static_cast<std::size_t>(count) * sizeof(T), context_);
    return reinterpret_cast<T*>(buffers_.back().data());
  }
  /// Returns `count` elements with all bits set.
  template <class T>
  T* make_poisoned(Index count) {
    T* memory = make<T>(count);
    const std::vector<unsigned char> ones(static_cast<std::size_t>(count) * sizeof(T), 0xff);
    copy_to_device_sync(memory, ones.data(), ones.size(), context_);
    return memory;
  }
  template <class T>
  T* make(const std::vector<T>& values) {
    T* memory = make<T>(static_cast<Index>(values.size()));
    copy_to_device_sync(memory, values.data(), values.size() * sizeof(T), context_);
    return memory;
  }
  template <class T>
  TensorView<T, 1, D> vector(const std::vector<T>& values) {
    return {make(values), {static_cast<Index>(values.size())}};
  }
  template <class T>
  TensorView<T, 2, D> matrix(const std::vector<T>& values, Index columns) {
    return {make(values), {static_cast<Index>(values.size()) / columns, columns}};
  }

  template <class T>
  [[nodiscard]] std::vector<T> read(const T* source, Index count) const {
    std::vector<T> result(static_cast<std::size_t>(count));
    copy_to_host_sync(result.data(), source, result.size() * sizeof(T), context_);
    return result;
  }
  template <class T, int Rank>
  [[nodiscard]] auto read(TensorView<T, Rank, D> view) const {
    return read<std::remove_const_t<T>>(view.data(), view.size());
  }

 private:
  Context<D> context_;
  std::vector<Buffer<D>> buffers_;
};

/// A view for reading.
template <class T, int Rank, Device D>
TensorView<const T, Rank, D> constant(TensorView<T, Rank, D> view) {
  return view;
}

template <class T>
std::vector<T> normal_values(Index count, float deviation, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution(0.0f, deviation);
  std::vector<T> values;
  for (Index i = 0; i < count; ++i) values.push_back(T(distribution(random)));
  return values;
}

inline auto members(const OperandScaling& slot) {
  return std::tuple(float_bits(slot.scale), float_bits(slot.scale_inverse), slot.amax_bits,
                    slot.last_amax_bits, slot.position, slot.nonfinite, slot.elements,
                    slot.saturated, slot.flushed);
}

/// What a quantised operand consists of, as bytes.
struct OperandBytes {
  std::vector<std::uint8_t> row_major, row_scales, transposed, column_scales;
  OperandScaling slot;
};

/// A quantised operand with all its memory on one device.
template <class P, OperandKind Kind, Device D>
class TestOperand {
 public:
  using Memory = OperandMemory<P, Kind, D>;
  using Format = typename Memory::Format;
  using Scale = typename Memory::Scale;
  using Granularity = typename Memory::Granularity;

  /// @param scale  in the slot before
  TestOperand(TestDevice<D>& device, const std::vector<Bf16>& values, Index columns, float scale)
      : device_(device), rows_(static_cast<Index>(values.size()) / columns), columns_(columns) {
    memory_.values = device.make(values);
    memory_.row_major = device.template make_poisoned<Format>(copy_bytes());
    memory_.transposed = device.template make_poisoned<Format>(copy_bytes());
    memory_.row_major_scales = device.template make_poisoned<Scale>(row_scales());
    memory_.transposed_scales = device.template make_poisoned<Scale>(column_scales());
    OperandScaling before{};
    before.scale = scale;
    before.scale_inverse = 1.0f / scale;
    before.last_amax_bits = 7;
    before.saturated = 5;
    slot_ = device.make(std::vector<OperandScaling>{before});
  }

  [[nodiscard]] Operand<P, Kind, D> operand(OperandCopies copies = {}, bool record = true) const {
    return memory_.operand(rows_, columns_, slot_, record, copies);
  }

  [[nodiscard]] OperandBytes read() const {
    const auto bytes = [&](const auto* memory, Index count) {
      return device_.read(reinterpret_cast<const std::uint8_t*>(memory),
                          count * static_cast<Index>(sizeof(*memory)));
    };
    return {elements(bytes(memory_.row_major, copy_bytes())),
            bytes(memory_.row_major_scales, row_scales()),
            elements(bytes(memory_.transposed, copy_bytes())),
            bytes(memory_.transposed_scales, column_scales()), device_.read(slot_, 1)[0]};
  }

 private:
  [[nodiscard]] Index copy_bytes() const { return Memory::element_bytes(rows_, columns_); }
  /// One element a byte, as on the Cpu device. A byte that nobody wrote stays as it is.
  [[nodiscard]] std::vector<std::uint8_t> elements(std::vector<std::uint8_t> bytes) const {
    if (copy_bytes() == rows_ * columns_) return bytes;
    const bool is_written =
        std::any_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte != 0xff; });
    std::vector<std::uint8_t> each;
    for (const std::uint8_t byte : bytes) {
      each.push_back(is_written ? byte & 0xfu : 0xffu);
      each.push_back(is_written ? byte >> 4 : 0xffu);
    }
    return each;
  }
  [[nodiscard]] Index row_scales() const { return scale_count<Granularity>(rows_, columns_); }
  [[nodiscard]] Index column_scales() const { return scale_count<Granularity>(columns_, rows_); }

  TestDevice<D>& device_;
  Index rows_;
  Index columns_;
  Memory memory_;
  OperandScaling* slot_ = nullptr;
};

inline void expect_same(const OperandBytes& expected, const OperandBytes& actual) {
  EXPECT_EQ(members(expected.slot), members(actual.slot));
  EXPECT_TRUE(expected.row_major == actual.row_major) << "row-major bytes differ";
  EXPECT_TRUE(expected.row_scales == actual.row_scales) << "row-major scales differ";
  EXPECT_TRUE(expected.transposed == actual.transposed) << "transposed bytes differ";
  EXPECT_TRUE(expected.column_scales == actual.column_scales) << "transposed scales differ";
}

/// The distance of neighbouring BF16 values at `value`, or what `relative` says for FP32.
template <class T>
double unit_at(double value, double relative) {
  if constexpr (std::is_same_v<T, float>) {
    return std::abs(value) * relative;
  } else {
    return std::ldexp(1.0, std::ilogb(std::max(std::abs(value), 0x1p-126)) - 7);
  }
}

/// Expects equal values but for one BF16 place, or 1e-5 of an FP32 value; or for the element's
/// entry in `absolute`.
template <class T>
void expect_close(const std::vector<T>& expected, const std::vector<T>& actual,
                  const std::vector<double>& absolute) {
  ASSERT_EQ(expected.size(), actual.size());
  ASSERT_EQ(expected.size(), absolute.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double e = static_cast<double>(static_cast<float>(expected[i]));
    const double a = static_cast<double>(static_cast<float>(actual[i]));
    const double unit = std::max(unit_at<T>(e, 1e-5), unit_at<T>(a, 1e-5));
    ASSERT_TRUE(std::abs(e - a) <= std::max(unit, absolute[i]))
        << "element " << i << ": expected " << e << ", got " << a;
  }
}

/// The same with one bound for all elements.
template <class T>
void expect_close(const std::vector<T>& expected, const std::vector<T>& actual, double absolute) {
  expect_close(expected, actual, std::vector<double>(expected.size(), absolute));
}

/// Row counts and column counts that every row-wise kernel is tested with.
inline constexpr Index row_counts[] = {1, 17, 130, 257};
inline constexpr Index column_counts[] = {8, 37, 136, 520};

}  // namespace octavo::support
