/// @file
/// Attention on either device, for tests of the `Cuda` device.
#pragma once

#include <octavo/attention/cuda/attention.cuh>

#include "attention/formula.hpp"
#include "kernels/cuda_support.cuh"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace octavo::attention_on_cuda {

using namespace attention_formula;
using support::TestDevice;

/// What attention runs through: the kernels for this GPU, those for every GPU from 8.0 on, or
/// cuDNN.
enum class Library { octavo, generic, cudnn };

inline const char* name_of(Library library) {
  return std::array{"octavo", "generic", "cudnn"}[static_cast<std::size_t>(library)];
}

inline DeviceLimits<Cuda> limits_of(Library library, bool deterministic = false) {
  DeviceLimits<Cuda> limits;
  if (library == Library::generic) limits.gpu = features_of(86);
  limits.cudnn = library == Library::cudnn;
  limits.deterministic = deterministic;
  return limits;
}

/// Sets a context's limits; the features of its GPU only where those of another are asked for.
inline void set_limits(Context<Cuda>& context, const DeviceLimits<Cuda>& limits) {
  context.set_cudnn(limits.cudnn);
  context.set_deterministic(limits.deterministic);
  if (!limits.gpu.warpgroup_mma) context.set_gpu(limits.gpu);
}

#if defined(OCTAVO_WITH_CUDNN)
inline const auto libraries = testing::Values(Library::octavo, Library::generic, Library::cudnn);
#else
inline const auto libraries = testing::Values(Library::octavo, Library::generic);
#endif

/// Whether attention of the shape must run in cuDNN. Octavo does not let 9.10.0 and 9.10.1 run any,
/// and versions before 9.16 no lengths that are not multiples of 64.
inline bool must_run_in_cudnn(Library library, const AttentionShape& shape) {
  if (library != Library::cudnn || shape.tokens < cudnn_attention_least) return false;
#if defined(OCTAVO_WITH_CUDNN)
  const std::size_t version = detail::CudnnAttention::version();
  if (version == 91000 || version == 91001) return false;
  const bool any_length = version >= 91600;
  return any_length || shape.most_documents > 0 || shape.tokens % 64 == 0;
#else
  return false;
#endif
}

/// Attention's tensors on a device, and its forward and backward.
template <class T, Device D>
class Attention {
 public:
  /// @param limits  of its context on the `Cuda` device
  /// @param begins  of documents, where the shape has some
  Attention(const AttentionShape& shape, const Inputs<T>& inputs,
            const DeviceLimits<Cuda>& limits = {.cudnn = false},
            const std::vector<Index>& begins = {})
      : shape_(shape),
        device_(workspace_for(shape, limits)),
        qkv_(device_.matrix(inputs.qkv, shape.heads.columns())),
        output_gradient_(device_.matrix(inputs.output_gradient, output_columns())),
        output_(poisoned(output_columns())),
        qkv_gradient_(poisoned(shape.heads.columns())),
        log_sum_exp_(device_.template make_poisoned<float>(statistics()), {statistics()}) {
    if constexpr (std::is_same_v<D, Cuda>) {
      set_limits(device_.context(), limits);
    }
    const std::vector<std::int32_t> tables = tables_of(begins);
    if (!tables.empty()) tables_ = device_.make(tables);
  }

  /// Divides the rows anew, in the same memory.
  void divide(const std::vector<Index>& begins) {
    const std::vector<std::int32_t> tables = tables_of(begins);
    copy_to_device_sync(tables_, tables.data(), tables.size() * sizeof(std::int32_t), context());
  }

  void run() {
    const TensorView<const T, 2, D> qkv = qkv_;
    const TensorView<const T, 2, D> output = output_;
    const TensorView<const T, 2, D> output_gradient = output_gradient_;
    const TensorView<const float, 1, D> log_sum_exp = log_sum_exp_;
    const DeviceLimits<D> limits = attention_limits<T>(shape_, context());
    EXPECT_STREQ(attention_forward(shape_, qkv_, documents(), output_, log_sum_exp_, context()),
                 attention_implementation<T>(AttentionPass::forward, shape_, limits));
    EXPECT_STREQ(attention_backward(shape_, qkv, documents(), output, output_gradient, log_sum_exp,
                                    qkv_gradient_, context()),
                 attention_implementation<T>(AttentionPass::backward, shape_, limits));
  }
  /// Takes the first elements of its memory for another shape from now on, of which none is larger.
  void reshape(const AttentionShape& shape) {
    shape_ = shape;
    const auto in_rows = [&](TensorView<T, 2, D>& view, Index columns) {
      view = {view.data(), {shape.rows(), columns}};
    };
    in_rows(qkv_, shape.heads.columns());
    in_rows(qkv_gradient_, shape.heads.columns());
    in_rows(output_, output_columns());
    in_rows(output_gradient_, output_columns());
    log_sum_exp_ = {log_sum_exp_.data(), {statistics()}};
  }
  [[nodiscard]] Results<T> results() const {
    return {device_.read(output_), device_.read(qkv_gradient_), device_.read(log_sum_exp_)};
  }
  /// Returns the queries, keys and values, which an 8-bit forward rounds.
  [[nodiscard]] std::vector<T> qkv() const { return device_.read(qkv_); }
  [[nodiscard]] const Context<D>& context() const { return device_.context(); }

 private:
  [[nodiscard]] BatchShape batch() const {
    return {shape_.sequences, shape_.tokens, shape_.most_documents};
  }
  [[nodiscard]] Documents<D> documents() const { return documents_over<D>(tables_, batch()); }
  [[nodiscard]] std::vector<std::int32_t> tables_of(const std::vector<Index>& begins) const {
    std::vector<std::int32_t> tables(at(document_table_elements(batch())));
    if (!tables.empty()) write_document_tables(begins, 0, batch(), tables);
    return tables;
  }
  /// What a context with these limits says that it needs.
  static std::size_t workspace_for(const AttentionShape& shape, const DeviceLimits<Cuda>& limits) {
    Context<D> context;
    if constexpr (std::is_same_v<D, Cuda>) {
      set_limits(context, limits);
    }
    return attention_workspace<T>(shape, attention_limits<T>(shape, context));
  }
  [[nodiscard]] Index output_columns() const { return shape_.heads.heads * shape_.heads.head_dim; }
  [[nodiscard]] Index statistics() const { return shape_.rows() * shape_.heads.heads; }
  TensorView<T, 2, D> poisoned(Index columns) {
    return {device_.template make_poisoned<T>(shape_.rows() * columns), {shape_.rows(), columns}};
  }

  AttentionShape shape_;
  TestDevice<D> device_;
  std::int32_t* tables_ = nullptr;
  TensorView<T, 2, D> qkv_, output_gradient_, output_, qkv_gradient_;
  TensorView<float, 1, D> log_sum_exp_;
};

/// The same with another device's results in the place of the formula's values.
template <class T>
References replaced(References references, const Results<T>& results) {
  const auto replace = [](Reference& reference, const auto& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      reference.values[i] = static_cast<double>(static_cast<float>(values[i]));
    }
  };
  replace(references.output, results.output);
  replace(references.qkv_gradient, results.qkv_gradient);
  replace(references.log_sum_exp, results.log_sum_exp);
  return references;
}

inline std::string text_of(const AttentionShape& shape) {
  return message(shape.sequences, " x ", shape.tokens, " tokens, ", shape.heads.heads, "/",
                 shape.heads.kv_heads, " heads of ", shape.heads.head_dim, ", window ",
                 shape.options.window, ", scale ", shape.options.scale);
}

}  // namespace octavo::attention_on_cuda
