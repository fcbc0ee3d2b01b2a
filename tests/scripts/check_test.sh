#!/usr/bin/env bash
# Checks of sources refuse what they are for: check_test.sh
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch"/{scripts,include/octavo/core,tests/compile_fail}
cp "$root"/scripts/{check,doxygen-markdown,github_markdown.py,prose.py,prose.txt,docs_site.py,draw-throughput,draw-step} "$scratch/scripts/"
cp -r "$root/scripts/checks" "$scratch/scripts/"

"$root/scripts/check" --list |
  sed -nE 's/^([a-z-]+) .* \(nightly\)$/\1 nightly/p; t; s/^([a-z-]+) .*/\1/p' | sort >"$scratch/listed"
sed -nE 's,^\| `scripts/check ([a-z-]+)` \| (nightly: )?.*,\1 \2,p' "$root/CONTRIBUTING.md" |
  sed 's/: $//; s/ $//' | sort >"$scratch/documented"
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

# What a landing waits for is what CONTRIBUTING.md says, and checks that fail are all named. None
# waits for what somebody types.
diff "$scratch/documented" "$scratch/listed" >"$scratch/log" || fail "CONTRIBUTING.md has other checks"
mkfifo "$scratch/typed"
timeout 120 "$scratch/scripts/check" landing 0<>"$scratch/typed" >"$scratch/log" 2>&1
[ $? -eq 1 ] || fail "a project of nothing lands, or is waited for"
sed -nE 's/^([a-z-]+): FAILED .*/\1/p' "$scratch/log" | sort >"$scratch/failed"
sed -n 's/.*checks OK; FAILED: //p' "$scratch/log" | tr -d ' ' | tr , '\n' | sort |
  diff - "$scratch/failed" >"$scratch/named" || fail "the last line of a landing names other checks"
sed -nE 's/^([a-z-]+): (OK|FAILED) .*/\1/p' "$scratch/log" | sort |
  diff - <(grep -v ' nightly' "$scratch/listed") >"$scratch/landed" || {
  cat "$scratch/landed" >>"$scratch/log"
  fail "a landing waits for other checks"
}

# Checks after --except are left out, and must exist.
"$scratch/scripts/check" once lengths --except lengths >"$scratch/log" 2>&1 || fail "nothing can be left out"
[ "$(grep -oE '^[a-z-]+: OK' "$scratch/log")" = "once: OK" ] || fail "other checks run than those that are left"
"$scratch/scripts/check" landing --except own >"$scratch/log" 2>&1
[ $? -eq 2 ] && grep -qF "unknown own" "$scratch/log" || fail "an unknown check is left out"

# What nvcc reads: a build of seven sources, by compilers that say what they are given.
mkdir -p "$scratch/bin" "$scratch/build/cuda"
printf '#!/usr/bin/env bash\nprintf "%%s\\n" "$@" | grep -E "\\.(cpp|cu)$" >>%q\n' "$scratch/read" \
  >"$scratch/bin/compiler"
printf '#!/usr/bin/env bash\n' >"$scratch/bin/cmake"
cp "$scratch/bin/cmake" "$scratch/bin/nvcc"
chmod +x "$scratch"/bin/*
# build TARGET.dir/FILE...: the build has these
build() {
  local separator='[' entry
  for entry; do
    mkdir -p "$scratch/$(dirname "$entry")" && touch "$scratch/$entry"
    printf '%s{"file": "%s", "directory": "%s", "command": "compiler -o %s.o -c %s"}' "$separator" \
      "$scratch/$entry" "$scratch" "$entry" "$entry"
    separator=,
  done >"$scratch/build/cuda/compile_commands.json"
  echo ']' >>"$scratch/build/cuda/compile_commands.json"
}
# reads FILES: and of the build these are read
reads() {
  : >"$scratch/read"
  PATH=$scratch/bin:$PATH accepts cuda "a build"
  [ "$(sed 's,.*/,,' "$scratch/read" | sort | paste -sd ' ')" = "$1" ] || fail "these are read: $(cat "$scratch/read")"
}
examples=examples/CMakeFiles
both=("$examples/octavo_trainer.dir/trainer.cpp" "$examples/doctor.dir/doctor.cpp")
others=("$examples/doctor.dir/checks.cu" "$examples/octavo_program_inferences.dir/model.cu" tests/CMakeFiles/test_own_cuda.dir/own_test.cu
  tests/CMakeFiles/test_own.dir/own_test.cpp benchmarks/CMakeFiles/own.dir/own_benchmark.cu)
