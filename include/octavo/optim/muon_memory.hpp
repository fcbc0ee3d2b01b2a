/// @file
/// Settings and memory of Muon.
#pragma once

#include <octavo/optim/adamw.hpp>
#include <octavo/optim/newton_schulz.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace octavo OCTAVO_ABI {

/// How Muon's learning rate depends on the shape of a matrix.
enum class MuonRate {
  original,        ///< √max(1, rows / columns)
  match_rms_adamw  ///< 0.2 · √max(rows, columns), so that AdamW's learning rates apply
};

/// Muon's settings, constant during a training.
struct MuonSettings {
  float momentum = 0.95f;
  bool nesterov = true;
  NewtonSchulzSettings newton_schulz{};
  MuonRate rate = MuonRate::match_rms_adamw;
  float weight_decay = 0.1f;
  AdamWSettings adamw{};    ///< of the parameters that AdamW updates
  float adamw_rate = 1.0f;  ///< factor of the learning rate for these parameters

  [[nodiscard]] MuonMomentum of_momentum() const { return {momentum, nesterov}; }

  /// Returns the factor of the learning rate for a matrix.
  [[nodiscard]] float rate_factor(Index rows, Index columns) const {
    const auto height = static_cast<double>(rows);
    const auto width = static_cast<double>(columns);
    return static_cast<float>(rate == MuonRate::original
                                  ? std::sqrt(std::max(1.0, height / width))
                                  : 0.2 * std::sqrt(std::max(height, width)));
  }

  /// Returns the factors for the matrices of a parameter.
  [[nodiscard]] MuonRates rates(const ParameterPlace& parameter) const {
    MuonRates result{.weight_decay = weight_decay};
    const std::array<Index, 3>& stacked = parameter.matrices.rows;
    Index end = 0;
    for (std::size_t i = 0; i < stacked.size(); ++i) {
      const Array<Index, 2> part{stacked[i], parameter.shape[1]};
      const Array<Index, 2> whole = parameter.part.full_shape(part);
      end += part[0] * part[1];
      result.ends[i] = end;
      result.factors[i] = part[0] == 0 ? 0.0f : rate_factor(whole[0], whole[1]);
    }
    if (parameter.matrices.repeats > 1) result.period = end;
    return result;
  }

  /// @throws ConfigError  for invalid settings
  void check() const {
    const auto in = [](const char* which, auto value, bool good, const char* advice) {
      require<ConfigError>(good, "Muon's ", which, " must be ", advice, ", but is ", value);
    };
    in("momentum", momentum, momentum >= 0 && momentum < 1, "a number from 0 to below 1");
    in("iterations", newton_schulz.iterations,
       newton_schulz.iterations > 0 && newton_schulz.iterations <= 100, "a number from 1 to 100");
    in("epsilon", newton_schulz.epsilon,
       newton_schulz.epsilon > 0 && std::isfinite(newton_schulz.epsilon), "a number above 0");
    const float coefficients = newton_schulz.a + newton_schulz.b + newton_schulz.c;
    in("sum of coefficients", coefficients, std::isfinite(coefficients), "finite");
    in("weight_decay", weight_decay, weight_decay >= 0 && std::isfinite(weight_decay),
       "a number of at least 0");
    in("adamw_rate", adamw_rate, adamw_rate >= 0 && std::isfinite(adamw_rate),
       "a number of at least 0");
    AdamWRule::check(adamw);
  }
};

namespace detail {

/// Whether Muon updates a parameter.
inline bool uses_muon(const ParameterPlace& parameter) { return !parameter.matrices.empty(); }

/// The memory of Muon; the parameters are those of OptimizerState.
template <class W, class G, class Moment, Device D>
class MuonMemory {
 public:
  using Shard = FlatShard<W, G, D>;
  using Shards = std::vector<Shard>;

  /// @throws ConfigError  for invalid settings, and for a model without hidden matrices
  MuonMemory(Arena<D>& arena, const Shards& shards, const MuonSettings& settings,
             std::uint64_t seed, const Offload& offload, bool has_master)
      : settings_(checked(settings)),
        group_(group_of(shards)),
        ranks_(ranks_of(shards) * group_.degree),
        own_(allocate_directions(arena, shards, true)),
        whole_(allocate_directions(arena, shards, ranks_ > 1)),
        adamw_state_(arena, ranges_of(shards, false), seed, offload, has_master),
        muon_state_(arena, ranges_of(shards, true), seed, offload, has_master),
        steps_(arena.template allocate<AdamWStep>(MemoryKind::optimizer, 2), {2}) {
    list_flats(shards);
    typename Orthogonalizer::Sizes most;
    for (const Flat& flat : flats_) {
      for_each_group(flat, [&](std::span<const ExchangedMatrix> matrices) {
        typename Orthogonalizer::Sizes sizes;
        for (const ExchangedMatrix& matrix : matrices) sizes.add(matrix.shape[0], matrix.shape[1]);
        most.raise_to(sizes);
      });
    }
    newton_schulz_ = Orthogonalizer(arena, most);
    const Index collected = group_.degree == 1 ? 0 : most.matrices;
    collected_ = {arena.template allocate<Bf16>(MemoryKind::optimizer, collected), {collected}};
    pad_to_largest_rank(arena, shards, offload, has_master);
  }

