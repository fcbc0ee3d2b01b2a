#pragma once

#include <octavo/core/lane.hpp>
#include <octavo/train/session.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

namespace support {

/// Copies the gradients of each run as soon as they are final, on a lane beside the backward.
struct CopiedGradients {
  template <class Model>
  class For : public octavo::OneRank::For<Model> {
   public:
    using Base = octavo::OneRank::For<Model>;
    using G = typename Model::G;
    using D = typename Model::DeviceType;
    using Run = octavo::ParameterRun<typename Model::T, G, D>;
    using Copy = octavo::TensorView<G, 1, D>;

    For(octavo::Arena<D>& arena, Model& model, const octavo::Sharding& sharding)
        : Base(arena, model, sharding) {
      model.visit_runs([&](const Run& run, const auto&) {
        runs_.push_back(&run);
        copies_.push_back({arena.template take<G>(octavo::MemoryKind::gradients, run.size()),  //
                           {run.size()}});
      });
    }

    void start(const octavo::Context<D>& context, octavo::Communicator<D>&) {
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