build "${both[@]}" "${others[@]}"
reads "doctor.cpp own_test.cu trainer.cpp"
build "${both[0]}" "${others[@]}"
PATH=$scratch/bin:$PATH refuses cuda "a build without doctor's source" "the build has no .cpp of doctor"

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
refuses compile-fail "two expectations on one line" "line 1: 'expect TWO:' must begin its line"
sed -e '2d' "$scratch/good" >"$program"
refuses compile-fail "a mistake without expectation" \
  "OCTAVO_COMPILE_FAIL_TWO has no line '// expect TWO: TEXT'"
sed -e '2a // expect THREE: two is wrong' "$scratch/good" >"$program"
refuses compile-fail "an expectation without mistake" \
  "'expect THREE' has no OCTAVO_COMPILE_FAIL_THREE"
sed -e 's/is wrong$/is right/' -e '1,2s/right$/wrong/' "$scratch/good" >"$program"
refuses compile-fail "another message" "the error lacks ['one is wrong']"
# A text after the first error is found; a second error and a control that fails are for the night.
printf '%s\n' '// expect: is no member of nothing' 'struct Own { int member; };' 'Own own{"", 1};' \
  '#if !defined(OCTAVO_COMPILE_FAIL_CONTROL)' '#error is no member of nothing' '#endif' >"$program"
accepts compile-fail "two errors, the second the expected one"
refuses compile-fail-long "two errors" "errors instead of 1"
refuses compile-fail-long "a control that fails" "program.cpp: the control must compile"

printf '%s\n' 'namespace octavo OCTAVO_ABI {' '}  // namespace octavo' \
  'namespace octavo OCTAVO_ABI::detail {' '}' >"$header"
accepts namespaces "the library's namespace"
for wrong in 'namespace octavo {' 'namespace octavo::detail {' 'namespace octavo::inline OWN {'; do
  printf '%s\n' '#pragma once' "$wrong" '}' >"$header"
  refuses namespaces "a namespace of no version" "core/own.hpp:2: write namespace octavo OCTAVO_ABI"
done

kernel=${header%.hpp}.cuh
for bounds in '' '__launch_bounds__(own_threads)'; do
  printf '%s\n' '#pragma once' 'template <Device D>' "OCTAVO_KERNEL void $bounds" '    own(int* values) {}' >"$kernel"
  accepts kernels "a kernel that is a template"
  for wrong in '' 'inline '; do
    printf '%s\n' '#pragma once' 'template <Device D>' 'struct Own {};' '' "${wrong}OCTAVO_KERNEL void $bounds" \
      '    own(int* values) {}' >"$kernel"
    refuses kernels "a kernel that is no template" "core/own.cuh: make the kernel own a template"
  done
done
rm "$kernel"

touch "$scratch/include/octavo/core/own.cpp"
refuses includes "a source file" "core/own.cpp: include/ contains only headers, .hpp and .cuh"
rm "$scratch/include/octavo/core/own.cpp"

# Editors find the library's names, if Universal Ctags says so.
if command -v ctags-universal >/dev/null; then
  for number in $(seq 7499); do echo "int name_$number;"; done >"$header"
  refuses tags "a library that editors do not see" "finds 7499 names in include/, fewer than 7500"
  echo "int name_7500;" >>"$header"
  accepts tags "7500 names"
fi

echo 'inline constexpr const char* version_string = "1.2.0";' >"$scratch/include/octavo/core/version.hpp"
printf '%s\n' '# Changelog' '## [Unreleased]' '### Added' '- It.' '## [1.2.0] - 2026-11-02' '### Fixed' \
  '## [1.1.0] - 2026-11-01' >"$scratch/CHANGELOG.md"
