#!/usr/bin/env bash
# install-dependencies installs every program that the documented commands run, on a system that has none:
# install_dependencies_test.sh
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/bin" || exit 1
for program in bash env grep mktemp rm; do
  ln -s "$(command -v $program)" "$scratch/bin/$program" || exit 1
done
# All libraries are installed, and no program.
printf '#!/bin/sh\nprintf installed\n' >"$scratch/bin/dpkg-query"
# shellcheck disable=SC2016  # the fake programs expand these
printf '#!/bin/sh\necho "$@" >>"$LOG"\n' >"$scratch/bin/apt-get"
printf '#!/bin/sh\n[ "$1" != -n ] || exit 0\nexec "$@"\n' >"$scratch/bin/sudo"
chmod +x "$scratch"/bin/{dpkg-query,apt-get,sudo}

failures=0
# installs SET PACKAGE...
installs() {
  local set=$1 package
  shift
  LOG=$scratch/log
  : >"$LOG"
  LOG=$LOG PATH=$scratch/bin "$root/scripts/install-dependencies" "$set" >"$scratch/out" 2>&1 ||
    { echo "FAILED: $set: exit code $?" >&2 && cat "$scratch/out" >&2 && failures=$((failures + 1)); }
  for package in "$@"; do
    grep -qE " install .* $package( |$)" "$LOG" ||
      { echo "FAILED: $set does not install $package" >&2 && cat "$LOG" >&2 && failures=$((failures + 1)); }
  done
}

# Without make, `cmake --preset` finds no generator: Debian's cmake and g++ only recommend it.
installs run cmake make ninja-build python3 'g\+\+(-12)?'
installs ranks cmake make openmpi-bin
installs ci cmake make clang-16 doxygen codespell

[ "$failures" -eq 0 ]
