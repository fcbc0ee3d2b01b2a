/// @file
/// The state of an optimizer: where it is stored, how it is cut into shards, and its names.
#pragma once

#include <octavo/core/lane.hpp>
#include <octavo/core/timeline.hpp>
#include <octavo/kernels/initialize.hpp>
#include <octavo/kernels/step_status.hpp>
#include <octavo/layers/flat_parameters.hpp>
#include <octavo/optim/offload.hpp>
#include <octavo/optim/state_arrays.hpp>
#include <octavo/optim/state_visitor.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The format of the weights that the optimizer updates: `Fp32` keeps a separate copy of BF16
/// weights; `Bf16` updates the BF16 weights themselves, with stochastic rounding.
template <class Format>
struct MasterWeights {
  static_assert(std::is_same_v<Format, Fp32> || std::is_same_v<Format, Bf16>,
                "MasterWeights: choose MasterWeights<Fp32> or MasterWeights<Bf16>");
};

/// The format of the optimizer's moments: `Fp32`, or `Bf16` or `EightBit` with stochastic rounding.
template <class Format>
struct Moments {
  static_assert(std::is_same_v<Format, Fp32> || std::is_same_v<Format, Bf16> ||
                    std::is_same_v<Format, EightBit>,
                "Moments: choose Moments<Fp32>, Moments<Bf16> or Moments<EightBit>");
};

/// The elements of a parameter that are updated at once, and their state.
/// @tparam W       format of the weight
/// @tparam G       format of the gradient
/// @tparam Moment  format of the moments
/// @tparam Count   number of moments of each element
template <class W, class G, class Moment, std::size_t Count, Device D>
struct UpdatedElements {
  TensorView<W, 1, D> weight;          ///< [elements]
  TensorView<const G, 1, D> gradient;  ///< [elements]
  StateArrays<Moment, Count, D> state;
  ParameterPlace parameter;
  std::uint64_t random_stream;  ///< differs between parameters
  Index first_element;          ///< index of the first element in the parameter
};

/// The state of an optimizer for the shards of one rank: FP32 master weights, moments of every
/// element, and the number of steps. Whether it keeps master weights, and where its state is
/// stored, are not template parameters, so that it is compiled only once.
/// @tparam W       format of the weights
/// @tparam G       format of the gradients used for the update
/// @tparam Moment  format of the moments: `Fp32`, `Bf16` or `EightBit`
/// @tparam Count   number of moments of each element: 1 or 2
template <class W, class G, class Moment, std::size_t Count, Device D>
class OptimizerState {
  static_assert(Count == 1 || Count == 2, "OptimizerState: an element has one or two moments");

 public:
  using Elements = UpdatedElements<W, G, Moment, Count, D>;
  using Shard = FlatShard<W, G, D>;

  /// Lays the state out in the arena. Writes no values: see `initialize`.
  /// @param shards      the shards that this rank updates
  /// @param seed        of stochastic rounding
  /// @param has_master  whether it keeps FP32 master weights of weights in another format
  OptimizerState(Arena<D>& arena, const std::vector<Shard>& shards, std::uint64_t seed,
                 const Offload& offload, bool has_master)
      : seed_(static_cast<std::int64_t>(seed)),
        is_on_host_(offload.optimizer),
        has_master_(has_master) {
    const auto on_device = [&]<class T>(Index count) {
      return arena.template allocate<T>(MemoryKind::optimizer, count);
    };
    const auto on_host = [&]<class T>(Index count) {
      return arena.template allocate_host<T>(count);
    };
    Index most = 0;  // elements of a chunk
    for (const Shard& shard : shards) most = std::max(most, shard.weights.size());
    std::array<OnDevice, detail::offload_buffers> buffers;
    if (is_on_host_) {
      most = std::min(most, offload.chunk);
      for (OnDevice& buffer : buffers) buffer = OnDevice(most, has_master, on_device);
    }
    std::uint64_t random_stream = 0;  // of the shard's first parameter
    for (const Shard& shard : shards) {
      first_chunks_.push_back(chunks_.size());
      const Index size = shard.weights.size();
      const OnDevice state = is_on_host_ ? OnDevice() : OnDevice(size, has_master, on_device);
      const OnHost host = is_on_host_ ? OnHost(size, has_master, on_host) : OnHost();
      list_parts(shard, state, host);
      for (Index begin = 0; begin < size; begin += most) {
        const Index count = std::min(most, size - begin);
        const OnDevice& from = is_on_host_ ? buffers[chunks_.size() % buffers.size()] : state;
        add_chunk(part_of_shard(shard, begin, count), from.part(0, count), host.part(begin, count),
                  random_stream);
      }
      random_stream += shard.parameters.size();
    }
    first_chunks_.push_back(chunks_.size());
  }

