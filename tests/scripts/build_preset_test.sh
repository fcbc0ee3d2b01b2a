#!/usr/bin/env bash
# quickstart and run-tests build what their presets say, whatever a build had been told: build_preset_test.sh
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=scripts/common.sh
source "$root/scripts/common.sh"
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
choose_tools

cat >CMakePresets.json <<'EOF'
{
  "version": 3,
  "configurePresets": [
    {"name": "small", "binaryDir": "${sourceDir}/build/small", "cacheVariables": {"OCTAVO_LORA": "of the preset"}}
  ],
  "buildPresets": [{"name": "small", "configurePreset": "small"}]
}
EOF
lists=(PRESETS PRECISIONS CUDA_PRESETS CUDA_PRECISIONS PLAN_PRESETS MODELS TENSOR_PARALLEL PLAN_TENSOR_PARALLEL REDUCE
  PLAIN_MODELS TRAIN_FIRST)
{
  printf 'cmake_minimum_required(VERSION 3.22)\nproject(small NONE)\n'
  for name in "${lists[@]}" LORA ARCH; do
    # CMake breaks long texts into lines of the cache.
    printf 'set(OCTAVO_%s "unless said" CACHE STRING "What %s are built, of those that there are: NAME, or several")\n' \
      "$name" "$name"
    printf 'file(APPEND ${CMAKE_BINARY_DIR}/values "%s: ${OCTAVO_%s}\\n")\n' "$name" "$name"
  done
} >CMakeLists.txt

failures=0
# has VALUE NAME...: the last configuration gave them this value
has() {
  local value=$1 name
  shift
  for name in "$@"; do
    grep -qxF "$name: $value" build/small/values || {
      echo "FAILED: $name is not '$value': $(cat build/small/values)" >&2
      failures=$((failures + 1))
    }
  done
}

build_preset small >out 2>&1 || exit 1
has "unless said" "${lists[@]}" ARCH
has "of the preset" LORA
rm build/small/values
told=("${lists[@]}" LORA ARCH)
told=("${told[@]/#/-DOCTAVO_}")
cmake build/small "${told[@]/%/=other}" >out 2>&1 || exit 1
has other "${lists[@]}" LORA ARCH
rm build/small/values
build_preset small >out 2>&1 || exit 1
has "unless said" "${lists[@]}"
has "of the preset" LORA
has other ARCH
[[ $failures -eq 0 ]] || exit 1
echo "build_preset: OK"
