#!/usr/bin/env bash
# Two ranks stay equal, by the program's own check: own_communicator_test.sh PATH_TO_OWN_COMMUNICATOR
set -u
# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"

run "training" 0
grep -qE '^loss [0-9.]+ to [0-9.]+, hash of all weights [0-9a-f]+$' out || fail "no losses"

finish
