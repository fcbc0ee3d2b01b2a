/// @file
/// Implements cudnn_attention.cuh. Include it in exactly one source file of a program, which should
/// contain nothing else, because cuDNN's frontend takes half a minute to compile. Compiles with any
/// C++20 compiler. CMake's octavo::cuda compiles cmake/cudnn_attention.cpp, which does this.
#pragma once

#if !defined(OCTAVO_WITH_CUDNN)
#error "define OCTAVO_WITH_CUDNN in every file of the program: it is part of the namespace's name"
#endif

#include <octavo/attention/cuda/cudnn_attention.cuh>
#include <octavo/attention/cuda/workspace.hpp>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn.h>
#include <cudnn_frontend.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace octavo OCTAVO_ABI::detail {
/// cuDNN plans; contained in one source file of a program.
namespace cudnn_plans {

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
  value_gradients,
  document_lengths,
  qkv_offsets,
  output_offsets,
  statistic_offsets
};
using Pointers = std::unordered_map<std::int64_t, void*>;

/// The operation that a plan computes.
enum class Work { forward, backward, deterministic_backward };

inline Work backward_work(bool deterministic) {
  return deterministic ? Work::deterministic_backward : Work::backward;
}

/// The properties that determine a plan.
using PlanKey = std::tuple<Work, Index, Index, Index, Index, Index, Index, Index, float>;

inline PlanKey plan_key(const AttentionShape& shape, Work work) {
  const auto [heads, kv_heads, dim] = shape.heads;
  return {work, shape.sequences, shape.tokens,       shape.most_documents, heads, kv_heads,
          dim,  shape.window(),  shape.options.scale};
}

struct Plan {
  Graph graph;
  Pointers pointers;
  std::size_t workspace = 0;
};

inline std::string shape_text(const AttentionShape& shape) {
  const std::string documents =
      shape.most_documents == 0 ? "" : message("up to ", shape.most_documents, " documents, ");
  const std::string window =
      shape.window() == 0 ? "" : message("a window of ", shape.window(), ", ");
  return message(shape.sequences, " sequences of ", shape.tokens, " tokens, ", documents, window,
                 shape.heads.heads, " heads and ", shape.heads.kv_heads, " KV heads of ",
                 shape.heads.head_dim);
}

/// An error of a shape that cuDNN rejects.
class Refusal : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// Throws Refusal for a shape that this version of cuDNN, or of its frontend, is known to compute
/// incorrectly. Before 9.16, the backward of lengths that are not multiples of 64 gave NaN, except
/// with documents or a window. 9.14, but not 9.19, computed wrong gradients of heads of 256 for a
/// window of one token. Before 9.6, documents did not support shared KV heads. NVIDIA's newer
/// frontends refuse 9.10.0 and 9.10.1 because of bugs in attention in BF16.
inline void check_version(const AttentionShape& shape) {
  const std::size_t version = cudnnGetVersion();
  const auto refuse = [&](std::size_t needed, const char* what) {
    if (version >= needed) return;
    throw Refusal(message("cuDNN ", version, " does not run ", what, "; ", needed, " does"));
  };
  if (version >= 91000) refuse(91002, "attention in BF16");
  if (shape.most_documents > 0) refuse(90600, "documents in both directions");
  if (shape.most_documents == 0 && shape.tokens % 64 != 0) {
    refuse(91600, "lengths that are not multiples of 64 in both directions");
  }
  if (shape.window() == 1 && shape.heads.head_dim > 128) {
    refuse(91900, "windows of one token in heads of more than 128");
  }
}

/// Whether a call failed for a reason other than the shape, so that it may succeed later.
inline bool is_failure(frontend::error_code_t code) {
  using frontend::error_code_t;
  return code == error_code_t::CUDA_API_FAILED || code == error_code_t::HANDLE_ERROR ||
         code == error_code_t::INVALID_CUDA_DEVICE ||
         code == error_code_t::GRAPH_EXECUTION_FAILED ||
         code == error_code_t::NVRTC_COMPILATION_FAILED;
}

