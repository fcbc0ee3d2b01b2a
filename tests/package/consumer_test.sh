#!/usr/bin/env bash
# A project that uses Octavo in one WAY, with one COMPILER, builds and runs the README's program:
#
#   consumer_test.sh headers|subfolder|fetch|installed|cudnn|nccl COMPILER FOLDER
#
# COMPILER is g++, clang++ or the like, or nvcc: then the program is for the Cuda device, and is run
# only where nvidia-smi finds a GPU. FOLDER is emptied and worked in. Beside the README's ways there are
#   cudnn   installed, with that component
#   nccl    likewise; it only links a program of several ranks
#
# One of the ways fails when any of these is deleted; each was tried:
#   OctavoLibrary.cmake       the include folder, cxx_std_20, octavo_add_requirements, octavo_scope
#   octavoDependencies.cmake  every find_package and target_link_libraries, and each library in them (but
#                             octavo_cudnn's CUDA::cudart where cuDNN lies in the Toolkit's folder);
#                             C++20 for nvcc; OCTAVO_WITH_CUDA, OCTAVO_WITH_CUDNN; the module path
#   OctavoInstall.cmake       FILE_SET, install(EXPORT), each file; but INCLUDES, for a CMake before 3.23
#   octavoConfig.cmake        both include(), octavo_add_requirements, octavo_add_cuda, octavo_add_cudnn
set -uo pipefail

usage="usage: consumer_test.sh headers|subfolder|fetch|installed|cudnn|nccl COMPILER FOLDER"
way=${1:?$usage}
compiler=${2:?$usage}
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "${3:?$usage}" && work=$(cd "$3" && pwd) && rm -rf "${work:?}"/* && cd "$work" || exit 1

fail() {
  echo "FAILED: $way with $compiler: $*" >&2
  exit 1
}

version=$(sed -n 's/.*version_string = "\(.*\)".*/\1/p' "$source/include/octavo/core/version.hpp")
# The README's program, as it is or for the other device. Ways in which CMake finds Octavo differ only in
# flags and libraries, so with C++ they build only the program that prints facts.
cp "$source/examples/learn/first_training.cpp" "$source/tests/package/facts.cpp" .
device=octavo program=first_training.cpp components=
[[ $way != headers ]] && program=facts.cpp
if [[ $compiler == *nvcc ]]; then
  device=cuda program=first_training.cu components="COMPONENTS;cuda"
  sed 's/\bCpu\b/Cuda/; s|octavo/octavo.hpp|octavo/cuda.cuh|' first_training.cpp >$program
fi
[[ $way == cudnn ]] && components="COMPONENTS;cudnn"

# Runs the command of docs/install.md for this kind of compiler, with warnings, and optimises less.
#   compile SOURCE PROGRAM
compile() {
  local tool=g++ suffix=cpp
  [[ $device == cuda ]] && tool=nvcc suffix=cu
  local line
  line=$(grep -m 1 "^ *$tool .* program.$suffix" "$source/docs/install.md") || fail "docs/install.md has no $tool"
  line=${line/$tool/$compiler}
  cp "$1" program.$suffix
  line=${line/-O3/-O1}
  if [[ $device != cuda ]]; then
    line+=" -Wall -Wextra"
    [[ ${OCTAVO_WERROR-} == ON ]] && line+=" -Werror"
  fi
  eval "$line" || fail "$line"
  mv program "$2"
}

# Installs and moves the installation, which must not know where it came from.
install_octavo() {
  local log=install.log
  cmake -S "$source" -B package -DCMAKE_INSTALL_PREFIX="$work/first" \
    -DCMAKE_INSTALL_INCLUDEDIR=include/octavo-0.1 -DCMAKE_INSTALL_LIBDIR=lib/here \
    -DOCTAVO_BUILD_EXAMPLES=OFF -DOCTAVO_BUILD_TESTS=OFF -DOCTAVO_BUILD_BENCHMARKS=OFF \
    -DOCTAVO_CUDA=OFF >$log 2>&1 &&
    cmake --install package >>$log 2>&1 || fail "the installation: $(cat $log)"
  mv first moved && rm -rf package
  grep -rlF -e "$source" -e "$work" moved && fail "the installation knows where it was made"
  diff -r "$source/include" moved/include/octavo-0.1 || fail "not all headers are installed"
  [[ -s moved/share/doc/octavo/LICENSE ]] || fail "the licence is not installed"
}

# Configures the consumer: configure COMPONENTS [ARCHITECTURES]
configure() {
  local options=(-DCMAKE_CXX_COMPILER="$compiler")
  [[ $compiler == *nvcc ]] &&
    options=(-DCMAKE_CUDA_COMPILER="$compiler" -DCMAKE_CUDA_ARCHITECTURES="${2:-90a}")
  rm -rf consumer
  cmake -S "$source/tests/package" -B consumer -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 \
    -Doctavo_way="$way" -Doctavo_source="$source" -Doctavo_program="$work/$program" \
    -Doctavo_device=$device -Doctavo_components="$1" -DOCTAVO_CUDNN=OFF \
    -Doctavo_DIR="$work/moved/lib/here/cmake/octavo" "${options[@]}" >configure.log 2>&1
}

