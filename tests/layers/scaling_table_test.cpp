// Where the table puts what ranks share: amaxes by kind, scales where GEMMs can read them.
#include <octavo/layers/scaling_table.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/matrix.hpp"

namespace scaling_table_test {

using namespace octavo;

using Short = Fp8Recipe<DelayedScaling<3>>;
using Current = Fp8Recipe<Tensorwise>;

/// Two layers with histories, and one without between them: as a model lays them out.
class PackedAmaxes : public testing::Test {
 protected:
  PackedAmaxes() {
    add_layer<Short>("first");
    add_layer<Current>("second");
    add_layer<Short>("third");
    Arena<Cpu> measuring;
    table_.allocate(measuring);
    EXPECT_EQ(table_.slot(0).amax_bits, nullptr);
    arena_ = Arena<Cpu>(measuring.plan(), place_.context);
    table_.allocate(arena_);
    table_.initialize_sync(place_.context);
  }

  template <class P>
  void add_layer(const std::string& name) {
    numbers_.push_back({table_.add<P, OperandKind::input>(name),
                        table_.add<P, OperandKind::weight>(name),
                        table_.add<P, OperandKind::output_gradient>(name)});
  }

  /// The address of an amax.
  [[nodiscard]] const std::uint32_t* amax(std::size_t layer, OperandKind kind) const {
    return table_.slot(numbers_[layer][static_cast<std::size_t>(kind)]).amax_bits;
  }

  support::ContextWithWorkspace place_{1};
  Arena<Cpu> arena_;
  ScalingTable<Cpu> table_;
  std::vector<std::array<std::size_t, 3>> numbers_;  ///< of operands, by layer and kind
};

TEST_F(PackedAmaxes, AreContiguousPerKind) {
  for (const auto kind : {OperandKind::input, OperandKind::weight, OperandKind::output_gradient}) {
    const TensorView<std::uint32_t, 1, Cpu> run = table_.amaxes(kind);
    ASSERT_EQ(run.size(), 2) << name_of(kind) << ": of the two layers with histories";
    EXPECT_EQ(run.data(), amax(0, kind)) << name_of(kind);
    EXPECT_EQ(run.data() + 1, amax(2, kind)) << name_of(kind);
  }
}

TEST_F(PackedAmaxes, AreContiguousInOrderOfKinds) {
  const TensorView<std::uint32_t, 1, Cpu> all = table_.amaxes();
  EXPECT_EQ(all.size(), 6);
  EXPECT_EQ(all.data(), table_.amaxes(OperandKind::input).data());
  EXPECT_EQ(all.data() + 2, table_.amaxes(OperandKind::weight).data());
  EXPECT_EQ(all.data() + 4, table_.amaxes(OperandKind::output_gradient).data());
}

TEST_F(PackedAmaxes, DetermineScales) {
  for (Index i = 0; i < 6; ++i) {
    table_.amaxes().data()[i] = float_bits(static_cast<float>(i + 1));
  }
  table_.update(place_.context);
  const auto scale = [&](std::size_t layer, OperandKind kind) {
    return table_.slot(numbers_[layer][static_cast<std::size_t>(kind)]).scaling->scale;
  };
  EXPECT_EQ(scale(0, OperandKind::input), 448.0f / 1);
  EXPECT_EQ(scale(2, OperandKind::input), 448.0f / 2);
  EXPECT_EQ(scale(0, OperandKind::weight), 448.0f / 3);
  EXPECT_EQ(scale(2, OperandKind::weight), 448.0f / 4);
  EXPECT_EQ(scale(0, OperandKind::output_gradient), 57344.0f / 5);
  EXPECT_EQ(scale(2, OperandKind::output_gradient), 57344.0f / 6);
  EXPECT_EQ(scale(1, OperandKind::input), 1.0f) << "has no history";
  for (Index i = 0; i < 6; ++i) EXPECT_EQ(table_.amaxes().data()[i], 0u) << i;
}

TEST_F(PackedAmaxes, ReportsMatchTheirOperands) {
  for (std::size_t i = 0; i < table_.size(); ++i) {
    *table_.slot(i).amax_bits = float_bits(static_cast<float>(i + 1));
  }
  table_.update(place_.context);
  StepStatus status{};
  table_.add_nonfinite({&status, {1}}, place_.context);
  const std::vector<OperandReport> reports = table_.report_sync(place_.context);
  ASSERT_EQ(reports.size(), 9u);
  for (std::size_t i = 0; i < reports.size(); ++i) {
    EXPECT_EQ(reports[i].amax, static_cast<float>(i + 1)) << reports[i].name;
    EXPECT_EQ(reports[i].scale, table_.slot(i).scaling->scale) << reports[i].name;
  }
  EXPECT_EQ(reports[4].name, "second.weight");
  EXPECT_EQ(reports[4].scale, 1.0f);
  EXPECT_EQ(reports[8].name, "third.output_gradient");
  EXPECT_EQ(reports[8].scale, 57344.0f / 9);
}

// cuBLASLt reads the inverses where they lie.
TEST_F(PackedAmaxes, ScaleInversesAreAlignedTo16BytesWithoutGaps) {
  std::vector<const std::byte*> addresses;
  for (std::size_t i = 0; i < table_.size(); ++i) {
    addresses.push_back(reinterpret_cast<const std::byte*>(&table_.slot(i).scaling->scale_inverse));
  }
  std::sort(addresses.begin(), addresses.end());
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(addresses[i]) % 16, 0u);
    EXPECT_EQ(addresses[i] - addresses[0], static_cast<std::ptrdiff_t>(16 * i));
  }
}

TEST(EmptyPackedAmaxes, AreEmpty) {
  const support::ContextWithWorkspace place{1};
  ScalingTable<Cpu> table;
  Arena<Cpu> measuring;
  table.allocate(measuring);
  Arena<Cpu> arena(measuring.plan(), place.context);
  table.allocate(arena);
  table.initialize_sync(place.context);
  table.update(place.context);
  EXPECT_EQ(table.amaxes().size(), 0);
  EXPECT_EQ(table.amaxes(OperandKind::weight).size(), 0);
}

}  // namespace scaling_table_test