/// Throws unless a step of creating or running a plan succeeded: CudaError if the machine failed,
/// Refusal if cuDNN does not support the shape.
inline void check_frontend(frontend::error_t status, const char* call,
                           const AttentionShape& shape) {
  if (status.is_good()) return;
  const bool failed = is_failure(status.get_code());
  const std::string text =
      message("cuDNN ", cudnnGetVersion(), failed ? " failed at" : " refuses", " attention of ",
              shape_text(shape), " in ", call, ": ", status.get_message());
  if (failed) throw CudaError(text);
  throw Refusal(text);
}

/// Returns the number of sequences from cuDNN's view: each document may be as long as a sequence.
inline Index batch_of(const AttentionShape& shape) {
  return shape.most_documents == 0 ? shape.sequences : shape.most_documents;
}

/// Tables of documents in a graph; null if each sequence is one document.
struct DocumentTensors {
  Tensor lengths, qkv, output, statistics;

  DocumentTensors(Graph& graph, const AttentionShape& shape) {
    if (shape.most_documents == 0) return;
    const auto table = [&](const char* name, TensorNumber number, Index elements,
                           frontend::DataType_t type) {
      return graph.tensor(Tensor_attributes()
                              .set_name(name)
                              .set_uid(number)
                              .set_data_type(type)
                              .set_dim({elements, 1, 1, 1})
                              .set_stride({1, 1, 1, 1}));
    };
    const Index most = shape.most_documents;
    lengths = table("lengths", document_lengths, most, frontend::DataType_t::INT32);
    qkv = table("qkv_offsets", qkv_offsets, most + 1, frontend::DataType_t::INT64);
    output = table("output_offsets", output_offsets, most + 1, frontend::DataType_t::INT64);
    statistics =
        table("statistic_offsets", statistic_offsets, most + 1, frontend::DataType_t::INT64);
  }

  /// Passes the documents, if any, to an operation.
  template <class Options>
  void set(Options& options) const {
    if (lengths == nullptr) return;
    options.set_padding_mask(true).set_seq_len_q(lengths).set_seq_len_kv(lengths);
  }
};

/// A tensor [sequences, heads, tokens, head_dim] in rows of `columns` values.
/// @param offsets  of its documents, or null
inline Tensor_attributes head_tensor(const char* name, TensorNumber number,
                                     const AttentionShape& shape, Index heads, Index columns,
                                     const Tensor& offsets) {
  const Index dim = shape.heads.head_dim;
  auto tensor = Tensor_attributes()
                    .set_name(name)
                    .set_uid(number)
                    .set_data_type(frontend::DataType_t::BFLOAT16)
                    .set_dim({batch_of(shape), heads, shape.tokens, dim})
                    .set_stride({shape.tokens * columns, dim, columns, 1});
  if (offsets != nullptr) tensor.set_ragged_offset(offsets);
  return tensor;
}
/// [sequences, heads, tokens]; with documents [rows, heads].
inline Tensor_attributes statistics_tensor(const AttentionShape& shape, const Tensor& offsets) {
  const Index heads = shape.heads.heads;
  auto tensor = Tensor_attributes()
                    .set_name("log_sum_exp")
                    .set_uid(log_sum_exps)
                    .set_data_type(frontend::DataType_t::FLOAT)
                    .set_dim({batch_of(shape), heads, shape.tokens, 1})
                    .set_stride({heads * shape.tokens, shape.tokens, 1, 1});
  if (offsets == nullptr) return tensor;
  return tensor.set_stride({heads * shape.tokens, 1, heads, 1}).set_ragged_offset(offsets);
}

/// Sets the location of a graph's result in memory.
inline void place_result(const Tensor& result, Tensor_attributes place) {
  result->set_output(true)
      .set_uid(place.get_uid())
      .set_data_type(place.get_data_type())
      .set_dim(place.get_dim())
      .set_stride(place.get_stride());
  if (place.get_ragged_offset() != nullptr) result->set_ragged_offset(place.get_ragged_offset());
}

