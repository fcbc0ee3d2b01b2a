/// @file
/// The collective operations of ranks if groups of them share the layers of a model.
#pragma once

#include <octavo/comm/all_gather_values.hpp>
#include <octavo/comm/rank_names.hpp>
#include <octavo/comm/tensor_parallel.hpp>
#include <octavo/kernels/rank_sums.hpp>
#include <octavo/layers/tensor_parallel_group.hpp>
#include <octavo/parallel/batch.hpp>
#include <octavo/parallel/single_rank.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// The parameters of a flat buffer that every rank of a group has whole.
template <class W, class G, Device D>
struct WholeParameters {
  struct Piece {
    Index offset, size;
  };
  const FlatParameters<W, G, D>* flat = nullptr;
  std::vector<Piece> pieces{};
  Index elements = 0;
  std::string text{};  ///< name of the transfer, for errors
};

/// Memory that groups of ranks need in addition to the memory of `Base`.
template <class W, class G, Device D>
struct GroupMemory {
  /// @param degree  ranks per group
  GroupMemory(Arena<D>& arena, const ModelParameters<W, G, D>& parameters, const Sharding& sharding,
              Index degree) {
    Index largest = 0;
    for (const StageParameters<W, G, D>& stage : parameters) {
      WholeParameters<W, G, D>& of_flat = whole.emplace_back();
      of_flat.flat = stage.flat;
      of_flat.text = "gradients of norms of " + stage.name();
      for (const Parameter<W, G, D>* parameter : stage.parameters) {
        if (!parameter->part.is_whole()) continue;
        of_flat.pieces.push_back({parameter->offset, parameter->weight.size()});
        of_flat.elements += parameter->weight.size();
      }
      largest = std::max(largest, of_flat.elements);
    }
    constexpr auto kind = MemoryKind::communication;
    own = {arena.template allocate<G>(kind, largest), {largest}};
    of_group = {arena.template allocate<G>(kind, degree * largest), {degree * largest}};
    const Index ranks = sharding.ranks * degree;
    all_sums = {arena.template allocate<double>(kind, ranks * StepStatus::sums),
                {ranks, StepStatus::sums}};
  }

  std::vector<WholeParameters<W, G, D>> whole;  ///< of each flat buffer
  TensorView<G, 1, D> own;                      ///< [elements of whole parameters, of the flat
                                                ///< buffer with most]
  TensorView<G, 1, D> of_group;                 ///< [degree · elements of `own`]
  TensorView<double, 2, D> all_sums;            ///< [all ranks, StepStatus::sums]
};

}  // namespace detail

/// Combines the operations of groups with `Base` (of `SingleRank` or `DataParallel<>`), which
/// covers the ranks with the same position in their groups; these have the same shard of the
/// layers:
///
/// - The model receives its group.
/// - Gradients of parameters that are not sharded, such as those of norms, cover only a rank's rows
///   or heads: they are summed over the group before `Base` receives them.
/// - Scales are computed from the amaxes of all ranks. Tensors that are whole on each rank of a
///   group have the same bits there, so their scales do not change; shards of weights and of
///   activations use the scale of the whole tensor, as on one rank. The scaling state is therefore
///   the same on all ranks.
/// - Optimizers exchange values between all ranks: ranks with the same position in their groups
/// have
///   shards of a flat buffer, and the ranks of a group have parts of its matrices.
/// - Losses are the same on all ranks of a group, and count once. Each squared gradient also counts
///   once.
/// @tparam Degree  ranks that share the layers
template <int Degree, class W, class G, Device D, class Base>
class WithTensorParallel final : public Base {
 public:
  using Parameters = FlatParameters<W, G, D>;

  WithTensorParallel(Arena<D>& arena, const ModelParameters<W, G, D>& parameters,
                     const Sharding& sharding)
      : Base(arena, parameters, sharding),
        place_(sharding.tensor_rank),
        memory_(arena, parameters, sharding, Degree) {}

  void start(const Context<D>& context, Communicator<D>& ranks) override {
    all_ = &ranks;
    group_ = ranks.split(ranks.rank() / Degree);
    same_place_ = ranks.split(place_);
    Base::start(context, *same_place_);
  }
  void share(TensorParallelGroup<D>& rows) override {
    rows_ = &rows;
    rows_->join(*group_);
  }

  void rehearse(bool rehearses) override {
    rehearses_ = rehearses;
    rows_->rehearse(rehearses);
    Base::rehearse(rehearses);
  }

