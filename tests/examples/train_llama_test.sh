#!/usr/bin/env bash
# Tests train_llama through its command line: train_llama_test.sh PATH_TO_TRAIN_LLAMA
set -u

# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"
trap 'umount "$scratch/disk" 2>/dev/null; rm -rf "$scratch"' EXIT

# refused NAME TEXT ARGUMENT...: exit code 2, one line on stderr that has TEXT, nothing written
refused() {
  local text=$2 code=0
  case=$1
  shift 2
  # What is accepted by mistake would train for minutes.
  timeout 3 "$program" "$@" --out refused >out 2>err || code=$?
  [ "$code" -eq 2 ] || fail "exit code $code, expected 2"
  err_is_one_line_with "$text"
  [ ! -e refused ] || { fail "the folder of --out was made"; rm -rf refused; }
}
# metrics FILE CODE: runs Python on `lines`, the file's JSON objects; every line has to be JSON
metrics() {
  python3 - "$1" "$2" <<'PYTHON' 2>>err || fail "metrics: $2"
import json, sys
def no_constant(name):
    raise ValueError(name + " is not JSON")
text = open(sys.argv[1], encoding="utf-8").read()
assert text.endswith("\n")
lines = [json.loads(line, parse_constant=no_constant) for line in text.splitlines()]
of = lambda event: [line for line in lines if line["event"] == event]
exec(sys.argv[2])
PYTHON
}

python3 - <<'PYTHON'
import random
random.seed(1)
words = "the a small large model trains learns number step loss eight bits scale of and in".split()
with open("text.txt", "w") as file:
    file.write(" ".join(random.choice(words) for _ in range(4000)))
PYTHON
base=(--data text.txt --seq-len 32 --validation-batches 2 --evaluate-every 2 --operands-every 2
  --threads 2)
small=("${base[@]}" --batch 2 --steps 4 --sample 0)

# --- a run -----------------------------------------------------------------------------------
run "a run" 0 "${base[@]}" --batch 2 --steps 4 --sample 12 --out run
[ -s err ] && fail "stderr is not a terminal, and there was something on it"
[ "$(grep -cE '^step [0-9]+ \| epoch [0-9]+\.[0-9]{2} \| loss [0-9]+\.[0-9]{4} \| lr [0-9]\.[0-9]{2}e[+-][0-9]{2} \| norm [0-9]+\.[0-9]{3} \| [0-9]+\.[0-9] ms \| [0-9]+ tok/s \| fp8 delayed$' out)" -eq 4 ] ||
  fail "not four step lines"
[ "$(grep -c '^gemm | ' out)" -eq 51 ] || fail "not one line for each of 51 GEMMs"
grep -qF "48 of 51 GEMMs in FP8" out || fail "no count of GEMMs in FP8"
metrics run/metrics.jsonl '
assert [line["event"] for line in lines] == ["run", "step", "step", "evaluation", "step", "step",
    "evaluation", "summary"], [line["event"] for line in lines]
head, last = lines[0], lines[-1]
assert (head["model"], head["precision"], head["recipe"]) == ("llama_tiny", "fp8-delayed",
    "fp8 delayed")
assert (head["batch"], head["sequence_length"], head["steps"], head["seed"]) == (2, 32, 4, 1)
assert (head["gemms_fp8"], head["gemms_total"]) == (48, 51)
assert (last["gemms_fp8"], last["gemms_total"], last["steps"], last["skipped"]) == (48, 51, 4, 0)
assert last["peak_bytes"] > 4 * head["parameters"] and len(last["sample"]) > 0
assert last["validation_loss"] == of("evaluation")[-1]["loss"]
steps = of("step")
assert [s["step"] for s in steps] == [1, 2, 3, 4]
assert all(4 < s["loss"] < 7 and s["gradient_norm"] > 0 and s["milliseconds"] > 0 and
           s["tokens_per_second"] > 0 and s["learning_rate"] > 0 and s["epoch"] > 0 and
           s["skipped"] is False for s in steps)
assert ["operands" in s for s in steps] == [True, True, False, True]
operands = steps[-1]["operands"]
assert len(operands) == 48
assert {o["format"] for o in operands} == {"E4M3", "E5M2"}
assert all(o["amax"] > 0 and o["scale"] > 0 and 0 <= o["saturated"] <= 1 and
           0 <= o["flushed"] <= 1 for o in operands)
'

refused_folder=$(cksum run/metrics.jsonl run/config.toml)
run "a folder that holds a run" 2 "${small[@]}" --out run
err_is_one_line_with "run/metrics.jsonl exists already"
[ "$refused_folder" = "$(cksum run/metrics.jsonl run/config.toml)" ] || fail "the run was touched"

