#include <octavo/layers/scaling_table.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
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
    table_.take(measuring);
    arena_ = Arena<Cpu>(measuring.plan(), place_.context);
    table_.take(arena_);
    table_.reset(place_.context);
  }

  struct Operand {
    std::size_t number;
    OperandKind kind;
    const DelayedTrace* trace;
  };

  void observe(int row) {
    for (const Operand& operand : operands_)
      table_.slot(operand.number)->amax_bits =
          reference::bits_of(operand.trace->rows[static_cast<std::size_t>(row)].observed);
  }

  /// Checks all operands of one kind against row `row`; −1 is the state before the first.
  void check(OperandKind kind, int row) const {
    for (const Operand& operand : operands_) {
      if (operand.kind != kind) continue;
      const auto& rows = operand.trace->rows;
      const float scale = row < 0 ? 1.0f : rows[static_cast<std::size_t>(row)].scale;
      const int dropped = row < 0 ? 0 : rows[static_cast<std::size_t>(row)].dropped;
      const ScalingSlot& slot = *table_.slot(operand.number);
      const auto where = testing::Message() << operand.trace->format << " margin "
                                            << operand.trace->margin << " after row " << row;
      EXPECT_EQ(reference::bits_of(slot.scale), reference::bits_of(scale)) << where;
      EXPECT_EQ(slot.scale_inverse, 1.0f / scale) << where;
      EXPECT_EQ(slot.nonfinite, static_cast<std::uint32_t>(dropped)) << where;
      const float observed = row < 0 ? 0.0f : rows[static_cast<std::size_t>(row)].observed;
      EXPECT_EQ(slot.last_amax_bits, reference::bits_of(observed)) << where;
    }
  }

  support::Workplace place_{1};
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
    operands_.push_back({table_.add<Recipe<R, M>, OperandKind::input>("x"), OperandKind::input,
                         find("e4m3", reduction, M)});
    operands_.push_back({table_.add<Recipe<R, M>, OperandKind::output_gradient>("x"),
                         OperandKind::output_gradient, find("e5m2", reduction, M)});
  }
};

TEST_F(DelayedScalingTraces, ScalesAndDropsAreTheReferencesBitForBit) {
  ASSERT_EQ(operands_.size(), reference::delayed_traces.size());
  for (int row = 0; row < reference::delayed_step_count; ++row) {
    observe(row);
    table_.update(OperandKind::input, place_.context);
    check(OperandKind::input, row);
    check(OperandKind::output_gradient, row - 1);  // another group: not yet
    table_.update(OperandKind::output_gradient, place_.context);
    check(OperandKind::output_gradient, row);
    if (HasFailure()) break;
  }
}

TEST_F(DelayedScalingTraces, UpdateClearsTheAmaxSoThatItCountsOnce) {
  observe(2);
  table_.update(OperandKind::input, place_.context);
  for (const Operand& operand : operands_) {
    const std::uint32_t amax = table_.slot(operand.number)->amax_bits;
    EXPECT_EQ(amax, operand.kind == OperandKind::input ? 0u : reference::bits_of(3.0f));
  }
}

TEST_F(DelayedScalingTraces, SnapshotComesBackOnlyIfTheStepIsSkipped) {
  observe(2);
  table_.update(OperandKind::input, place_.context);
  table_.snapshot(place_.context);
  const auto state = table_.state();
  const std::vector<std::byte> before(state.data(), state.data() + state.size());
  observe(9);
  table_.update(OperandKind::input, place_.context);
  const std::vector<std::byte> after(state.data(), state.data() + state.size());
  ASSERT_NE(before, after);
  StepStatus status{};
  table_.restore_if_skipped({&status, {1}}, place_.context);
  EXPECT_EQ(std::memcmp(state.data(), after.data(), after.size()), 0);
  status.skip = 1;
  table_.restore_if_skipped({&status, {1}}, place_.context);
  EXPECT_EQ(std::memcmp(state.data(), before.data(), before.size()), 0);
}

TEST(DelayedScalingHistory, HoldsTheNewestEntriesAndForgetsTheOldest) {
  support::Workplace place;
  std::array<ScalingSlot, 1> slots{};
  slots[0].scale = slots[0].scale_inverse = 1.0f;
  const std::array<ScalingRule, 1> rules{{{448.0f, 3, 0, 0, 0}}};
  std::array<float, 5> history{};  // longer than this slot's
  for (const float amax : {7.0f, 1.0f, 2.0f, 4.0f}) {
    slots[0].amax_bits = reference::bits_of(amax);
    update_delayed_scales<Cpu>({slots.data(), {1}}, {rules.data(), {1}}, {history.data(), {1, 5}},
                               OperandKind::input, place.context);
    EXPECT_EQ(slots[0].scale, amax == 4.0f ? 112.0f : 64.0f) << amax;
  }
  std::sort(history.begin(), history.end());
  EXPECT_EQ(history, (std::array<float, 5>{0.0f, 0.0f, 1.0f, 2.0f, 4.0f}));
}

TEST(DelayedScalingPowerOfTwo, RoundsTheScaleDown) {
  support::Workplace place;
  std::array<ScalingSlot, 1> slots{};
  const std::array<ScalingRule, 1> rules{{{448.0f, 1, 0, 1, 0}}};
  std::array<float, 1> history{};
  slots[0].amax_bits = reference::bits_of(3.0f);  // 448 / 3 = 149.33
  update_delayed_scales<Cpu>({slots.data(), {1}}, {rules.data(), {1}}, {history.data(), {1, 1}},
                             OperandKind::input, place.context);
  EXPECT_EQ(slots[0].scale, 128.0f);
  EXPECT_EQ(slots[0].scale_inverse, 0x1p-7f);
}

TEST(DelayedScalingErrors, ShapesMustAgree) {
  support::Workplace place;
  std::array<ScalingSlot, 2> slots{};
  std::array<ScalingRule, 2> rules{};
  std::array<float, 2> history{};
  EXPECT_THROW(
      update_delayed_scales<Cpu>({slots.data(), {2}}, {rules.data(), {1}}, {history.data(), {2, 1}},
                                 OperandKind::input, place.context),
      ShapeError);
  EXPECT_THROW(
      update_delayed_scales<Cpu>({slots.data(), {2}}, {rules.data(), {2}}, {history.data(), {1, 2}},
                                 OperandKind::input, place.context),
      ShapeError);
}

TEST(ClearStatistics, ZeroesTheCountsAndNothingElse) {
  support::Workplace place;
  std::array<ScalingSlot, 1> slots{{{2.0f, 0.5f, 9u, 8u, 7u, 6u, 5u, 4u, 3u, 2u}}};
  clear_statistics<Cpu>({slots.data(), {1}}, place.context);
  EXPECT_EQ(slots[0].elements + slots[0].saturated + slots[0].flushed, 0u);
  EXPECT_EQ(slots[0].scale, 2.0f);
  EXPECT_EQ(slots[0].amax_bits, 9u);
  EXPECT_EQ(slots[0].nonfinite, 6u);
}

}  // namespace delayed_scaling_test
