/// @file
/// Muon: updates hidden matrices with their orthogonalised momentum, others with AdamW.
#pragma once

#include <octavo/optim/adamw.hpp>
#include <octavo/optim/muon_memory.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// See Muon; the parameters are those of OptimizerState.
template <class W, class G, class Moment, Device D>
class MuonOptimizer : public MuonMemory<W, G, Moment, D>, public Optimizer<D> {
  using Memory = MuonMemory<W, G, Moment, D>;
  using Memory::adamw_state_;
  using Memory::collected_;
  using Memory::flats_;
  using Memory::group_;
  using Memory::muon_state_;
  using Memory::newton_schulz_;
  using Memory::own_;
  using Memory::ranks_;
  using Memory::settings_;
  using Memory::steps_;
  using Memory::whole_;
  using typename Memory::Flat;

 public:
  using Memory::Memory;

  void initialize(const Context<D>& context) override {
    adamw_state_.initialize(context);
    muon_state_.initialize(context);
    // Elements between matrices are sent, but never written.
    fill_zero(own_.data(), own_.bytes(), context);
  }

  void prepare(double learning_rate, Staging<D>& staging, const Context<D>& context) override {
    const StepNumbers numbers{learning_rate, adamw_state_.steps() + 1, adamw_state_.seed()};
    const StepNumbers adamw_numbers{learning_rate * static_cast<double>(settings_.adamw_rate),
                                    numbers.step, numbers.seed};
    const AdamWStep steps[] = {AdamWRule::at(settings_.adamw, adamw_numbers),
                               AdamWRule::at(settings_.adamw, numbers)};
    staging.copy(steps_.data(), steps, sizeof(steps), context);
  }
  [[nodiscard]] std::size_t staged_bytes() const override { return 2 * sizeof(AdamWStep); }

  void add_squared_norms(TensorView<StepStatus, 1, D> status,
                         const Context<D>& context) const override {
    adamw_state_.add_squared_norms(status, context);
    muon_state_.add_squared_norms(status, context);
  }

  void step(TensorView<const StepStatus, 1, D> status, ShardExchange<D>& ranks,
            Timeline<D>& timeline, const Context<D>& context) const override {
    auto pass = adamw_state_.update(timeline);
    while (const auto* chunk = pass.next()) {
      for (const auto& elements : chunk->elements) {
        AdamWRule::update(elements, settings_.adamw, step_values(0), status, context);
      }
    }
    for (std::size_t first = 0; first < flats_.size(); first += count_equal_flats(first)) {
      update_flats(std::span(flats_).subspan(first, count_equal_flats(first)), status, ranks,
                   timeline, context);
    }
  }
  void advance() override { adamw_state_.advance(); }
  void set_master(const std::string& name, Index begin, std::span<const float> values,
                  const Context<D>& context) const override {
    adamw_state_.set_master(name, begin, values, context);
    muon_state_.set_master(name, begin, values, context);
  }
  void visit_state(StateVisitor<D>& visitor) override {
    muon_state_.visit_arrays(visitor);
    adamw_state_.visit_state(visitor);
  }

 private:
  /// Returns the host data of a step for AdamW (0) or Muon (1).
  [[nodiscard]] TensorView<const AdamWStep, 1, D> step_values(Index which) const {
    return TensorView<const AdamWStep, 1, D>(steps_.rows(which, 1));
  }

  /// Returns how many flat parameters, starting at a given one, are updated together: adjacent ones
  /// of equal size, at most one for each rank.
  [[nodiscard]] std::size_t count_equal_flats(std::size_t first) const {
    std::size_t count = 1;
    while (count < static_cast<std::size_t>(ranks_) && first + count < flats_.size() &&
           flats_[first + count].whole == flats_[first].whole) {
      ++count;
    }
    return count;
  }

  /// Updates the matrices of flat parameters; each rank orthogonalises the matrices of one.
  void update_flats(std::span<const Flat> flats, TensorView<const StepStatus, 1, D> status,
                    ShardExchange<D>& ranks, Timeline<D>& timeline,
                    const Context<D>& context) const {
    const Index size = flats.front().size;
    const auto each = [&](const auto& update) {
      for (std::size_t i = 0; i < flats.size(); ++i) {
        const TensorView<Bf16, 1, D> directions = own_.rows(static_cast<Index>(i) * size, size);
        for (const std::size_t shard : flats[i].shards) {
          auto pass = muon_state_.update_shard(shard, timeline);
          while (const auto* chunk = pass.next()) {
            for (const auto& elements : chunk->elements) {
              update(elements.parameter, of_muon(elements, flats[i].begin, directions));
            }
          }
        }
      }
    };
    each([&](const ParameterPlace&, const auto& elements) {
      muon_momentum(elements, settings_.of_momentum(), step_values(1), status, context);
    });
    exchange(own_, whole_, size, ranks, context);
    const Index rank = flats.front().begin / size * group_.degree + group_.place;
    if (rank < static_cast<Index>(flats.size())) {
      Memory::for_each_group(
          flats[static_cast<std::size_t>(rank)],
          [&](std::span<const ExchangedMatrix> matrices) { orthogonalize(matrices, context); });
    }
    exchange(whole_, own_, size, ranks, context);
    each([&](const ParameterPlace& parameter, const auto& elements) {
      muon_update(elements, settings_.rates(parameter), step_values(1), status, context);
    });
  }