accepts changelog "a changelog"
cp "$scratch/CHANGELOG.md" "$scratch/kept"
# unlike SCRIPT WHAT TEXT: refused after sed changes it
unlike() {
  sed "$1" "$scratch/kept" >"$scratch/CHANGELOG.md"
  refuses changelog "$2" "CHANGELOG.md: $3"
}
unlike 5d "a changelog without this version" "version.hpp has version 1.2.0: add its section"
unlike 2d "a changelog without a place for changes" "the first section must be '## [Unreleased]'"
unlike '3s/Added/New/' "an unknown kind of change" "'### New' is not one of Added, Changed"
unlike '7s/ - .*//' "a version without a date" "'## [1.1.0]' must be '## [X.Y.Z] - YYYY-MM-DD'"
unlike '7s/-01/-03/' "an older version above a newer one" "newer versions must come first"
rm "$scratch/CHANGELOG.md" "$scratch/include/octavo/core/version.hpp"

# Phrases are found only in text, also across lines.
mkdir -p "$scratch/docs" "$scratch/examples"
printf '%s\n' 'All except one.' '' 'A `but for`' '```' 'but for' '```' >"$scratch/docs/early.md"
printf '%s\n' '// Sets a value.' 'int but_for, x = but for;' 'auto y = "by default";' >"$header"
accepts prose "plain text"
printf '%s\n' '' 'All but' 'for one.' >"$scratch/docs/early.md"
refuses prose "a phrase on two lines" "docs/early.md:2: 'but for': write except"
rm "$scratch/docs/early.md"
printf '%s\n' 'int x;  // all but' '// for one' >"$header"
refuses prose "a phrase of a comment" "core/own.hpp:1: 'but for': write except"
printf '%s\n' 'int x;' 'auto y = "all but "' '    "for one";' >"$header"
refuses prose "a phrase of a message" "core/own.hpp:2: 'but for': write except"
rm "$header"

if command -v codespell >/dev/null; then
  git -C "$scratch" init -q
  cp "$root/scripts/spelling.txt" "$scratch/scripts/"
  echo 'The latest.' >"$scratch/docs/page.md"
  accepts spelling "words"
  echo 'Te''h latest.' >"$scratch/docs/page.md"
  refuses spelling "a misspelt word" "docs/page.md:1: Te""h ==> The"
  rm -r "$scratch/.git" "$scratch/docs"
fi

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

mkdir -p "$scratch/examples"
for file in "$header" "$scratch/examples/own.cpp"; do
  yes '//' | head -n 500 >"$file"
  accepts lengths "a file of 500 lines"
  echo '//' >>"$file"
  refuses lengths "a file of more lines" "${file#"$scratch"/}: must have at most 500 lines, but has 501"
  rm "$file"
done

# Links of pages, on GitHub and on the site, where there is Doxygen.
mkdir -p "$scratch/docs/images" "$scratch/examples/learn"
cp -r "$root/docs/Doxyfile" "$root/docs/site" "$scratch/docs/"
mkdir -p "$scratch/benchmarks/results"
cp "$root"/benchmarks/results/{train_step-h200,step_parts-h200,joules-h100}.md "$scratch/benchmarks/results/"
cp "$root"/docs/images/{throughput,step_parts}.svg "$scratch/docs/images/"
cat >"$scratch/docs/mainpage.md" <<'END'
# Main page

## Start

- [A `page`](page.md): read this.

