// The one translation unit that includes cuDNN's frontend; see cudnn_attention.cuh. Host code.
#include <octavo/attention/cuda/cudnn_attention.cuh>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn.h>
#include <cudnn_frontend.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace octavo::detail {
namespace {

namespace frontend = cudnn_frontend;
using frontend::graph::Graph;
using frontend::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

/// The tensors' numbers in the graphs.
enum TensorNumber : std::int64_t {
  queries = 1,
  keys,
  values,
  outputs,
  log_sum_exps,
  output_gradients,
  query_gradients,
  key_gradients,
  value_gradients
};
using Pointers = std::unordered_map<std::int64_t, void*>;

/// What a plan computes.
enum class Work { forward, backward, deterministic_backward };

Work backward_work(bool deterministic) {
  return deterministic ? Work::deterministic_backward : Work::backward;
}

/// What decides on a plan.
using PlanKey = std::tuple<Work, Index, Index, Index, Index, Index>;

PlanKey plan_key(const AttentionShape& shape, Work work) {
  const auto [heads, kv_heads, dim] = shape.heads;
  return {work, shape.sequences, shape.tokens, heads, kv_heads, dim};
}

struct Plan {
  Graph graph;
  Pointers pointers;
  std::size_t workspace = 0;
};

std::string shape_text(const AttentionShape& shape) {
  return message(shape.sequences, " sequences of ", shape.tokens, " tokens, ", shape.heads.heads,
                 " heads and ", shape.heads.kv_heads, " KV heads of ", shape.heads.head_dim);
}

/// cuDNN's refusal of a shape.
class Refusal : public ConfigError {
 public:
  explicit Refusal(const std::string& reason)
      : ConfigError(reason +
                    "; choose another shape, or Octavo's own kernels: set_cudnn(false) of the "
                    "context in a program, -DOCTAVO_CUDNN=OFF when it is built"),
        reason_(reason) {}

  /// What happened, without what to do.
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

/// Whether a call failed for a reason that is not the shape, so that it may succeed another time.
bool is_failure(frontend::error_code_t code) {
  using frontend::error_code_t;
  return code == error_code_t::CUDA_API_FAILED || code == error_code_t::HANDLE_ERROR ||
         code == error_code_t::INVALID_CUDA_DEVICE ||
         code == error_code_t::GRAPH_EXECUTION_FAILED ||
         code == error_code_t::NVRTC_COMPILATION_FAILED;
}

/// Throws unless a step of making or running a plan succeeded: CudaError where the machine failed,
/// Refusal where cuDNN does not serve the shape.
void check_frontend(frontend::error_t status, const char* call, const AttentionShape& shape) {
  if (status.is_good()) return;
  const bool failed = is_failure(status.get_code());
  const std::string text =
      message("cuDNN ", cudnnGetVersion(), failed ? " failed at" : " refuses", " attention of ",
              shape_text(shape), " in ", call, ": ", status.get_message());
  if (failed) throw CudaError(text);
  throw Refusal(text);
}

/// A tensor [sequences, heads, tokens, head_dim] in rows of `columns` values.
Tensor_attributes head_tensor(const char* name, TensorNumber number, const AttentionShape& shape,
                              Index heads, Index columns) {
  const Index dim = shape.heads.head_dim;
  return Tensor_attributes()
      .set_name(name)
      .set_uid(number)
      .set_data_type(frontend::DataType_t::BFLOAT16)
      .set_dim({shape.sequences, heads, shape.tokens, dim})
      .set_stride({shape.tokens * columns, dim, columns, 1});
}
Tensor_attributes statistics_tensor(const AttentionShape& shape) {
  const Index heads = shape.heads.heads;
  return Tensor_attributes()
      .set_name("log_sum_exp")
      .set_uid(log_sum_exps)
      .set_data_type(frontend::DataType_t::FLOAT)
      .set_dim({shape.sequences, heads, shape.tokens, 1})
      .set_stride({heads * shape.tokens, shape.tokens, 1, 1});
}

/// Gives a result of the graph its place in memory.
void place_result(const Tensor& result, const Tensor_attributes& place) {
  result->set_output(true)
      .set_uid(place.get_uid())
      .set_data_type(place.get_data_type())
      .set_dim(place.get_dim())
      .set_stride(place.get_stride());
}

/// Queries, keys and values in their fused rows.
struct FusedTensors {
  Tensor_attributes query, key, value;

