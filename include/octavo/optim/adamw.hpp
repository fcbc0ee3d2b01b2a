/// @file
/// AdamW for a whole model; the formats of its state are template parameters.
#pragma once

#include <octavo/core/lane.hpp>
#include <octavo/core/timeline.hpp>
#include <octavo/kernels/initialize.hpp>
#include <octavo/layers/flat_parameters.hpp>
#include <octavo/optim/adamw_arrays.hpp>
#include <octavo/optim/offload.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
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

/// State and update of an AdamW. Whether it keeps master weights, and where its state is stored,
/// are not template parameters, so that it is compiled only once.
/// @tparam W  format of the weights
/// @tparam G  format of the gradients used for the update
template <class W, class G, class MomentFormat, Device D>
class AdamWState {
 public:
  static constexpr bool has_scales = detail::has_moment_scales<MomentFormat>;

  /// Lays the state out in the arena. Writes no values: see `initialize`.
  /// @param shards      the shards that this rank updates
  /// @param seed        of stochastic rounding
  /// @param has_master  whether it keeps FP32 master weights of weights in another format
  AdamWState(Arena<D>& arena, const std::vector<FlatShard<W, G, D>>& shards,
             const AdamWSettings& settings, std::uint64_t seed, const Offload& offload,
             bool has_master)
      : settings_(settings),
        seed_(static_cast<std::int64_t>(seed)),
        is_on_host_(offload.optimizer),
        has_master_(has_master) {
    const auto on_device = [&]<class T>(Index count) {
      return arena.template take<T>(MemoryKind::optimizer, count);
    };
    const auto on_host = [&]<class T>(Index count) {
      return arena.template take_on_host<T>(count);
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
    step_ = {arena.template take<AdamWStep>(MemoryKind::optimizer, 1), {1}};
  }

  /// Zeroes the moments and copies the weights to the master weights.
  /// @param context  must outlive this object
  /// @note enqueues; does not synchronise
  void initialize(const Context<D>& context) {
    if (is_on_host_ && lanes_ == nullptr) lanes_ = std::make_shared<Lanes>(context);
    Timeline<D> untimed;
    for_each_chunk(false, untimed, [&](const Chunk& chunk) {
      chunk.on_device.each(
          [&](const auto& array) { fill_zero(array.data(), array.bytes(), context); });
      for (const Update& update : chunk.updates) {
        if (has_master_) widen(update.weight, update.master, context);
      }
    });
    steps_ = 0;
  }

  /// Sets the values that the next `step` uses. Call it outside a captured graph.
  void prepare(double learning_rate, Staging<D>& staging, const Context<D>& context) {
    const double t = static_cast<double>(steps_ + 1);
    const AdamWStep step{
        static_cast<float>(learning_rate),
        static_cast<float>(1.0 - std::pow(static_cast<double>(settings_.beta1), t)),
        static_cast<float>(1.0 - std::pow(static_cast<double>(settings_.beta2), t)),
        static_cast<std::uint32_t>(steps_ + 1), static_cast<std::uint64_t>(seed_)};
    staging.copy(step_.data(), &step, sizeof(step), context);
  }

  /// Adds the squares of all gradients that count to the squared norm in `status`.
  void add_squared_norms(TensorView<StepStatus, 1, D> status, const Context<D>& context) const {
    for (const Part& part : parts_) {
      if (part.parameter.is_counted) add_squared_norm(part.gradient, status, context);
    }
  }

  /// Updates all weights, unless the status requests skipping. State in host memory passes through
  /// device memory in any case.
  /// @param timeline  receives the times of copies
  /// @note enqueues; does not synchronise
  void step(TensorView<const StepStatus, 1, D> status, Timeline<D>& timeline,
            const Context<D>& context) const {
    for_each_chunk(true, timeline, [&](const Chunk& chunk) {
      for (const Update& update : chunk.updates) {
        adamw_update(update, settings_, step_, status, context);
      }
    });
  }

  /// Visits all state on which the next steps depend: calls `visitor(name, view)` for master
  /// weights, moments and their scales of whole parameters, `visitor(name, view, begin, shape)` for
  /// parts of a parameter of that shape, starting at element `begin`, and `visitor(name, number)`
  /// for the number of steps and the rounding seed. Views are on the device, or on `Cpu` if the
  /// state is in host memory.
  template <class Visitor>
  void visit_state(Visitor& visitor) {
    for (const Part& part : parts_) {
      if (is_on_host_) {
        visit_part(visitor, part, part.on_host);
      } else {
        visit_part(visitor, part, part.on_device);
      }
    }
    visitor("optimizer.steps", steps_);
    visitor("optimizer.seed", seed_);
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

 private:
  using Update = AdamWParameter<W, G, MomentFormat, D>;
  using Shard = FlatShard<W, G, D>;
  using OnDevice = detail::AdamWArrays<MomentFormat, D>;
  using OnHost = detail::AdamWArrays<MomentFormat, Cpu>;
  using Lanes = detail::OffloadLanes<Lane<D>>;

  /// This rank's elements of a parameter, and the location of their state; one of both locations is
  /// empty.
  struct Part {
    ParameterPlace parameter;
    Index begin;  ///< the first element
    TensorView<const G, 1, D> gradient;
    OnDevice on_device;
    OnHost on_host;
  };

  /// A contiguous range of elements that is updated at once: a whole shard, or the elements whose
  /// state is on the device at a time.
  struct Chunk {
    OnDevice on_device;  ///< their state, or a buffer that chunks use in turn
    OnHost on_host;      ///< empty if the state is kept on the device
    std::vector<Update> updates{};
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

  /// @param random_stream  of the first parameter of the shard, even if the chunk has none of its
  ///                       elements
  void add_chunk(const Shard& chunk, const OnDevice& on_device, const OnHost& on_host,
                 std::uint64_t random_stream) {
    chunks_.push_back({on_device, on_host});
    for (const ParameterPlace& parameter : chunk.parameters) {
      const std::uint64_t stream = random_stream++;
      const auto [begin, end] = chunk.part_of(parameter);
      if (begin == end) continue;
      const Index place = chunk.place_of(parameter, {begin, end});
      const OnDevice state = on_device.part(place, end - begin);
      chunks_.back().updates.push_back(
          {.weight = chunk.weights.rows(place, end - begin),
           .gradient = chunk.gradients.rows(place, end - begin),
           .master = state.master,
           .first_moment = state.first_moment,
           .second_moment = state.second_moment,
           .first_scale = state.first_scale,
           .second_scale = state.second_scale,
           .weight_decay = parameter.is_matrix() ? settings_.weight_decay : 0.0f,
           .random_stream = stream,
           .first_element = begin});
    }
  }

  /// Calls `body(chunk)` for each chunk, with its state on the device.
  /// @param reads  whether the previous state is read; if not, it is not fetched
  template <class Body>
  void for_each_chunk(bool reads, Timeline<D>& timeline, const Body& body) const {
    if (!is_on_host_) {
      for (const Chunk& chunk : chunks_) body(chunk);
      return;
    }
    const auto fetch = [&](std::size_t i) {
      const Context<D>& lane = lanes_->to_device.context();
      const auto span = timeline.copy("to device", "fetch", lane);
      chunks_[i].on_device.each(
          [&](const auto& array, const auto& of_host) {
            copy_to_device(array.data(), of_host.data(), array.bytes(), lane);
          },
          chunks_[i].on_host);
    };
    const auto store = [&](std::size_t i) {
      const Context<D>& lane = lanes_->to_host.context();
      const auto span = timeline.copy("to host", "store", lane);
      chunks_[i].on_device.each(
          [&](const auto& array, const auto& of_host) {
            copy_to_host(of_host.data(), array.data(), array.bytes(), lane);
          },
          chunks_[i].on_host);
    };
    detail::pass_through_device(
        *lanes_, chunks_.size(), reads, fetch, [&](std::size_t i) { body(chunks_[i]); }, store);
  }

  template <class Visitor, Device Where>
  void visit_part(Visitor& visitor, const Part& part,
                  const detail::AdamWArrays<MomentFormat, Where>& state) {
    const auto show = [&]<class T, std::size_t Rank>(const char* kind,
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
    const ParameterPlace& parameter = part.parameter;
    if (has_master_) show("master", state.master, parameter.shape, part.begin);
    show("first_moment", state.first_moment, parameter.shape, part.begin);
    show("second_moment", state.second_moment, parameter.shape, part.begin);
    if constexpr (has_scales) {
      const Index first = part.begin / detail::moment_group;
      const Array<Index, 1> groups{ceil_divide(parameter.size(), detail::moment_group)};
      show("first_moment_scale", state.first_scale, groups, first);
      show("second_moment_scale", state.second_scale, groups, first);
    }
  }

  AdamWSettings settings_;
  std::vector<Part> parts_;    ///< of all parameters
  std::vector<Chunk> chunks_;  ///< of all shards
  TensorView<AdamWStep, 1, D> step_;
  std::int64_t steps_ = 0;
  std::int64_t seed_;
  bool is_on_host_;
  bool has_master_;
  std::shared_ptr<Lanes> lanes_;  ///< shared, so that a plan needs no lanes of its device
};

/// AdamW's state and update.
/// @tparam Master  `MasterWeights<Fp32>` or `MasterWeights<Bf16>`
/// @tparam Moment  `Moments<Fp32>`, `Moments<Bf16>` or `Moments<EightBit>`
/// Source: Loshchilov and Hutter 2017, arXiv 1711.05101.
template <class Master = MasterWeights<Fp32>, class Moment = Moments<Fp32>>
struct AdamW;

template <class MasterFormat, class MomentFormat>
struct AdamW<MasterWeights<MasterFormat>, Moments<MomentFormat>> {
  /// The optimizer of a model, or of one rank's shards of it.
  /// @tparam W  format of the weights
  /// @tparam G  format of the gradients used for the update
  template <class W, class G, Device D>
  class For : public AdamWState<W, G, MomentFormat, D> {
   public:
    static constexpr bool has_master =
        std::is_same_v<MasterFormat, Fp32> && !std::is_same_v<W, float>;

    /// Returns a description of its state, such as "AdamW with fp32 master weights and fp32
    /// moments". FP32 weights have no master weights, regardless of `Master`: "AdamW with fp32
    /// weights and fp32 moments".
    static std::string name() {
      const std::string weights =
          std::is_same_v<W, float> ? "fp32 weights"
                                   : message(FormatTraits<MasterFormat>::name, " master weights");
      return message("AdamW with ", weights, " and ", FormatTraits<MomentFormat>::name, " moments");
    }

    /// See AdamWState.
    For(Arena<D>& arena, const std::vector<FlatShard<W, G, D>>& shards,
        const AdamWSettings& settings, std::uint64_t seed, const Offload& offload = {})
        : AdamWState<W, G, MomentFormat, D>(arena, shards, settings, seed, offload, has_master) {}
  };
};

}  // namespace octavo
