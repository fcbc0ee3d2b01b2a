// How fast a run is saved and goes on, on a device: what a save costs the steps beside it, and how
// fast checkpoints and Hugging Face folders are read from the page cache. OCTAVO_BENCHMARK_FOLDER
// says where files are written; a folder of the disk that a run would use. In one repetition there
// is never more than one checkpoint there, or one folder of weights.
#pragma once

#include <octavo/checkpoint/checkpoints.hpp>
#include <octavo/checkpoint/hugging_face.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace checkpoints_benchmark {

using namespace octavo;

inline double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

inline constexpr LlamaConfig preset = OCTAVO_BENCHMARK_PRESET;

/// A session that all measurements share, and a folder for their files.
/// @tparam D  the device
template <Device D>
class Run {
 public:
  using Session = ModelSession<Llama<preset, Bf16, D>, AdamW<MasterWeights<Bf16>, Moments<Bf16>>>;

  static Run& instance() {
    static Run run;
    return run;
  }

  void step() { (void)session_.step({tokens_, tokens_}, 1e-4); }
  [[nodiscard]] TrainingSession& session() { return session_; }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] static std::int64_t bytes_in(const std::filesystem::path& folder) {
    std::int64_t bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) bytes += static_cast<std::int64_t>(entry.file_size());
    }
    return bytes;
  }

 private:
  Run() : session_(options(), context_) {
    const char* named = std::getenv("OCTAVO_BENCHMARK_FOLDER");
    folder_ = named != nullptr ? std::filesystem::path(named)
                               : std::filesystem::temp_directory_path() / "octavo-checkpoints";
    std::filesystem::remove_all(folder_);
    tokens_.assign(static_cast<std::size_t>(options().batch.rows() * options().micro_batches), 1);
    for (int i = 0; i < 3; ++i) step();
  }
  ~Run() { std::filesystem::remove_all(folder_); }

  static SessionOptions options() {
    SessionOptions options;
    options.batch = {1, std::is_same_v<D, Cpu> ? 16 : 8192};
    options.micro_batches = std::is_same_v<D, Cpu> ? 1 : 4;
    return options;
  }

  Context<D> context_;
  Session session_;
  std::filesystem::path folder_;
  std::vector<std::int32_t> tokens_;
};

/// A save, and what it adds to the steps until it is there and read back, of which the median and
/// the most are told; then steps without. Reading takes no longer than writing did.
template <Device D>
void save_beside_steps(benchmark::State& state) {
  Run<D>& run = Run<D>::instance();
  CheckpointRecord last;
  Checkpoints checkpoints({.folder = run.folder() / "saved"}, run.session(),
                          [&](const CheckpointRecord& record) { last = record; });
  Index number = 0;
  double plain = 0;
  double written = 0;
  std::vector<double> costs;
  for ([[maybe_unused]] auto each : state) {
    std::filesystem::remove_all(last.path);
    const double save_seconds = seconds_of([&] { checkpoints.save(++number); });
    const Index before = last.step;
    double steps = 0;
    int count = 0;
    const auto step = [&] {
      steps += seconds_of([&] {
        run.step();
        checkpoints.after_step();
      });
      ++count;
    };
    while (last.step == before) step();
    for (const double until = steps + last.seconds; steps < until;) step();
    steps += seconds_of([&] { checkpoints.finish(); });
    // Behind it, with the GPU as warm as in it.
    constexpr int compared = 5;
    plain = seconds_of([&] {
              for (int i = 0; i < compared; ++i) run.step();
            }) /
            compared;
    costs.push_back(save_seconds + steps - count * plain);
    written = last.seconds;
    state.SetIterationTime(save_seconds + steps);
  }
  checkpoints.finish();
  if (!last.error.empty()) return state.SkipWithError(last.error.c_str());
  std::ranges::sort(costs);
  state.counters["step_ms"] = 1000 * plain;
  state.counters["cost_ms"] = 1000 * costs[costs.size() / 2];
  state.counters["most_ms"] = 1000 * costs.back();
  state.counters["waited_ms"] = 1000 * last.blocked;
  state.counters["written_GB/s"] = static_cast<double>(last.bytes) / written * 1e-9;
  state.counters["GB"] = static_cast<double>(last.bytes) * 1e-9;
}

template <Device D>
void load(benchmark::State& state) {
  Run<D>& run = Run<D>::instance();
  const auto newest = newest_checkpoint(run.folder() / "saved", [](const ListedCheckpoint&) {});
  if (newest.empty()) return state.SkipWithError("nothing was saved");
  for ([[maybe_unused]] auto each : state) {
    state.SetIterationTime(seconds_of([&] { load_checkpoint(newest, run.session()); }));
  }
  state.SetBytesProcessed(state.iterations() * Run<D>::bytes_in(newest));
}

template <Device D>
void load_weights(benchmark::State& state) {
  Run<D>& run = Run<D>::instance();
  const ModelDescription description = description_of(preset);
  const auto folder = run.folder() / "weights";
  std::filesystem::remove_all(run.folder() / "saved");
  if (!std::filesystem::exists(folder)) save_hugging_face(run.session(), description, folder);
  for ([[maybe_unused]] auto each : state) {
    state.SetIterationTime(
        seconds_of([&] { load_hugging_face(run.session(), description, folder); }));
  }
  state.SetBytesProcessed(state.iterations() * Run<D>::bytes_in(folder));
}

/// @param instruction  the processor's, where it has one
inline void checksum(benchmark::State& state, bool instruction) {
  const std::vector<std::byte> bytes(std::size_t{1} << 20);
  for ([[maybe_unused]] auto each : state) {
    benchmark::DoNotOptimize(instruction ? crc32c(bytes) : detail::crc32c_by_tables(0, bytes));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes.size()));
}

template <Device D>
void add() {
  benchmark::RegisterBenchmark("checksum", checksum, true);
  benchmark::RegisterBenchmark("checksum/tables", checksum, false);
  const auto run = [](const char* name, void (*body)(benchmark::State&), int times) {
    benchmark::RegisterBenchmark(name, body)
        ->UseManualTime()
        ->Iterations(times)
        ->Unit(benchmark::kMillisecond);
  };
  run("save", save_beside_steps<D>, 3);
  run("load", load<D>, 3);
  run("load_hugging_face", load_weights<D>, 3);
}

}  // namespace checkpoints_benchmark