  FusedTensors(const AttentionShape& shape, const char* suffix, TensorNumber first)
      : query(part(shape, message("Q", suffix), first, shape.heads.heads)),
        key(part(shape, message("K", suffix), first + 1, shape.heads.kv_heads)),
        value(part(shape, message("V", suffix), first + 2, shape.heads.kv_heads)) {}

 private:
  static Tensor_attributes part(const AttentionShape& shape, const std::string& name,
                                std::int64_t number, Index heads) {
    return head_tensor(name.c_str(), static_cast<TensorNumber>(number), shape, heads,
                       shape.heads.columns());
  }
};

/// The causal softmax of Q · Kᵀ / √head_dim times V, and its log-sum-exp.
void describe_forward(Graph& graph, const AttentionShape& shape) {
  const FusedTensors fused(shape, "", queries);
  const auto options =
      frontend::graph::SDPA_attributes()
          .set_name("attention_forward")
          .set_generate_stats(true)
          .set_attn_scale(1.0f / std::sqrt(static_cast<float>(shape.heads.head_dim)))
          .set_diagonal_alignment(frontend::DiagonalAlignment_t::TOP_LEFT)
          .set_diagonal_band_right_bound(0);
  const auto [output, statistics] = graph.sdpa(graph.tensor(fused.query), graph.tensor(fused.key),
                                               graph.tensor(fused.value), options);
  place_result(output, head_tensor("O", outputs, shape, shape.heads.heads,
                                   shape.heads.heads * shape.heads.head_dim));
  place_result(statistics, statistics_tensor(shape));
}

void describe_backward(Graph& graph, const AttentionShape& shape, bool deterministic) {
  const FusedTensors fused(shape, "", queries);
  const FusedTensors gradients(shape, "_gradient", query_gradients);
  const Index columns = shape.heads.heads * shape.heads.head_dim;
  const auto options =
      frontend::graph::SDPA_backward_attributes()
          .set_name("attention_backward")
          .set_deterministic_algorithm(deterministic)
          .set_attn_scale(1.0f / std::sqrt(static_cast<float>(shape.heads.head_dim)))
          .set_diagonal_alignment(frontend::DiagonalAlignment_t::TOP_LEFT)
          .set_diagonal_band_right_bound(0);
  const auto [query, key, value] = graph.sdpa_backward(
      graph.tensor(fused.query), graph.tensor(fused.key), graph.tensor(fused.value),
      graph.tensor(head_tensor("O", outputs, shape, shape.heads.heads, columns)),
      graph.tensor(head_tensor("O_gradient", output_gradients, shape, shape.heads.heads, columns)),
      graph.tensor(statistics_tensor(shape)), options);
  place_result(query, gradients.query);
  place_result(key, gradients.key);
  place_result(value, gradients.value);
}

}  // namespace

struct CudnnAttention::Plans {
  cudnnHandle_t handle = nullptr;
  std::map<PlanKey, Plan> plans;
  std::map<PlanKey, std::string> refused;  ///< and why

  Plan& plan(const AttentionShape& shape, Work work) {
    const PlanKey key = plan_key(shape, work);
    const auto place = plans.find(key);
    if (place != plans.end()) return place->second;
    Plan made;
    made.graph.set_io_data_type(frontend::DataType_t::BFLOAT16)
        .set_intermediate_data_type(frontend::DataType_t::FLOAT)
        .set_compute_data_type(frontend::DataType_t::FLOAT);
    if (work == Work::forward) {
      describe_forward(made.graph, shape);
    } else {
      describe_backward(made.graph, shape, work == Work::deterministic_backward);
    }
    check_frontend(made.graph.validate(), "validate", shape);
    check_frontend(made.graph.build_operation_graph(handle), "build_operation_graph", shape);
    check_frontend(made.graph.create_execution_plans({frontend::HeurMode_t::A}),
                   "create_execution_plans", shape);
    check_frontend(made.graph.check_support(), "check_support", shape);
    check_frontend(made.graph.build_plans(), "build_plans", shape);
    std::int64_t bytes = 0;
    check_frontend(made.graph.get_workspace_size(bytes), "get_workspace_size", shape);
    made.workspace = static_cast<std::size_t>(bytes);
    return plans.emplace(key, std::move(made)).first->second;
  }

