// A checkpoint of one recipe and optimizer goes on in another: what can be taken over is, the rest
// is converted or begins anew, and all of it is told.
#include <octavo/checkpoint/checkpoints.hpp>
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/small_model.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread_ranks.hpp"

namespace checkpoint_conversion_test {

using namespace octavo;

/// Makes a session of one recipe and optimizer.
using Maker = std::function<std::unique_ptr<TrainingSession>(const SessionOptions&, Context<Cpu>&,
                                                             Communicator<Cpu>&)>;

template <class Precision, class Optimizer>
std::unique_ptr<TrainingSession> make(const SessionOptions& options, Context<Cpu>& context,
                                      Communicator<Cpu>& communicator) {
  return std::make_unique<ModelSession<support::SmallModel<Precision>, Optimizer, DataParallel<>>>(
      options, context, communicator);
}

const std::map<std::string, Maker>& makers() {
  static const std::map<std::string, Maker> all{
      {"bf16", make<Bf16, AdamW<MasterWeights<Fp32>, Moments<Bf16>>>},
      {"fp32", make<Fp32, AdamW<>>},
      {"delayed", make<Fp8Recipe<Delayed>, AdamW<>>},
      {"delayed, 8-bit", make<Fp8Recipe<Delayed>, AdamW<MasterWeights<Bf16>, Moments<EightBit>>>},
      {"blockwise, 8-bit",
       make<Fp8Recipe<Blockwise>, AdamW<MasterWeights<Fp32>, Moments<EightBit>>>}};
  return all;
}

SessionOptions options_of(Zero zero, std::uint64_t seed) {
  SessionOptions options = support::small_options();
  options.batch = {1, 48};
  options.sharding.zero = zero;
  options.seed = seed;
  return options;
}

void take_step(TrainingSession& session, unsigned number) {
  const SessionOptions options = options_of(Zero::optimizer, 0);
  const support::TokenBatch batch = support::step_batch(options, number);
  EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
}

/// The state of all ranks, each entry whole: its format and its bytes.
struct Whole {
  std::string format;
  std::vector<std::byte> bytes;

  friend bool operator==(const Whole&, const Whole&) = default;
};
using State = std::map<std::string, Whole>;

State whole_of(const std::vector<SavedState>& ranks) {
  State result;
  for (const SavedState& state : ranks) {
    for (const auto& [name, entry] : state) {
      std::size_t elements = 1;
      std::size_t of_whole = 1;
      for (const Index extent : entry.shape) elements *= static_cast<std::size_t>(extent);
      for (const Index extent : entry.whole) of_whole *= static_cast<std::size_t>(extent);
      const std::size_t size = entry.bytes.size() / elements;
      result[name].format = entry.format;
      result[name].bytes.resize(size * of_whole);
      if (entry.bytes.empty()) continue;
      std::memcpy(result[name].bytes.data() + size * static_cast<std::size_t>(entry.begin),
                  entry.bytes.data(), entry.bytes.size());
    }
  }
  return result;
}

/// Two steps of a session, and a checkpoint behind them.
State train_and_save(const Maker& maker, int ranks, Zero zero,
                     const std::filesystem::path& folder) {
  std::vector<SavedState> states(static_cast<std::size_t>(ranks));
  support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
    Context<Cpu> context(1);
    const auto session = maker(options_of(zero, 7), context, communicator);
    for (unsigned step = 0; step < 2; ++step) {
      take_step(*session, 10 * step + static_cast<unsigned>(communicator.rank()));
    }
    Checkpoints checkpoints({.folder = folder}, *session,
                            [](const CheckpointRecord& record) { EXPECT_EQ(record.error, ""); });
    checkpoints.save(2);
    checkpoints.finish();
    states[static_cast<std::size_t>(communicator.rank())] =
        save_state_sync(session->state().entries());
  });
  return whole_of(states);
}

/// What a session of other weights has once it was loaded, and what it says of it.
struct Loaded {
  State state;
  State fresh;  ///< before
  std::vector<std::string> changes;
};

