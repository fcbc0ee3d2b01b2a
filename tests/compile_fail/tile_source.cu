// Each case leaves a member of a source out, or gives it what cannot be.
// expect PARTS: the number of matrices that it computes side by side
// expect ROUNDS: the runs that a thread reads at once, which must be 1, 2, 4 or 8
// expect VECTORS: which returns whether rows can be read in whole runs, as rows_are_vectors(
// expect RUNS: whose return type must not be auto
// expect LOAD: TileSource: the result of the source's runs() lacks
// expect LOAD: which reads for a run
// expect MAKE: TileSource: the result of the source's runs() lacks
// expect FORMAT: returns Produced<T, parts>, not auto, with the operand's format T, such as
// expect COPY: TileSource: the source is copied to the GPU as it is; make it trivially copyable
#include <octavo/kernels/cuda/cast/produce.cuh>

using namespace octavo;

struct Own {
#if !defined(OCTAVO_COMPILE_FAIL_PARTS)
  static constexpr int parts = 1;
#endif
#if defined(OCTAVO_COMPILE_FAIL_ROUNDS)
  static constexpr int rounds_in_flight = 3;
#else
  static constexpr int rounds_in_flight = 4;
#endif
#if defined(OCTAVO_COMPILE_FAIL_COPY)
  Own(const Own& other) : values(other.values) {}
#endif
#if defined(OCTAVO_COMPILE_FAIL_FORMAT)
  using Format = float;
#else
  using Format = Bf16;
#endif
  const Format* values;
  Index columns;

  struct Runs {
    const Format* first;
    Index stride;

#if !defined(OCTAVO_COMPILE_FAIL_LOAD)
    __device__ kernels::Run<Format> load(int i, int count) const {
      return kernels::load_run<false>(first + i * stride, count);
    }
#endif
#if !defined(OCTAVO_COMPILE_FAIL_MAKE)
    __device__ kernels::Produced<Format, 1> make(int, const kernels::Run<Format>& run) const {
      return {{run}};
    }
#endif
  };
#if !defined(OCTAVO_COMPILE_FAIL_VECTORS)
  bool vectors() const { return false; }
#endif
#if !defined(OCTAVO_COMPILE_FAIL_RUNS)
  template <bool Vectors>
  __device__ Runs runs(Index row, Index column) const {
    return {values + row * columns + column, columns};
  }
#endif
};

void write(const Own& source, const Operand<Fp8Recipe<Delayed>, OperandKind::input, Cuda>& operand,
           const Context<Cuda>& context) {
  kernels::produce("write", source, operand, context);
}