same_but_times='
def timeless(path):
    result = []
    for line in open(path):
        entry = json.loads(line)
        for key in ("milliseconds", "tokens_per_second", "seconds"):
            entry.pop(key, None)
        result.append(entry)
    return result
assert timeless("run/metrics.jsonl") == timeless(sys.argv[1])
'
run "the saved configuration" 0 --config run/config.toml --out again
metrics again/metrics.jsonl "$same_but_times"

cat >own.toml <<'TOML'
data = ["text.txt"]
batch = 2
seq-len = 32
steps = 4
sample = 12
validation-batches = 2
evaluate-every = 2
operands-every = 2
threads = 2
TOML
run "a configuration of one's own" 0 --config own.toml --out own
metrics own/metrics.jsonl "$same_but_times"
run "flags over the configuration" 0 --config own.toml --steps 1 --sample 0 --precision bf16
[ "$(grep -c '^step ' out)" -eq 1 ] || fail "not one step"
grep -q '^step 1 .*| bf16$' out || fail "not in BF16"
grep -qF "0 of 51 GEMMs in FP8" out || fail "a GEMM ran in FP8"
run "micro-batches" 0 "${base[@]}" --steps 1 --sample 0 --batch 1 --micro-batches 2
grep -qF "48 of 51 GEMMs in FP8" out || fail "GEMMs are not counted by the micro-batch"
run "help" 0 --help
for flag in --model --precision --device --data --batch --seq-len --steps --learning-rate --seed \
  --out --config; do
  grep -qF -- "$flag" out || fail "no $flag"
done
for group in Model Data Training Output; do
  grep -q "^$group:" out || fail "no group $group"
done

# --- bad input -------------------------------------------------------------------------------
mkdir no_text empty_folder
printf '\0\1\2\3binary\0' >no_text/data.bin
: >empty.txt
echo short >short.txt
refused "no data" "--data is required"
refused "missing text" "absent.txt" --data absent.txt
refused "empty text" "empty.txt" --data empty.txt
refused "too short text" "give more text" --data short.txt
refused "an empty folder" "empty_folder" --data empty_folder
refused "a folder without text" "no_text" --data no_text
if [ "$(id -u)" -ne 0 ]; then
  cp text.txt unreadable.txt
  chmod a-r unreadable.txt
  refused "unreadable text" "unreadable.txt" --data unreadable.txt
elif command -v setpriv >/dev/null && cp "$program" ./train_llama && chmod 755 . ./train_llama; then
  # Root may read everything; another user may not.
  cp text.txt unreadable.txt
  chmod 600 unreadable.txt
  case="unreadable text"
  setpriv --reuid 65534 --regid 65534 --clear-groups ./train_llama --data unreadable.txt \
    >out 2>err
  code=$?
  [ "$code" -eq 2 ] || fail "exit code $code, expected 2"
  err_is_one_line_with "unreadable.txt"
else
  echo "skipped: unreadable text (root may read everything)"
fi
for flag in batch seq-len steps micro-batches max-skipped evaluate-every log-every \
  validation-batches; do
  for value in 0 -1 nan 1.5 many ""; do
    refused "--$flag '$value'" "$flag" --data text.txt "--$flag=$value"
  done
done
for value in 0 -0.001 nan NaN inf -inf fast; do
  refused "--learning-rate $value" "learning-rate" --data text.txt "--learning-rate=$value"
done
for flag in weight-decay clip temperature; do
  for value in -1 nan inf; do
    refused "--$flag $value" "$flag" --data text.txt "--$flag=$value"
  done
done
for flag in beta1 beta2 final-fraction decay-fraction; do
  for value in -0.1 1 nan; do
    refused "--$flag $value" "$flag" --data text.txt "--$flag=$value"
  done
done
for value in 0 1 -0.1 nan; do
  refused "--validation-fraction $value" "validation" --data text.txt "--validation-fraction=$value"
