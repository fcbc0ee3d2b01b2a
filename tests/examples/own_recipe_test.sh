#!/usr/bin/env bash
# A scaling of one's own trains as the library's do: own_recipe_test.sh PATH_TO_OWN_RECIPE
set -u
# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"

run "a recipe of one's own" 0
# line PRECISION REST: the end of its line is REST
line() {
  grep -E "^$1 +\\| loss [0-9.]+" out | grep -qE "loss [0-9.]+$2\$" || fail "no line of $1 with $2"
}
# scales INPUT WEIGHT: what the operands of a linear layer have
scales() {
  local layer=" \\| blocks\\.0\\.qkv\\."
  echo "${layer}input E4M3 by $1${layer}weight E4M3 by $2${layer}output_gradient E4M3 by $1"
}
line bf16 ""
line "fp8-blockwise" "$(scales 1x128 128x128)"
line "fp8-blocks-of-64" "$(scales 1x64 64x64)"
[ "$(grep -c loss out)" -eq 3 ] || fail "there are not three lines"
awk '{ if (!($0 ~ /loss/)) next; sub(/.*loss /, ""); if ($1 <= 0 || $1 > 4) exit 1 }' out || fail "it did not learn the text"

finish
