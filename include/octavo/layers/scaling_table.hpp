/// @file
/// The scaling state of all operands of a model, in one run of memory.
#pragma once

#include <octavo/kernels/quantize.hpp>
#include <octavo/kernels/step_status.hpp>
#include <octavo/memory/arena.hpp>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace octavo {

/// What people and metrics see of one operand.
struct OperandReport {
  std::string name;  ///< such as "blocks.0.qkv.input"
  const char* format = "";
  std::string granularity;  ///< what a scale covers: "tensor", or a block such as "1x128"
  float amax = 0;
  float scale = 1;              ///< NaN where each block has its own
  double saturated = 0;         ///< share of values that were cut to the format's largest
  double flushed = 0;           ///< share of values that became zero
  std::uint32_t nonfinite = 0;  ///< casts of the last step that met an Inf or NaN
};

/// Slots, rules and histories of every quantised operand. Linear layers add their operands while a
/// model is laid out; the table then takes its memory.
template <Device D>
class ScalingTable {
 public:
  ScalingTable() = default;
  ScalingTable(const ScalingTable&) = delete;  // layers point to it
  ScalingTable& operator=(const ScalingTable&) = delete;

  /// Adds the operand of a linear layer that runs in `P`; returns its number.
  template <QuantizedPrecision P, OperandKind Kind>
  std::size_t add(const std::string& layer) {
    using S = typename PrecisionTraits<P>::ScalingType;
    using Format = OperandFormat<P, Kind>;
    ScalingRule rule{FormatTraits<Format>::max, history_length<S>(), 0, 0,
                     static_cast<std::int32_t>(Kind)};
    if constexpr (detail::is_delayed<S>) {
      rule.target /= static_cast<float>(1 << S::margin);
      rule.most_recent = S::reduction == AmaxReduction::most_recent ? 1 : 0;
      rule.power_of_two = detail::rounding_of<S> == ScaleRounding::power_of_two ? 1 : 0;
    }
    rules_.push_back(rule);
    names_.push_back(layer + "." + name_of(Kind));
    formats_.push_back(FormatTraits<Format>::name);
    using Granularity = OperandGranularity<P, Kind>;
    granularities_.push_back(Granularity::block_columns == 0 ? "tensor"
                                                             : message(Granularity::block_rows, 'x',
                                                                       Granularity::block_columns));
    return rules_.size() - 1;
  }

  [[nodiscard]] std::size_t size() const { return rules_.size(); }
  /// Whether scales of some operands come from histories.
  [[nodiscard]] bool has_histories() const {
    return std::any_of(rules_.begin(), rules_.end(),
                       [](const ScalingRule& rule) { return rule.history_length != 0; });
  }

  /// Takes the memory of all operands that were added.
  void take(Arena<D>& arena) {
    const auto count = static_cast<Index>(size());
    Index longest = 0;
    for (const ScalingRule& rule : rules_) longest = std::max(longest, Index{rule.history_length});
    device_rules_ = {arena.template take<ScalingRule>(MemoryKind::scaling, count), {count}};
    const Index slot_bytes = count * static_cast<Index>(sizeof(ScalingSlot));
    const Index bytes = slot_bytes + count * longest * static_cast<Index>(sizeof(float));
    state_ = {arena.template take<std::byte>(MemoryKind::scaling, bytes), {bytes}};
    snapshot_ = {arena.template take<std::byte>(MemoryKind::scaling, bytes), {bytes}};
    slots_ = slots_in(state_);
    seen_ = {arena.template take<ScalingSlot>(MemoryKind::scaling, count), {count}};
    float* history =
        state_.empty() ? nullptr : reinterpret_cast<float*>(state_.data() + slot_bytes);
    history_ = {history, {count, longest}};
  }

  /// Gets ready for the first step.
  void initialize(const Context<D>& context) const {
    reset(context);
    snapshot(context);
    copy_on_device(seen_.data(), slots_.data(), slots_.bytes(), context);
  }

  /// Sets scales to 1, histories to 0 and all counters to 0. The snapshot stays, so that
  /// `report_sync` still tells the last step's counts from those before.
  void reset(const Context<D>& context) const {
    std::vector<ScalingSlot> slots(size());
    for (ScalingSlot& slot : slots) {
      slot = {};
      slot.scale = slot.scale_inverse = 1.0f;
    }
    fill_zero(state_.data(), state_.bytes(), context);
    copy_to_device(slots_.data(), slots.data(), slots.size() * sizeof(ScalingSlot), context);
    copy_to_device(device_rules_.data(), rules_.data(), rules_.size() * sizeof(ScalingRule),
                   context);
  }

  /// The slot of operand `number`; null while measuring.
  [[nodiscard]] ScalingSlot* slot(std::size_t number) const {
    return slots_.empty() ? nullptr : slots_.data() + number;
  }

