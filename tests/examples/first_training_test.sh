#!/usr/bin/env bash
# The README's program is examples/learn/first_training.cpp, and it trains:
# first_training_test.sh PATH_TO_FIRST_TRAINING
set -u
# Tests run side by side: a thread that waits must not spin on another test's core.

program=$(realpath "${1:?usage: first_training_test.sh PATH_TO_FIRST_TRAINING}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

failures=0
fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

sed -n '/^```cpp$/,/^```$/{//!p}' README.md >"$scratch/readme.cpp"
diff "$scratch/readme.cpp" examples/learn/first_training.cpp >&2 ||
  fail "the C++ in README.md is not examples/learn/first_training.cpp"

for file in examples/learn/*.cpp; do
  [ "$(wc -l <"$file")" -le 80 ] || fail "$file has more than the 80 lines that CONTRIBUTING.md allows"
done

"$program" LICENSE >"$scratch/out" || fail "exit code $?"
[ "$(grep -c '^gemm ' "$scratch/out")" -eq 51 ] || fail "the manifest has not 3 lines a linear layer"
[ "$(grep -c '^gemm .*| bf16 x bf16 ' "$scratch/out")" -eq 51 ] || fail "not every GEMM is in BF16"
[ "$(grep -c '^step ' "$scratch/out")" -eq 50 ] || fail "there are not 50 steps"
awk '/^step/ {if (!first) first = $NF; last = $NF} END {exit !(last > 0 && last < 0.8 * first)}' \
  "$scratch/out" || fail "the loss did not fall by a fifth"

"$program" >"$scratch/out"
[ $? -eq 2 ] || fail "without a text the exit code is not 2"
"$program" "$scratch/absent" >"$scratch/out" 2>"$scratch/err"
[ $? -eq 1 ] || fail "without the file the exit code is not 1"
[ "$(wc -l <"$scratch/err")" -eq 1 ] && grep -q "absent: there is no such file" "$scratch/err" ||
  fail "without the file stderr has: $(cat "$scratch/err")"
[ "$failures" -eq 0 ] || exit 1
echo "first_training: OK"
