// Attention to kept keys and values on the Cuda device against the Cpu device: one row and several,
// texts that have just begun and full caches, recorded once for all positions.
#include "attention/attention_on_cuda.cuh"

#include <octavo/attention/cuda/cached_attention.cuh>
#include <octavo/core/cuda/replay.cuh>

#include <limits>

namespace octavo {
namespace cached_attention_cuda_test {

using support::constant;
using support::normal_values;
using support::OnGpu;
using support::TestDevice;

struct Shape {
  HeadLayout layout;
  Index capacity;
  AttentionOptions options{};
};

std::vector<std::int32_t> positions_from(Index first, Index rows) {
  std::vector<std::int32_t> positions;
  for (Index row = 0; row < rows; ++row)
    positions.push_back(static_cast<std::int32_t>(first + row));
  return positions;
}

/// A full cache and new rows, at any position: what a device makes of them.
template <class T, Device D>
class Decoding {
 public:
  Decoding(const Shape& shape, Index rows)
      : shape_(shape),
        rows_(rows),
        device_(cached_attention_workspace(shape.layout, rows, shape.capacity, Context<D>())),
        qkv_(device_.matrix(normal_values<T>(rows * shape.layout.columns(), 1.5f, 1),
                            shape.layout.columns())),
        keys_(normal_values<T>(shape.capacity * kv_columns(), 1.5f, 2)),
        values_(normal_values<T>(shape.capacity * kv_columns(), 1.5f, 3)),
        cache_{device_.matrix(keys_, kv_columns()), device_.matrix(values_, kv_columns())},
        positions_(device_.vector(positions_from(0, rows))),
        output_(device_.template make_poisoned<T>(rows * out_columns()), {rows, out_columns()}) {}

  /// New rows begin at `first`; what lies behind them is NaN, which whoever reads it shows.
  void go_to(Index first) {
    const std::vector<std::int32_t> positions = positions_from(first, rows_);
    copy_to_device_sync(positions_.data(), positions.data(),
                        positions.size() * sizeof(std::int32_t), device_.context());
    set(cache_.keys, keys_, first + rows_);
    set(cache_.values, values_, first + rows_);
  }
  void run() {
    cached_attention(constant(qkv_), shape_.layout, shape_.options, constant(positions_), cache_,
                     output_, device_.context());
  }
  [[nodiscard]] std::vector<T> output() const { return device_.read(output_); }
  [[nodiscard]] const Context<D>& context() const { return device_.context(); }

 private:
  [[nodiscard]] Index kv_columns() const { return shape_.layout.kv_heads * shape_.layout.head_dim; }
  [[nodiscard]] Index out_columns() const { return shape_.layout.heads * shape_.layout.head_dim; }
  void set(TensorView<T, 2, D> target, std::vector<T> values, Index seen) {
    std::fill(values.begin() + seen * kv_columns(), values.end(),
              T(std::numeric_limits<float>::quiet_NaN()));
    copy_to_device_sync(target.data(), values.data(), values.size() * sizeof(T), context());
  }

