#!/usr/bin/env bash
# The own kernel writes the formula's bytes, by the program's own check: own_kernel_test.sh PATH_TO_OWN_KERNEL
set -u
# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"

if ! nvidia-smi --list-gpus 2>/dev/null | grep -q "^GPU"; then
  run "no GPU" 1
  err_is_one_line_with "own_kernel: "
  [ -s out ] && fail "it printed a result"
  echo "skipped: what the kernel writes (no GPU)"
  finish
  exit
fi
run "every way through a tile" 0
for shape in "301 x 263" "320 x 1000" "8192 x 16384"; do
  grep -qE "^$shape \| 0 wrong \| [0-9.]+ us \| copy [0-9.]+ us \| [0-9]+ % of its speed$" out ||
    fail "no line of $shape without a wrong byte"
done
[ "$(wc -l <out)" -eq 3 ] || fail "there are not three lines"

finish