  /// Enqueues a plan whose pointers are set.
  void run(Plan& plan, const AttentionShape& shape, const Context<Cuda>& context) {
    require<UsageError>(plan.workspace <= context.workspace().size(), "cuDNN's attention of ",
                        shape_text(shape), " needs a workspace of ", plan.workspace,
                        " bytes, but the context has ", context.workspace().size(),
                        "; bind one of attention_workspace() bytes");
    require<UsageError>(cudnnSetStream(handle, context.stream()) == CUDNN_STATUS_SUCCESS,
                        "cudnnSetStream failed; use the context on the thread that made it");
    check_frontend(plan.graph.execute(handle, plan.pointers, context.workspace().data()), "execute",
                   shape);
  }
};

namespace {

/// cuDNN takes all pointers as `void*`; inputs are only read.
void* address(const void* pointer) { return const_cast<void*>(pointer); }  // NOLINT

/// Sets the places of queries, keys and values in fused rows.
void set_fused(Pointers& pointers, TensorNumber first, const AttentionShape& shape,
               const Bf16* rows) {
  const auto [heads, kv_heads, dim] = shape.heads;
  pointers[first] = address(rows);
  pointers[first + 1] = address(rows + heads * dim);
  pointers[first + 2] = address(rows + (heads + kv_heads) * dim);
}

}  // namespace

CudnnAttention::CudnnAttention() : plans_(std::make_unique<Plans>()) {
  const cudnnStatus_t status = cudnnCreate(&plans_->handle);
  require<ConfigError>(status == CUDNN_STATUS_SUCCESS,
                       "cudnnCreate failed: ", cudnnGetErrorString(status), "; cuDNN ",
                       cudnnGetVersion(), " may be too old for this GPU or driver");
}

CudnnAttention::~CudnnAttention() {
  plans_->plans.clear();
  cudnnDestroy(plans_->handle);
}

void CudnnAttention::forward(const AttentionShape& shape, const Bf16* qkv, Bf16* output,
                             float* log_sum_exp, const Context<Cuda>& context) {
  Plan& plan = plans_->plan(shape, Work::forward);
  set_fused(plan.pointers, queries, shape, qkv);
  plan.pointers[outputs] = output;
  plan.pointers[log_sum_exps] = log_sum_exp;
  plans_->run(plan, shape, context);
}

void CudnnAttention::backward(const AttentionShape& shape, const Bf16* qkv, const Bf16* output,
                              const Bf16* output_gradient, const float* log_sum_exp,
                              Bf16* qkv_gradient, const Context<Cuda>& context) {
  Plan& plan = plans_->plan(shape, backward_work(context.limits().deterministic));
  set_fused(plan.pointers, queries, shape, qkv);
  set_fused(plan.pointers, query_gradients, shape, qkv_gradient);
  plan.pointers[outputs] = address(output);
  plan.pointers[output_gradients] = address(output_gradient);
  plan.pointers[log_sum_exps] = address(log_sum_exp);
  plans_->run(plan, shape, context);
}

CudnnAnswer CudnnAttention::ask(const AttentionShape& shape, bool deterministic) {
  CudnnAnswer answer;
  answer.forward = plans_->plan(shape, Work::forward).workspace;
  const Work work = backward_work(deterministic);
  const auto refused = plans_->refused.find(plan_key(shape, work));
  if (refused != plans_->refused.end()) {
    answer.refusal = refused->second;
    return answer;
  }
  try {
    answer.backward = plans_->plan(shape, work).workspace;
  } catch (const Refusal& refusal) {
    if (!deterministic) throw;
    answer.refusal = refusal.reason();
    plans_->refused.emplace(plan_key(shape, work), answer.refusal);
  }
  return answer;
}

std::size_t CudnnAttention::version() { return cudnnGetVersion(); }

}  // namespace octavo::detail
