#!/usr/bin/env bash
# Each recipe errs as much as its formats round: linear_fp8_test.sh PATH_TO_LINEAR_FP8
set -u
# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"

# errs RECIPE STEP Y DX DW: percentages, each within a tenth
errs() {
  local recipe=$1
  shift
  sed -n "s/^$recipe  *\([0-9]\)/\1/p" out | tr -d % | awk -v expected="$*" '
    function near(a, b) { return a > 0.9 * b && a < 1.1 * b }
    { split(expected, e, " ") }
    $1 == e[1] { found = near($2, e[2]) && near($3, e[3]) && near($4, e[4]) }
    END { exit !found }' || fail "$recipe errs otherwise than $* %"
}
# Rounding to m bits of fraction errs by about 2^-m · 0.21 of a value; a product adds its operands'
# errors as squares. So E4M3 · E4M3 errs by 3.7 %, E5M2 · E4M3 by 5.9 %, BF16 by 0.2 %, and its result
# is rounded again. E2M1 errs by 10.5 %, and by the root of 2 more if it is rounded stochastically, as
# the gradient: the products by 14.8 and 18.2 %, less what E2M1's even steps near zero save. Of delayed scaling, the first step's scale of 1 does not fit the small gradients.
run "errors" 0
errs bf16 1 0.287 0.287 0.235
errs "fp8-tensorwise" 1 3.74 5.90 5.89
errs "fp8-rowwise" 1 3.74 5.90 5.89
errs "fp8-blockwise" 1 3.78 3.78 3.77
errs mxfp8 1 3.78 3.78 3.77
errs nvfp4 1 14.8 18.2 18.2
errs "fp8-delayed" 1 3.81 43.9 44.1
errs "fp8-delayed" 2 3.74 5.90 5.89
[ "$(wc -l <out)" -eq 9 ] || fail "there are not a head and eight lines"

finish
