#!/usr/bin/env bash
# The own optimizer learns, by the program's own check: own_optimizer_test.sh PATH_TO_OWN_OPTIMIZER
set -u
# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"

run "training" 0
grep -qFx "Lion with fp32 master weights and fp32 moments" out || fail "no name of the optimizer"
[ "$(grep -cE '^step +[0-9]+ \| loss [0-9.]+$' out)" -eq 10 ] || fail "not ten steps"

finish