  void compare(const Batch& batch) override {
    std::uint64_t hash = 14695981039346656037u;  // FNV-1a
    const auto add = [&](const auto& numbers) {
      for (const auto number : numbers) {
        hash = (hash ^ static_cast<std::uint64_t>(number)) * 1099511628211u;
      }
    };
    add(batch.tokens);
    add(batch.targets);
    add(batch.documents);
    const auto span = this->timeline().host_communication("hashes of batches");
    const auto all = all_gather_values(*group_, hash, "hashes of batches");
    const int first = all_->rank() - place_;
    std::vector<int> others;
    for (int place = 0; place < Degree; ++place) {
      if (all[static_cast<std::size_t>(place)] != all[0]) others.push_back(first + place);
    }
    require<UsageError>(others.empty(), "ranks ", first, " to ", first + Degree - 1,
                        " share the model's layers, but ", detail::rank_names(others), " ",
                        detail::has_or_have(others), " a different batch than rank ", first,
                        "; pass the same batch to all of them");
  }

  [[nodiscard]] TensorView<const std::byte, 1, D> gather_parts(
      TensorView<const std::byte, 1, D> own, const Context<D>& context) override {
    return rows_->gather_pieces(own, "parts of weights", context);
  }

  void gradients_final(const Parameters& flat, const Context<D>& context) override {
    if (!rehearses_) sum_whole_parameters(flat, context);
    Base::gradients_final(flat, context);
  }

  void exchange_shards(TensorView<const std::byte, 2, D> rows, TensorView<std::byte, 2, D> received,
                       const Context<D>& context) override {
    this->exchange_between(*all_, rows, received, context);
  }

  void maximum(TensorView<std::uint32_t, 1, D> amaxes, const Context<D>& context) override {
    const auto span = this->timeline().communication("stages", "amaxes", nullptr, context);
    all_->all_reduce_max(amaxes, "amaxes", context);
  }

  void sum(TensorView<StepStatus, 1, D> status, const Context<D>& context) override {
    const auto span = this->timeline().communication("stages", "sums", nullptr, context);
    if (place_ != 0) fill_zero(&status.data()->loss_sum, sizeof(double), context);
    constexpr Index bytes = StepStatus::sums * static_cast<Index>(sizeof(double));
    const TensorView<std::byte, 1, D> all{reinterpret_cast<std::byte*>(memory_.all_sums.data()),
                                          {static_cast<Index>(memory_.all_sums.bytes())}};
    all_->all_gather({reinterpret_cast<const std::byte*>(status.data()), {bytes}}, all,
                     "sums of losses and squares", context);
    const TensorView<const double, 2, D> of_ranks = memory_.all_sums;
    sum_statuses(of_ranks, status, context);
  }

 private:
  /// Sums the gradients of the parameters of a flat buffer that each rank has whole over the group,
  /// in rank order.
  void sum_whole_parameters(const Parameters& flat, const Context<D>& context) {
    const auto found = std::find_if(memory_.whole.begin(), memory_.whole.end(),
                                    [&](const auto& whole) { return whole.flat == &flat; });
    if (found->elements == 0) return;
    const auto span = this->timeline().communication("stages", "norms", &flat, context);
    const TensorView<G, 1, D> own = memory_.own.rows(0, found->elements);
    const auto for_each_piece = [&](const auto& body) {
      Index begin = 0;
      for (const auto& piece : found->pieces) {
        body(own.rows(begin, piece.size), flat.gradients().rows(piece.offset, piece.size));
        begin += piece.size;
      }
    };
    for_each_piece([&](auto packed, auto gradient) {
      copy_on_device(packed.data(), gradient.data(), gradient.bytes(), context);
    });
    const auto bytes = static_cast<Index>(own.bytes());
    group_->all_gather({reinterpret_cast<const std::byte*>(own.data()), {bytes}},
                       {reinterpret_cast<std::byte*>(memory_.of_group.data()), {Degree * bytes}},
                       found->text.c_str(), context);
    const TensorView<const G, 2, D> of_ranks{memory_.of_group.data(), {Degree, own.size()}};
    sum_parts(RankParts<G, D>(of_ranks), own, false, context);
    for_each_piece([&](auto packed, auto gradient) {
      copy_on_device(gradient.data(), packed.data(), gradient.bytes(), context);
    });
  }

  int place_;  ///< in its group
  detail::GroupMemory<W, G, D> memory_;
  Communicator<D>* all_ = nullptr;
  std::unique_ptr<Communicator<D>> group_;
  std::unique_ptr<Communicator<D>> same_place_;
  TensorParallelGroup<D>* rows_ = nullptr;  ///< the model's
  bool rehearses_ = false;
};

}  // namespace octavo