Loaded load(const Maker& maker, int ranks, Zero zero, const std::filesystem::path& path) {
  Loaded result;
  std::vector<SavedState> states(static_cast<std::size_t>(ranks));
  std::vector<SavedState> fresh(states.size());
  support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    Context<Cpu> context(1);
    const auto session = maker(options_of(zero, 8), context, communicator);
    fresh[rank] = save_state_sync(session->state().entries());
    // What stood in it must not show.
    take_step(*session, 77 + static_cast<unsigned>(rank));
    const CheckpointManifest manifest =
        load_checkpoint(path, *session, {}, OtherRecipes::converted);
    states[rank] = save_state_sync(session->state().entries());
    if (rank == 0 && !manifest.conversions.empty()) {
      EXPECT_EQ(manifest.conversions.back().recipe, manifest.recipe);
      EXPECT_EQ(manifest.conversions.back().step, 2);
      result.changes = manifest.conversions.back().changes;
    }
    take_step(*session, 99);
  });
  result.state = whole_of(states);
  result.fresh = whole_of(fresh);
  return result;
}

template <class T>
std::vector<T> elements(const Whole& whole) {
  std::vector<T> values(whole.bytes.size() / sizeof(T));
  std::memcpy(values.data(), whole.bytes.data(), whole.bytes.size());
  return values;
}

/// The levels of codes from 0 on, as the format's description has them.
double level(int code) { return std::ldexp(16 + code % 16, code / 16) - 16; }

/// The numbers of an entry.
std::vector<double> numbers(const State& state, const std::string& name) {
  const Whole& whole = state.at(name);
  std::vector<double> result;
  if (whole.format == "fp32") {
    for (const float value : elements<float>(whole)) result.push_back(double{value});
  } else if (whole.format == "bf16") {
    for (const std::uint16_t bits : elements<std::uint16_t>(whole)) {
      const std::uint32_t wide = std::uint32_t{bits} << 16;
      float value = 0;
      std::memcpy(&value, &wide, sizeof(value));
      result.push_back(double{value});
    }
  } else {
    EXPECT_EQ(whole.format, "8-bit") << name;
    const bool is_first = name.find("first_moment.") != std::string::npos;
    std::string of_scales = name;
    of_scales.replace(name.find("_moment."), 8, "_moment_scale.");
    const auto scales = elements<std::uint8_t>(state.at(of_scales));
    const auto codes = elements<std::uint8_t>(whole);
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const bool is_negative = is_first && codes[i] >= 128;
      const double magnitude =
          std::ldexp(level(is_first ? codes[i] % 128 : codes[i]), int{scales[i / 128]} - 127);
      result.push_back(is_negative ? -magnitude : magnitude);
    }
  }
  return result;
}

/// The BF16 number nearest to a value, of two the even one.
double nearest_bf16(double value) {
  if (value == 0) return 0;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
  return std::nearbyint(value / unit) * unit;
}

/// How far numbers may be from the values that they were made of: the nearest there is.
void expect_rounded(const State& state, const std::string& name,
                    const std::vector<double>& values) {
  const std::string& format = state.at(name).format;
  const std::vector<double> made = numbers(state, name);
  ASSERT_EQ(made.size(), values.size()) << name;
  if (format != "8-bit") {
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(made[i], format == "bf16" ? nearest_bf16(values[i]) : values[i]) << name << i;
    }
    return;
  }
  const bool is_first = name.find("first_moment.") != std::string::npos;
  const int codes = is_first ? 128 : 256;
  std::string of_scales = name;
  of_scales.replace(name.find("_moment."), 8, "_moment_scale.");
  const auto scales = elements<std::uint8_t>(state.at(of_scales));
  for (std::size_t begin = 0; begin < values.size(); begin += 128) {
    const std::size_t end = std::min(begin + 128, values.size());
    double amax = 0;
    for (std::size_t i = begin; i < end; ++i) amax = std::max(amax, std::abs(values[i]));
    int scale = 0;
    while (std::ldexp(level(codes - 1), scale - 127) < amax) ++scale;
    ASSERT_EQ(int{scales[begin / 128]}, scale) << of_scales << begin / 128;
    for (std::size_t i = begin; i < end; ++i) {
      const double wanted = std::ldexp(std::abs(values[i]), 127 - scale);
      // A second moment that is not 0 does not become it.
      int code = !is_first && wanted > 0 ? 1 : 0;
      while (code + 1 < codes && level(code + 1) <= wanted) ++code;
      const double least = std::min(std::abs(level(code) - wanted),
                                    std::abs(level(std::min(code + 1, codes - 1)) - wanted));
      const double error = std::abs(std::ldexp(made[i] - values[i], 127 - scale));
      ASSERT_LE(error, least * (1 + 1e-6) + 1e-6 * wanted) << name << i;
    }
  }
}

