#pragma once

#include <octavo/core/lane.hpp>
#include <octavo/session/session.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

namespace support {

/// Copies the gradients of each run as soon as they are final, on a lane beside the backward.
struct CopiedGradients {
  template <class W, class G, octavo::Device D>
  class For : public octavo::SingleRank::For<W, G, D> {
   public:
    using Base = octavo::SingleRank::For<W, G, D>;
    using Parameters = octavo::FlatParameters<W, G, D>;
    using Copy = octavo::TensorView<G, 1, D>;

    For(octavo::Arena<D>& arena, const octavo::ModelParameters<W, G, D>& parameters,
        const octavo::Sharding& sharding)
        : Base(arena, parameters, sharding) {
      for (const octavo::StageParameters<W, G, D>& stage : parameters) {
        const octavo::Index size = stage.flat->size();
        parameters_.push_back(stage.flat);
        copies_.push_back(
            {arena.template allocate<G>(octavo::MemoryKind::gradients, size), {size}});
      }
    }

    void start(const octavo::Context<D>& context, octavo::Communicator<D>&) override {
      lane_ = std::make_unique<octavo::Lane<D>>(context);
    }

    void gradients_final(const Parameters& flat, const octavo::Context<D>&) override {
      lane_->fork();
      copy_on_device(copy_of(flat).data(), flat.gradients().data(), flat.gradients().bytes(),
                     lane_->context());
    }

    void join(const octavo::Context<D>&) override { lane_->join(); }

    /// [run.size()]
    [[nodiscard]] Copy copy_of(const Parameters& flat) const {
      const auto place = std::find(parameters_.begin(), parameters_.end(), &flat);
      return copies_[static_cast<std::size_t>(place - parameters_.begin())];
    }

   private:
    std::vector<const Parameters*> parameters_;
    std::vector<Copy> copies_;
    std::unique_ptr<octavo::Lane<D>> lane_;
  };
};

}  // namespace support
