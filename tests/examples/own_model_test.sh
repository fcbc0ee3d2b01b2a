#!/usr/bin/env bash
# The own block runs as it is written, and learns: own_model_test.sh PATH_TO_OWN_MODEL
set -u
# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"

run "a model of one's own" 0
# gemms LINES PATTERN: so many GEMMs of these layers run in FP8
gemms() {
  [ "$(grep -cE "^gemm \| $2 .*\| fp8-delayed +\| octavo loops$" out)" -eq "$1" ] ||
    fail "not $1 GEMMs of $2 are in FP8"
}
gemms 12 'blocks\.[02]\.first\.(up|down)'
gemms 12 'blocks\.[02]\.last\.(up|down)'
gemms 24 'blocks\.[0-3]\.(qkv|output)'
gemms 0 'blocks\.[02]\.gate_up'
gemms 12 'blocks\.[13]\.(gate_up|down)'
awk '/^step/ { last = $5 } END { exit !(NR > 0 && last > 0 && last < 1.5) }' out || fail "it did not learn the text"

finish
