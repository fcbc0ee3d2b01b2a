/// @file
/// Ranks that train one model on separate batches, and share the optimizer's work and state.
#pragma once

#include <octavo/comm/all_gather_values.hpp>
#include <octavo/core/lane.hpp>
#include <octavo/kernels/packed_parts.hpp>
#include <octavo/kernels/rank_sums.hpp>
#include <octavo/parallel/cast_weights.hpp>
#include <octavo/parallel/sharded_parameters.hpp>
#include <octavo/parallel/single_rank.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Data parallelism: each rank trains on separate batches. Of every flat buffer of parameters, a
/// rank reduces the gradients of one shard, updates the weights of that shard, and gathers the
/// other shards before they are read:
///
/// - As soon as the gradients of a flat buffer are final, each rank sends every other rank its
///   shard of them, on a lane that overlaps with the backward. It sums the received shards in FP32,
///   in rank order. A sum is therefore rounded once, and its bits do not depend on how the ranks
///   are connected.
/// - Right before a stage reads the weights of a flat buffer that are missing or have changed, the
///   shards are gathered on the lane, one flat buffer ahead of the stages. With `GatherIn<E4M3>`
///   each rank first casts its shard into the gather buffer, so the cast needs no further memory.
///   The amaxes for the scales are computed earlier, once per step, in one reduction.
///
/// Results of sums and decisions are the same on all ranks, so ranks remain consistent without
/// further communication.
/// @tparam Reduce  the format in which gradients are sent: `ReduceIn<…>`
/// @tparam Gather  the format in which weights are sent: `GatherIn<…>`
template <class Reduce = ReduceIn<>, class Gather = GatherIn<>>
struct DataParallel {
  /// See SingleRank::Memory.
  template <class W, class G, Device D>
  class Memory : public detail::ShardedParameters<W, G, typename Reduce::template Sum<G>, D> {
   public:
    static constexpr bool casts_weights = Gather::is_cast;

    /// @throws UsageError   if the model's flat buffers cannot be divided into equal shards
    /// @throws ConfigError  if weights should be sent in FP8, but the model has no such weights
    Memory(Arena<D>& arena, const ModelParameters<W, G, D>& parameters, const Sharding& sharding)
        : detail::ShardedParameters<W, G, typename Reduce::template Sum<G>, D>(
              arena, parameters, sharding, Reduce::is_packed, casts_weights) {}
  };

  /// See SingleRank::For.
  template <class W, class G, Device D>
  class For : public Memory<W, G, D>, public RankCollectives<W, G, D> {
    using Base = Memory<W, G, D>;
    using Base::packed_;
    using Base::received_;
    using Base::rest_;
    using Base::shard_of;
    using Base::sharded_;
    using Base::sharding_;
    using Base::shares;
    using Base::sums_;
    using typename Base::Shared;

   public:
    using Base::Base;
    using typename Base::Gradient;
    using typename Base::Parameters;

    void start(const Context<D>& context, Communicator<D>& ranks) override {
      ranks_ = &ranks;
      if (!shares()) return;
      lane_ = std::make_unique<Lane<D>>(context);
      progress_ = std::vector<Progress>(sharded_.size());
      for (std::size_t i = 0; i < sharded_.size(); ++i) {
        progress_[i].weights_text = "weights of " + Base::parameters()[i].name();
        progress_[i].gradients_text = "gradients of " + Base::parameters()[i].name();
      }
    }

    [[nodiscard]] bool has_full_weights() const override { return !sharding_.shards_weights(); }

    [[nodiscard]] Index total_targets(Index local) override {
      if (sharding_.ranks == 1) return local;
      const auto span = this->timeline().host_communication("numbers of targets");
      const auto all = all_gather_values(*ranks_, local, "numbers of targets");
      if (const Index least = *std::min_element(all.begin(), all.end()); least < 0) return least;
      Index total = 0;
      for (const Index targets : all) total += targets;
      return total;
    }

    void rehearse(bool rehearses) override {
      rehearses_ = rehearses;
      records_ = false;
      weights_moved();
    }

