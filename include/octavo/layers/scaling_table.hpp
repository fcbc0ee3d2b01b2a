/// @file
/// The scaling state of all operands of a model, in packed arrays.
#pragma once

#include <octavo/kernels/fp8_weights.hpp>
#include <octavo/kernels/quantize.hpp>
#include <octavo/kernels/step_status.hpp>
#include <octavo/memory/arena.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Scaling statistics of one operand, or of the result of a GEMM in E4M3, for users and metrics.
struct OperandReport {
  std::string name;  ///< such as "blocks.0.qkv.input", or "blocks.0.gate_up.output" of a result
  const char* format = "";
  std::string granularity;  ///< what a scale covers: "tensor", "row", or a block such as "1x128"
  float amax = 0;           ///< 0 of a result, whose largest value is not recorded
  float scale = 1;          ///< NaN if each row or block has a separate scale
  double saturated = 0;     ///< share of values that saturated at the format's largest value
  double flushed = 0;       ///< share of values that became zero; 0 of a result
  std::uint32_t nonfinite = 0;  ///< 1: a cast of the last step encountered an Inf or NaN
};

namespace detail {

/// Returns a description of the values that a scale covers: see OperandReport.
template <class Granularity>
std::string granularity_name() {
  if constexpr (std::is_same_v<Granularity, PerTensor>) {
    return "tensor";
  } else if constexpr (std::is_same_v<Granularity, PerRow>) {
    return "row";
  } else {
    return message(Granularity::block_rows, 'x', Granularity::block_columns);
  }
}

}  // namespace detail