  /// Orthogonalises matrices of the directions that this rank has received. Parts of other ranks
  /// that share layers are not adjacent to its own, so they are collected first.
  void orthogonalize(std::span<const ExchangedMatrix> matrices, const Context<D>& context) const {
    const TensorView<Bf16, 1, D> directions = ranks_ == 1 ? own_ : whole_;
    const bool collects = group_.degree > 1;
    std::array<TensorView<Bf16, 2, D>, Memory::Orthogonalizer::max_matrices> views;
    typename Memory::Orthogonalizer::Sizes begin;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      const ExchangedMatrix& matrix = matrices[i];
      views[i] = {collects ? collected_.data() + begin.matrices : directions.data() + matrix.offset,
                  matrix.shape};
      begin.add(matrix.shape[0], matrix.shape[1]);
      if (collects) collect_matrix<D>(directions, matrix, views[i], context);
    }
    newton_schulz_.orthogonalize(std::span(views).first(matrices.size()), settings_.newton_schulz,
                                 context);
    for (std::size_t i = 0; collects && i < matrices.size(); ++i) {
      distribute_matrix<D>(views[i], matrices[i], directions, context);
    }
  }

  /// Sends each row of `from`, which contains a shard, to the rank of that shard.
  /// @param size  elements of a row
  void exchange(TensorView<Bf16, 1, D> from, TensorView<Bf16, 1, D> to, Index size,
                ShardExchange<D>& ranks, const Context<D>& context) const {
    if (ranks_ == 1) return;
    const typename TensorView<std::byte, 2, D>::Shape shape{
        ranks_, size * static_cast<Index>(sizeof(Bf16))};
    ranks.exchange_shards({reinterpret_cast<const std::byte*>(from.data()), shape},
                          {reinterpret_cast<std::byte*>(to.data()), shape}, context);
  }

  /// @param begin       offset of this rank's first element in the flat parameters
  /// @param directions  of this rank's shard
  [[nodiscard]] MuonElements<W, G, Moment, D> of_muon(
      const UpdatedElements<W, G, Moment, 1, D>& elements, Index begin,
      TensorView<Bf16, 1, D> directions) const {
    // AdamW's parameters have the streams below.
    constexpr std::uint64_t first_stream = std::uint64_t{1} << 29;
    const Index place = elements.parameter.offset + elements.first_element - begin;
    return {.weight = elements.weight,
            .gradient = elements.gradient,
            .master = elements.state.master,
            .momentum = elements.state.moments[0],
            .momentum_scale = elements.state.scales[0],
            .direction = directions.rows(place, elements.weight.size()),
            .random_stream = first_stream + elements.random_stream,
            .first_element = elements.first_element};
  }
};

}  // namespace detail

/// Muon: updates each hidden matrix, or each matrix of an adapter, with its momentum,
/// orthogonalised by Newton–Schulz iterations in BF16. If a parameter stacks several matrices, such
/// as queries, keys and values, each is orthogonalised separately. Embeddings, the head, norms and
/// biases are updated by AdamW. Ranks with shards gather the directions of a flat buffer in BF16,
/// and each orthogonalises all of its matrices, so results do not depend on the number of ranks.
/// Ranks that share layers also gather the parts of its matrices.
/// @tparam Master  `MasterWeights<Fp32>` or `MasterWeights<Bf16>`
/// @tparam Moment  `Moments<Fp32>`, `Moments<Bf16>` or `Moments<EightBit>`
/// Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; PyTorch's
/// torch.optim.Muon.
template <class Master = MasterWeights<Fp32>, class Moment = Moments<Fp32>>
struct Muon;

template <class MasterFormat, class MomentFormat>
struct Muon<MasterWeights<MasterFormat>, Moments<MomentFormat>> {
  static_assert(sizeof(MasterWeights<MasterFormat>) > 0 && sizeof(Moments<MomentFormat>) > 0);
  using Settings = MuonSettings;

  /// Its memory, for plans, which need no code for the device.
  template <class W, class G, Device D>
  class Memory : public detail::MuonMemory<W, G, MomentFormat, D> {
   public:
    Memory(Arena<D>& arena, const std::vector<FlatShard<W, G, D>>& shards, const Settings& settings,
           std::uint64_t seed, const Offload& offload)
        : detail::MuonMemory<W, G, MomentFormat, D>(arena, shards, settings, seed, offload,
                                                    detail::has_master<W, MasterFormat>) {}
  };

  /// The optimizer of a model, or of one rank's shards of it.
  template <class W, class G, Device D>
  class For final : public detail::MuonOptimizer<W, G, MomentFormat, D> {
   public:
    /// Returns a description, such as "Muon with fp32 master weights and fp32 moments".
    static std::string name() {
      return message("Muon with ", detail::state_text<W, MasterFormat, MomentFormat>());
    }

    For(Arena<D>& arena, const std::vector<FlatShard<W, G, D>>& shards, const Settings& settings,
        std::uint64_t seed, const Offload& offload = {})
        : detail::MuonOptimizer<W, G, MomentFormat, D>(arena, shards, settings, seed, offload,
                                                       detail::has_master<W, MasterFormat>) {}
  };
};

}  // namespace octavo
