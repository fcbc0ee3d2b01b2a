// What plan_memory says of adapters is what sessions that train them allocate.
#include <octavo/attention/cuda/workspace.hpp>
#include <octavo/gemm/cuda/limits.hpp>
#include <plan_memory/options.hpp>

#include <gtest/gtest.h>

#include <vector>

#include "support/thread_ranks.hpp"

namespace adapter_plan_test {

using namespace octavo;

planner::Options options_of(const char* device) {
  planner::Options options;
  options.model = "llama_tiny";
  options.precision = "fp8-delayed";
  options.device = device;
  options.threads = 1;
  options.batch = 2;
  options.sequence_length = 32;
  options.master_weights = options.moments = "fp32";
  options.lora = 8;
  return options;
}

/// The bytes that each of the ranks allocates.
std::vector<std::size_t> allocated(const planner::Options& options, const LoraOptions& adapters) {
  using Model = Llama<llama_tiny, Lora<Fp8Recipe<Delayed>>, Cpu>;
  SessionOptions choices = planner::request_of(options).session;
  choices.model.lora = adapters;
  std::vector<std::size_t> bytes(static_cast<std::size_t>(options.world));
  support::on_ranks(options.world, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    const ModelSession<Model, AdamW<>, DataParallel<>> session(choices, context, communicator);
    bytes[static_cast<std::size_t>(communicator.rank())] = session.facts().allocated_bytes;
  });
  return bytes;
}

TEST(PlanOfAdapters, MatchesAllocationsOfSessions) {
  const planner::Plan plan({"llama_tiny", description_of(llama_tiny)}, "fp8-delayed");
  std::vector<planner::Options> all(5, options_of("cpu"));
  all[1].recompute = "block";
  all[1].micro_batches = 3;
  all[2].weight_copies = "remade";
  all[2].lora = 64;
  all[2].lora_targets = {"k_proj", " down_proj"};
  LoraOptions few{.rank = 64};
  set_lora_targets(few, {"k_proj", "down_proj"});
  all[3].world = 2;
  all[4].world = 2;
  all[4].zero = 3;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t planned = plan.memory(planner::request_of(all[i])).peak;
    for (const std::size_t bytes : allocated(all[i], i == 2 ? few : LoraOptions{.rank = 8})) {
      EXPECT_EQ(bytes, planned) << "choice " << i;
    }
  }
}

TEST(PlanOfAdapters, HasNoTrainingStateForBaseWeights) {
  using Model = Llama<llama3_8b, Lora<Fp8Recipe<Delayed>>, Cuda>;
  planner::Options options = options_of("cuda");
  options.batch = 1;
  options.sequence_length = 8192;
  options.lora = 16;
  const planner::Request request = planner::request_of(options);
  const MemoryPlan plan =
      plan_memory<Model, AdamW<>, DataParallel<>>(request.session, request.cuda);
  // A of each of seven layers has 16 rows of its inputs, B 16 columns of its outputs.
  constexpr std::size_t parameters =
      std::size_t{32} * 16 * ((4096 + 4096) * 2 + (4096 + 1024) * 2 + (4096 + 14336) * 3);
  static_assert(parameters == 41943040);
  EXPECT_EQ(plan.bytes(MemoryKind::weights), 2 * (8030261248 + parameters));
  EXPECT_EQ(plan.bytes(MemoryKind::gradients), 2 * parameters);
  EXPECT_EQ(plan.bytes(MemoryKind::optimizer), 12 * parameters + 256);
  // Two FP8 copies of all that multiplies but the head.
  EXPECT_EQ(plan.bytes(MemoryKind::quantized_weights),
            std::size_t{2} * 32 * 4096 * (6144 + 4096 + 3 * 14336));
}

}  // namespace adapter_plan_test