# The configuration fails, in one sentence: refused COMPONENTS TEXT [ARCHITECTURES]
refused() {
  configure "$1" "${3-}" && fail "configures with '$1'"
  tr -s ' \n' ' ' <configure.log | grep -qF "$2" || fail "'$1': no '$2' in $(cat configure.log)"
}

# A component whose program is only linked, as it would want what is not here, such as other ranks:
# links COMPONENT LINE...
links() {
  local own_device=$device own_program=$program
  device=$1 program=linked.${program##*.}
  printf '%s\n' "${@:2}" >"$program"
  configure "COMPONENTS;$1" || fail "the configuration with $1: $(cat configure.log)"
  cmake --build consumer --target program >build.log 2>&1 || fail "with $1: $(cat build.log)"
  device=$own_device program=$own_program
}

if [[ $way == headers ]]; then
  ln -s "$source" octavo
  mkdir consumer
  compile $program consumer/program
  compile "$source/tests/package/facts.cpp" consumer/facts
  expected="octavo $version, 2 threads"
else
  [[ $way == installed || $way == cudnn || $way == nccl ]] && install_octavo
  if [[ $way == installed || $way == cudnn ]]; then
    refused "COMPONENTS;opencl" "component opencl: it does not exist"
    if [[ $device == cuda ]]; then
      refused "" "octavo::cuda but the target was not found"
    else
      refused "COMPONENTS;cuda" "component cuda: the project does not enable CUDA"
    fi
  fi
  if [[ $device == cuda && $way != nccl ]]; then
    refused "$components" "100 and 120, but has '75'; pass that of your GPU" 75
    refused "$components" "100 and 120, but has 'native'; pass that of your GPU" native
  fi
  if [[ $way == installed && $device == octavo ]]; then
    # The command compiles the installed sources, and answers a type that does not compile in one sentence.
    code=0
    echo text >octavo.txt
    CXX=$compiler OCTAVO_CACHE=$work/cache moved/bin/octavo train --data octavo.txt --precision 'Layerwise<First<1, Bf16>>' \
      2>octavo.log || code=$?
    [[ $code -eq 2 && $(tail -n +2 octavo.log) == "octavo: Layerwise: exactly one base precision is required in \
addition to First, Last, For and Head, such as Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>, Last<1, Bf16>>" ]] ||
      fail "octavo: exit code $code: $(cat octavo.log)"
    if command -v mpicxx >/dev/null; then
      links mpi '#include <octavo/comm/mpi_comm.hpp>' '#include <chrono>' \
        'int main() { octavo::Mpi mpi(octavo::read_launch(), std::chrono::seconds(60)); }'
    fi
    if command -v pcre2-config >/dev/null; then
      links pcre2 '#include <octavo/data/tokenizer_json.hpp>' \
        'int main(int, char** names) { (void)octavo::load_tokenizer(names[0]); }'
    fi
    if [[ -f /usr/include/utf8proc.h ]]; then
      links utf8proc '#include <octavo/data/utf8proc.hpp>' \
        'int main() { return octavo::normalize_by_utf8proc("a", octavo::NormalForm::nfc) == "a" ? 0 : 1; }'
    fi
    if [[ -f /usr/include/zlib.h ]]; then
      links zlib '#include <octavo/data/text.hpp>' \
        'int main() { return octavo::detail::compression_of("\x1f\x8b").missing_package.empty() ? 0 : 1; }'
    fi
    if [[ -f /usr/include/zstd.h ]]; then
      links zstd '#include <octavo/data/text.hpp>' \
        'int main() { return octavo::detail::compression_of("\x28\xb5\x2f\xfd").missing_package.empty() ? 0 : 1; }'
    fi
  fi
  if [[ $way == nccl ]]; then
    links nccl '#include <octavo/comm/cuda/nccl_comm.cuh>' '#include <chrono>' 'int main() {' \
      '  octavo::Rendezvous rendezvous(octavo::read_launch(), std::chrono::seconds(60));' \
      '  octavo::Context<octavo::Cuda> context;' '  octavo::NcclComm ranks(rendezvous, context);' '}'
    rm -rf consumer moved
    echo "$way with $compiler: OK"
    exit
  fi
  configure "$components" || fail "the configuration: $(cat configure.log)"
  cmake --build consumer >build.log 2>&1 || fail "the build: $(cat build.log)"
  expected="octavo $version, 2 threads"
  cudnn=0
  [[ $way == cudnn ]] && cudnn=1
  [[ $device == cuda ]] && expected+=", cuda 1, cudnn $cudnn"
fi

for facts in consumer/facts*; do
  [[ -x $facts && -f $facts ]] || continue
  output=$("$facts") || fail "$facts: exit code $?"
  [[ $output == "$expected" ]] || fail "$facts prints '$output', not '$expected'"
done
[[ -x consumer/facts && ($program == facts.cpp || -x consumer/program) ]] || fail "not all was built"
if [[ $program != facts.cpp ]] && { [[ $device == octavo ]] || nvidia-smi -L >/dev/null 2>&1; }; then
  # Two steps of the fifty say that it trains; examples.first_training takes them all.
  step=$(stdbuf -oL consumer/program "$source/LICENSE" 2>&1 | grep -m 1 '^step  2 | loss [0-9]')
  [[ $step ]] || fail "the program does not train"
fi
rm -rf consumer moved
echo "$way with $compiler: OK"