  /// Zeroes the moments and copies the weights to the master weights.
  /// @param context  must outlive this object
  /// @note enqueues; does not synchronise
  void initialize(const Context<D>& context) {
    if (is_on_host_ && lanes_ == nullptr) lanes_ = std::make_shared<Lanes>(context);
    Timeline<D> untimed;
    Pass pass(*this, chunks_, false, untimed);
    while (const Chunk* chunk = pass.next()) {
      chunk->on_device.each(
          [&](const auto& array) { fill_zero(array.data(), array.bytes(), context); });
      for (const Elements& elements : chunk->elements) {
        if (has_master_) widen(elements.weight, elements.state.master, context);
      }
    }
    steps_ = 0;
  }

  /// Adds the squares of all gradients that count to the squared norm in `status`.
  void add_squared_norms(TensorView<StepStatus, 1, D> status, const Context<D>& context) const {
    for (const Part& part : parts_) {
      if (part.parameter.is_counted) add_squared_norm(part.gradient, status, context);
    }
  }

  /// A contiguous range of elements that is updated at once: a whole shard, or the elements whose
  /// state is on the device at a time.
  struct Chunk {
    StateArrays<Moment, Count, D> on_device;  ///< their state, or a buffer that chunks use in turn
    StateArrays<Moment, Count, Cpu> on_host;  ///< empty if the state is kept on the device
    std::vector<Elements> elements{};         ///< of each parameter
  };

  /// A pass over chunks, in order. State in host memory passes through device memory.
  class Pass {
   public:
    /// Returns the next chunk, with its state on the device until the next call. Returns null after
    /// the last chunk; `next` must not be called again then.
    /// @note enqueues; does not synchronise
    [[nodiscard]] const Chunk* next() {
      if (state_.is_on_host_) {
        if (count_ > 0) transfers_->end(count_ - 1, [&](std::size_t i) { store(chunks_[i]); });
        if (count_ < chunks_.size()) {
          transfers_->begin(count_, [&](std::size_t i) { fetch(chunks_[i]); });
        }
      }
      return count_ == chunks_.size() ? nullptr : &chunks_[count_++];
    }

   private:
    friend class OptimizerState;
    Pass(const OptimizerState& state, std::span<const Chunk> chunks, bool fetches,
         Timeline<D>& timeline)
        : state_(state), chunks_(chunks), timeline_(timeline) {
      if (state.is_on_host_) transfers_.emplace(*state.lanes_, chunks.size(), fetches);
    }

    void fetch(const Chunk& chunk) {
      const Context<D>& lane = state_.lanes_->to_device.context();
      const auto span = timeline_.copy("to device", "fetch", lane);
      chunk.on_device.each(
          [&](const auto& array, const auto& of_host) {
            copy_to_device(array.data(), of_host.data(), array.bytes(), lane);
          },
          chunk.on_host);
    }
    void store(const Chunk& chunk) {
      const Context<D>& lane = state_.lanes_->to_host.context();
      const auto span = timeline_.copy("to host", "store", lane);
      chunk.on_device.each(
          [&](const auto& array, const auto& of_host) {
            copy_to_host(of_host.data(), array.data(), array.bytes(), lane);
          },
          chunk.on_host);
    }

    const OptimizerState& state_;
    std::span<const Chunk> chunks_;
    Timeline<D>& timeline_;
    std::size_t count_ = 0;                                 ///< number of chunks that were returned
    std::optional<detail::DevicePass<Lane<D>>> transfers_;  ///< if the state is in host memory
  };

  /// Begins an update of all shards. The caller must request every chunk, even if it does not
  /// update it.
  /// @param timeline  receives the times of copies
  [[nodiscard]] Pass update(Timeline<D>& timeline) const {
    return Pass(*this, chunks_, true, timeline);
  }
  /// Begins an update of one shard.
  /// @param shard  its number in the constructor's list
  [[nodiscard]] Pass update_shard(std::size_t shard, Timeline<D>& timeline) const {
    const std::size_t first = first_chunks_[shard];
    return Pass(*this, std::span(chunks_).subspan(first, first_chunks_[shard + 1] - first), true,
                timeline);
  }

  /// Visits all of it: master weights, moments and their scales, the number of steps, and the
  /// rounding seed. Tensors are on the device, or on `Cpu` if the state is in host memory.
  void visit_state(StateVisitor<D>& visitor) {
    visit_arrays(visitor);
    visitor("optimizer.steps", steps_);
    visitor("optimizer.seed", seed_);
  }
  /// Visits all of it except the numbers.
  void visit_arrays(StateVisitor<D>& visitor) const {
    for (const Part& part : parts_) {
      if (is_on_host_) {
        visit_part(visitor, part, part.on_host);
      } else {
        visit_part(visitor, part, part.on_device);
      }
    }
  }