done
refused "--epsilon 0" "epsilon" --data text.txt --epsilon 0
refused "--seed -1" "seed" --data text.txt --seed=-1
refused "--threads -1" "threads" --data text.txt --threads=-1
refused "a batch beyond any memory" "too large" --data text.txt --batch 2000000000 --seq-len 32
refused "a number beyond any type" "steps" --data text.txt --steps 99999999999999999999999
refused "unknown preset" "llama_tiny" --data text.txt --model llama_huge
refused "unknown precision" "fp8-tensorwise, fp8-blockwise" --data text.txt --precision fp4
refused "unknown device" "cpu" --data text.txt --device tpu
refused "unknown schedule" "cosine" --data text.txt --schedule step
refused "unknown recompute policy" "swiglu" --data text.txt --recompute all
refused "unknown flag" "did you mean 'learning-rate'" --data text.txt --learning-rat 1e-3
refused "unknown flag with a value" "did you mean 'steps'" --data text.txt --step=5
refused "a word too many" "extra" --data text.txt --steps 1 -- extra
refused "tokens that FP8 cannot reduce" "multiple of 16" --data text.txt --batch 1 --seq-len 40
toml_refused() {
  printf 'data = ["text.txt"]\n%s\n' "$3" >bad.toml
  refused "$1" "$2" --config bad.toml
}
toml_refused "unknown key" "did you mean 'warmup'" 'warm-up = 3'
toml_refused "unknown preset in the configuration" "llama_tiny" 'model = "llama_huge"'
toml_refused "unknown precision in the configuration" "fp8-delayed" 'precision = "fp4"'
toml_refused "unknown dotted key" "[training]" 'training.steps = 3'
toml_refused "batch 0 in the configuration" "batch" 'batch = 0'
toml_refused "NaN in the configuration" "learning-rate" 'learning-rate = nan'
toml_refused "a section in the configuration" "[training]" '[training]
steps = 3'
refused "missing configuration" "absent.toml" --config absent.toml
case="a folder that cannot be made"
: >file
run "a folder that cannot be made" 2 "${small[@]}" --out file/run
err_is_one_line_with "file/run"

# --- runs that end early ---------------------------------------------------------------------
run "a run that is not finite" 3 "${base[@]}" --batch 2 --sample 0 --steps 50 --learning-rate 1e30 --warmup 0 \
  --max-skipped 3 --out nan
err_is_one_line_with "3 steps in a row were not finite"
grep -q "SKIPPED" out || fail "no step line says that it was skipped"
metrics nan/metrics.jsonl '
steps, last = of("step"), lines[-1]
assert last["event"] == "summary" and last["skipped"] >= 3 and last["steps"] < 50
assert [s["skipped"] for s in steps][-3:] == [True] * 3
assert not any([s["skipped"] for s in steps][:1])
assert sum(s["skipped"] for s in steps) == last["skipped"]
'

for signal in INT TERM; do
  case="SIG$signal"
  # Through Python: a shell's background jobs ignore SIGINT.
  python3 - "$program" $signal >out 2>err <<'PYTHON' || fail "the run did not end as it should"
import json, signal, subprocess, sys, time
number = getattr(signal, "SIG" + sys.argv[2])
folder = "stopped_" + sys.argv[2]
run = subprocess.Popen([sys.argv[1], "--data", "text.txt", "--batch", "2", "--seq-len", "32",
    "--steps", "1000000", "--sample", "0", "--validation-batches", "1", "--threads", "2",
    "--out", folder], stdout=subprocess.PIPE, text=True)
seen = []
for line in run.stdout:
    seen.append(line)
    if line.startswith("step 3 "):
        run.send_signal(number)
        break
seen += run.stdout.readlines()
code = run.wait(timeout=60)
assert code == 128 + number, code
lines = [json.loads(line) for line in open(folder + "/metrics.jsonl")]
steps = [line for line in lines if line["event"] == "step"]
assert lines[-1]["event"] == "summary" and lines[-1]["steps"] == len(steps)
assert 3 <= len(steps) < 1000, len(steps)
assert any(f"{len(steps)} steps in " in line for line in seen), seen[-3:]
PYTHON
done

case="a full disk"
mkdir disk
if mount -t tmpfs -o size=32k none disk 2>/dev/null; then
  run "a full disk" 1 "${base[@]}" --batch 1 --sample 0 --steps 400 --out disk/run
  err_has_reason() { grep -qF "No space left on device" err || fail "the reason is not told"; }
  err_has_reason
  grep -qF "disk/run/metrics.jsonl" err || fail "the file is not named"
  metrics disk/run/metrics.jsonl 'assert len(lines) >= 2 and lines[0]["event"] == "run"'
  umount disk
else
  echo "skipped: a full disk (mounting a tmpfs needs more rights)"
fi
case="full standard output"
"$program" "${small[@]}" --out full_stdout >/dev/full 2>err
code=$?
[ "$code" -eq 1 ] || fail "exit code $code, expected 1"
err_is_one_line_with "No space left on device"

finish
