// The kernels of a training step at the shapes of Llama-3-8B. Bytes are those that must move:
// inputs read once, outputs and their scales written once, and the values twice, or the inputs once
// more, where scales wait for an amax.
#pragma once

#include <support/gpu.cuh>

namespace benchmarks {

inline constexpr Index tokens = 8192;
inline constexpr Index hidden = 4096;
inline constexpr Index ffn = 14336;
inline constexpr Index vocabulary = 128256;
/// Tokens whose logits exist at once.
inline constexpr Index logit_rows = 2048;
inline constexpr HeadLayout heads{32, 8, 128};

/// "swiglu_forward, fp8-delayed".
template <LinearPrecision P>
std::string name_with(const char* kernel) {
  return std::string(kernel) + ", " + PrecisionTraits<P>::name();
}

constexpr std::size_t at(int turn) { return static_cast<std::size_t>(turn); }

template <class P, OperandKind Kind>
Part quantize_part(Gpu& gpu, Index rows, Index columns) {
  const Operands<P, Kind> operands(gpu, rows, columns);
  Part part{"quantize", rows, columns, operands.quantized_bytes()};
  part.run = [=, &gpu](int turn) { quantize(operands[turn], gpu.context()); };
  return part;
}

template <class P>
Part rms_norm_forward_part(Gpu& gpu, Index rows = tokens) {
  const Operands<P, OperandKind::input> y(gpu, rows, hidden);
  const auto x = gpu.make<Bf16>(rows * hidden);
  const auto weight = gpu.make<Bf16>(hidden);
  const auto inverse = gpu.make<float>(rows);
  Part part{name_with<P>("rms_norm_forward"), rows, hidden, y.produced_bytes(rows * hidden * 2)};
  part.run = [=, &gpu](int turn) {
    rms_norm_forward(input(x[at(turn)], rows, hidden), input(weight[at(turn)], hidden), 1e-5f,
                     y[turn], vector(inverse[at(turn)], rows), gpu.context());
  };
  return part;
}

/// @tparam G  format of the weight's gradient
template <class G>
Part rms_norm_backward_part(Gpu& gpu, Index rows = tokens) {
  const auto x = gpu.make<Bf16>(rows * hidden);
  const auto dy = gpu.make<Bf16>(rows * hidden);
  const auto dx = gpu.make<Bf16>(rows * hidden);
  const auto weight = gpu.make<Bf16>(hidden);
  const auto inverse = gpu.make<float>(rows);
  const auto gradient = gpu.make<G>(hidden);
  Part part{"rms_norm_backward", rows, hidden, static_cast<double>(rows * hidden * 8)};
  part.run = [=, &gpu](int turn) {
    const std::size_t i = at(turn);
    rms_norm_backward(input(dy[i], rows, hidden), input(x[i], rows, hidden),
                      input(weight[i], hidden), input(inverse[i], rows),
                      matrix(dx[i], rows, hidden), vector(gradient[i], hidden), gpu.context());
  };
  return part;
}

/// @tparam W  format of the gates and ups
template <class P, class W = Bf16>
Part swiglu_forward_part(Gpu& gpu) {
  const Operands<P, OperandKind::input> y(gpu, tokens, ffn);
  const auto gate_up = gpu.make<W>(tokens * 2 * ffn);
  Part part{name_with<P>("swiglu_forward"), tokens, ffn,
            y.produced_bytes(tokens * ffn * 2 * Index{sizeof(W)})};
  part.run = [=, &gpu](int turn) {
    swiglu_forward(input(gate_up[at(turn)], tokens, 2 * ffn), y[turn], gpu.context());
  };
  return part;
}

/// @tparam W  format of the gates and ups
template <class P, class W = Bf16>
Part swiglu_backward_part(Gpu& gpu) {
  const Operands<P, OperandKind::output_gradient> gradient(gpu, tokens, 2 * ffn);
  const auto gate_up = gpu.make<W>(tokens * 2 * ffn);
  const auto dy = gpu.make<Bf16>(tokens * ffn);
  Part part{name_with<P>("swiglu_backward"), tokens, ffn,
            gradient.produced_bytes(tokens * ffn * (2 + 2 * Index{sizeof(W)}))};
  part.run = [=, &gpu](int turn) {
    swiglu_backward(input(dy[at(turn)], tokens, ffn), input(gate_up[at(turn)], tokens, 2 * ffn),
                    gradient[turn], gpu.context());
  };
  return part;
}

/// In place, as the model calls it.
inline Part rope_forward_part(Gpu& gpu) {
  constexpr Index columns = heads.columns();
  const auto qkv = gpu.make<Bf16>(tokens * columns);
  const auto table = gpu.make<float>(tokens * heads.head_dim);
  const Index rotated = tokens * (heads.heads + heads.kv_heads) * heads.head_dim;
  Part part{"rope_forward in place", tokens, columns, static_cast<double>(rotated * 4)};
  part.run = [=, &gpu](int turn) {
    const std::size_t i = at(turn);
    rope_forward(input(qkv[i], tokens, columns), heads, QkNorm<const Bf16, Cuda>{},
                 input(table[i], tokens, heads.head_dim), tokens, matrix(qkv[i], tokens, columns),
                 gpu.context());
  };
  return part;
}

/// In place, as the model calls it.
/// @tparam G  format of the weights' gradients
template <class P, class G>
Part rope_backward_part(Gpu& gpu) {
  constexpr Index columns = heads.columns();
  const Operands<P, OperandKind::output_gradient> gradient(gpu, tokens, columns);
  const auto table = gpu.make<float>(tokens * heads.head_dim);
  Part part{name_with<P>("rope_backward"), tokens, columns,
            gradient.produced_bytes(tokens * columns * 2)};
  part.run = [=, &gpu](int turn) {
    rope_backward(gradient[turn].values, heads, TensorView<const Bf16, 2, Cuda>{},
                  QkNorm<const Bf16, Cuda>{}, QkNorm<G, Cuda>{},
                  input(table[at(turn)], tokens, heads.head_dim), tokens, gradient[turn],
                  gpu.context());
  };
  return part;
}

inline std::vector<std::int32_t*> random_tokens(Gpu& gpu, Index count) {
  const auto arrays = gpu.make<std::int32_t>(count);
  std::vector<std::int32_t> host(static_cast<std::size_t>(count));
  std::uint32_t state = 1;
  for (std::int32_t& token : host) {
    state = state * 1664525u + 1013904223u;
    token = static_cast<std::int32_t>((state >> 8) % vocabulary);
  }
  for (std::int32_t* array : arrays) {
    copy_to_device_sync(array, host.data(), host.size() * sizeof(std::int32_t), gpu.context());
  }
  return arrays;
}

inline Part embedding_forward_part(Gpu& gpu) {
  const auto ids = random_tokens(gpu, tokens);
  const auto table = gpu.make<Bf16>(vocabulary * hidden);
  const auto y = gpu.make<Bf16>(tokens * hidden);
  Part part{"embedding_forward", tokens, hidden, static_cast<double>(tokens * hidden * 4)};
  part.run = [=, &gpu](int turn) {
    const std::size_t i = at(turn);
    embedding_forward(input(ids[i], tokens), input(table[i], vocabulary, hidden),
                      matrix(y[i], tokens, hidden), gpu.context());
  };
  return part;
}

inline Part embedding_backward_part(Gpu& gpu) {
  gpu.need_workspace(embedding_workspace(tokens));
  const auto ids = random_tokens(gpu, tokens);
  const auto dy = gpu.make<Bf16>(tokens * hidden);
  const auto gradient = gpu.make<Bf16>(vocabulary * hidden);
  Part part{"embedding_backward", tokens, hidden, static_cast<double>(tokens * hidden * 6)};
  part.run = [=, &gpu](int turn) {
    const std::size_t i = at(turn);
    embedding_backward(input(ids[i], tokens), input(dy[i], tokens, hidden),
                       matrix(gradient[i], vocabulary, hidden), gpu.context());
  };
  return part;
}

inline Part cross_entropy_part(Gpu& gpu) {
  const auto ids = random_tokens(gpu, logit_rows);
  const auto logits = gpu.make<Bf16>(logit_rows * vocabulary);
  const auto losses = gpu.make<float>(logit_rows);
  const auto gradient_scale = gpu.make<float>(1);
  Part part{"cross_entropy", logit_rows, vocabulary,
            static_cast<double>(logit_rows * vocabulary * 4)};
  part.run = [=, &gpu](int turn) {
    const std::size_t i = at(turn);
    cross_entropy(matrix(logits[i], logit_rows, vocabulary), input(ids[i], logit_rows),
                  vector(losses[i], logit_rows), vocabulary, input(gradient_scale[0], 1),
                  gpu.context());
  };
  return part;
}

/// @tparam G  format of the gradient
/// @tparam M  format of the moments
template <class G, class M>
Part adamw_part(Gpu& gpu, const char* name, bool has_master) {
  constexpr Index count = hidden * ffn;
  const auto weight = gpu.make<Bf16>(count);
  const auto gradient = gpu.make<G>(count);
  const auto first = gpu.make<M>(count);
  const auto second = gpu.make<M>(count);
  const Index groups = detail::has_moment_scales<M> ? count / detail::moment_group : 0;
  const auto first_scale = gpu.make<E8M0>(groups);
  const auto second_scale = gpu.make<E8M0>(groups);
  const auto master = gpu.make<float>(has_master ? count : 0);
  const auto status = gpu.make<StepStatus>(1);
  const auto steps = gpu.make<AdamWStep>(1);
  const AdamWStep step{1e-4f, 0.19f, 0.0975f, 2};
  StepStatus counted{};
  counted.clip_coefficient = 1.0f;
  for (std::size_t i = 0; i < turns; ++i) {
    copy_to_device_sync(steps[i], &step, sizeof(step), gpu.context());
    copy_to_device_sync(status[i], &counted, sizeof(counted), gpu.context());
    fill_zero(second[i], static_cast<std::size_t>(count) * sizeof(M), gpu.context());
  }
  const Index weights = has_master ? 2 + 8 : 4;
  Part part{name, hidden, ffn,
            static_cast<double>(count * (weights + Index{sizeof(G)} + 4 * Index{sizeof(M)}) +
                                4 * groups)};
  part.run = [=, &gpu](int turn) {
    const std::size_t i = at(turn);
    AdamWParameter<Bf16, G, M, Cuda> parameter;
    parameter.weight = vector(weight[i], count);
    parameter.gradient = input(gradient[i], count);
    if (has_master) parameter.master = vector(master[i], count);
    parameter.first_moment = vector(first[i], count);
    parameter.second_moment = vector(second[i], count);
    parameter.first_scale = vector(first_scale[i], groups);
    parameter.second_scale = vector(second_scale[i], groups);
    adamw_update(parameter, AdamWSettings{}, input(steps[i], 1), input(status[i], 1),
                 gpu.context());
  };
  return part;
}

template <class G>
Part squared_norm_part(Gpu& gpu, const char* name) {
  constexpr Index count = hidden * ffn;
  const auto gradient = gpu.make<G>(count);
  const auto status = gpu.make<StepStatus>(1);
  Part part{name, hidden, ffn, static_cast<double>(count * Index{sizeof(G)})};
  part.run = [=, &gpu](int turn) {
    const std::size_t i = at(turn);
    add_squared_norm(input(gradient[i], count), vector(status[i], 1), gpu.context());
  };
  return part;
}

inline Part hash_part(Gpu& gpu) {
  constexpr Index count = hidden * ffn;
  const auto weight = gpu.make<Bf16>(count);
  const auto hash = gpu.make<std::uint64_t>(1);
  Part part{"hash_bytes", hidden, ffn, static_cast<double>(count * Index{sizeof(Bf16)})};
  part.run = [=, &gpu](int turn) {
    const std::size_t i = at(turn);
    hash_bytes(input(reinterpret_cast<std::byte*>(weight[i]), count * Index{sizeof(Bf16)}),
               vector(hash[i], 1), gpu.context());
  };
  return part;
}

inline Part transpose_fp8_values_part(Gpu& gpu) {
  constexpr Index count = hidden * ffn;
  const auto fp8_values = gpu.make<E4M3>(count);
  const auto turned = gpu.make<E4M3>(count);
  Part part{"transpose_fp8_values", hidden, ffn, 2.0 * static_cast<double>(count)};
  part.run = [=, &gpu](int turn) {
    const std::size_t i = at(turn);
    transpose_fp8_values(
        QuantizedView<E4M3, PerTensor, Layout::row_major, Cuda>{fp8_values[i], nullptr, hidden,
                                                                ffn},
        QuantizedView<E4M3, PerTensor, Layout::transposed, Cuda>{turned[i], nullptr, ffn, hidden},
        gpu.context());
  };
  return part;
}

}  // namespace benchmarks
