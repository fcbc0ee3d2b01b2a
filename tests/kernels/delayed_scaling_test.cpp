#include <octavo/layers/scaling_table.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "formats/reference.hpp"
#include "support/delayed_reference.hpp"
#include "support/matrix.hpp"

namespace delayed_scaling_test {

using namespace octavo;
using reference::DelayedReduction;
using reference::DelayedTrace;

template <AmaxReduction R, int M>
using Recipe = Fp8Recipe<DelayedScaling<4, R, Margin{M}>, Hybrid>;

/// A scaling table with the twelve operands of the traces, in no particular order.
class DelayedScalingTraces : public testing::Test {
 protected:
  DelayedScalingTraces() {
    add<AmaxReduction::most_recent>(std::integer_sequence<int, 2, 0, 1>{});
    add<AmaxReduction::max>(std::integer_sequence<int, 0, 1, 2>{});
    Arena<Cpu> measuring;
    table_.allocate(measuring);
    arena_ = Arena<Cpu>(measuring.plan(), place_.context);
    table_.allocate(arena_);
    table_.reset_sync(place_.context);
  }

  struct Operand {
    std::size_t number;
    const DelayedTrace* trace;
  };

  void observe(int row) {
    for (const Operand& operand : operands_)
      *table_.slot(operand.number).amax_bits =
          reference::bits_of(operand.trace->rows[static_cast<std::size_t>(row)].observed);
  }

  /// Checks all operands against row `row`.
  void check(int row) const {
    for (const Operand& operand : operands_) {
      const auto& expected = operand.trace->rows[static_cast<std::size_t>(row)];
      const ScalingSlot slot = table_.slot(operand.number);
      const auto where = testing::Message() << operand.trace->format << " margin "
                                            << operand.trace->margin << " after row " << row;
      EXPECT_EQ(reference::bits_of(slot.scaling->scale), reference::bits_of(expected.scale))
          << where;
      EXPECT_EQ(slot.scaling->scale_inverse, 1.0f / expected.scale) << where;
      EXPECT_EQ(slot.statistics->nonfinite, static_cast<std::uint32_t>(expected.dropped)) << where;
      EXPECT_EQ(slot.statistics->last_amax_bits, reference::bits_of(expected.observed)) << where;
    }
  }

  support::ContextWithWorkspace place_{1};
  Arena<Cpu> arena_;
  ScalingTable<Cpu> table_;
  std::vector<Operand> operands_;

 private:
  static const DelayedTrace* find(const std::string& format, DelayedReduction reduction,
                                  int margin) {
    for (const DelayedTrace& trace : reference::delayed_traces) {
      if (format == trace.format && reduction == trace.reduction && margin == trace.margin)
        return &trace;
    }
    throw std::logic_error("no such trace");
  }

  template <AmaxReduction R, int... Margins>
  void add(std::integer_sequence<int, Margins...>) {
    (add_pair<R, Margins>(), ...);
  }