/// Holds a state to what the other one's makes by hand.
void expect_converted(const State& from, const Loaded& to, bool is_same_recipe) {
  for (const auto& [name, entry] : to.state) {
    const auto own = from.find(name);
    const std::string parameter =
        name.substr(name.find('.', name.starts_with("optimizer.") ? 10 : 0) + 1);
    const std::string master = "optimizer.master." + parameter;
    if (name == "session.recipe") {
      EXPECT_EQ(entry, to.fresh.at(name));
    } else if (name == "session.must_calibrate" || name.starts_with("scaling.")) {
      EXPECT_EQ(entry, is_same_recipe ? own->second : to.fresh.at(name)) << name;
    } else if (own != from.end() && own->second.format == entry.format) {
      EXPECT_EQ(entry, own->second) << name;
    } else if (name.starts_with("model.") || name.starts_with("optimizer.master.")) {
      const std::string source = from.contains(master) ? master : "model." + parameter;
      expect_rounded(to.state, name, numbers(from, source));
    } else if (name.find("_moment.") != std::string::npos) {
      expect_rounded(to.state, name, numbers(from, name));
    } else {
      EXPECT_TRUE(name.find("_moment_scale.") != std::string::npos) << name << " is of nothing";
    }
  }
}

bool tells(const std::vector<std::string>& changes, const std::string& text) {
  return std::ranges::any_of(
      changes, [&](const std::string& change) { return change.find(text) != std::string::npos; });
}

class ConvertedCheckpoint : public support::TemporaryFolder {
 protected:
  [[nodiscard]] std::filesystem::path saved() const { return folder_ / "step-00000002"; }
};

TEST_F(ConvertedCheckpoint, EveryPairMatchesManualConversion) {
  for (const auto& [from, first] : makers()) {
    const std::filesystem::path folder = folder_ / from;
    const State state = train_and_save(first, 1, Zero::optimizer, folder);
    for (const auto& [to, second] : makers()) {
      SCOPED_TRACE(message(from, " to ", to));
      const Loaded loaded = load(second, 1, Zero::optimizer, folder / "step-00000002");
      if (from == to) {
        EXPECT_TRUE(loaded.state == state);
        EXPECT_TRUE(loaded.changes.empty());
        continue;
      }
      expect_converted(state, loaded, from.substr(0, 7) == to.substr(0, 7));
      EXPECT_FALSE(loaded.changes.empty());
    }
  }
}

TEST_F(ConvertedCheckpoint, IsIndependentOfRankCount) {
  for (const auto& [from, to] :
       {std::pair("blockwise, 8-bit", "delayed"), std::pair("delayed", "blockwise, 8-bit")}) {
    const Maker& second = makers().at(to);
    const std::filesystem::path folder = folder_ / from;
    const State state = train_and_save(makers().at(from), 2, Zero::optimizer, folder);
    const Loaded alone = load(second, 1, Zero::optimizer, folder / "step-00000002");
    expect_converted(state, alone, false);
    for (const auto& [ranks, zero] : {std::pair(2, Zero::weights), std::pair(4, Zero::optimizer)}) {
      const Loaded shared = load(second, ranks, zero, folder / "step-00000002");
      EXPECT_TRUE(shared.state == alone.state) << ranks << " ranks";
      EXPECT_EQ(shared.changes, alone.changes) << ranks << " ranks";
    }
  }
}

TEST_F(ConvertedCheckpoint, MuonKeepsFirstMomentsOfAdamW) {
  const State from = train_and_save(make<Bf16, AdamW<>>, 1, Zero::optimizer, folder_ / "adamw");
  const std::filesystem::path path = folder_ / "adamw" / "step-00000002";
  const Loaded muon = load(make<Bf16, Muon<>>, 1, Zero::optimizer, path);
  expect_converted(from, muon, true);
  const std::string of_matrix = "optimizer.second_moment.blocks.0.qkv.weight";
  EXPECT_FALSE(muon.state.contains(of_matrix));
  EXPECT_TRUE(muon.state.contains("optimizer.second_moment.embedding.weight"));
  EXPECT_TRUE(std::ranges::any_of(muon.changes, [](const std::string& change) {
    return change.find("second moments: dropped") != std::string::npos;
  }));
}