    void weights_moved() override {
      for (Progress& progress : progress_) progress.weights = Weights::absent;
    }
    void gather_weights(const Context<D>&) override {
      if (!has_full_weights() || !shares()) return;
      for (std::size_t i = 0; i < sharded_.size(); ++i) {
        if (sharded_[i].cast.empty()) {
          enqueue_gather(i);
        } else {  // stages read only its FP8 values
          gather_values(i, forked());
        }
      }
      join_lane();
    }

    [[nodiscard]] TensorView<const std::byte, 1, D> gather_shards(
        TensorView<const std::byte, 1, D> own, const Context<D>& context) override {
      const Index most =
          received_.size() / sharding_.ranks / Parameters::alignment * Parameters::alignment;
      const Index bytes = std::min(own.size(), most);
      const TensorView<std::byte, 1, D> all = received_.rows(0, sharding_.ranks * bytes);
      ranks_->all_gather(own.rows(0, bytes), all, "shards of weights", context);
      return all;
    }

    void exchange_shards(TensorView<const std::byte, 2, D> rows,
                         TensorView<std::byte, 2, D> received, const Context<D>& context) override {
      this->exchange_between(*ranks_, rows, received, context);
    }

    void cast_weights(const ScalingTable<D>& scaling, bool records,
                      const Context<D>& context) override {
      if constexpr (Base::casts_weights && std::is_same_v<W, Bf16>) {
        scaling_ = &scaling;
        records_ = records;
        if (const TensorView<std::uint32_t, 1, D> amaxes = scaling.found_amaxes();
            amaxes.size() != 0) {
          fill_zero(amaxes.data(), amaxes.bytes(), context);
          for (const Shared& shared : sharded_) shared.cast.find_amaxes(scaling, context);
          if (!rehearses_) {
            const auto span = this->timeline().communication("stages", "amaxes", nullptr, context);
            ranks_->all_reduce_max(amaxes, "amaxes of weights", context);
          }
          scaling.set_found_scales(records, context);
        }
        for (std::size_t i = 0; i < sharded_.size(); ++i) {
          if (!sharded_[i].cast.empty()) progress_[i].weights = Weights::absent;
        }
      }
    }
    void begin_micro_batch(Index number, const Context<D>&) override {
      accumulates_ = sharding_.reduces_each_micro_batch() && number > 0;
      // If gradients share memory with activations, the forward overwrites some that are being
      // sent.
      if (accumulates_ && !sharding_.shards_gradients()) join_lane();
    }

    [[nodiscard]] WeightRange<W, D> held_weights(const Parameters& flat) const override {
      if (has_full_weights()) return {flat.weights(), 0};
      const TensorView<W, 1, D> shard = sharded_[number_of(flat)].weights;
      return {shard, sharding_.rank * shard.size()};
    }
    void before_quantize(const Parameters& flat, const Context<D>&) override { gather(flat); }
    void before_forward(const Parameters& flat, const Context<D>&) override { gather(flat); }
    void before_backward(const Parameters& flat, const Context<D>&) override {
      gather(flat);
      for (std::size_t i = 0; i < sharded_.size(); ++i) {
        const bool is_here = sharded_[i].flat->gradients().data() == flat.gradients().data();
        if (is_here && std::exchange(progress_[i].is_sending, false))
          lane_->wait(progress_[i].sent);
      }
    }

    void announce(const Parameters& next, const Context<D>&) override {
      if (!shares()) return;
      const std::size_t number = number_of(next);
      if (memory_of(number) != memory_of(last_)) enqueue_gather(number);
    }

