#!/usr/bin/env bash
# The own layer's gradients are right, by the program's own check: own_layer_test.sh PATH_TO_OWN_LAYER
set -u
# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"

run "gradients" 0
for parameter in norm.weight weight layer_scale.weight; do
  grep -qE "^$parameter +\| backward +-?[0-9.]+ \| differences +-?[0-9.]+ \| relative error " out ||
    fail "no line of $parameter"
done

finish
