#!/usr/bin/env bash
# Scripts print their help, and do nothing then: help_test.sh
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
# Of a copy, in which there is nothing to build.
cp -r "$root"/{quickstart,run-tests,scripts} "$scratch" || exit 1
cd "$scratch" || exit 1

failures=0
for script in ./quickstart ./run-tests scripts/check scripts/install-dependencies; do
  for flag in --help -h; do
    code=0
    timeout 20 "$script" "$flag" >out 2>err || code=$?
    [ "$code" -eq 0 ] && grep -qE "^ +$script " out && [ ! -s err ] && [ ! -e build ] && continue
    echo "FAILED: $script $flag: exit code $code" >&2
    cat out err >&2
    failures=$((failures + 1))
  done
done
[ "$failures" -eq 0 ]
