#!/usr/bin/env bash
# mutate tells which faults tests notice, and knows it again of the same sources: mutate_test.sh
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
command -v git >/dev/null || { echo "skipped: mutate asks git for the project's files"; exit 77; }
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
mkdir -p bin scripts include examples tests/{core,examples,mutants}
cp "$root"/scripts/{mutate,cpp_symbols.py} scripts/
git init -q . || exit 1
export PATH=$scratch/bin:$PATH RAN=$scratch/ran

# In place of a build: the tests look at the sources themselves.
cat >bin/cmake <<'END2'
#!/usr/bin/env bash
[ "$1" = --build ] || exit 0
! grep -qs dawdles "$2/../examples/program.cpp" || { echo $$ >>"$RAN.slow"; sleep 60; }
mkdir -p "$2/bin" && cd "$2/.." && ! grep -rqs broken include examples || exit 1
printf '#!/usr/bin/env bash\necho own >>"$RAN"\ngrep -q 'right.given' include/own.hpp\n' >build/bin/test_core_own
chmod +x build/bin/test_core_own
END2
chmod +x bin/cmake
echo '{"configurePresets": [{"name": "tests", "cacheVariables": {}}]}' >CMakePresets.json
cat >include/own.hpp <<'END2'
class Own {
  int is(int given) { return given == 1 ? right(given, 2) : 0; }
  int was() { return right(3, 4); }
};
END2
echo "right, whatever" >examples/program.cpp
echo "TEST(Own, IsRight)" >tests/core/own_test.cpp
cat >tests/examples/program_test.sh <<'END2'
echo program >>"$RAN"
! grep -q killed examples/program.cpp || kill -KILL $$
! grep -q slow examples/program.cpp || { echo $$ >"$RAN.slow"; sleep 60; }
! grep -q leaves examples/program.cpp || { set -m; sleep 60 & echo $! >"$RAN.left"; exit 1; }
grep -q right examples/program.cpp && ! grep -q fails examples/program.cpp
END2
cat >tests/mutants/all.txt <<'END2'
[own-is-wrong] Own::is
test: core/own_test.cpp Own.*
- right($1)
+ wrong($1)

[program-is-wrong] program.cpp
test: examples/program_test.sh
- right
+ wrong

[program-has-another-word] examples/program.cpp
test: examples/program_test.sh
survives: nobody looks at it
- whatever
+ else
END2

failures=0
fail() {
  echo "FAILED: $case: $*" >&2
  cat log >&2
  failures=$((failures + 1))
}
# tries CASE EXPECTED_EXIT_CODE TESTS ARGUMENT...: runs mutate, and these tests are run, in any order
tries() {
  case=$1
  local expected=$2 tests=$3 code=0
  shift 3
  : >"$RAN"
  scripts/mutate "$@" >log 2>&1 || code=$?
  [ "$code" -eq "$expected" ] || fail "exit code $code, expected $expected"
  [ "$(sort "$RAN" | uniq -c | awk '{print $1, $2}' | paste -sd ' ')" = "$tests" ] || fail "these are run: $(paste -sd ' ' "$RAN")"
}
says() { grep -qF -- "$1" log || fail "it does not say: $1"; }

tries "a first time" 0 "2 own 3 program"
says "own-is-wrong: caught (test_core_own, "
says "program-has-another-word: survived"
says "2 of 3 caught"
tries "the same sources" 0 ""
says "3 mutants have results in $scratch/build/mutate/found.jsonl"
says "2 of 3 caught"
tries "one that is named" 0 "1 own" own-is
echo "// more" >>examples/program.cpp
tries "another program" 0 "3 program"
echo "// more" >>tests/core/own_test.cpp
tries "another test" 0 "2 own"
echo "// more" >>include/own.hpp
tries "another library" 0 "2 own 3 program"
echo "# more" >>tests/mutants/all.txt
sed -i 's/+ else/+ other/' tests/mutants/all.txt
tries "another fault" 0 "1 program"
truncate -s -9 build/mutate/found.jsonl
tries "a line that was cut off" 0 "1 program"

sed -i 's/+ other/+ broken/' tests/mutants/all.txt
for again in "" " again"; do
  tries "a fault that does not compile$again" 1 ""
  says "2 mutants have results in "
  says "does not compile: program-has-another-word: choose another fault"
done
sed -i 's/+ broken/+ killed/; /^survives/d' tests/mutants/all.txt
for again in "" " again"; do
  tries "a test that is killed$again" 0 "1 program"
  says "program-has-another-word: caught (program, which was killed"
done
sed -i 's/+ killed/+ elsewhere/' tests/mutants/all.txt
for again in "1 program" ""; do
  tries "a survivor that is not noted, '$again'" 1 "$again"
  says "survived: program-has-another-word: NOT LISTED"
