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
    using Run = octavo::FlatParameters<W, G, D>;
    using Copy = octavo::TensorView<G, 1, D>;

    For(octavo::Arena<D>& arena, const octavo::ModelRuns<W, G, D>& runs,
        const octavo::Sharding& sharding)
        : Base(arena, runs, sharding) {
      for (const octavo::ModelRun<W, G, D>& in : runs) {
        const octavo::Index size = in.run->size();
        runs_.push_back(in.run);
        copies_.push_back(
            {arena.template allocate<G>(octavo::MemoryKind::gradients, size), {size}});
      }
    }

    void start(const octavo::Context<D>& context, octavo::Communicator<D>&) override {
      lane_ = std::make_unique<octavo::Lane<D>>(context);
    }

    void gradients_final(const Run& run, const octavo::Context<D>&) override {
      lane_->fork();
      copy_on_device(copy_of(run).data(), run.gradients().data(), run.gradients().bytes(),
                     lane_->context());
    }

    void join(const octavo::Context<D>&) override { lane_->join(); }

    /// [run.size()]
    [[nodiscard]] Copy copy_of(const Run& run) const {
      const auto place = std::find(runs_.begin(), runs_.end(), &run);
      return copies_[static_cast<std::size_t>(place - runs_.begin())];
    }

   private:
    std::vector<const Run*> runs_;
    std::vector<Copy> copies_;
    std::unique_ptr<octavo::Lane<D>> lane_;
  };
};

}  // namespace support
