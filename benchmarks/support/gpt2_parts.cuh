// The kernels that GPT-2 has and Llama has not, in the shapes of GPT-2 124M, 16 x 1024 tokens.
#pragma once

#include <support/kernel_parts.cuh>

namespace benchmarks {

inline constexpr Index gpt2_tokens = 16384;
inline constexpr Index gpt2_hidden = 768;
inline constexpr Index gpt2_ffn = 3072;

template <class P>
Part layer_norm_forward_part(Gpu& gpu) {
  const Operands<P, OperandKind::input> y(gpu, gpt2_tokens, gpt2_hidden);
  const auto x = gpu.make<Bf16>(gpt2_tokens * gpt2_hidden);
  const auto weight = gpu.make<Bf16>(gpt2_hidden);
  const auto bias = gpu.make<Bf16>(gpt2_hidden);
  const auto statistics = gpu.make<float>(2 * gpt2_tokens);
  Part part{name_with<P>("layer_norm_forward"), gpt2_tokens, gpt2_hidden,
            y.produced_bytes(gpt2_tokens * gpt2_hidden * 2)};
  part.run = [=, &gpu](int turn) {
    const std::size_t i = at(turn);
    layer_norm_forward(input(x[i], gpt2_tokens, gpt2_hidden), input(weight[i], gpt2_hidden),
                       input(bias[i], gpt2_hidden), 1e-5f, y[turn],
                       vector(statistics[i], 2 * gpt2_tokens), gpu.context());
  };
  return part;
}

inline Part layer_norm_backward_part(Gpu& gpu) {
  const auto x = gpu.make<Bf16>(gpt2_tokens * gpt2_hidden);
  const auto dy = gpu.make<Bf16>(gpt2_tokens * gpt2_hidden);
  const auto dx = gpu.make<Bf16>(gpt2_tokens * gpt2_hidden);
  const auto weight = gpu.make<Bf16>(gpt2_hidden);
  const auto statistics = gpu.make<float>(2 * gpt2_tokens);
  const auto weight_gradient = gpu.make<Bf16>(gpt2_hidden);
  const auto bias_gradient = gpu.make<Bf16>(gpt2_hidden);
  Part part{"layer_norm_backward", gpt2_tokens, gpt2_hidden,
            static_cast<double>(gpt2_tokens * gpt2_hidden * 8)};
  part.run = [=, &gpu](int turn) {
    const std::size_t i = at(turn);
    layer_norm_backward(
        input(dy[i], gpt2_tokens, gpt2_hidden), input(x[i], gpt2_tokens, gpt2_hidden),
        input(weight[i], gpt2_hidden), input(statistics[i], 2 * gpt2_tokens),
        matrix(dx[i], gpt2_tokens, gpt2_hidden), vector(weight_gradient[i], gpt2_hidden),
        vector(bias_gradient[i], gpt2_hidden), gpu.context());
  };
  return part;
}

template <class P>
Part gelu_forward_part(Gpu& gpu) {
  const Operands<P, OperandKind::input> y(gpu, gpt2_tokens, gpt2_ffn);
  const auto x = gpu.make<Bf16>(gpt2_tokens * gpt2_ffn);
  Part part{name_with<P>("gelu_forward"), gpt2_tokens, gpt2_ffn,
            y.produced_bytes(gpt2_tokens * gpt2_ffn * 2)};
  part.run = [=, &gpu](int turn) {
    gelu_forward(input(x[at(turn)], gpt2_tokens, gpt2_ffn), y[turn], gpu.context());
  };
  return part;
}

template <class P>
Part gelu_backward_part(Gpu& gpu) {
  const Operands<P, OperandKind::output_gradient> gradient(gpu, gpt2_tokens, gpt2_ffn);
  const auto x = gpu.make<Bf16>(gpt2_tokens * gpt2_ffn);
  const auto dy = gpu.make<Bf16>(gpt2_tokens * gpt2_ffn);
  const auto sums = gpu.make<Bf16>(gpt2_ffn);
  Part part{name_with<P>("gelu_backward"), gpt2_tokens, gpt2_ffn,
            gradient.produced_bytes(gpt2_tokens * gpt2_ffn * 4)};
  part.run = [=, &gpu](int turn) {
    const std::size_t i = at(turn);
    gelu_backward(input(dy[i], gpt2_tokens, gpt2_ffn), input(x[i], gpt2_tokens, gpt2_ffn),
                  gradient[turn], vector(sums[i], gpt2_ffn), gpu.context());
  };
  return part;
}

}  // namespace benchmarks