done
sed -i '/^- right(/i survives: nobody looks at it' tests/mutants/all.txt
tries "what is noted, and caught" 1 ""
says "caught: own-is-wrong, which the catalogue lists as a survivor"
sed -i '/^survives/d' tests/mutants/all.txt

# stops NUMBER ARGUMENT...: runs mutate until so many slow things have begun, and stops it
stops() {
  local number=$1 run code
  shift
  : >"$RAN.slow"
  scripts/mutate "$@" >log 2>&1 &
  run=$!
  for ((i = 0; i < 300; ++i)); do
    [ "$(wc -l <"$RAN.slow")" -ge "$number" ] && break
    sleep 0.1
  done
  kill -TERM "$run"
  wait "$run"
  code=$?
  [ "$code" -eq 143 ] || fail "exit code $code, expected 143"
}
# Whoever takes over a process that has ended may leave it as a zombie.
goes_on() { xargs -I{} cat /proc/{}/status <"$1" 2>/dev/null | grep -q '^State:[[:space:]]*[^ZX[:space:]]'; }
# ends FILE: those whose numbers it has
ends() {
  for ((i = 0; i < 100; ++i)); do
    goes_on "$1" || return 0
    sleep 0.1
  done
  return 1
}

case="a run that is stopped"
sed -i 's/+ elsewhere/+ slow/' tests/mutants/all.txt
stops 1
ends "$RAN.slow" || fail "the test goes on"

case="a run that is stopped while it builds two of four"
for number in 1 2 3 4; do
  printf '[program-dawdles-%s] examples/program.cpp\ntest: examples/program_test.sh\n- whatever\n+ dawdles %s\n\n' \
    "$number" "$number"
done >tests/mutants/more.txt
stops 2 --jobs 2 program-dawdles
ends "$RAN.slow" || fail "a build goes on"
[ "$(wc -l <"$RAN.slow")" -eq 2 ] || fail "another began"
rm tests/mutants/more.txt

sed -i 's/+ slow/+ leaves/' tests/mutants/all.txt
tries "a test that leaves a process of a group of its own" 0 "1 program"
ends "$RAN.left" || fail "it goes on"
sed -i 's/+ leaves/+ slow/' tests/mutants/all.txt
sed -i 's/^TEST_SECONDS = 300/TEST_SECONDS = 5/' scripts/mutate
rm "$RAN.slow"
for again in "" " again"; do
  tries "a test that hangs$again" 0 "1 program"
  says "program-has-another-word: caught (program, which hung"
  ends "$RAN.slow" || fail "it goes on"
done
sed -i 's/+ slow/+ other words/' tests/mutants/all.txt
cp "$root/scripts/mutate" scripts/
tries "the next run" 1 "1 program"
says "survived: program-has-another-word"

echo "// fails" >>examples/program.cpp
for again in "" " again"; do
  tries "a test that fails anyway$again" 2 "1 program"
  says "program fails without a mutant, with exit code 1: "
done
sed -i '/fails/d' examples/program.cpp

case="filters"
# refused TEXT FILTER
refused() {
  sed "s/Own\.\*/$2/" tests/mutants/all.txt >kept && mv kept tests/mutants/all.txt
  tries "the filter $2" 2 "" --check
  says "own-is-wrong: $1"
  sed -i "s/cpp $2/cpp Own.*/" tests/mutants/all.txt
}
refused "Other is no test of core/own_test.cpp" Other.IsRight
refused "IsWrong is no test of core/own_test.cpp" Own.IsWrong
tries "a filter of what is there" 0 "" --check

# A pattern is found in other lines, in another file and among other names, and must be unambiguous.
git mv -f include/own.hpp include/other.hpp 2>/dev/null || mv include/own.hpp include/other.hpp
sed -i 's/given/asked/g; s/== 1/>= 7/; s/? right(/\n      ? \/\/ what is\n right(/' include/other.hpp
tries "a function that was moved, with other lines and names" 0 "" --check
# refused_place PLACE PATTERN TEXT
refused_place() {
  printf '[another] %s\ntest: core/own_test.cpp\n- %s\n+ $1\n' "$1" "$2" >tests/mutants/more.txt
  tries "the pattern $2 in $1" 2 "" --check
  says "another: $3"
}
refused_place Own "right(\$1" "its pattern must occur once in Own of include/other.hpp, but occurs 2 times"
refused_place Own::was "wrong(\$1" "its pattern must occur once in Own::was of include/other.hpp, but occurs 0 times"
refused_place Own::will "right(\$1" "Own::will does not exist"
refused_place was.hpp "right(\$1" "was.hpp does not exist"
refused_place Own::was "right" "its pattern has no \$1"
rm tests/mutants/more.txt

[ "$failures" -eq 0 ] && echo "mutate: OK"