 protected:
  /// Flat parameters with matrices.
  struct Flat {
    Index begin, size;                ///< this rank's shard
    Index whole;                      ///< number of elements
    std::vector<std::size_t> shards;  ///< indices in `muon_state_` of the ranges of matrices
    std::vector<ExchangedMatrix> matrices;
  };
  /// Ranks that share layers.
  struct Group {
    Index degree = 1;  ///< number of them
    Index place = 0;   ///< index of this rank among them
  };

  using AdamWState = OptimizerState<W, G, Moment, 2, D>;
  using MuonState = OptimizerState<W, G, Moment, 1, D>;
  using Orthogonalizer = NewtonSchulz<D>;

  MuonSettings settings_;
  Group group_;
  Index ranks_;  ///< number of ranks with shards of parts of the model
  /// Directions of this rank's shard, for as many flat parameters as there are ranks.
  TensorView<Bf16, 1, D> own_;
  /// Directions of all shards of the flat parameters that this rank orthogonalises, in the order of
  /// ranks; empty for one rank.
  TensorView<Bf16, 1, D> whole_;
  /// Matrices that are orthogonalised together; empty unless ranks share layers.
  TensorView<Bf16, 1, D> collected_;
  AdamWState adamw_state_;
  MuonState muon_state_;
  TensorView<AdamWStep, 1, D> steps_;  ///< [2], for AdamW and for Muon
  std::vector<Flat> flats_;
  Orthogonalizer newton_schulz_;

  /// Calls `body(matrices)` for all matrices that are orthogonalised together.
  template <class Body>
  static void for_each_group(const Flat& flat, const Body& body) {
    std::span<const ExchangedMatrix> rest(flat.matrices);
    while (!rest.empty()) {
      const std::size_t count = std::min(rest.size(), Orthogonalizer::max_matrices);
      body(rest.first(count));
      rest = rest.subspan(count);
    }
  }

 private:
  static const MuonSettings& checked(const MuonSettings& settings) {
    settings.check();
    return settings;
  }

  /// Returns the number of elements of the shard's flat parameters.
  static Index whole_of(const Shard& shard) { return std::max(shard.whole, shard.weights.size()); }
  static Group group_of(const Shards& shards) {
    for (const Shard& shard : shards) {
      for (const ParameterPlace& parameter : shard.parameters) {
        if (!parameter.part.is_whole()) return {parameter.part.degree, parameter.part.rank};
      }
    }
    return {};
  }
  /// Returns the number of ranks with shards of the same part of the model.
  static Index ranks_of(const Shards& shards) {
    for (const Shard& shard : shards) {
      if (shard.weights.size() != 0) return whole_of(shard) / shard.weights.size();
    }
    return 1;
  }

  /// Allocates directions for the largest flat parameters with matrices. Call it before anything
  /// whose size differs between ranks is allocated: ranks write to each other's directions, which
  /// must be at the same offset on all ranks.
  TensorView<Bf16, 1, D> allocate_directions(Arena<D>& arena, const Shards& shards,
                                             bool takes) const {
    Index most = 0;
    for (const Shard& shard : shards) {
      for_each_range(shard, true, [&](std::size_t, std::size_t) {
        if (takes) most = std::max(most, whole_of(shard) * group_.degree);
      });
    }
    return {arena.template allocate<Bf16>(MemoryKind::optimizer, most), {most}};
  }