TEST_F(ConvertedCheckpoint, AdamWRejectsStateWithoutSecondMoments) {
  train_and_save(make<Bf16, Muon<>>, 1, Zero::optimizer, folder_ / "muon");
  Context<Cpu> context(1);
  SelfComm<Cpu> alone;
  const auto session = make<Bf16, AdamW<>>(options_of(Zero::optimizer, 8), context, alone);
  const SavedState before = save_state_sync(session->state().entries());
  try {
    (void)load_checkpoint(folder_ / "muon" / "step-00000002", *session, {},
                          OtherRecipes::converted);
    ADD_FAILURE() << "loaded, without second moments";
  } catch (const StateMismatchError& error) {
    EXPECT_NE(std::string(error.what()).find("resume with that optimizer"), std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(save_state_sync(session->state().entries()) == before);
}

TEST_F(ConvertedCheckpoint, ReportsChangesOfEachStateKind) {
  train_and_save(makers().at("delayed"), 1, Zero::optimizer, folder_);
  const Loaded loaded = load(makers().at("delayed, 8-bit"), 1, Zero::optimizer, saved());
  std::size_t parameters = 0;
  std::size_t operands = 0;
  for (const auto& [name, entry] : loaded.state) {
    if (name.starts_with("model.")) ++parameters;
    if (name.ends_with(".history")) ++operands;
  }
  EXPECT_EQ(loaded.changes,
            (std::vector{message(parameters,
                                 " first moments: converted from fp32 first moments, rounded "
                                 "to 8-bit"),
                         message(parameters, " master weights: dropped"),
                         message(operands, " scales with histories: kept"),
                         message(parameters,
                                 " second moments: converted from fp32 second moments, "
                                 "rounded to 8-bit"),
                         message(parameters, " weights: kept in bf16")}));
  const Loaded plain = load(makers().at("fp32"), 1, Zero::optimizer, saved());
  EXPECT_TRUE(tells(plain.changes, message(operands, " scales with histories: dropped")));
  EXPECT_TRUE(tells(plain.changes,
                    message(parameters, " weights: converted from fp32 master weights, now fp32")));
  train_and_save(makers().at("bf16"), 1, Zero::optimizer, folder_ / "bf16");
  const Loaded calibrated =
      load(makers().at("delayed"), 1, Zero::optimizer, folder_ / "bf16" / "step-00000002");
  EXPECT_TRUE(
      tells(calibrated.changes, message(operands,
                                        " scales with histories: initialised again; the next step "
                                        "calibrates them")));
  const Loaded other = load(makers().at("blockwise, 8-bit"), 1, Zero::optimizer, saved());
  EXPECT_TRUE(tells(other.changes, message(parameters, " master weights: kept in fp32")));
}

TEST_F(ConvertedCheckpoint, IsRecordedInLaterCheckpoints) {
  train_and_save(makers().at("delayed"), 1, Zero::optimizer, folder_);
  Context<Cpu> context(1);
  SelfComm<Cpu> alone;
  const auto session = makers().at("bf16")(options_of(Zero::optimizer, 8), context, alone);
  Checkpoints checkpoints({.folder = folder_}, *session,
                          [](const CheckpointRecord& record) { EXPECT_EQ(record.error, ""); });
  try {
    checkpoints.resume(saved());
    FAIL() << "it was loaded without being asked to";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("its recipe is fp8-delayed"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("convert it"), std::string::npos);
  }
  const auto first = checkpoints.resume(saved(), {}, OtherRecipes::converted).conversions;
  ASSERT_EQ(first.size(), 1u);
  take_step(*session, 4);
  checkpoints.save(3);
  checkpoints.finish();
  const CheckpointManifest manifest = *list_checkpoints(folder_).back().manifest;
  EXPECT_EQ(manifest.step, 3);
  EXPECT_EQ(manifest.recipe, "bf16");
  ASSERT_EQ(manifest.conversions.size(), 1u);
  EXPECT_EQ(manifest.conversions[0].step, 2);
  EXPECT_EQ(manifest.conversions[0].recipe, "fp8-delayed");
  EXPECT_EQ(manifest.conversions[0].optimizer, first[0].optimizer);
  EXPECT_EQ(manifest.conversions[0].changes, first[0].changes);
}

}  // namespace checkpoint_conversion_test