/// Amaxes, scales, statistics, rules and histories of every quantised operand, and statistics of
/// results in E4M3. Linear layers add them while a model is laid out; then the table allocates its
/// memory.
///
/// Operands with histories come first in its arrays, grouped by kind in the order of `OperandKind`.
/// The amaxes that ranks reduce are therefore contiguous, as are those of each kind, and those of
/// inputs and weights together, which are known after all forwards. Weights that ranks cast with a
/// scale from a separate amax come next; ranks reduce these amaxes earlier.
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
    ScalingRule rule{FormatTraits<Format>::max, history_length<S>(), 0, 0};
    rule.power_of_two = detail::rounding_of<S> == ScaleRounding::power_of_two ? 1 : 0;
    if constexpr (detail::is_delayed<S>) {
      rule.target /= static_cast<float>(1 << S::margin);
      rule.most_recent = S::reduction == AmaxReduction::most_recent ? 1 : 0;
    }
    round_stochastically_.push_back(detail::value_rounding<S, Kind> ==
                                    detail::ValueRounding::stochastic);
    return add(rule, Kind, layer + "." + name_of(Kind), FormatTraits<Format>::name,
               detail::granularity_name<OperandGranularity<P, Kind>>());
  }

  /// Adds the result of a linear layer's forward in `Format` without a scale; returns its number.
  /// Its scale remains 1, its amax 0, and its only statistics are the saturated values.
  template <class Format>
  std::size_t add_output(const std::string& layer) {
    round_stochastically_.push_back(false);
    return add({FormatTraits<Format>::max, 0, 0, 0}, OperandKind::input, layer + ".output",
               FormatTraits<Format>::name, detail::granularity_name<PerTensor>());
  }

  /// Marks a weight with one scale as cast by ranks, each of which casts its shard. Call it before
  /// `allocate`.
  void set_cast_by_ranks(std::size_t number) { cast_by_ranks_[number] = true; }

  [[nodiscard]] std::size_t size() const { return rules_.size(); }
  /// Whether the scales of some operands come from histories.
  [[nodiscard]] bool has_histories() const {
    return std::any_of(rules_.begin(), rules_.end(),
                       [](const ScalingRule& rule) { return rule.history_length != 0; });
  }

  /// Allocates the memory of all operands that were added.
  void allocate(Arena<D>& arena) {
    place_operands();
    const auto count = static_cast<Index>(size());
    Index longest = 0;
    for (const ScalingRule& rule : rules_) longest = std::max(longest, Index{rule.history_length});
    device_rules_ = {arena.template allocate<ScalingRule>(MemoryKind::scaling, count), {count}};
    const Index history_begin = offsets().histories;
    const Index bytes =
        aligned(history_begin + count * longest * static_cast<Index>(sizeof(float)));
    state_ = {arena.template allocate<std::byte>(MemoryKind::scaling, bytes), {bytes}};
    snapshot_ = {arena.template allocate<std::byte>(MemoryKind::scaling, bytes), {bytes}};
    last_step_state_ = {arena.template allocate<std::byte>(MemoryKind::scaling, history_begin),
                        {history_begin}};
    operands_ = arrays_in(state_);
    float* history =
        state_.empty() ? nullptr : reinterpret_cast<float*>(state_.data() + history_begin);
    history_ = {history, {count, longest}};
    found_ = {arena.template allocate<std::uint32_t>(MemoryKind::scaling, found_count_),
              {found_count_}};
  }

  /// Initialises the state for the first step.
  void initialize_sync(const Context<D>& context) const {
    reset_sync(context);
    snapshot(context);
    copy_on_device(last_step_state_.data(), state_.data(), last_step_state_.bytes(), context);
  }

  /// Sets scales to 1, and histories and all counters to 0. Does not change the snapshot, so that
  /// `report_sync` still separates the last step's counts from earlier ones.
  void reset_sync(const Context<D>& context) const {
    const std::vector<OperandScale> scales(size(), OperandScale{1.0f, 1.0f, 0, 0});
    std::vector<ScalingRule> rules(size());
    for (std::size_t i = 0; i < size(); ++i)
      rules[static_cast<std::size_t>(places_[i])] = rules_[i];
    fill_zero(state_.data(), state_.bytes(), context);
    copy_to_device_sync(operands_.scales.data(), scales.data(), operands_.scales.bytes(), context);
    copy_to_device_sync(device_rules_.data(), rules.data(), device_rules_.bytes(), context);
  }

  /// Returns the scaling state of operand `number`; null pointers while measuring.
  [[nodiscard]] ScalingSlot slot(std::size_t number) const {
    return operands_.empty() ? ScalingSlot() : operands_.slot(places_[number]);
  }

  /// Returns the amaxes of all operands with histories, recorded by casts since the last update.
  /// They are bits of non-negative floats, which compare like the floats. Ranks compute the maximum
  /// before `update`, and then compute the same scales.
  [[nodiscard]] TensorView<std::uint32_t, 1, D> amaxes() const {
    return operands_.amax_bits.rows(0, kind_begins_[3]);
  }
  /// Returns the amaxes of operands of one kind.
  [[nodiscard]] TensorView<std::uint32_t, 1, D> amaxes(OperandKind kind) const {
    const auto k = static_cast<std::size_t>(kind);
    return operands_.amax_bits.rows(kind_begins_[k], kind_begins_[k + 1] - kind_begins_[k]);
  }

  /// Returns the current amaxes of weights that ranks cast and whose scales do not come from
  /// histories. Each rank computes those of its shards (`found_amax`); ranks compute the maximum,
  /// and from it the scales: `set_found_scales`.
  [[nodiscard]] TensorView<std::uint32_t, 1, D> found_amaxes() const { return found_; }
  /// Returns the current amax of operand `number`, [1]; of size 0 if its scale comes from a
  /// history.
  [[nodiscard]] TensorView<std::uint32_t, 1, D> found_amax(std::size_t number) const {
    const Index place = places_[number] - kind_begins_[kinds];
    return place < 0 ? TensorView<std::uint32_t, 1, D>() : found_.rows(place, 1);
  }
  /// Computes the scales from `found_amaxes`.
  /// @param record  whether the amaxes are recorded, as casts do in training
  void set_found_scales(bool record, const Context<D>& context) const {
    if (found_count_ == 0) return;
    const Index begin = kind_begins_[kinds];
    const ScalingArrays<D> operands{operands_.amax_bits.rows(begin, found_count_),
                                    operands_.scales.rows(begin, found_count_),
                                    operands_.statistics.rows(begin, found_count_)};
    const TensorView<const std::uint32_t, 1, D> found = found_;
    const TensorView<const ScalingRule, 1, D> rules = device_rules_.rows(begin, found_count_);
    set_current_scales(found, operands, rules, record, context);
  }

  /// Moves recorded amaxes into the histories, once per step; all casts of a step use the same
  /// scales.
  void update(const Context<D>& context) const {
    if (size() == 0) return;
    const TensorView<const ScalingRule, 1, D> rules = device_rules_;
    update_delayed_scales(operands_, rules, history_, context);
  }

  /// Saves a copy of the state, in case the step is skipped.
  void snapshot(const Context<D>& context) const {
    copy_on_device(snapshot_.data(), state_.data(), state_.bytes(), context);
  }

  /// Adds the non-finite counts of the step's casts to `status`, and saves scales and statistics
  /// for `report_sync`, because skipping the step restores the state.
  void add_nonfinite(TensorView<StepStatus, 1, D> status, const Context<D>& context) const {
    copy_on_device(last_step_state_.data(), state_.data(), last_step_state_.bytes(), context);
    const TensorView<const OperandStatistics, 1, D> now = operands_.statistics;
    const TensorView<const OperandStatistics, 1, D> before = arrays_in(snapshot_).statistics;
    octavo::add_nonfinite(now, before, status, context);
  }

  /// Restores the snapshot.
  void restore(const Context<D>& context) const {
    copy_on_device(state_.data(), snapshot_.data(), state_.bytes(), context);
  }

  /// Restores the snapshot if the step is skipped.
  void restore_if_skipped(TensorView<const StepStatus, 1, D> status,
                          const Context<D>& context) const {
    if (size() == 0) return;
    const TensorView<const std::byte, 1, D> source = snapshot_;
    octavo::restore_if_skipped(state_, source, status, context);
  }

  /// Resets the counts of saturated and flushed values.
  void clear_statistics(const Context<D>& context) const {
    octavo::clear_statistics(operands_.statistics, context);
  }

  /// Returns the statistics of the last finished step, even if it was skipped, by operand.
  /// @note synchronises
  [[nodiscard]] std::vector<OperandReport> report_sync(const Context<D>& context) const {
    const ScalingArrays<D> seen = arrays_in(last_step_state_);
    const std::vector<OperandScale> scales = copy_sync(seen.scales, context);
    const std::vector<OperandStatistics> statistics = copy_sync(seen.statistics, context);
    const std::vector<OperandStatistics> before =
        copy_sync(arrays_in(snapshot_).statistics, context);
    std::vector<OperandReport> reports;
    for (std::size_t i = 0; i < size(); ++i) {
      const auto place = static_cast<std::size_t>(places_[i]);
      const OperandStatistics& observed = statistics[place];
      const double elements = std::max(1.0, static_cast<double>(observed.elements));
      const bool per_tensor = granularities_[i] == "tensor";
      reports.push_back(
          {names_[i], formats_[i], granularities_[i], float_from_bits(observed.last_amax_bits),
           per_tensor ? scales[place].scale : std::numeric_limits<float>::quiet_NaN(),
           static_cast<double>(observed.saturated) / elements,
           static_cast<double>(observed.flushed) / elements,
           observed.nonfinite - std::min(observed.nonfinite, before[place].nonfinite)});
    }
    return reports;
  }

  /// Calls `visitor(name, view)` for the state that determines casts in later steps: that of
  /// operands with histories, and the number of casts of operands that round stochastically. All
  /// others compute their scales again.
  template <class Visitor>
  void visit_state(Visitor& visitor) const {
    for (std::size_t i = 0; i < size(); ++i) {
      const Index length = rules_[i].history_length;
      if (length == 0 && !round_stochastically_[i]) continue;
      const std::string name = "scaling." + names_[i] + '.';
      OperandScale* scaling = slot(i).scaling;
      if (length == 0) {
        visitor(name + "casts", TensorView<std::uint32_t, 1, D>(&scaling->position, {1}));
        continue;
      }
      visitor(name + "scale", TensorView<float, 1, D>(&scaling->scale, {1}));
      visitor(name + "scale_inverse", TensorView<float, 1, D>(&scaling->scale_inverse, {1}));
      visitor(name + "position", TensorView<std::uint32_t, 1, D>(&scaling->position, {1}));
      visitor(name + "history", TensorView<float, 1, D>(history_.row(places_[i]), {length}));
    }
  }

  /// Returns all state that steps change: amaxes, scales, statistics and histories.
  [[nodiscard]] TensorView<std::byte, 1, D> state() const { return state_; }

 private:
  static constexpr std::size_t kinds = 3;

  std::size_t add(const ScalingRule& rule, OperandKind kind, std::string name, const char* format,
                  std::string granularity) {
    rules_.push_back(rule);
    kinds_.push_back(kind);
    cast_by_ranks_.push_back(false);
    names_.push_back(std::move(name));
    formats_.push_back(format);
    granularities_.push_back(std::move(granularity));
    return rules_.size() - 1;
  }

  /// Assigns each operand its place: those with histories first, grouped by kind.
  void place_operands() {
    places_.assign(size(), 0);
    Index next = 0;
    const auto place = [&](const auto& is_next) {
      for (std::size_t i = 0; i < size(); ++i) {
        if (is_next(i)) places_[i] = next++;
      }
    };
    for (std::size_t k = 0; k < kinds; ++k) {
      place([&](std::size_t i) {
        return rules_[i].history_length != 0 && kinds_[i] == static_cast<OperandKind>(k);
      });
      kind_begins_[k + 1] = next;
    }
    const auto is_found = [&](std::size_t i) {
      return rules_[i].history_length == 0 && cast_by_ranks_[i];
    };
    place(is_found);
    found_count_ = next - kind_begins_[kinds];
    place([&](std::size_t i) { return rules_[i].history_length == 0 && !is_found(i); });
  }

  static constexpr Index aligned(Index bytes) {
    return round_up(bytes, static_cast<Index>(alignof(OperandStatistics)));
  }
  /// Offsets of the parts of the state, after the amaxes.
  struct Offsets {
    Index scales, statistics, histories;
  };
  [[nodiscard]] Offsets offsets() const {
    const auto count = static_cast<Index>(size());
    const Index scales = aligned(count * static_cast<Index>(sizeof(std::uint32_t)));
    const Index statistics = aligned(scales + count * static_cast<Index>(sizeof(OperandScale)));
    return {scales, statistics, statistics + count * static_cast<Index>(sizeof(OperandStatistics))};
  }
  [[nodiscard]] ScalingArrays<D> arrays_in(TensorView<std::byte, 1, D> bytes) const {
    if (bytes.empty()) return {};
    const auto [scales, statistics, histories] = offsets();
    const auto count = static_cast<Index>(size());
    return {{reinterpret_cast<std::uint32_t*>(bytes.data()), {count}},
            {reinterpret_cast<OperandScale*>(bytes.data() + scales), {count}},
            {reinterpret_cast<OperandStatistics*>(bytes.data() + statistics), {count}}};
  }

  template <class T>
  [[nodiscard]] static std::vector<T> copy_sync(TensorView<T, 1, D> view,
                                                const Context<D>& context) {
    std::vector<T> result(static_cast<std::size_t>(view.size()));
    copy_to_host_sync(result.data(), view.data(), view.bytes(), context);
    return result;
  }

  // Of each operand, by number.
  std::vector<ScalingRule> rules_;
  std::vector<OperandKind> kinds_;
  std::vector<std::string> names_;
  std::vector<const char*> formats_;
  std::vector<std::string> granularities_;
  std::vector<bool> cast_by_ranks_;
  std::vector<bool> round_stochastically_;
  std::vector<Index> places_;  ///< in the arrays on the device

  TensorView<ScalingRule, 1, D> device_rules_;
  TensorView<std::byte, 1, D> state_;
  TensorView<std::byte, 1, D> snapshot_;
  TensorView<std::byte, 1, D>
      last_step_state_;                    ///< state without histories, at the end of the last step
  ScalingArrays<D> operands_;              ///< in `state_`
  TensorView<float, 2, D> history_;        ///< in `state_`
  TensorView<std::uint32_t, 1, D> found_;  ///< see found_amaxes
  Index found_count_ = 0;                  ///< number of them, after the kinds with histories
  std::array<Index, kinds + 1> kind_begins_{};  ///< first place of each kind with histories, and
                                                ///< their end
};

}  // namespace octavo