  /// Allocates unused memory, so that all ranks need as much as the rank with the largest states:
  /// plans are then valid for every rank.
  void pad_to_largest_rank(Arena<D>& arena, const Shards& shards, const Offload& offload,
                           bool has_master) {
    const auto bytes_of = [&](Index rank) {
      Arena<D> measuring;
      const Shards of_rank = shards_of(shards, rank);
      const AdamWState others(measuring, ranges_of(of_rank, false), 0, offload, has_master);
      const MuonState matrices(measuring, ranges_of(of_rank, true), 0, offload, has_master);
      return static_cast<Index>(measuring.plan().peak);
    };
    if (ranks_ == group_.degree) return;
    Index most = 0;
    for (Index rank = 0; rank < ranks_ / group_.degree; ++rank)
      most = std::max(most, bytes_of(rank));
    const Index own = bytes_of(shards.front().begin / shards.front().weights.size());
    arena.template allocate<std::byte>(MemoryKind::optimizer, most - own);
  }

  /// Returns the shards of another rank as views without memory.
  static Shards shards_of(const Shards& shards, Index rank) {
    Shards result;
    for (const Shard& shard : shards) {
      const Index size = shard.weights.size();
      result.push_back(
          {{nullptr, {size}}, {nullptr, {size}}, rank * size, shard.parameters, shard.whole});
    }
    return result;
  }

  /// Calls `body(first, end)` for each index range of adjacent parameters of the same kind.
  template <class Body>
  static void for_each_range(const Shard& shard, bool of_muon, const Body& body) {
    const std::vector<ParameterPlace>& parameters = shard.parameters;
    for (std::size_t first = 0; first < parameters.size();) {
      std::size_t end = first + 1;
      const bool kind = uses_muon(parameters[first]);
      while (end < parameters.size() && uses_muon(parameters[end]) == kind) ++end;
      if (kind == of_muon) body(first, end);
      first = end;
    }
  }

  /// Returns the ranges of one kind, as shards. A rank without elements of a range has an empty
  /// one, so that all ranks have the same number of ranges.
  static Shards ranges_of(const Shards& shards, bool of_muon) {
    Shards result;
    for (const Shard& shard : shards) {
      const Index size = shard.weights.size();
      for_each_range(shard, of_muon, [&](std::size_t first, std::size_t end) {
        const ParameterPlace& last = shard.parameters[end - 1];
        const auto clamped = [&](Index place) {
          return std::clamp(place, shard.begin, shard.begin + size) - shard.begin;
        };
        const Index from = clamped(shard.parameters[first].offset);
        const Index to =
            clamped(last.offset + round_up(last.size(), FlatParameters<W, G, D>::alignment));
        result.push_back({shard.weights.rows(from, to - from),
                          shard.gradients.rows(from, to - from),
                          shard.begin + from,
                          {shard.parameters.begin() + static_cast<std::ptrdiff_t>(first),
                           shard.parameters.begin() + static_cast<std::ptrdiff_t>(end)}});
      });
    }
    return result;
  }

  void list_flats(const Shards& shards) {
    std::size_t number = 0;
    for (const Shard& shard : shards) {
      const Index size = shard.weights.size();
      Flat flat{shard.begin, size, whole_of(shard), {}, {}};
      for_each_range(shard, true, [&](std::size_t first, std::size_t end) {
        flat.shards.push_back(number++);
        for (std::size_t i = first; i < end; ++i) add_matrices(shard.parameters[i], flat);
      });
      if (!flat.matrices.empty()) flats_.push_back(std::move(flat));
    }
    require<ConfigError>(!flats_.empty(),
                         "Muon updates the matrices of hidden linear layers, but none of this "
                         "model's is trained; choose AdamW");
  }

  void add_matrices(const ParameterPlace& parameter, Flat& flat) const {
    const ParameterPart& part = parameter.part;
    Index offset = parameter.offset;
    Index rows = parameter.matrices.padding;
    for (Index repeat = 0; repeat < parameter.matrices.repeats; ++repeat) {
      for (const Index count : parameter.matrices.rows) {
        if (count != 0) {
          flat.matrices.push_back(
              {.offset = offset,
               .shape = part.full_shape(Array<Index, 2>{count, parameter.shape[1]}),
               .shard = flat.size,
               .degree = group_.degree,
               .parts = part.degree,
               .divides_columns = part.divides_columns()});
        }
        offset += count * parameter.shape[1];
        rows += count;
      }
    }
    require<UsageError>(rows == parameter.shape[0], "the matrices of ", parameter.name, " have ",
                        rows, " rows, but the parameter has ", parameter.shape[0],
                        "; set Parameter::matrices to all of them");
    require<UsageError>(part.divides_columns() || part.groups == parameter.matrices.rows,
                        "ranks must divide the rows of each matrix of ", parameter.name,
                        ", but its groups of rows differ from its matrices; set Parameter::part "
                        "and Parameter::matrices to the same rows");
  }
};

}  // namespace detail

}  // namespace octavo
