// AdamW with moments in 8 bits on the Cuda device is the Cpu's.
#include "cuda_support.cuh"

namespace octavo::adamw_eight_bit_cuda_test {

using support::constant;
using support::expect_close;
using support::normal_values;
using support::TestDevice;

class AdamWEightBitOnCuda : public support::OnGpu {};

constexpr AdamWStep now{1e-2f, 0.19f, 0.0975f, 2};
constexpr float clip = 0.7f;
constexpr float decay = 0.1f;

template <class W>
struct State {
  std::vector<W> weight;
  std::vector<float> master;  ///< or empty
  std::vector<EightBit> first, second;
  std::vector<E8M0> first_scale, second_scale;

  friend bool operator==(const State&, const State&) = default;
};

/// Any code with scales of usual moments: a second one about the square of its first.
template <class W>
State<W> some_state(Index count, bool has_master) {
  std::mt19937 random(3);
  State<W> state;
  state.weight = normal_values<W>(count, 0.02f, 1);
  if (has_master) state.master = normal_values<float>(count, 0.02f, 1);
  for (Index i = 0; i < count; ++i) {
    state.first.push_back({static_cast<std::uint8_t>(random())});
    // Largest where the first moment is: quotients then are those of a training.
    const int magnitude = state.first.back().bits % 128;
    state.second.push_back({static_cast<std::uint8_t>(magnitude + random() % 128)});
  }
  for (Index group = 0; group < ceil_divide(count, 128); ++group) {
    const int exponent = static_cast<int>(random() % 30);
    state.first_scale.push_back(E8M0::from_bits(static_cast<std::uint8_t>(105 - exponent)));
    state.second_scale.push_back(E8M0::from_bits(static_cast<std::uint8_t>(91 - 2 * exponent)));
  }
  return state;
}

/// How an update is asked for.
struct Way {
  bool skip = false;
  Index cut = 0;   ///< between two parts
  Index lead = 0;  ///< elements before the arrays' first, which are left alone
};

template <class W, class G, Device D>
State<W> update_on(const State<W>& before, const std::vector<G>& gradients, const Way& way) {
  TestDevice<D> device;
  const auto vector = [&](auto values) {
    using T = typename decltype(values)::value_type;
    const auto count = static_cast<Index>(values.size());
    if (count == 0) return TensorView<T, 1, D>{};
    values.insert(values.begin(), static_cast<std::size_t>(way.lead), T{});
    return TensorView<T, 1, D>{device.make(values) + way.lead, {count}};
  };
  AdamWParameter<W, G, EightBit, D> parameter;
  parameter.weight = vector(before.weight);
  parameter.gradient = vector(gradients);
  parameter.master = vector(before.master);
  parameter.first_moment = vector(before.first);
  parameter.second_moment = vector(before.second);
  parameter.first_scale = vector(before.first_scale);
  parameter.second_scale = vector(before.second_scale);
  parameter.weight_decay = decay;
  parameter.random_stream = 5;
  StepStatus status{};
  status.clip_coefficient = clip;
  status.skip = way.skip ? 1 : 0;
  const auto step = device.vector(std::vector<AdamWStep>{now});
  const auto decided = constant(device.vector(std::vector<StepStatus>{status}));
  for (const auto [begin, end] :
       {std::array{Index{0}, way.cut}, {way.cut, parameter.weight.size()}}) {
    adamw_update(part_of(parameter, begin, end - begin), AdamWSettings{}, constant(step), decided,
                 device.context());
  }
  State<W> after{device.read(parameter.weight),       {},
                 device.read(parameter.first_moment), device.read(parameter.second_moment),
                 device.read(parameter.first_scale),  device.read(parameter.second_scale)};
  if (!before.master.empty()) after.master = device.read(parameter.master);
  return after;
}

/// How far two FP32 updates of each weight may lie apart: each rounds ten times at most, by 2^-23
/// with what `Cuda` approximates, relative to terms before any of them cancel.
template <class W, class G>
std::vector<double> tolerances(const State<W>& state, const std::vector<G>& gradients) {
  const AdamWSettings settings;
  std::vector<double> result;
  for (std::size_t i = 0; i < state.weight.size(); ++i) {
    const double w = state.master.empty() ? static_cast<float>(state.weight[i]) : state.master[i];
    const double g = static_cast<double>(static_cast<float>(gradients[i])) * clip;
    const double m = FirstMomentCode::decode(state.first[i], state.first_scale[i / 128]);
    const double v = SecondMomentCode::decode(state.second[i], state.second_scale[i / 128]);
    const double new_v = settings.beta2 * v + (1.0 - settings.beta2) * g * g;
    const double terms = settings.beta1 * std::abs(m) + (1.0 - settings.beta1) * std::abs(g);
    const double update = terms / now.first_correction /
                          (std::sqrt(new_v / now.second_correction) + settings.epsilon);
    result.push_back(2 * 10 * 0x1p-23 * (std::abs(w) + now.learning_rate * update));
  }
  return result;
}

/// The same random bits round moments that differ in their last bits, which may also decide about
/// a group's scale: one in a hundred may differ.
template <class T>
void expect_mostly_equal(const std::vector<T>& expected, const std::vector<T>& actual) {
  std::size_t different = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) different += expected[i] == actual[i] ? 0 : 1;
  EXPECT_LE(different, expected.size() / 100) << "of " << expected.size();
}

