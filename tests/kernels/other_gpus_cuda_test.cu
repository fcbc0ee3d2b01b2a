// Kernels that GPUs with fewer features run, on this GPU.
#include "kernels/cuda_support.cuh"

#include <cmath>
#include <vector>

namespace octavo {
namespace other_gpus_cuda_test {

using support::constant;

class KernelsOfOtherGpus : public support::OnGpu {};

struct Rows {
  std::vector<float> losses;
  std::vector<Bf16> gradients;
};

Rows cross_entropy_on(int capability, Index vocabulary) {
  support::TestDevice<Cuda> device;
  device.context().set_gpu(features_of(capability));
  const std::vector<std::int32_t> targets{2, -1, 0, static_cast<std::int32_t>(vocabulary - 1)};
  const auto rows = static_cast<Index>(targets.size());
  const auto logits =
      device.matrix(support::normal_values<Bf16>(rows * vocabulary, 3.0f, 1), vocabulary);
  const TensorView<float, 1, Cuda> losses{device.make_poisoned<float>(rows), {rows}};
  const TensorView<const float, 1, Cuda> scale = device.vector(std::vector<float>{0.125f});
  const auto ids = constant(device.vector(targets));
  cross_entropy(logits, ids, losses, vocabulary, scale, device.context());
  return {device.read(losses), device.read(logits)};
}

TEST_F(KernelsOfOtherGpus, CrossEntropyMatchesWithoutClusters) {
  for (const Index vocabulary : {256, 32000, 128256}) {
    const Rows expected = cross_entropy_on(90, vocabulary);
    for (const int capability : {80, 89, 120}) {
      const Rows found = cross_entropy_on(capability, vocabulary);
      for (std::size_t i = 0; i < expected.losses.size(); ++i) {
        EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-5f * expected.losses[i] + 1e-6f)
            << capability << " " << vocabulary << " " << i;
      }
      for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
        const auto value = static_cast<float>(expected.gradients[i]);
        ASSERT_NEAR(static_cast<float>(found.gradients[i]), value, std::abs(value) / 128 + 1e-30f)
            << capability << " " << vocabulary << " " << i;
      }
    }
  }
}

// RMSNorm's backward keeps an FP32 sum for each column in shared memory.
TEST_F(KernelsOfOtherGpus, RmsNormRowsFitSharedMemory) {
  for (const auto& [capability, most] : {std::pair<int, Index>{86, 25088}, {80, 41472}}) {
    support::TestDevice<Cuda> device(std::size_t{32} << 20);
    device.context().set_gpu(features_of(capability));
    const auto ones =
        device.vector(std::vector<Bf16>(static_cast<std::size_t>(most + 1), Bf16(1.0f)));
    const auto inverse = device.vector(std::vector<float>{0.0f});
    const auto gradient =
        device.vector(std::vector<float>(static_cast<std::size_t>(most + 1), 0.0f));
    Bf16* x_gradient = device.make<Bf16>(most + 1);
    const auto backward = [&](Index columns) {
      const TensorView<const Bf16, 2, Cuda> row{ones.data(), {1, columns}};
      const TensorView<const Bf16, 1, Cuda> weight{ones.data(), {columns}};
      rms_norm_backward(row, row, weight, constant(inverse),
                        TensorView<Bf16, 2, Cuda>{x_gradient, {1, columns}},
                        TensorView<float, 1, Cuda>{gradient.data(), {columns}}, device.context());
    };
    backward(most);
    device.context().synchronize();
    EXPECT_THROW(backward(most + 1), ShapeError) << capability;
  }
}

}  // namespace other_gpus_cuda_test
}  // namespace octavo
