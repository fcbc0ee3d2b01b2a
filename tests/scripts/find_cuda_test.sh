#!/usr/bin/env bash
# quickstart and run-tests take the Cuda device only where it runs: find_cuda_test.sh
# nvcc and nvidia-smi are played by stand-ins.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=scripts/common.sh
source "$root/scripts/common.sh"
stand_ins=$(mktemp -d) || exit 1
trap 'rm -rf "$stand_ins"' EXIT
for tool in head bash; do
  ln -s "$(command -v $tool)" "$stand_ins/$tool"
done

# tool NAME COMMANDS: a program of that name
tool() {
  printf '#!%s/bash\n%s\n' "$stand_ins" "$2" >"$stand_ins/$1"
  chmod +x "$stand_ins/$1"
}
# gpus CAPABILITY...: what nvidia-smi is asked for
gpus() {
  tool nvidia-smi "case \"\$*\" in
    -L) printf 'GPU 0: NVIDIA\n' ;;
    '--query-gpu=compute_cap --format=csv,noheader') printf '%s\n' $* ;;
    *) exit 9 ;;
  esac"
}
failures=0
# finds TEXT [ARCHITECTURE]: what find_cuda says of the tools that there are
finds() {
  PATH=$stand_ins find_cuda
  [[ $no_cuda == "$1" && $cuda_architecture == "${2-}" ]] || {
    echo "FAILED: '$no_cuda' and '$cuda_architecture' in place of '$1' and '${2-}'" >&2
    failures=$((failures + 1))
  }
}

finds "no nvcc here"
tool nvcc :
finds "nvcc is installed, but there is no GPU"
tool nvidia-smi "exit 6"
finds "nvcc is installed, but there is no GPU"
gpus 9.0
finds "" 90a
# Programs train on GPU 0.
gpus 9.0 7.5
finds "" 90a
gpus 8.0
finds "" 80
gpus 8.9 9.0
finds "" 89
gpus 10.0
finds "" 100
gpus 12.1
finds "" 121
for other in 7.5 6.1; do
  gpus $other 9.0
  finds "the GPU has compute capability $other, but Octavo needs 8.0 or later"
done
[[ $failures -eq 0 ]] || exit 1
echo "find_cuda: OK"