/// Queries, keys and values in their fused rows.
struct FusedTensors {
  Tensor_attributes query, key, value;

  FusedTensors(const AttentionShape& shape, const DocumentTensors& documents, const char* suffix,
               TensorNumber first)
      : query(part(shape, documents, message("Q", suffix), first, shape.heads.heads)),
        key(part(shape, documents, message("K", suffix), first + 1, shape.heads.kv_heads)),
        value(part(shape, documents, message("V", suffix), first + 2, shape.heads.kv_heads)) {}

 private:
  static Tensor_attributes part(const AttentionShape& shape, const DocumentTensors& documents,
                                const std::string& name, std::int64_t number, Index heads) {
    return head_tensor(name.c_str(), static_cast<TensorNumber>(number), shape, heads,
                       shape.heads.columns(), documents.qkv);
  }
};

/// Describes which keys a query attends to, and the factor of scores. cuDNN's left bound is the
/// number of keys up to the query, which is the window.
template <class Options>
void set_mask(Options& options, const AttentionShape& shape) {
  options.set_attn_scale(shape.options.scale_for(shape.heads.head_dim))
      .set_diagonal_alignment(frontend::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
  if (shape.window() > 0) options.set_diagonal_band_left_bound(static_cast<int>(shape.window()));
}

/// Describes the causal softmax of scale · Q · Kᵀ times V, and its log-sum-exp.
inline void describe_forward(Graph& graph, const AttentionShape& shape) {
  const DocumentTensors documents(graph, shape);
  const FusedTensors fused(shape, documents, "", queries);
  auto options =
      frontend::graph::SDPA_attributes().set_name("attention_forward").set_generate_stats(true);
  set_mask(options, shape);
  documents.set(options);
  const auto [output, statistics] = graph.sdpa(graph.tensor(fused.query), graph.tensor(fused.key),
                                               graph.tensor(fused.value), options);
  place_result(output, head_tensor("O", outputs, shape, shape.heads.heads,
                                   shape.heads.heads * shape.heads.head_dim, documents.output));
  place_result(statistics, statistics_tensor(shape, documents.statistics));
}

inline void describe_backward(Graph& graph, const AttentionShape& shape, bool deterministic) {
  const DocumentTensors documents(graph, shape);
  const FusedTensors fused(shape, documents, "", queries);
  const FusedTensors gradients(shape, documents, "_gradient", query_gradients);
  const auto output = [&](const char* name, TensorNumber number) {
    const auto [heads, kv_heads, dim] = shape.heads;
    return graph.tensor(head_tensor(name, number, shape, heads, heads * dim, documents.output));
  };
  auto options = frontend::graph::SDPA_backward_attributes()
                     .set_name("attention_backward")
                     .set_deterministic_algorithm(deterministic);
  set_mask(options, shape);
  documents.set(options);
  if (shape.most_documents > 0) {
    options.set_max_total_seq_len_q(shape.rows()).set_max_total_seq_len_kv(shape.rows());
  }
  const auto [query, key, value] = graph.sdpa_backward(
      graph.tensor(fused.query), graph.tensor(fused.key), graph.tensor(fused.value),
      output("O", outputs), output("O_gradient", output_gradients),
      graph.tensor(statistics_tensor(shape, documents.statistics)), options);
  place_result(query, gradients.query);
  place_result(key, gradients.key);
  place_result(value, gradients.value);
}

}  // namespace cudnn_plans

using namespace cudnn_plans;

struct CudnnAttention::Plans {
  cudnnHandle_t handle = nullptr;
  std::map<PlanKey, Plan> plans;
  std::map<PlanKey, std::string> refused;  ///< and the reason

