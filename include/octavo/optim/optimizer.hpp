/// @file
/// The interface through which a session uses its optimizer.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/core/timeline.hpp>
#include <octavo/kernels/step_status.hpp>
#include <octavo/memory/buffer.hpp>
#include <octavo/optim/shard_exchange.hpp>
#include <octavo/optim/state_visitor.hpp>

#include <any>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace octavo OCTAVO_ABI {

/// The settings of any optimizer, such as `AdamWSettings`; empty: the optimizer's default settings.
class OptimizerSettings {
 public:
  OptimizerSettings() = default;
  template <class Settings>
    requires(!std::is_same_v<std::remove_cvref_t<Settings>, OptimizerSettings>)
  OptimizerSettings(Settings settings) : value_(std::move(settings)) {}

  /// Returns them as the settings of an optimizer.
  /// @throws UsageError  if they are those of another optimizer
  template <class Settings>
  [[nodiscard]] Settings of() const {
    if (!value_.has_value()) return {};
    const auto* settings = std::any_cast<Settings>(&value_);
    require<UsageError>(settings != nullptr,
                        "SessionOptions::optimizer must contain the Settings of the session's "
                        "optimizer, but contains those of another; assign the right ones");
    return *settings;
  }

 private:
  std::any value_;
};

/// An optimizer of a model's weights, or of one rank's shards of them. A member that takes a
/// context enqueues and does not synchronise, unless its comment says otherwise.
template <Device D>
class Optimizer {
 public:
  Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  /// Sets the state to that of a new training, from the current weights.
  /// @param context  must outlive this object
  virtual void initialize(const Context<D>& context) = 0;

  /// Copies the values that the next `step` uses to the device. Called before every step, outside a
  /// recording of it.
  virtual void prepare(double learning_rate, Staging<D>& staging, const Context<D>& context) = 0;
  /// Returns how many bytes `prepare` copies through `staging`.
  [[nodiscard]] virtual std::size_t staged_bytes() const = 0;

  /// Adds the squares of all gradients of parameters that count (`ParameterPlace::is_counted`) to
  /// the squared norm in `status`. Recorded, so it must not depend on values of the host.
  virtual void add_squared_norms(TensorView<StepStatus, 1, D> status,
                                 const Context<D>& context) const = 0;

  /// Updates this rank's weights, unless the status requests skipping. Multiplies gradients by the
  /// status's `clip_coefficient`. Recorded, so it must not depend on values of the host.
  /// @param ranks     the other ranks, which make the same calls
  /// @param timeline  receives the times of copies
  virtual void step(TensorView<const StepStatus, 1, D> status, ShardExchange<D>& ranks,
                    Timeline<D>& timeline, const Context<D>& context) const = 0;

  /// Counts a step that was not skipped.
  virtual void advance() = 0;

  /// Sets elements of the master weights of parameter `name`, as far as this rank has them; does
  /// nothing without master weights.
  /// @param begin   index of the first value in the parameter
  /// @param values  in memory of `allocate_on_host`, valid until the context has run
  /// @note synchronises only if the state is in host memory
  virtual void set_master(const std::string& name, Index begin, std::span<const float> values,
                          const Context<D>& context) const = 0;

  /// Visits all state on which the next steps depend, with names that begin with "optimizer.".
  virtual void visit_state(StateVisitor<D>& visitor) = 0;
};

}  // namespace octavo