  /// Moves recorded amax values into the histories of one kind of operand.
  void update(OperandKind group, const Context<D>& context) const {
    if (size() == 0) return;
    const TensorView<const ScalingRule, 1, D> rules = device_rules_;
    update_delayed_scales(slots_, rules, history_, group, context);
  }

  /// Keeps a copy of the state, for a step that may have to be skipped.
  void snapshot(const Context<D>& context) const {
    copy_on_device(snapshot_.data(), state_.data(), state_.bytes(), context);
  }

  /// Adds what the step's casts met to `status`, and keeps what the slots hold for `report_sync`:
  /// of a step that is skipped the slots themselves forget it.
  void add_nonfinite(TensorView<StepStatus, 1, D> status, const Context<D>& context) const {
    copy_on_device(seen_.data(), slots_.data(), slots_.bytes(), context);
    const TensorView<const ScalingSlot, 1, D> now = slots_;
    const TensorView<const ScalingSlot, 1, D> before = slots_in(snapshot_);
    octavo::add_nonfinite(now, before, status, context);
  }

  /// Brings the snapshot back.
  void restore(const Context<D>& context) const {
    copy_on_device(state_.data(), snapshot_.data(), state_.bytes(), context);
  }

  /// Brings the snapshot back if the step is skipped.
  void restore_if_skipped(TensorView<const StepStatus, 1, D> status,
                          const Context<D>& context) const {
    if (size() == 0) return;
    const TensorView<const std::byte, 1, D> source = snapshot_;
    octavo::restore_if_skipped(state_, source, status, context);
  }

  /// Starts a new count of saturated and flushed values.
  void clear_statistics(const Context<D>& context) const {
    octavo::clear_statistics(slots_, context);
  }

  /// What the last finished step saw, also if it was skipped, by operand.
  /// @note synchronises
  [[nodiscard]] std::vector<OperandReport> report_sync(const Context<D>& context) const {
    const std::vector<ScalingSlot> slots = slots_sync(seen_, context);
    const std::vector<ScalingSlot> before = slots_sync(slots_in(snapshot_), context);
    std::vector<OperandReport> reports;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const ScalingSlot& slot = slots[i];
      const double elements = std::max(1.0, static_cast<double>(slot.elements));
      const bool per_tensor = granularities_[i] == "tensor";
      reports.push_back({names_[i], formats_[i], granularities_[i],
                         float_from_bits(slot.last_amax_bits),
                         per_tensor ? slot.scale : std::numeric_limits<float>::quiet_NaN(),
                         static_cast<double>(slot.saturated) / elements,
                         static_cast<double>(slot.flushed) / elements,
                         slot.nonfinite - std::min(slot.nonfinite, before[i].nonfinite)});
    }
    return reports;
  }

  /// Calls `visitor(name, view)` for what scales are made from in the steps to come: of operands
  /// with histories; all others find theirs anew.
  template <class Visitor>
  void visit_state(Visitor& visitor) const {
    for (std::size_t i = 0; i < size(); ++i) {
      const Index length = rules_[i].history_length;
      if (length == 0) continue;
      const std::string name = "scaling." + names_[i] + '.';
      ScalingSlot* slot = slots_.data() + i;
      visitor(name + "scale", TensorView<float, 1, D>(&slot->scale, {1}));
      visitor(name + "scale_inverse", TensorView<float, 1, D>(&slot->scale_inverse, {1}));
      visitor(name + "position", TensorView<std::uint32_t, 1, D>(&slot->position, {1}));
      visitor(name + "history",
              TensorView<float, 1, D>(history_.row(static_cast<Index>(i)), {length}));
    }
  }

  /// The state that a checkpoint must hold: slots and histories.
  [[nodiscard]] TensorView<std::byte, 1, D> state() const { return state_; }

 private:
  [[nodiscard]] TensorView<ScalingSlot, 1, D> slots_in(TensorView<std::byte, 1, D> bytes) const {
    return {reinterpret_cast<ScalingSlot*>(bytes.data()), {static_cast<Index>(size())}};
  }

  [[nodiscard]] static std::vector<ScalingSlot> slots_sync(TensorView<ScalingSlot, 1, D> slots,
                                                           const Context<D>& context) {
    std::vector<ScalingSlot> result(static_cast<std::size_t>(slots.size()));
    copy_to_host_sync(result.data(), slots.data(), result.size() * sizeof(ScalingSlot), context);
    return result;
  }

  std::vector<ScalingRule> rules_;
  std::vector<std::string> names_;
  std::vector<const char*> formats_;
  std::vector<std::string> granularities_;
  TensorView<ScalingRule, 1, D> device_rules_;
  TensorView<std::byte, 1, D> state_;
  TensorView<std::byte, 1, D> snapshot_;
  TensorView<ScalingSlot, 1, D> slots_;
  TensorView<ScalingSlot, 1, D> seen_;  ///< the slots at the end of the last step
  TensorView<float, 2, D> history_;
};

}  // namespace octavo