template <class W, class G>
void compare(bool has_master) {
  // Whole groups and not, whole vectors and not, a block of threads and more.
  for (const Index count : {1, 8, 37, 128, 136, 4096, 100'003, 131'072}) {
    SCOPED_TRACE(message(count, " elements, master ", has_master));
    const State<W> before = some_state<W>(count, has_master);
    const std::vector<G> gradients = normal_values<G>(count, 1e-2f, 2);
    const auto cpu = update_on<W, G, Cpu>(before, gradients, {});
    const auto cuda = update_on<W, G, Cuda>(before, gradients, {});
    const std::vector<double> bounds = tolerances(before, gradients);
    expect_close(cpu.weight, cuda.weight, bounds);
    if (has_master) expect_close(cpu.master, cuda.master, bounds);
    expect_mostly_equal(cpu.first, cuda.first);
    expect_mostly_equal(cpu.second, cuda.second);
    expect_mostly_equal(cpu.first_scale, cuda.first_scale);
    expect_mostly_equal(cpu.second_scale, cuda.second_scale);
    const Index cut = count / 256 * 128;
    EXPECT_TRUE((update_on<W, G, Cuda>(before, gradients, {.cut = cut}) == cuda)) << "in parts";
    EXPECT_TRUE((update_on<W, G, Cuda>(before, gradients, {.lead = 1}) == cuda)) << "not aligned";
    EXPECT_TRUE((update_on<W, G, Cuda>(before, gradients, {.skip = true}) == before)) << "skipped";
  }
}

TEST_F(AdamWEightBitOnCuda, UpdatesMatchCpu) {
  compare<Bf16, Bf16>(false);
  compare<Bf16, float>(true);
  compare<Fp32, float>(false);
}

TEST_F(AdamWEightBitOnCuda, ZeroGradientsKeepStateZero) {
  State<Bf16> zero;
  zero.weight.assign(300, Bf16(0.5f));
  zero.master.assign(300, 0.5f);
  zero.first.resize(300);
  zero.second.resize(300);
  zero.first_scale.resize(3);
  zero.second_scale.resize(3);
  State<Bf16> after = update_on<Bf16, float, Cuda>(zero, std::vector<float>(300), {});
  EXPECT_TRUE(after.first == zero.first && after.second == zero.second);
  EXPECT_TRUE(after.first_scale == zero.first_scale && after.second_scale == zero.second_scale);
}

// Where nothing is rounded but codes, these are the Cpu's to the bit, whatever they are of.
TEST_F(AdamWEightBitOnCuda, HugeGradientsSaturateLikeOnCpu) {
  for (const float huge : {1e20f, 3e38f}) {
    std::vector<float> gradients(256, huge);
    gradients[7] = 0.0f;
    State<Fp32> begin = some_state<Fp32>(256, false);
    const auto cpu = update_on<Fp32, float, Cpu>(begin, gradients, {});
    const auto cuda = update_on<Fp32, float, Cuda>(begin, gradients, {});
    EXPECT_TRUE(cpu.second_scale == cuda.second_scale && cpu.second == cuda.second) << huge;
    for (const float weight : cuda.weight) EXPECT_TRUE(std::isfinite(weight)) << huge;
  }
}

}  // namespace octavo::adamw_eight_bit_cuda_test
