// The backward of wide heads without wgmma has the same bits with the shared memory of every GPU.
#include "kernels/cuda_support.cuh"

namespace octavo {
namespace wide_heads_cuda_test {

class WideHeadsOnCuda : public support::OnGpu {};

std::vector<Bf16> gradient_with(Index shared_bytes, Index tokens, Index window) {
  AttentionShape shape{.sequences = 2, .tokens = tokens, .heads = {4, 2, 256}};
  shape.options.window = window;
  support::Place<Cuda> place(std::size_t{1} << 20);
  GpuFeatures gpu = features_of(80);
  gpu.shared_bytes = shared_bytes;
  place.context().set_gpu(gpu);
  const auto values = [&](Index columns, unsigned seed) {
    return place.matrix(support::normal_values<Bf16>(shape.rows() * columns, 1.0f, seed), columns);
  };
  const auto qkv = values(shape.heads.columns(), 1);
  const auto output = values(shape.heads.heads * 256, 2);
  const auto output_gradient = values(shape.heads.heads * 256, 3);
  const auto gradient = values(shape.heads.columns(), 4);
  const auto sums =
      place.vector(std::vector<float>(static_cast<std::size_t>(shape.rows() * shape.heads.heads)));
  detail::own_attention_forward(shape, support::constant(qkv), {}, output, sums, place.context());
  detail::own_attention_backward(shape, support::constant(qkv), {}, support::constant(output),
                                 support::constant(output_gradient), support::constant(sums),
                                 gradient, place.context());
  return place.read(gradient);
}

TEST_F(WideHeadsOnCuda, HaveTheSameGradientsWithMoreSharedMemory) {
  for (const auto& [tokens, window] :
       {std::pair<Index, Index>{64, 64}, {100, 100}, {333, 333}, {300, 70}}) {
    EXPECT_TRUE(gradient_with(99 << 10, tokens, window) == gradient_with(163 << 10, tokens, window))
        << tokens << " tokens, window " << window;
  }
}

}  // namespace wide_heads_cuda_test
}  // namespace octavo