    void gradients_final(const Parameters& flat, const Context<D>&) override {
      if (!shares() || rehearses_) return;
      const Context<D>& lane_context = forked();
      const auto span = this->timeline().communication("lane", "reduce", &flat, lane_context);
      Progress& progress = progress_[number_of(flat)];
      const char* what = progress.gradients_text.c_str();
      const Index ranks = sharding_.ranks;
      const Index size = flat.size() / ranks;
      const TensorView<Gradient, 1, D> sum = sharded_[number_of(flat)].gradients;
      const TensorView<const G, 2, D> parts{flat.gradients().data(), {ranks, size}};
      if constexpr (Reduce::is_packed) {
        const typename TensorView<std::byte, 2, D>::Shape shape{ranks, PackedPart::bytes(size)};
        const TensorView<std::byte, 2, D> packed{packed_.data(), shape};
        pack_parts(parts, packed, lane_context);
        const TensorView<const std::byte, 2, D> received{send(packed, what, lane_context), shape};
        const RankParts<std::byte, D> of_ranks(received, packed.row(sharding_.rank),
                                               sharding_.rank);
        sum_packed_parts(of_ranks, sum, accumulates_, lane_context);
      } else {
        const TensorView<const G, 2, D> received{
            reinterpret_cast<const G*>(send(parts, what, lane_context)), {ranks, size}};
        const RankParts<G, D> of_ranks(received, parts.row(sharding_.rank), sharding_.rank);
        sum_parts(of_ranks, sum, accumulates_, lane_context);
      }
      lane_->mark(progress.sent);
      progress.is_sending = true;
    }

    void join(const Context<D>&) override {
      if (!shares()) return;
      join_lane();
      records_ = false;
    }

    void maximum(TensorView<std::uint32_t, 1, D> amaxes, const Context<D>& context) override {
      if (sharding_.ranks == 1) return;
      const auto span = this->timeline().communication("stages", "amaxes", nullptr, context);
      ranks_->all_reduce_max(amaxes, "amaxes", context);
    }

    void sum(TensorView<StepStatus, 1, D> status, const Context<D>& context) override {
      if (sharding_.ranks == 1) return;
      const auto span = this->timeline().communication("stages", "sums", nullptr, context);
      constexpr Index bytes = StepStatus::sums * static_cast<Index>(sizeof(double));
      const auto* own = reinterpret_cast<const std::byte*>(status.data());
      ranks_->all_gather({own, {bytes}}, bytes_of(sums_), "sums of losses and squares", context);
      const TensorView<const double, 2, D> all = sums_;
      sum_statuses(all, status, context);
    }

   private:
    enum class Weights { absent, in_flight, available };

    /// The transfers of a flat buffer that are in progress.
    struct Progress {
      Weights weights = Weights::absent;  ///< those of all ranks, in the flat buffer's memory
      bool is_sending = false;            ///< gradients are being sent, and must not be overwritten
      typename Lane<D>::Mark gathered{};  ///< after the gather of weights
      typename Lane<D>::Mark sent{};      ///< after the sending of gradients
      std::string weights_text{};         ///< name of the transfer, for errors
      std::string gradients_text{};
    };

    template <class T, int Rank>
    [[nodiscard]] static auto bytes_of(TensorView<T, Rank, D> view) {
      using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
      return TensorView<Byte, 1, D>{reinterpret_cast<Byte*>(view.data()),
                                    {static_cast<Index>(view.bytes())}};
    }
    [[nodiscard]] std::size_t number_of(const Parameters& flat) const {
      const auto found = std::find_if(sharded_.begin(), sharded_.end(),
                                      [&](const Shared& shared) { return shared.flat == &flat; });
      return static_cast<std::size_t>(found - sharded_.begin());
    }
    /// Returns the lane, ordered after the work enqueued so far.
    [[nodiscard]] const Context<D>& forked() const {
      lane_->fork();
      return lane_->context();
    }

    void join_lane() {
      lane_->join();
      for (Progress& progress : progress_) {
        progress.is_sending = false;
        if (progress.weights == Weights::in_flight) progress.weights = Weights::available;
      }
    }

    /// Sends every other rank its part of the gradients, and returns the memory in which the parts
    /// for this rank arrive.
    template <class T>
    const std::byte* send(TensorView<T, 2, D> parts, const char* what,
                          const Context<D>& lane_context) {
      const TensorView<const std::byte, 1, D> bytes = bytes_of(parts);
      ranks_->all_to_all(bytes, received_.rows(0, bytes.size()), what, lane_context);
      return received_.data();
    }

