#!/usr/bin/env bash
# Checks of sources refuse what they are for: check_test.sh
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch"/{scripts,include/octavo/core,tests/compile_fail}
cp "$root/scripts/check" "$scratch/scripts/"
program=$scratch/tests/compile_fail/program.cpp
header=$scratch/include/octavo/core/own.hpp

failures=0
fail() {
  echo "FAILED: $*" >&2
  cat "$scratch/log" >&2
  failures=$((failures + 1))
}
# accepts NAME WHAT: the check passes
accepts() { "$scratch/scripts/check" "$1" >"$scratch/log" 2>&1 || fail "$1 refuses $2"; }
# refuses NAME WHAT TEXT: the check fails, and says TEXT
refuses() {
  "$scratch/scripts/check" "$1" >"$scratch/log" 2>&1 && fail "$1 accepts $2"
  grep -qF -- "$3" "$scratch/log" || fail "of $2, $1 does not say: $3"
}

cat >"$scratch/good" <<'EOF'
// expect ONE: one is wrong
// expect TWO: two is wrong
#if defined(OCTAVO_COMPILE_FAIL_ONE)
#error one is wrong
#elif defined(OCTAVO_COMPILE_FAIL_TWO)
#error two is wrong
#endif
EOF
cp "$scratch/good" "$program"
accepts compile-fail "a program of two mistakes"
sed -e 's/^#error two is wrong/int two;/' "$scratch/good" >"$program"
refuses compile-fail "a mistake that compiles" "program.cpp TWO: compiles, but must not"
sed -e '1N; s,\n//,,' "$scratch/good" >"$program"
refuses compile-fail "two expectations on one line" "line 1: 'expect TWO:' is no expectation"
sed -e '2d' "$scratch/good" >"$program"
refuses compile-fail "a mistake without expectation" \
  "OCTAVO_COMPILE_FAIL_TWO has no line '// expect TWO: TEXT'"
sed -e '2a // expect THREE: two is wrong' "$scratch/good" >"$program"
refuses compile-fail "an expectation without mistake" \
  "'expect THREE' has no OCTAVO_COMPILE_FAIL_THREE"

printf '%s\n' 'namespace octavo::inline OCTAVO_ABI {' '}  // namespace octavo' \
  'namespace octavo::inline OCTAVO_ABI::detail {' '}' >"$header"
accepts namespaces "the library's namespace"
for wrong in 'namespace octavo {' 'namespace octavo::detail {' 'namespace octavo::inline OWN {'; do
  printf '%s\n' '#pragma once' "$wrong" '}' >"$header"
  refuses namespaces "a namespace of no version" "core/own.hpp:2: write namespace octavo::inline"
done

# Only own.hpp is compiled: what it begins with is read alone by that.
printf '%s\n' '/// @file' '#pragma once' '#include <octavo/core/first.hpp>' '#include <vector>' >"$header"
printf '%s\n' '#pragma once' '#include <vector>' 'using Row = std::vector<int>;' >"${header/own/first}"
accepts once "headers that are read once"
accepts headers-gcc "headers with all that they need"
sed -i '2d' "${header/own/first}"
refuses headers-gcc "a header that another gives what it needs" "core/first.hpp:2:18: error: "
sed -i '1d' "${header/own/first}"
refuses once "a header that is read each time" "core/first.hpp: begin with '#pragma once'"
rm "${header/own/first}"

mkdir "$scratch/examples"
for file in "$header" "$scratch/examples/own.cpp"; do
  yes '//' | head -n 500 >"$file"
  accepts lengths "a file of 500 lines"
  echo '//' >>"$file"
  refuses lengths "a file of more lines" "${file#"$scratch"/}: has 501 lines"
  rm "$file"
done

[ "$failures" -eq 0 ]
