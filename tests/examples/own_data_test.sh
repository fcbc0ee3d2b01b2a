#!/usr/bin/env bash
# The generated sums are learnt, and the run resumes, by the program's own check: own_data_test.sh PATH_TO_OWN_DATA
set -u
# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"

run "training" 0
[ "$(grep -cE '^step +[0-9]+ \| loss [0-9.]+$' out)" -eq 24 ] || fail "not 12 + 6 + 6 steps"

finish
