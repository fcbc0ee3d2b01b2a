#!/usr/bin/env bash
# quickstart refuses what cannot be trained on before it installs and builds, and lets threads that wait sleep:
# quickstart_test.sh
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch"/{scripts,texts,nothing} || exit 1
cp "$root/quickstart" "$scratch" && cp "$root/scripts/common.sh" "$scratch/scripts" || exit 1
cd "$scratch" || exit 1
# What would install says that it was called, and ends it.
printf '#!/bin/sh\necho installing\nexit 9\n' >scripts/install-dependencies
chmod +x scripts/install-dependencies

failures=0
fail() {
  echo "FAILED: $*" >&2
  cat out err >&2
  failures=$((failures + 1))
}
# refuses TEXT WHY
refuses() {
  local code=0
  ./quickstart "$1" >out 2>err || code=$?
  [ "$code" -eq 2 ] || fail "$1: exit code $code, expected 2"
  [ "$(cat err)" = "quickstart: $1 $2" ] || fail "$1: it does not say: $2"
  [ ! -s out ] || fail "$1: it goes on"
}
# takes TEXT
takes() {
  local code=0
  ./quickstart "$1" >out 2>err || code=$?
  [ "$code" -eq 9 ] || fail "$1: exit code $code: it is refused"
}

: >empty.txt
head -c 500 /dev/zero | tr '\0' a >short.txt
head -c 1280 /dev/zero | tr '\0' a >almost.txt
head -c 1281 /dev/zero | tr '\0' a >enough.txt
refuses absent.txt "does not exist"
refuses empty.txt "is empty"
refuses nothing "contains no text"
few="bytes of text, too few to train on and to validate with; pass 1281 or more"
refuses short.txt "has 500 $few"
refuses almost.txt "has 1280 $few"
takes enough.txt
cp short.txt texts/a.txt
cp short.txt texts/b.txt
refuses texts "has 1000 $few"
cp short.txt texts/c.txt
takes texts
ln -s enough.txt link.txt
takes link.txt

[ "$failures" -eq 0 ]