  /// Sets the elements of the master weights of parameter `name` that this rank has, if there are
  /// master weights.
  /// @param name    of a parameter of the model
  /// @param begin   index of the first value in the parameter
  /// @param values  in memory of `allocate_on_host`, valid until the context has run
  /// @note enqueues; synchronises only if the state is in host memory
  void set_master(const std::string& name, Index begin, std::span<const float> values,
                  const Context<D>& context) const {
    for (const Part& part : parts_) {
      if (!has_master_ || part.parameter.name != name) continue;
      const Index size = is_on_host_ ? part.on_host.master.size() : part.on_device.master.size();
      const Index from = std::max(begin, part.begin);
      const Index to = std::min(begin + static_cast<Index>(values.size()), part.begin + size);
      if (from >= to) continue;
      const float* source = values.data() + (from - begin);
      if (is_on_host_) {
        context.synchronize();
        std::copy_n(source, to - from, part.on_host.master.data() + (from - part.begin));
      } else {
        copy_to_device(part.on_device.master.data() + (from - part.begin), source,
                       static_cast<std::size_t>(to - from) * sizeof(float), context);
      }
    }
  }

  /// Counts a step that was not skipped.
  void advance() { ++steps_; }
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  [[nodiscard]] std::uint64_t seed() const { return static_cast<std::uint64_t>(seed_); }

 private:
  using OnDevice = StateArrays<Moment, Count, D>;
  using OnHost = StateArrays<Moment, Count, Cpu>;
  using Lanes = detail::OffloadLanes<Lane<D>>;

  /// This rank's elements of a parameter, and the location of their state, on the device or in host
  /// memory; the other location is empty.
  struct Part {
    ParameterPlace parameter;
    Index begin;  ///< the first element
    TensorView<const G, 1, D> gradient;
    OnDevice on_device;
    OnHost on_host;
  };

  static Shard part_of_shard(const Shard& shard, Index begin, Index count) {
    return {shard.weights.rows(begin, count), shard.gradients.rows(begin, count),
            shard.begin + begin, shard.parameters};
  }

  void list_parts(const Shard& shard, const OnDevice& on_device, const OnHost& on_host) {
    for (const ParameterPlace& parameter : shard.parameters) {
      const auto [begin, end] = shard.part_of(parameter);
      if (begin == end) continue;
      // Parameters and shards begin at a group boundary: at multiples of FlatParameters::alignment.
      const Index place = shard.place_of(parameter, {begin, end});
      const Index count = end - begin;
      parts_.push_back({parameter, begin, shard.gradients.rows(place, count),
                        on_device.part(place, count), on_host.part(place, count)});
    }
  }

  /// @param random_stream  of the shard's first parameter, even if the chunk contains none of its
  ///                       elements
  void add_chunk(const Shard& chunk, const OnDevice& on_device, const OnHost& on_host,
                 std::uint64_t random_stream) {
    chunks_.push_back({on_device, on_host});
    for (const ParameterPlace& parameter : chunk.parameters) {
      const std::uint64_t stream = random_stream++;
      const auto [begin, end] = chunk.part_of(parameter);
      if (begin == end) continue;
      const Index place = chunk.place_of(parameter, {begin, end});
      chunks_.back().elements.push_back(
          {chunk.weights.rows(place, end - begin), chunk.gradients.rows(place, end - begin),
           on_device.part(place, end - begin), parameter, stream, begin});
    }
  }

  template <Device Where>
  void visit_part(StateVisitor<D>& visitor, const Part& part,
                  const StateArrays<Moment, Count, Where>& state) const {
    const auto show = [&]<class T, std::size_t Rank>(const std::string& kind,
                                                     TensorView<T, 1, Where> array,
                                                     const Array<Index, Rank>& whole, Index begin) {
      const std::string name = message("optimizer.", kind, '.', part.parameter.name);
      const TensorView<T, Rank, Where> all(array.data(), whole);
      if (array.size() == all.size()) {
        visitor(name, all);
      } else {
        visitor(name, array, begin, whole);
      }
    };
    constexpr std::array names{"first_moment", "second_moment"};
    const ParameterPlace& parameter = part.parameter;
    if (has_master_) show("master", state.master, parameter.shape, part.begin);
    for (std::size_t i = 0; i < Count; ++i) {
      show(names[i], state.moments[i], parameter.shape, part.begin);
    }
    if constexpr (detail::has_moment_scales<Moment>) {
      const Index first = part.begin / detail::moment_group;
      const Array<Index, 1> groups{ceil_divide(parameter.size(), detail::moment_group)};
      for (std::size_t i = 0; i < Count; ++i) {
        show(message(names[i], "_scale"), state.scales[i], groups, first);
      }
    }
  }

  std::vector<Part> parts_;                ///< of all parameters
  std::vector<Chunk> chunks_;              ///< of all shards
  std::vector<std::size_t> first_chunks_;  ///< first chunk of each shard, then the number of chunks
  std::int64_t steps_ = 0;
  std::int64_t seed_;
  bool is_on_host_;
  bool has_master_;
  std::shared_ptr<Lanes> lanes_;  ///< shared, so that a plan needs no lanes of its device
};

}  // namespace octavo
