#!/usr/bin/env bash
# The own policy runs where it should, and trains: own_precision_test.sh PATH_TO_OWN_PRECISION
set -u
# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"

run "a policy of one's own" 0
own='fp8-delayed (history 16, most recent, margin 1)'
grep -qxF "first 1 bf16, down bf16, $own" out || fail "the policy has another name"
# gemms LINES PATTERN RECIPE
gemms() {
  [ "$(grep -cE "^gemm \| $2 .*\| $3 +\| octavo loops$" out)" -eq "$1" ] || fail "$2 is not in $3"
}
gemms 27 '[a-z0-9_.]+' "(bf16|${own//[()]/.})"
gemms 12 'blocks\.0\.[a-z_]+' bf16
gemms 9 'blocks\.1\.(qkv|output|gate_up)' "${own//[()]/.}"
gemms 3 'blocks\.1\.down' bf16
gemms 3 head bf16
[ "$(grep -c '^step ' out)" -eq 11 ] || fail "there are not eleven lines of steps"
awk '/^step/ { last = $5 } END { exit !(last > 0 && last < 0.5) }' out || fail "it did not learn the text"
tail -n 1 out | grep -qE '^The rain in (spring|summer|autumn|winter) ' || fail "it has not learned the text's words"

finish