    /// Waits for the flat buffer's weights, which are gathered if they are missing.
    void gather(const Parameters& flat) {
      if (!shares()) return;
      const std::size_t number = number_of(flat);
      if (is_available_locally(number)) return;
      enqueue_gather(number);
      Progress& progress = progress_[number];
      if (progress.weights != Weights::available) lane_->wait(progress.gathered);
      progress.weights = Weights::available;
      last_ = number;
    }
    void enqueue_gather(std::size_t number) {
      Progress& progress = progress_[number];
      if (progress.weights != Weights::absent || is_available_locally(number)) return;
      const bool is_cast = !sharded_[number].cast.empty();
      if (is_cast && scaling_ == nullptr) return;  // nothing has read FP8 values yet
      for (std::size_t other = 0; other < sharded_.size(); ++other) {
        if (memory_of(other) == memory_of(number)) progress_[other].weights = Weights::absent;
      }
      progress.weights = Weights::in_flight;
      const Shared& shared = sharded_[number];
      const Context<D>& lane_context = forked();
      if (!is_cast) {
        gather_values(number, lane_context);
      } else {
        if constexpr (Base::casts_weights && std::is_same_v<W, Bf16>) {
          shared.cast.cast(*scaling_, records_, lane_context);
        }
        const auto span =
            this->timeline().communication("lane", "gather", shared.flat, lane_context);
        const auto all_gather = [&](auto part, auto whole, const char* what) {
          gather_bytes(bytes_of(part), bytes_of(whole), what, lane_context);
        };
        shared.cast.gather_fp8_values(all_gather);
        if (!rehearses_) shared.cast.gather_rest(rest_, all_gather, lane_context);
      }
      lane_->mark(progress.gathered);
    }
    void gather_values(std::size_t number, const Context<D>& lane_context) {
      const Shared& shared = sharded_[number];
      const auto span = this->timeline().communication("lane", "gather", shared.flat, lane_context);
      gather_bytes(bytes_of(shared.weights), bytes_of(shared.flat->weights()),
                   progress_[number].weights_text.c_str(), lane_context);
    }
    /// In a rehearsal, this rank's part replaces those of all ranks.
    void gather_bytes(TensorView<const std::byte, 1, D> part, TensorView<std::byte, 1, D> whole,
                      const char* what, const Context<D>& lane_context) {
      if (!rehearses_) return ranks_->all_gather(part, whole, what, lane_context);
      for (std::byte* place = whole.data(); place != whole.data() + whole.size();
           place += part.size()) {
        if (place != part.data()) copy_on_device(place, part.data(), part.bytes(), lane_context);
      }
    }
    /// Returns whether the rank has all weights of the flat buffer without a gather: frozen weights
    /// do not change, and a rehearsal uses the initial weights, if the rank has all of them.
    [[nodiscard]] bool is_available_locally(std::size_t number) const {
      const Shared& shared = sharded_[number];
      return (rehearses_ || shared.flat->is_frozen()) && shared.cast.empty() && has_full_weights();
    }
    [[nodiscard]] const void* memory_of(std::size_t number) const {
      const Parameters& flat = *sharded_[number].flat;
      if (flat.has_fp8_values()) return flat.fp8_values().data();
      return flat.weights().data();
    }

    Communicator<D>* ranks_ = nullptr;
    const ScalingTable<D>* scaling_ = nullptr;  ///< scales of casts; null before the first
    bool records_ = false;                      ///< whether casts until `join` are recorded
    std::unique_ptr<Lane<D>> lane_;
    std::vector<Progress> progress_;  ///< of the flat buffers
    std::size_t last_ = 0;            ///< the flat buffer that a stage requested last
    bool rehearses_ = false;
    bool accumulates_ = false;  ///< adds to the sums of earlier micro-batches
  };
};

}  // namespace octavo