See [what it keeps](page.md#what-a-run-keeps), [its code](page.md#code-1), [all of it](page.md).
END
cat >"$scratch/docs/page.md" <<'END'
# A page

A link [`below`](#code) and one in code, `[](#none)`; `[two
lines](none.md#none)`.

## Code

```sh
# None
[fence](none.md#none)
```

## Code

## What a `run` keeps?
END
echo '[A page](docs/page.md#what-a-run-keeps), [a folder](docs), [the web](https://octavo.test/#a)' \
  >"$scratch/README.md"
"$scratch/scripts/doxygen-markdown" "$scratch/docs/page.md" >"$scratch/page"
sed -e '1s/$/ {#page}/; 3s/(#code)/(@ref page-code)/; 6s/$/ {#page-code}/' \
  -e '13s/$/ {#page-code-1}/; 15s/$/ {#page-what-a-run-keeps}/' "$scratch/docs/page.md" |
  diff - "$scratch/page" >"$scratch/log" || fail "the filter changes other lines, or leaves some"
# mistaken FILE OLD NEW WHAT TEXT: refused where FILE has NEW in place of OLD
mistaken() {
  cp "$scratch/$1" "$scratch/kept"
  sed -i "s/$2/$3/" "$scratch/$1"
  refuses docs "$4" "$5"
  cp "$scratch/kept" "$scratch/$1"
}
if command -v doxygen >/dev/null; then
  printf '%s\n' '/// @file' '/// Numbers.' 'namespace octavo OCTAVO_ABI::detail {' '/// A base.' \
    'struct Base {' '  /// A member.' '  void inherited_member();' '};' '}' 'namespace octavo OCTAVO_ABI {' \
    '/// Doubles a number.' 'int twice(int x);' '/// Has a member.' 'struct Derived : detail::Base {};' '}' >"$header"
  printf '| `core/` | everything | nothing |\n' >"$scratch/CONTRIBUTING.md"
  accepts docs "links that lead somewhere"
  # has FILE TEXT: the site's page has this text
  has() { grep -qF -- "$2" "$scratch/build/docs/html/$1" || fail "$1 lacks $2"; }
  has page.html '<li><a href="page.html" aria-current="page">A `page`</a></li>'
  has page.html '<li><a href="#page-code-1">Code</a></li>'
  has index.html '<a class="el" href="page.html#md_page">A <code>page</code></a>'
  has page.html 'What a <code>run</code> keeps?</h1>'
  has page.html '<span class="comment"># None</span>'
  has room_core.html '">twice</a></code></td><td>Doubles a number.</td><td><code>own.hpp</code>'
  has structoctavo_1_1Derived.html 'inherited_member'
  has search-index.js '["A page","What a run keeps?","page.html#page-what-a-run-keeps",""]'
  grep -q 'detail::' "$scratch/build/docs/html/room_core.html" && fail "the reference lists details"
  rm "$header" "$scratch/CONTRIBUTING.md"
  mistaken benchmarks/results/train_step-h200.md '|    17102 |' '|    17103 |' "a picture of other figures" \
    "docs/images/throughput.svg does not show benchmarks/results/train_step-h200.md; run scripts/draw-throughput"
  mistaken benchmarks/results/step_parts-h200.md '941.2     30.12' '941.2     40.12' "a picture of other parts" \
    "docs/images/step_parts.svg does not show benchmarks/results/step_parts-h200.md and"
  mistaken README.md "docs)" "docss)" "a link to no file" "README.md:1: the link docss names no file"
  mistaken README.md '-keeps' '-holds' "a link to no heading" \
    "README.md:1: the link docs/page.md#what-a-run-holds names nothing in docs/page.md"
  mistaken README.md 'docs)' '..)' "a link out of the project" "README.md:1: the link .. names no file"
  echo '[nothing](docs/none.md)' >"$scratch/CONTRIBUTING.md"
  refuses docs "a link of CONTRIBUTING.md" "CONTRIBUTING.md:1: the link docs/none.md names no file"
  rm "$scratch/CONTRIBUTING.md"
  mistaken docs/mainpage.md code-1 code-2 "a page's link to no heading" "docs/mainpage.md:7: "
  mistaken docs/page.md '(#code)' '(#none)' "a page's link to no heading of its own" "docs/page.md:3: "
  mistaken docs/mainpage.md '(page.md)' '(page.html)' "a page's link that only the site has" \
    "docs/mainpage.md:7: the link page.html names no file"
  mistaken docs/mainpage.md '\[all of it\](page.md)' '<a href="page.html#none">all of it<\/a>' \
    "the site's link to no anchor" \
    "html/index.html: the link page.html#none names nothing in build/docs/html/page.html"
  mistaken docs/mainpage.md '\[all of it\](page.md)' '<a href="page.md">all of it<\/a>' \
    "the site's link to no file" "html/index.html: the link page.md names no file"
  mistaken docs/page.md 'A link' 'Of @ref none, a link' "what Doxygen warns of" "unable to resolve reference to 'none'"
  touch "$scratch/build/docs/html/gone.html"
  mistaken docs/mainpage.md '\[all of it\](page.md)' '<a href="gone.html">all of it<\/a>' \
    "the site's link to what it no longer has" "html/index.html: the link gone.html names no file"
  echo "Without a title" >"$scratch/docs/untitled.md"
  refuses docs "a page without a title" \
    "docs/untitled.md: there is no build/docs/html/untitled.html; begin it with # TITLE"
fi

[ "$failures" -eq 0 ]
