#!/usr/bin/env bash
# Tests doctor through its command line, with or without a GPU: doctor_test.sh PATH_TO_DOCTOR
set -u

# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"
run_limit=300

# Where the program has the Cuda device, no GPU that it can use is a fault.
case="all checks"
code=0
timeout "$run_limit" "$program" >out 2>err || code=$?
expected=0
if ! grep -qE "^machine \| GPU +\| not checked" out && ! grep -qE "^machine \| GPU memory" out; then
  expected=1
  grep -qE "^check +\| cuda +\| FAILED, (no GPU is available \(|GPU 0 .* has compute capability)" out ||
    fail "no GPU, and not said"
fi
[ "$code" -eq "$expected" ] || fail "exit code $code, expected $expected"
[ -s err ] && fail "something is on stderr"
[ "$(wc -l <out)" -le 40 ] || fail "more than a screen"
for recipe in "bf16" "fp8-delayed" "fp8-tensorwise" "fp8-rowwise" "fp8-blockwise" "mxfp8" "nvfp4"; do
  # An untrained model of 256 tokens has a loss of about ln 256 = 5.545.
  grep -qE "^check +\| cpu $recipe +\| OK, products: 0\.[0-9]+ .* loss 5\.[45][0-9]+, norm [0-9.]+$" out ||
    fail "$recipe is not checked on the cpu"
done
# Each recipe rounds in its own way, so no two steps may be the same run twice.
[ "$(sed -n 's/^check .*| cpu .* norm //p' out | sort -u | wc -l)" -eq 7 ] ||
  fail "two recipes have one gradient norm"
grep -qE "^machine \| octavo +\| [0-9]+\.[0-9]+\.[0-9]+$" out || fail "no version"
grep -qE "^machine \| processor +\| [0-9]+ threads?, " out || fail "no processor"
grep -qE "^machine \| NVIDIA driver +\| (none|[0-9.]+)$" out || fail "no driver"
if [ "$expected" -eq 0 ]; then
  grep -qE "^result +\| all checks passed +\| 0 of [0-9]+ checks failed$" out || fail "no result"
else
  grep -qE "^result +\| DISAGREEMENT +\| 1 of [0-9]+ checks failed$" out || fail "no result"
fi
if grep -qE "^machine \| GPU memory" out; then
  grep -qE "^machine \| GPU 0 +\| .+, compute capability [0-9.]+, [0-9]+ multi.+: (not )?supported" out ||
    fail "the GPU is not described"
else
  grep -qE "^(speed|check +\| cuda .*OK)" out && fail "a GPU is checked that cannot be used"
fi

cp out before
run "another number of threads" "$expected" --threads 1
grep -qE "^machine \| processor +\| 1 thread, " out || fail "not one thread"
steps() { sed -n 's/^\(check .*| cpu .*\)| OK.*; step/\1/p' "$1"; }
[ "$(steps before)" = "$(steps out)" ] || fail "the steps depend on the number of threads"

if ! grep -qE "^machine \| GPU +\| not checked" before; then
  CUDA_VISIBLE_DEVICES='' run "no GPU is to be seen" 1
  grep -qE "^check +\| cuda +\| FAILED, no GPU is available \(" out || fail "no GPU, and not said"
fi

if grep -qE "^machine \| GPU +\| not checked" before; then
  run "--gpu where there is no Cuda device" 2 --gpu 0
  err_is_one_line_with "--gpu is for the cuda device, which is not compiled in"
fi
# Tables of cards need no GPU.
table() {
  run "the table of $1" 0 --table "$1"
  local recipe
  for recipe in fp32 bf16 fp8-delayed fp8-tensorwise fp8-rowwise fp8-blockwise mxfp8 nvfp4; do
    local trains="no:"
    [[ " $2 " != *" $recipe "* ]] || trains="yes"
    grep -qE "^$recipe +\|.*\| $trains" out || fail "$1: $recipe is not '$trains'"
  done
}
table "A100" "fp32 bf16"
table "rtx 4090" "fp32 bf16 fp8-delayed fp8-tensorwise"
table "NVIDIA H100" "fp32 bf16 fp8-delayed fp8-tensorwise fp8-rowwise fp8-blockwise"
grep -q "CMAKE_CUDA_ARCHITECTURES=90a" out || fail "no architecture"
table "12.0" "fp32 bf16 fp8-delayed fp8-tensorwise mxfp8 nvfp4"
grep -q "compiled only" out || fail "a card that was never run is not called that"
run "a card that does not exist" 2 --table "RTX 1"
err_is_one_line_with "for another GPU, pass its compute capability, such as 8.6"
run "several cards" 2 --table A1
err_is_one_line_with "names several cards"
run "a card that is too old" 2 --table 7.5
err_is_one_line_with "Octavo needs compute capability 8.0 (A100) or later, but the GPU has 7.5"
if grep -qE "^machine \| GPU +\| not checked" before; then
  run "a table without a card" 2 --table
  err_is_one_line_with "--table needs a card"
fi

run "an unknown flag" 2 --gpus 1
grep -qF "did you mean 'gpu'" err || fail "no suggestion"
run "a number that is none" 2 --threads many
grep -qF "is not a whole number from 0" err || fail "no reason"
run "threads beyond any machine" 2 --threads 100000
err_is_one_line_with "100000"

finish