  Plan& plan(const AttentionShape& shape, Work work) {
    const PlanKey key = plan_key(shape, work);
    const auto place = plans.find(key);
    if (place != plans.end()) return place->second;
    check_version(shape);
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

  /// Returns the workspace of a plan, or the reason why there is none.
  std::size_t workspace(const AttentionShape& shape, Work work, std::string& refusal) {
    const PlanKey key = plan_key(shape, work);
    const auto known = refused.find(key);
    if (known != refused.end()) {
      refusal = known->second;
      return 0;
    }
    try {
      return plan(shape, work).workspace;
    } catch (const Refusal& reason) {
      refusal = refused.emplace(key, reason.what()).first->second;
      return 0;
    }
  }

  /// Enqueues a plan whose pointers are set, in the workspace after the documents' tables.
  void run(Plan& plan, const AttentionShape& shape, const Context<Cuda>& context) {
    const std::size_t taken = cudnn_document_tables(shape);
    require<UsageError>(taken + plan.workspace <= context.workspace().size(),
                        "cuDNN's attention of ", shape_text(shape), " needs a workspace of ",
                        taken + plan.workspace, " bytes, but the context has ",
                        context.workspace().size(), "; bind one of attention_workspace() bytes");
    require<UsageError>(cudnnSetStream(handle, context.stream()) == CUDNN_STATUS_SUCCESS,
                        "cudnnSetStream failed; use the context on the thread that created it");
    check_frontend(plan.graph.execute(handle, plan.pointers, context.workspace().data() + taken),
                   "execute", shape);
  }
};

namespace cudnn_plans {

/// cuDNN accepts all pointers as `void*`; inputs are only read.
inline void* address(const void* pointer) { return const_cast<void*>(pointer); }  // NOLINT

/// Sets the pointers of queries, keys and values in fused rows.
inline void set_fused(Pointers& pointers, TensorNumber first, const AttentionShape& shape,
                      const Bf16* rows) {
  const auto [heads, kv_heads, dim] = shape.heads;
  pointers[first] = address(rows);
  pointers[first + 1] = address(rows + heads * dim);
  pointers[first + 2] = address(rows + (heads + kv_heads) * dim);
}

/// Sets the pointers of the documents' tables, if any.
inline void set_documents(Pointers& pointers, const CudnnDocuments& documents) {
  if (documents.lengths == nullptr) return;
  pointers[document_lengths] = documents.lengths;
  pointers[qkv_offsets] = documents.qkv_offsets;
  pointers[output_offsets] = documents.output_offsets;
  pointers[statistic_offsets] = documents.statistic_offsets;
}

}  // namespace cudnn_plans

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

void CudnnAttention::forward(const AttentionShape& shape, const CudnnDocuments& documents,
                             const Bf16* qkv, Bf16* output, float* log_sum_exp,
                             const Context<Cuda>& context) {
  Plan& plan = plans_->plan(shape, Work::forward);
  set_documents(plan.pointers, documents);
  set_fused(plan.pointers, queries, shape, qkv);
  plan.pointers[outputs] = output;
  plan.pointers[log_sum_exps] = log_sum_exp;
  plans_->run(plan, shape, context);
}

void CudnnAttention::backward(const AttentionShape& shape, const CudnnDocuments& documents,
                              const Bf16* qkv, const Bf16* output, const Bf16* output_gradient,
                              const float* log_sum_exp, Bf16* qkv_gradient,
                              const Context<Cuda>& context) {
  Plan& plan = plans_->plan(shape, backward_work(context.limits().deterministic));
  set_documents(plan.pointers, documents);
  set_fused(plan.pointers, queries, shape, qkv);
  set_fused(plan.pointers, query_gradients, shape, qkv_gradient);
  plan.pointers[outputs] = address(output);
  plan.pointers[output_gradients] = address(output_gradient);
  plan.pointers[log_sum_exps] = address(log_sum_exp);
  plans_->run(plan, shape, context);
}

CudnnSupport CudnnAttention::query_support(const AttentionShape& shape, bool deterministic) {
  CudnnSupport support;
  support.forward = plans_->workspace(shape, Work::forward, support.forward_refusal);
  if (!support.forward_refusal.empty()) return support;
  support.backward = plans_->workspace(shape, backward_work(deterministic), support.refusal);
  return support;
}

std::size_t CudnnAttention::version() { return cudnnGetVersion(); }

}  // namespace octavo::detail