  Shape shape_;
  Index rows_;
  TestDevice<D> device_;
  TensorView<T, 2, D> qkv_;
  std::vector<T> keys_, values_;
  KeyValueCache<T, D> cache_;
  TensorView<std::int32_t, 1, D> positions_;
  TensorView<T, 2, D> output_;
};

/// Sums of probabilities times values: their order differs between devices, and exponentials do in
/// their last places. Values are below 8 in magnitude, the magnitudes of a score's terms below 100.
constexpr double allowed = 3e-4;

template <class T>
void compare(const Shape& shape) {
  for (const Index rows : {1, 2, 3, 4, 5, 9}) {
    if (rows > shape.capacity) continue;
    Decoding<T, Cpu> cpu(shape, rows);
    Decoding<T, Cuda> cuda(shape, rows);
    for (const Index first :
         {Index{0}, Index{1}, Index{31}, Index{32}, Index{62}, Index{64}, shape.capacity / 2,
          shape.capacity - rows - 1, shape.capacity - rows}) {
      if (first < 0 || first + rows > shape.capacity) continue;
      SCOPED_TRACE(message(shape.layout.heads, "/", shape.layout.kv_heads, " heads of ",
                           shape.layout.head_dim, ", ", rows, " rows after ", first, " of ",
                           shape.capacity, ", window ", shape.options.window));
      cpu.go_to(first);
      cpu.run();
      cuda.go_to(first);
      cuda.run();
      support::expect_close(cpu.output(), cuda.output(), allowed);
    }
  }
}

class CachedAttentionOnCuda : public OnGpu {};

TEST_F(CachedAttentionOnCuda, MatchesCpu) {
  for (const Shape& shape : {Shape{{4, 4, 64}, 1}, Shape{{9, 3, 64}, 700}, Shape{{8, 2, 128}, 1000},
                             Shape{{12, 12, 64}, 129}, Shape{{16, 2, 96}, 257},
                             Shape{{4, 1, 16}, 333}, Shape{{8, 1, 128}, 5000}, Shape{{3, 3, 8}, 64},
                             Shape{{4, 1, 256}, 700}, Shape{{2, 2, 136}, 130}}) {
    compare<Bf16>(shape);
  }
}

TEST_F(CachedAttentionOnCuda, MatchesCpuInFp32) {
  for (const Shape& shape : {Shape{{9, 3, 64}, 700}, Shape{{4, 2, 10}, 130},
                             Shape{{4, 1, 200}, 257}, Shape{{2, 2, 128}, 500}}) {
    compare<float>(shape);
  }
}

// Windows of one key, within a part and across parts, and longer than the cache.
TEST_F(CachedAttentionOnCuda, WindowsMatchCpu) {
  for (const Index window : {1, 3, 33, 64, 500, 2000}) {
    for (const HeadLayout layout : {HeadLayout{8, 2, 128}, HeadLayout{3, 3, 64},
                                    HeadLayout{4, 1, 256}, HeadLayout{6, 2, 24}}) {
      compare<Bf16>({layout, 1500, {window, 0.0f}});
    }
  }
  compare<float>({{4, 2, 10}, 300, {70, 0.25f}});
  compare<Bf16>({{8, 2, 64}, 700, {0, 0.0625f}});
}

TEST_F(CachedAttentionOnCuda, FullLengthWindowIsBitwiseEqualToNoWindow) {
  const Shape shape{{8, 2, 128}, 600};
  for (const Index rows : {1, 5}) {
    Decoding<Bf16, Cuda> none(shape, rows);
    none.go_to(500);
    none.run();
    for (const Index window : {600, 601}) {
      Decoding<Bf16, Cuda> windowed({shape.layout, shape.capacity, {window, 0.0f}}, rows);
      windowed.go_to(500);
      windowed.run();
      EXPECT_EQ(windowed.output(), none.output()) << window;
    }
  }
}

// Tiles of many rows leave no reason to divide the keys: one kernel writes the output.
TEST_F(CachedAttentionOnCuda, ManyRowsMatchCpu) {
  for (const Index window : {0, 100}) {
    const Shape shape{{8, 2, 64}, 1500, {window, 0.0f}};
    for (const Index rows : {150, 1100}) {
      Decoding<Bf16, Cpu> cpu(shape, rows);
      Decoding<Bf16, Cuda> cuda(shape, rows);
      for (const Index first : {Index{0}, Index{333}, shape.capacity - rows}) {
        cpu.go_to(first);
        cpu.run();
        cuda.go_to(first);
        cuda.run();
        support::expect_close(cpu.output(), cuda.output(), allowed);
      }
    }
  }
}

TEST_F(CachedAttentionOnCuda, RecordingIsBitwiseEqualAtEveryPosition) {
  const Shape shape{{8, 2, 128}, 600};
  Decoding<Bf16, Cuda> direct(shape, 1);
  Decoding<Bf16, Cuda> recorded(shape, 1);
  Replay<Cuda> replay;
  for (const Index first : {0, 31, 32, 63, 64, 127, 599, 300}) {
    SCOPED_TRACE(first);
    direct.go_to(first);
    direct.run();
    recorded.go_to(first);
    replay.run(recorded.context(), [&] { recorded.run(); });
    EXPECT_EQ(direct.output(), recorded.output());
  }
  EXPECT_EQ(replay.counts().recordings, 1u);
}

TEST_F(CachedAttentionOnCuda, ThrowsForUnsupportedHeadDim) {
  Decoding<Bf16, Cuda> decoding({{1, 1, 264}, 4}, 1);
  EXPECT_THROW(decoding.run(), ConfigError);
}

/// What new rows are after they have joined a cache, and the cache.
template <class T>
struct Appended {
  std::vector<T> qkv, keys, values;
};

template <class T, Device D>
Appended<T> append(HeadLayout layout, Index rows, Index first, Index capacity, bool rotates,
                   bool normalises) {
  TestDevice<D> device;
  const Index columns = layout.kv_heads * layout.head_dim;
  const auto qkv =
      device.matrix(normal_values<T>(rows * layout.columns(), 1.0f, 1), layout.columns());
  const KeyValueCache<T, D> cache{
      device.matrix(normal_values<T>(capacity * columns, 1.0f, 2), columns),
      device.matrix(normal_values<T>(capacity * columns, 1.0f, 3), columns)};
  const auto query_weight = constant(device.vector(normal_values<T>(layout.head_dim, 1.0f, 4)));
  const auto key_weight = constant(device.vector(normal_values<T>(layout.head_dim, 1.0f, 5)));
  const auto positions = constant(device.vector(positions_from(first, rows)));
  QkNorm<const T, D> norm;
  if (normalises) norm = {query_weight, key_weight, 1e-6f};
  TensorView<const float, 2, D> rotation;
  if (rotates) {
    rotation =
        device.matrix(normal_values<float>(capacity * layout.head_dim, 1.0f, 6), layout.head_dim);
  }
  append_to_cache(qkv, layout, norm, rotation, positions, cache, device.context());
  return {device.read(qkv), device.read(cache.keys), device.read(cache.values)};
}

template <class T>
void compare_appended() {
  for (const HeadLayout layout :
       {HeadLayout{9, 3, 64}, HeadLayout{4, 4, 10}, HeadLayout{8, 2, 128}}) {
    for (const auto& [rotates, normalises] :
         {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
      for (const Index rows : {1, 5}) {
        for (const Index first : {0, 20 - static_cast<int>(rows)}) {
          const auto cpu = append<T, Cpu>(layout, rows, first, 20, rotates, normalises);
          const auto cuda = append<T, Cuda>(layout, rows, first, 20, rotates, normalises);
          support::expect_close(cpu.qkv, cuda.qkv, 1e-5);
          support::expect_close(cpu.keys, cuda.keys, 1e-5);
          EXPECT_EQ(cpu.values, cuda.values);
        }
      }
    }
  }
}

TEST_F(CachedAttentionOnCuda, AppendedRowsMatchCpu) {
  compare_appended<Bf16>();
  compare_appended<float>();
}

// A step that was recorded may be launched once too often: it must not write beside the cache.
TEST_F(CachedAttentionOnCuda, PositionsOutsideTheCacheAreNotWritten) {
  const HeadLayout layout{2, 1, 16};
  for (const Index first : {-1, 3, 4}) {
    const auto cuda = append<Bf16, Cuda>(layout, 2, first, 4, true, false);
    const auto before = normal_values<Bf16>(4 * layout.head_dim, 1.0f, 3);
    const auto rows = normal_values<Bf16>(2 * layout.columns(), 1.0f, 1);
    for (Index position = 0; position < 4; ++position) {
      const bool taken = position == first || position == first + 1;
      for (Index c = 0; c < layout.head_dim; ++c) {
        const Bf16 expected =
            taken ? rows[static_cast<std::size_t>((position - first) * layout.columns() +
                                                  3 * layout.head_dim + c)]
                  : before[static_cast<std::size_t>(position * layout.head_dim + c)];
        ASSERT_EQ(cuda.values[static_cast<std::size_t>(position * layout.head_dim + c)], expected);
      }
    }
  }
}

}  // namespace cached_attention_cuda_test
}  // namespace octavo