  template <AmaxReduction R, int M>
  void add_pair() {
    const auto reduction =
        R == AmaxReduction::max ? DelayedReduction::max : DelayedReduction::most_recent;
    operands_.push_back(
        {table_.add<Recipe<R, M>, OperandKind::input>("x"), find("e4m3", reduction, M)});
    operands_.push_back(
        {table_.add<Recipe<R, M>, OperandKind::output_gradient>("x"), find("e5m2", reduction, M)});
  }
};

TEST_F(DelayedScalingTraces, ScalesAndDropsAreBitwiseEqualToReference) {
  ASSERT_EQ(operands_.size(), reference::delayed_traces.size());
  for (int row = 0; row < reference::delayed_step_count; ++row) {
    observe(row);
    table_.update(place_.context);
    check(row);
    if (HasFailure()) break;
  }
}

TEST_F(DelayedScalingTraces, UpdateClearsAmax) {
  observe(2);
  table_.update(place_.context);
  for (const Operand& operand : operands_) {
    EXPECT_EQ(*table_.slot(operand.number).amax_bits, 0u);
  }
}

TEST_F(DelayedScalingTraces, RestoresSnapshotOnlyIfStepIsSkipped) {
  observe(2);
  table_.update(place_.context);
  table_.snapshot(place_.context);
  const auto state = table_.state();
  const std::vector<std::byte> before(state.data(), state.data() + state.size());
  observe(9);
  table_.update(place_.context);
  const std::vector<std::byte> after(state.data(), state.data() + state.size());
  ASSERT_NE(before, after);
  StepStatus status{};
  table_.restore_if_skipped({&status, {1}}, place_.context);
  EXPECT_EQ(std::memcmp(state.data(), after.data(), after.size()), 0);
  status.skip = 1;
  table_.restore_if_skipped({&status, {1}}, place_.context);
  EXPECT_EQ(std::memcmp(state.data(), before.data(), before.size()), 0);
}

/// Moves the history of one operand.
void update(OperandScaling& operand, ScalingRule rule, std::span<float> history) {
  const support::ContextWithWorkspace place;
  const ScalingSlot slot = &operand;
  const ScalingArrays<Cpu> operands{
      {slot.amax_bits, {1}}, {slot.scaling, {1}}, {slot.statistics, {1}}};
  update_delayed_scales<Cpu>(operands, {&rule, {1}},
                             {history.data(), {1, static_cast<Index>(history.size())}},
                             place.context);
}

TEST(DelayedScalingHistory, KeepsOnlyNewestEntries) {
  OperandScaling operand{};
  operand.scale = operand.scale_inverse = 1.0f;
  std::array<float, 5> history{};  // longer than this operand's
  for (const float amax : {7.0f, 1.0f, 2.0f, 4.0f}) {
    operand.amax_bits = reference::bits_of(amax);
    update(operand, {448.0f, 3, 0, 0}, history);
    EXPECT_EQ(operand.scale, amax == 4.0f ? 112.0f : 64.0f) << amax;
  }
  std::sort(history.begin(), history.end());
  EXPECT_EQ(history, (std::array<float, 5>{0.0f, 0.0f, 1.0f, 2.0f, 4.0f}));
}

TEST(DelayedScalingPowerOfTwo, RoundsTheScaleDown) {
  OperandScaling operand{};
  std::array<float, 1> history{};
  operand.amax_bits = reference::bits_of(3.0f);  // 448 / 3 = 149.33
  update(operand, {448.0f, 1, 0, 1}, history);
  EXPECT_EQ(operand.scale, 128.0f);
  EXPECT_EQ(operand.scale_inverse, 0x1p-7f);
}

TEST(DelayedScalingPowerOfTwo, TableAppliesRoundingOfRecipe) {
  using Rounded =
      Fp8Recipe<DelayedScaling<4, AmaxReduction::max, Margin{0}, ScaleRounding::power_of_two>,
                Hybrid>;
  support::ContextWithWorkspace place;
  ScalingTable<Cpu> table;
  const std::size_t rounded = table.add<Rounded, OperandKind::input>("x");
  const std::size_t exact = table.add<Recipe<AmaxReduction::max, 0>, OperandKind::input>("y");
  Arena<Cpu> measuring;
  table.allocate(measuring);
  Arena<Cpu> arena(measuring.plan(), place.context);
  table.allocate(arena);
  table.reset_sync(place.context);
  for (const std::size_t number : {rounded, exact}) {
    *table.slot(number).amax_bits = reference::bits_of(3.0f);
  }
  table.update(place.context);
  EXPECT_EQ(table.slot(rounded).scaling->scale, 128.0f);
  EXPECT_EQ(table.slot(exact).scaling->scale, 448.0f / 3.0f);
}

TEST(DelayedScalingErrors, ShapesMustAgree) {
  const support::ContextWithWorkspace place;
  std::array<std::uint32_t, 2> amaxes{};
  std::array<OperandScale, 2> scales{};
  std::array<OperandStatistics, 2> statistics{};
  std::array<ScalingRule, 2> rules{};
  std::array<float, 2> history{};
  const auto update = [&](Index scale_count, Index statistics_count, Index rule_count,
                          Index history_rows) {
    const ScalingArrays<Cpu> operands{{amaxes.data(), {2}},
                                      {scales.data(), {scale_count}},
                                      {statistics.data(), {statistics_count}}};
    update_delayed_scales<Cpu>(operands, {rules.data(), {rule_count}},
                               {history.data(), {history_rows, 2 / history_rows}}, place.context);
  };
  EXPECT_NO_THROW(update(2, 2, 2, 2));
  EXPECT_THROW(update(1, 2, 2, 2), ShapeError);
  EXPECT_THROW(update(2, 1, 2, 2), ShapeError);
  EXPECT_THROW(update(2, 2, 1, 2), ShapeError);
  EXPECT_THROW(update(2, 2, 2, 1), ShapeError);
}

TEST(ClearStatistics, ZeroesOnlyCounts) {
  const support::ContextWithWorkspace place;
  std::array<OperandStatistics, 2> statistics{{{5u, 4u, 3u, 8u, 6u}, {5u, 4u, 3u, 7u, 9u}}};
  clear_statistics<Cpu>({statistics.data(), {2}}, place.context);
  for (const OperandStatistics& operand : statistics) {
    EXPECT_EQ(operand.elements + operand.saturated + operand.flushed, 0u);
  }
  EXPECT_EQ(statistics[0].last_amax_bits, 8u);
  EXPECT_EQ(statistics[0].nonfinite, 6u);
  EXPECT_EQ(statistics[1].last_amax_bits, 7u);
  EXPECT_EQ(statistics[1].nonfinite, 9u);
}

}  // namespace delayed_scaling_test
