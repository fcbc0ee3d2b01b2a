# Functions of quickstart, run-tests and .ci/run, which source this file from the project's root.
# shellcheck shell=bash

fail() {
  echo "${0##*/}: $*" >&2
  exit 1
}

# The default g++ of Ubuntu 22.04 is older than 12, so scripts/install-dependencies installs g++-12.
choose_tools() {
  if [[ -z ${CXX-} ]] && grep -qs '^VERSION_CODENAME=jammy$' /etc/os-release; then
    export CXX=g++-12
  fi
  if command -v ninja >/dev/null; then
    export CMAKE_GENERATOR=Ninja
  fi
}

# Sets $no_cuda to why this machine cannot use the Cuda device, or to nothing if it can; then $cuda_architecture
# is that of GPU 0, as CMAKE_CUDA_ARCHITECTURES has it.
find_cuda() {
  no_cuda=
  cuda_architecture=
  if ! command -v nvcc >/dev/null; then
    no_cuda="no nvcc here"
  elif ! nvidia-smi -L >/dev/null 2>&1; then
    no_cuda="nvcc is installed, but there is no GPU"
  else
    local capability
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)
    if [[ ! $capability =~ ^([89]|[1-9][0-9]+)\.[0-9]$ ]]; then
      no_cuda="the GPU has compute capability $capability, but Octavo needs 8.0 or later"
      return
    fi
    cuda_architecture=${capability/./}
    [[ $cuda_architecture != 90 ]] || cuda_architecture=90a
  fi
}

# Removes the options that choose the compiled models and precisions from a build's cache, with the comments
# above them, so that the preset sets them again.
forget_lists() {
  local cache=$1/CMakeCache.txt kept
  [[ -f $cache ]] || return 0
  kept=$(awk '/^\/\// { comment = comment $0 "\n"; next }
    !/^OCTAVO_((CUDA_|PLAN_)?PRESETS|(CUDA_)?PRECISIONS|(PLAN_)?TENSOR_PARALLEL|LORA|(PLAIN_)?MODELS|REDUCE):/ &&
    !/^OCTAVO_TRAIN_FIRST:/ {
      printf "%s%s\n", comment, $0
    }
    { comment = "" }' "$cache") && printf '%s\n' "$kept" >"$cache"
}

# configure_preset PRESET [OPTION...]: configures a preset of CMakePresets.json in build/PRESET, with the preset's
# lists, for GPU 0 if find_cuda found it. Each OPTION is passed to cmake and overrides the preset.
configure_preset() {
  local preset=$1
  shift
  local gpu=${cuda_architecture:+-DCMAKE_CUDA_ARCHITECTURES=$cuda_architecture}
  local log=build/$preset.configure.log
  mkdir -p build
  forget_lists "build/$preset"
  cmake --preset "$preset" ${gpu:+"$gpu"} "$@" >"$log" 2>&1 || {
    cat "$log" >&2
    fail "the configuration of $preset failed; $log has its output"
  }
}

# build_configured PRESET [OPTION...]: builds a preset that configure_preset configured. Each OPTION, such as --target,
# is passed to cmake --build. Prints the compiler's progress.
build_configured() {
  local preset=$1
  # With huge pages, compilers spend half as much time in the kernel.
  GLIBC_TUNABLES=glibc.malloc.hugetlb=1 cmake --build --preset "$preset" --parallel "$(nproc)" "${@:2}" ||
    fail "the build of $preset failed"
}

# Configures and builds a preset.
build_preset() {
  configure_preset "$1"
  build_configured "$1"
}

# Builds one more target of a preset that configure_preset configured, at low priority, so that it does not slow down
# runs. Prints nothing unless it fails.
build_target() {
  local preset=$1 target=$2
  local log=build/$preset.$target.log
  (renice -n 10 "$BASHPID" && build_configured "$preset" --target "$target") >"$log" 2>&1 || {
    cat "$log" >&2
    fail "the build of $target failed"
  }
}
