#!/usr/bin/env bash
# quickstart trains one recipe per processor at a time, prints their progress, and stops all runs if one
# fails: quickstart_runs_test.sh
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch"/{scripts,commands} || exit 1
cp "$root/quickstart" "$scratch" && cp "$root/scripts/common.sh" "$scratch/scripts" || exit 1
cd "$scratch" || exit 1
head -c 2000 /dev/zero | tr '\0' a >text.txt

# Stands for a program: command NAME SCRIPT
command_named() {
  printf '#!/bin/bash\n%s\n' "$2" >"$1" && chmod +x "$1" || exit 1
}
command_named scripts/install-dependencies 'exit 0'
command_named commands/nvidia-smi 'exit 1'
command_named commands/nproc 'echo "${PROCESSORS-2}"'
# If the trainer for the first recipe is separate, the one for all recipes is built only while it runs.
command_named commands/cmake 'mkdir -p build/quickstart/bin
case "$*" in
  *compare_runs*) cp comparison build/quickstart/bin/compare_runs ;;
  *train_first*) cp trainer build/quickstart/bin/train_first ;;
  *train_llama*)
    if [[ -e build/quickstart/bin/train_first ]]; then
      for _ in {1..100}; do grep -qs "^bf16 " started && break; sleep 0.1; done
      grep -qs "^bf16 " started || exit 1
    fi
    [[ ${FAILS-} != build ]] || exit 1
    cp trainer build/quickstart/bin/train_llama ;;
esac'
command_named comparison 'echo "compares $*"'
# Counts the trainers that run at the same time; one that is told to fail does, and others wait for long then.
command_named trainer '
while (($#)); do
  case $1 in
    --precision) precision=$2 ;;
    --out) out=$2 ;;
    --threads) threads=$2 ;;
  esac
  shift
done
mkdir -p "$out" running
trap "sleep 0.2; echo $precision >>stopped; exit 143" TERM
echo "$precision with $threads" >>started
echo "$precision of ${0##*/}" >>programs
: >running/$$
ls running | wc -l >>counts
if [[ $precision == "${FAILS-}" ]]; then sleep 0.3; exit 7; fi
[[ -z ${FAILS-} ]] || { sleep 20 & wait; }
sleep 0.3
for step in 1 2 10 11 20; do echo "step $step | loss $step.5"; done
echo "evaluation at step 20 | validation loss 2"
echo "20 steps in 1 s"
rm running/$$'
export PATH=$scratch/commands:$PATH

failures=0
fail() {
  echo "FAILED: $*" >&2
  cat out err >&2
  failures=$((failures + 1))
}
code=0
./quickstart text.txt >out 2>err || code=$?
[[ $code -eq 0 ]] || fail "exit code $code"
precisions=(bf16 fp8-delayed fp8-tensorwise fp8-rowwise fp8-blockwise fp8-delayed-bf16-edges mxfp8)
[[ $(sort started) == "$(printf '%s with 1\n' "${precisions[@]}" | sort)" ]] || fail "started: $(cat started)"
[[ $(grep -v " train_llama$" programs) == "bf16 of train_first" ]] || fail "programs: $(cat programs)"
[[ $(sort -n counts | tail -n 1) -eq 2 ]] || fail "not two at a time: $(cat counts)"
for precision in "${precisions[@]}"; do
  grep -qx "evaluation at step 20 | validation loss 2 | $precision" out || fail "no evaluation of $precision"
  grep -qx "20 steps in 1 s | $precision" out || fail "no end of $precision"
done
for step in 1 10 20; do
  [[ $(grep -cx "step $step | loss $step.5" out) -eq 7 ]] || fail "step $step is not printed"
done
grep -q "^step \(2\|11\) " out && fail "too many steps are printed"
grep -qx "compares ${precisions[*]/#/runs/quickstart/} --html $scratch/report.html" out || fail "no comparison"
grep -q "^Compare only the losses: the Cpu device emulates FP8" out || fail "nothing is said about the speeds"

rm -rf started counts running programs build
code=0
PROCESSORS=4 ./quickstart text.txt >out 2>err || code=$?
[[ $code -eq 0 ]] || fail "exit code $code on four processors"
[[ $(grep -c " of train_llama$" programs) -eq 7 ]] || fail "programs on four processors: $(cat programs)"

rm -rf started counts running build
code=0
FAILS=build timeout 15 ./quickstart text.txt >out 2>err || code=$?
[[ $code -eq 1 ]] || fail "exit code $code when a build fails"
grep -q "^quickstart: the build of train_llama failed$" err || fail "the failed build is not reported"
[[ $(cat stopped) == bf16 ]] || fail "the first run is not stopped"
[[ $(cat started) == "bf16 with 1" ]] || fail "other runs start without their trainer: $(cat started)"

rm -rf started counts running stopped
code=0
FAILS=fp8-delayed timeout 15 ./quickstart text.txt >out 2>err || code=$?
[[ $code -eq 7 ]] || fail "exit code $code when a run fails"
grep -q "^quickstart: training in fp8-delayed stopped with exit code 7; " err || fail "the failure is not reported"
[[ $(cat stopped) == bf16 ]] || fail "the other run is not stopped"
[[ $(sort started) == "$(printf '%s with 1\n' bf16 fp8-delayed)" ]] || fail "other runs start: $(cat started)"
grep -q ^compares out && fail "a comparison in spite of the failure"

rm -rf started counts running stopped
code=0
FAILS=nothing ./quickstart text.txt >out 2>err &
for _ in {1..100}; do
  [[ $(wc -l 2>/dev/null <counts) -eq 2 ]] && break
  sleep 0.1
done
kill -TERM $! && { wait $! || code=$?; }
[[ $code -eq 143 ]] || fail "exit code $code when it is terminated"
[[ $(sort stopped) == "$(printf '%s\n' bf16 fp8-delayed)" ]] || fail "runs that are not stopped: $(cat stopped)"
[[ $failures -eq 0 ]] || exit 1
echo "quickstart_runs: OK"
