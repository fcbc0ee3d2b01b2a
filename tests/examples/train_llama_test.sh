#!/usr/bin/env bash
# Tests train_llama through its command line: train_llama_test.sh PATH_TO_TRAIN_LLAMA
set -u

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
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
  [ ! -e refused ] && [ ! -e runs ] || { fail "a folder was made"; rm -rf refused runs; }
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
printf '\n%.0s' {1..3000} >newlines.txt
base=(--data text.txt --seq-len 32 --validation-batches 2 --evaluate-every 2 --operands-every 2
  --threads 2)
small=("${base[@]}" --batch 2 --steps 4 --warmup 1 --sample 0)
bytes=$(wc -c <text.txt)

refused "a configuration without an end" "/dev/zero must have at most 100000000 bytes" "${small[@]}" --config /dev/zero
mkdir piped
mkfifo piped/config.json
refused "a model whose configuration is a pipe" "piped/config.json: cannot be read: it is a pipe, not a regular file" \
  --data text.txt --model hf:piped
rm -r piped
run "a folder whose name is not UTF-8" 2 "${small[@]}" --out $'latin-\xfc'
err_is_one_line_with "--out must be valid UTF-8, but is 'latin-"
[ ! -e $'latin-\xfc' ] || fail "it was made"

# --- a run -----------------------------------------------------------------------------------
run "a run" 0 "${base[@]}" --batch 2 --steps 4 --warmup 4 --sample 12 --out run
[ -s err ] && fail "stderr is not a terminal, and there was something on it"
[ "$(grep -cE '^step [0-9]+ \| epoch [0-9]+\.[0-9]{2} \| loss [0-9]+\.[0-9]{4} \| lr [0-9]\.[0-9]{2}e[+-][0-9]{2} \| norm [0-9]+\.[0-9]{3} \| [0-9]+\.[0-9] ms \| [0-9]+ tok/s \| fp8 delayed$' out)" -eq 4 ] ||
  fail "not four step lines"
[ "$(sed '/^step 1 /,$d' out | wc -l)" -le 25 ] || fail "more than 25 lines before the first step"
[ "$(grep -c '^gemm | ' run/manifest.txt)" -eq 15 ] || fail "not one line for each of the 12 GEMMs of a block, and for the head's 3"
grep -qxF 'gemm | blocks.0-3: qkv, output, gate_up, down | fp8 delayed | octavo loops' out || fail "no line for the blocks' GEMMs"
grep -qxF 'gemm | head | bf16 | octavo loops' out || fail "no line for the head's GEMMs"
grep -qE '^flags \| .*batch = 2, .*steps = 4' out || fail "the chosen flags are not printed"
grep -qE '^(flags \| .*)?learning-rate = ' out && fail "a flag that nobody chose is printed"
grep -qE '^memory \| peak +\| +[0-9.]+ MiB, allocated once$' run/manifest.txt || fail "no memory in manifest.txt"
grep -qE '^gemm \| blocks\.0-3\.qkv forward +\| 256 x 128 +\| E4M3 x E4M3 -> bf16 \| fp8 delayed \| octavo loops$' run/manifest.txt ||
  fail "blocks that are alike are not told as one"
grep -qF "48 of 51 GEMMs in FP8" out || fail "no count of GEMMs in FP8"
cat >tensorboard_files.py <<'PYTHON'
import glob, struct

def fields(data):
    found, at = {}, 0
    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value
    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        else:
            size = {1: 8, 2: None, 5: 4}[kind]
            size = varint() if size is None else size
            value = data[at:at + size]
            at += size
        found.setdefault(key >> 3, []).append(value)
    return found

def shown(folder):
    """What TensorBoard's reader in Python shows of a run: lists of (step, number) and of (step, text), by tag."""
    scalars, texts = {}, {}
    for path in sorted(glob.glob(folder + "/events.out.tfevents.*")):
        data = open(path, "rb").read()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event, data = fields(data[12:12 + length]), data[16 + length:]
            step = event.get(2, [0])[0]
            if 7 in event:  # a session's START: what is there of later steps is shown no more
                assert fields(event[7][0]) == {1: [1]}
                for kind in (scalars, texts):
                    for tag, values in kind.items():
                        kind[tag] = [value for value in values if value[0] < step]
            for summary in event.get(5, []):
                for value in map(fields, fields(summary)[1]):
                    tag = value[1][0].decode()
                    if 2 in value:
                        number = struct.unpack("<f", value[2][0])[0]
                        scalars.setdefault(tag, []).append((step, number))
                    if 8 in value:
                        text = fields(value[8][0])[8][0].decode()
                        texts.setdefault(tag, []).append((step, text))
    return scalars, texts
PYTHON
case="what TensorBoard reads is what is recorded"
python3 - <<'PYTHON' 2>>err || fail "it is not"
import json, struct
from tensorboard_files import shown
scalars, texts = shown("run")
wanted = {}
def want(tag, step, number):
    single = struct.unpack("<f", struct.pack("<f", number))[0]
    wanted.setdefault(tag, []).append((step, single))
for line in map(json.loads, open("run/metrics.jsonl")):
    if line["event"] == "step":
        for name in ("loss", "learning_rate", "gradient_norm", "skipped"):
            want("train/" + name, line["step"], float(line[name]))
        for name in ("milliseconds", "tokens_per_second"):
            want("speed/" + name, line["step"], line[name])
        for operand in line.get("operands", []):
            for name in ("amax", "saturated", "flushed"):
                want(name + "/" + operand["name"], line["step"], operand[name])
    if line["event"] == "evaluation":
        want("validation/loss", line["step"], line["loss"])
assert len(wanted) > 100 and scalars == wanted, [key for key in wanted if scalars.get(key) != wanted[key]][:9]
configuration, head = open("run/config.toml").read(), open("run/metrics.jsonl").readline()
assert texts == {"config": [(0, f"```\n{configuration}```")], "run": [(0, f"```\n{head}```")]}, texts
PYTHON
case="what is printed is what is recorded"
python3 - <<'PYTHON' 2>>err || fail "it is not"
import json
printed = [line.split(" | ") for line in open("out").read().splitlines()]
lines = [json.loads(line) for line in open("run/metrics.jsonl")]
for s in (line for line in lines if line["event"] == "step"):
    wanted = [f"step {s['step']}", f"epoch {s['epoch']:.2f}", f"loss {s['loss']:.4f}",
              f"lr {s['learning_rate']:.2e}", f"norm {s['gradient_norm']:.3f}",
              f"{s['milliseconds']:.1f} ms", f"{s['tokens_per_second']:.0f} tok/s", "fp8 delayed"]
    assert wanted in printed, wanted
for e in (line for line in lines if line["event"] == "evaluation"):
    wanted = [f"evaluation at step {e['step']}", f"validation loss {e['loss']:.4f}",
              f"{e['tokens']} tokens"]
    assert wanted in printed, wanted
s = lines[-1]
wanted = [f"4 steps in {s['seconds']:.1f} s", f"{s['tokens_per_second']:.0f} tok/s after the first",
          f"train loss {s['train_loss']:.4f}", f"validation loss {s['validation_loss']:.4f}",
          "48 of 51 GEMMs in FP8", "0 skipped", f"peak {s['peak_bytes'] / 2**20:.1f} MiB"]
assert wanted in printed, wanted
PYTHON
metrics run/metrics.jsonl '
assert [line["event"] for line in lines] == ["run", "evaluation", "step", "step", "evaluation", "step",
    "step", "evaluation", "summary"], [line["event"] for line in lines]
head, last = lines[0], lines[-1]
assert (head["model"], head["precision"], head["recipe"]) == ("llama_tiny", "fp8-delayed",
    "fp8 delayed")
assert (head["batch"], head["sequence_length"], head["steps"], head["seed"]) == (2, 32, 4, 1)
assert (head["gemms_fp8"], head["gemms_total"]) == (48, 51)
assert head["trained_parameters"] == head["parameters"] and head["adapters"] == "", head
# All weights multiply but the table of 256 x 128; attention in 4 blocks is as wide as 128.
assert head["flops_per_token"] == 6 * (head["parameters"] - 256 * 128) + 6 * 32 * 4 * 128, head
assert (head["card"], head["ranks"]) == ("", 1), head
assert (head["name"], head["libraries"], head["transport"]) == ("run", "", ""), head
assert [head[name] for name in ("zero", "tensor_parallel")] == [1, 1], head
assert [head[name] for name in ("gather", "reduce")] == ["stored", "stored"], head
assert (last["gemms_fp8"], last["gemms_total"], last["steps"], last["skipped"]) == (48, 51, 4, 0)
assert last["peak_bytes"] > 4 * head["parameters"] and len(last["sample"]) > 0
assert last["end"] == "done"
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

grep -qxF "run | kept in run" out || fail "it does not say where the run is kept"
grep -qxF "text | read 1 file, $bytes bytes" out || fail "it does not say what it read"
grep -qxF "text |   text.txt | $bytes bytes" out || fail "it does not name what it read"
refused_folder=$(cksum run/metrics.jsonl run/config.toml)
run "a folder that holds a run" 2 "${small[@]}" --out run
err_is_one_line_with "run/metrics.jsonl exists already, and a run would overwrite it; resume it with --resume auto, or choose another --out"
[ "$refused_folder" = "$(cksum run/metrics.jsonl run/config.toml)" ] || fail "the run was touched"
# Two sequences are two documents, which the session would say.
run "a folder that holds a run, before a session is made" 2 --data text.txt --batch 2 \
  --seq-len 32 --document-end 0 --most-documents 1 --out run
err_is_one_line_with "run/metrics.jsonl exists already"
run "a name that is too long" 2 "${small[@]}" --out "$(printf 'a%.0s' {1..300})"
err_is_one_line_with "File name too long; choose another --out"
run "the configuration of a run, unchanged" 2 --config run/config.toml
err_is_one_line_with "choose another --out; it is set in run/config.toml, and the command line"
[ "$refused_folder" = "$(cksum run/metrics.jsonl run/config.toml)" ] || fail "the run was touched"
mkdir taken
cp run/metrics.jsonl taken/
run "another folder than that of the configuration" 2 --config run/config.toml --out taken
err_is_one_line_with "taken/metrics.jsonl exists already, and a run would overwrite it"
grep -q "it is set in" err && fail "the configuration is blamed for the command line's --out"
mkdir own_folder
printf '# mine\ndata = ["text.txt"]\n' >own_folder/config.toml
own_configuration=$(cksum own_folder/config.toml)
run "a configuration in the run's folder" 2 --config own_folder/config.toml --steps 1 --out own_folder
err_is_one_line_with "own_folder/config.toml exists already, and a run would overwrite it"
[ "$own_configuration" = "$(cksum own_folder/config.toml)" ] || fail "the configuration was touched"
[ "$(ls own_folder)" = config.toml ] || fail "something was written"

same_but_times='
def timeless(path):
    result = []
    for line in open(path):
        entry = json.loads(line)
        for key in ("name", "milliseconds", "tokens_per_second", "seconds"):
            entry.pop(key, None)
        result.append(entry)
    return result
assert timeless("run/metrics.jsonl") == timeless(sys.argv[1])
'
run "the saved configuration" 0 --config run/config.toml --out again
metrics again/metrics.jsonl "$same_but_times"

run "sequences that FP8 fills up" 0 --data text.txt --batch 3 --seq-len 21 --steps 2 --out filled
grep -qF "batch | sequences of 21 tokens are padded to 32" out || fail "it is not said"
grep -qF "tokens are padded to" <(grep -v '^batch | ' out) && fail "it is said twice"
metrics filled/metrics.jsonl '
assert (lines[0]["sequence_length"], lines[0]["run_length"]) == (21, 32), lines[0]
assert all(0 < line["loss"] < 10 for line in lines if line["event"] == "step"), lines
'
cat >own.toml <<'TOML'
data = ["text.txt"]
batch = 2
seq-len = 32
steps = 4
warmup = 4
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
run "a warm-up that does not end" 0 --config own.toml --steps 3 --sample 0 --no-out
err_is_one_line_with "warning: --warmup 4 is beyond --steps 3: the learning rate never reaches 0.001"
run "a configuration through a pipe" 0 --config <(cat own.toml) --steps 1 --sample 0
[ "$(grep -c '^step ' out)" -eq 1 ] || fail "not one step"

run "a run that prints all" 0 "${base[@]}" --batch 2 --steps 4 --warmup 4 --sample 0 --no-out --verbose
grep -qx 'learning-rate = 0.001' out || fail "--verbose does not print all flags"
diff <(grep -E '^(gemm|attention) ' out) <(grep -E '^(gemm|attention) ' run/manifest.txt) || fail "--verbose does not print the manifest"
run "a text without targets" 0 --data newlines.txt --document-end 10 --most-documents 64 --batch 2 --seq-len 32 --steps 2 \
  --warmup 1 --sample 0 --evaluate-every 1 --validation-batches 2 --checkpoint-every 1 --keep-best --threads 2 --out without
[ "$(grep -c '^step [12] .*| loss none (no targets) |' out)" -eq 2 ] || fail "steps without targets have a loss"
[ "$(grep -c '"loss":null' without/metrics.jsonl)" -ge 4 ] || fail "metrics.jsonl has losses of no targets"
grep -q 'nan' out && fail "nan is printed"
grep -rl '"validation_loss":0' without && fail "a checkpoint has a loss of no targets"

# --- where a run is kept ---------------------------------------------------------------------
tiny=(--data text.txt --seq-len 32 --batch 1 --steps 1 --sample 0 --precision bf16 --threads 1
  --validation-batches 1)
rm -rf runs
run "a run without --out" 0 "${tiny[@]}"
run "another in the same second" 0 "${tiny[@]}"
ls runs >folders
[ "$(wc -l <folders)" -eq 2 ] || fail "not one folder a run: $(cat folders)"
grep -vqE '^[0-9]{4}-[0-9]{2}-[0-9]{2}-[0-9]{6}-llama_tiny-bf16(-[0-9]+)?$' folders &&
  fail "folders are not dated: $(cat folders)"
grep -qxF "run | kept in runs/$(tail -n 1 folders)" out || fail "it does not say where it is kept"
for folder in runs/*; do
  [ -s "$folder/config.toml" ] || fail "no configuration"
  metrics "$folder/metrics.jsonl" 'assert lines[-1]["event"] == "summary"'
done
run "the configuration of such a run" 0 --config "runs/$(head -n 1 folders)/config.toml"
[ "$(find runs -name metrics.jsonl | wc -l)" -eq 3 ] || fail "not a folder of its own"
rm -rf runs
run "a run with --no-out" 0 "${tiny[@]}" --no-out
[ ! -e runs ] || fail "it made a folder"
grep -qF "writes no files" out || fail "it does not say that it keeps nothing"
refused "--out and --no-out" "pass only one" "${tiny[@]}" --no-out
case="two runs that begin at once"
"$program" "${tiny[@]}" >/dev/null 2>err & first=$!
"$program" "${tiny[@]}" >/dev/null 2>>err & second=$!
wait $first && wait $second || fail "one failed"
[ "$(find runs -name metrics.jsonl | wc -l)" -eq 2 ] || fail "they share a folder"
rm -rf runs
case="two runs of one folder that begin at once"
"$program" "${tiny[@]}" --out one >/dev/null 2>err & first=$!
"$program" "${tiny[@]}" --out one >/dev/null 2>>err & second=$!
wait $first; codes=$?
wait $second; codes="$codes $?"
[ "$codes" = "0 2" ] || [ "$codes" = "2 0" ] || fail "the exit codes are $codes"
metrics one/metrics.jsonl '
assert [line["event"] for line in lines] == ["run", "evaluation", "step", "evaluation", "summary"], lines'
mkdir locked
case="a folder that another run has"
flock locked/.lock timeout 10 "$program" "${tiny[@]}" --out locked >out 2>err
[ $? -eq 2 ] || fail "the exit code is not 2"
err_is_one_line_with "locked: another run is writing there; wait until it ends, or choose another"
[ "$(ls locked)" = "" ] || fail "something was written"

# --- what is kept of the weights -------------------------------------------------------------
none_kept="run | the trained weights are not kept: pass"
run "a run that keeps no weights" 0 "${tiny[@]}" --out none_kept
grep -qxF "$none_kept --checkpoint-every N or --save-hf FOLDER" out || fail "it does not say so"
run "a run that keeps no files" 0 "${tiny[@]}" --no-out
grep -qxF "$none_kept --save-hf FOLDER" out || fail "it does not say so"
for flags in "--checkpoint-every 1 --out saved" "--save-hf exported --no-out"; do
  # shellcheck disable=SC2086
  run "a run that keeps weights: $flags" 0 "${tiny[@]}" $flags
  grep -qF "$none_kept" out && fail "it says that it keeps none"
done
for flags in --keep-best "--keep-every 2" "--keep-last 3"; do
  # shellcheck disable=SC2086
  refused "$flags of no checkpoints" \
    "${flags% *} keeps checkpoints, but the run saves none; also pass --checkpoint-every" --data text.txt $flags
done
kept=(--data text.txt --seq-len 32 --batch 1 --sample 0 --precision bf16 --threads 1 --validation-batches 1 --out kept)
run "a run of which two kinds of checkpoints stay" 0 "${kept[@]}" --steps 5 --checkpoint-every 1 --keep-every 2
for steps in 7 9; do
  run "going on to step $steps without saying what is kept" 0 "${kept[@]}" --steps "$steps" --resume latest
  grep -qxF "run | saved as in its config.toml: --checkpoint-every 1 --keep-every 2" out || fail "it is not said"
  grep -qE "^2 steps in [0-9.]+ s, $steps in total \| [0-9]+ tok/s after the first \| " out || fail "not the steps that it took"
done
[ "$(ls kept/checkpoints)" = $'step-00000002\nstep-00000004\nstep-00000006\nstep-00000008\nstep-00000009' ] ||
  fail "not the checkpoints that the run is to have: $(ls kept/checkpoints)"
cp -r kept damaged_kept
sed -i 's/^keep-best = false/keep-best = true/' kept/config.toml
run "its configuration, without saves" 0 --config kept/config.toml --steps 10 --resume latest --checkpoint-every 0
grep -q '^checkpoint | ' out && fail "it was saved"
grep -E '^(checkpoint|keep)-' kept/config.toml | tr '\n' ' ' |
  grep -qxF 'checkpoint-every = 0 keep-last = 2 keep-every = 0 keep-best = false ' || fail "what is to stay is kept"
run "the same again" 0 --config kept/config.toml --steps 10 --resume latest
run "checkpoints of none, in the command line" 2 --config kept/config.toml --steps 10 --resume latest \
  --checkpoint-every 0 --keep-best
err_is_one_line_with "train_llama: --keep-best keeps checkpoints, but the run saves none; also pass --checkpoint-every"
printf 'data = ["text.txt"]\nkeep-best = true\n' >keep.toml
run "checkpoints of none, in a file" 2 --config keep.toml
err_is_one_line_with "keep.toml:2: --keep-best keeps checkpoints"
cp damaged_kept/config.toml kept/config.toml
# saved_otherwise LINE FLAG_AND_TEXT: where the run's configuration has the line, one line says what is wrong with it
saved_otherwise() {
  sed "s/^${1%% *} = .*/$1/" kept/config.toml >damaged_kept/config.toml
  run "a run whose configuration says $1" 2 "${kept[@]::${#kept[@]}-1}" damaged_kept --steps 10 --resume latest
  err_is_one_line_with "train_llama: damaged_kept/config.toml: $2"
  [ ! -e damaged_kept/checkpoints/step-00000010 ] || fail "it was trained"
}
saved_otherwise 'checkpoint-every = "often"' "checkpoint-every: 'often' is not a whole number from 0"
saved_otherwise 'checkpoint-every = -5' "checkpoint-every: '-5' is not a whole number from 0"
saved_otherwise 'keep-last = 1' "keep-last: '1' is not a whole number from 2"
saved_otherwise 'keep-best = "maybe"' "keep-best is 'maybe'; set true or false"
run "what is given in place of it" 0 "${kept[@]::${#kept[@]}-1}" damaged_kept --steps 10 --resume latest --keep-best
sed '/^checkpoint-every/,$d' kept/config.toml >damaged_kept/config.toml
run "a run whose configuration is cut off" 0 "${kept[@]::${#kept[@]}-1}" damaged_kept --steps 10 --resume latest --warmup 1
err_is_one_line_with "train_llama: warning: damaged_kept/config.toml does not set all flags for saving the run; set to their defaults, \
unless passed: --checkpoint-every, --keep-last, --keep-every, --keep-best"
# saved_by FILE: a run goes on whose configuration is this file
saved_by() {
  rm -rf saved_by
  cp -r kept saved_by
  mv "$1" saved_by/config.toml
  run "a run whose configuration $case" 0 "${kept[@]::${#kept[@]}-1}" saved_by --steps 10 --resume latest --warmup 1
  [ -e saved_by/checkpoints/step-00000010 ] || fail "it is not saved"
}
case="has other spaces"
sed -E 's/^(checkpoint-every|keep-[a-z]+) = /  \1=/' kept/config.toml >other.toml
saved_by other.toml
[ -s err ] && fail "there is a warning"
grep -qxF "run | saved as in its config.toml: --checkpoint-every 1 --keep-every 2" out || fail "it is not said"
case="lacks a line"
sed '/^keep-every = /d' kept/config.toml >other.toml
saved_by other.toml
err_is_one_line_with "saved_by/config.toml does not set all flags for saving the run; set to their defaults, unless passed: --keep-every"
grep -qxF "run | saved as in its config.toml: --checkpoint-every 1" out || fail "it is not said"
case="ends within a text"
sed '/^keep-every = /,$d' kept/config.toml >other.toml
printf 'model = "lla' >>other.toml
saved_by other.toml
err_is_one_line_with "; the file may be truncated there; set to their defaults, unless passed: --keep-every, --keep-best"
grep -qF "warning: saved_by/config.toml:$(($(grep -n '^keep-every = ' kept/config.toml | cut -d: -f1))): " err ||
  fail "its line is not said"
grep -qxF "run | saved as in its config.toml: --checkpoint-every 1" out || fail "it is not said"
rm -r saved_by
cp -r kept saved_by
rm saved_by/config.toml
for saves in "" "--checkpoint-every 0"; do
  # shellcheck disable=SC2086
  run "a run without configuration: $saves" 0 "${kept[@]::${#kept[@]}-1}" saved_by --steps 9 --resume latest --warmup 1 $saves
  [ -n "$saves" ] || err_is_one_line_with "warning: saved_by/config.toml: cannot be read: No such file or directory; relative paths start at $PWD; set to their defaults"
  [ -z "$saves" ] || [ ! -s err ] || fail "there is a warning"
  rm saved_by/config.toml
done
rm damaged_kept/config.toml
mkdir damaged_kept/config.toml
run "a run whose configuration cannot be read" 1 "${kept[@]::${#kept[@]}-1}" damaged_kept --steps 11 --resume latest --warmup 1
head -n 1 err | grep -qF "warning: damaged_kept/config.toml: cannot be read" && [ "$(wc -l <err)" -eq 2 ] ||
  fail "it is not said"
run "going on without saves" 0 "${kept[@]}" --steps 10 --resume latest --checkpoint-every 0
grep -qF "$none_kept" out || fail "it does not say so"
[ ! -e kept/checkpoints/step-00000010 ] || fail "it was saved"
run "as many steps as there are" 0 "${kept[@]}" --steps 9 --resume latest --checkpoint-every 1
grep -qxF "run | nothing to train: the run is at step 9, --steps is 9" out || fail "it does not say so"
cp kept/config.toml kept/metrics.jsonl .
run "a run whose steps are done" 0 "${kept[@]}" --steps 5 --resume latest --checkpoint-every 1
cmp -s config.toml kept/config.toml && cmp -s metrics.jsonl kept/metrics.jsonl || fail "what it has written is written over"
grep -qxF "run | nothing to train: the run is at step 9, --steps is 5" out || fail "it does not say so"
grep -qE "^no new steps, 9 in total \| train loss " out || fail "it does not say that it took none"
grep -qF "$none_kept" out || tail -n 1 out | grep -qE "GEMMs in FP8|tok/s" && fail "it tells of steps"
run "a timeline of none" 0 "${kept[@]}" --steps 5 --resume latest --checkpoint-every 1 --timeline none.json
grep -qxF "timeline | no step was timed, and none.json is not written" out || fail "it does not say so"

# --- what is read ----------------------------------------------------------------------------
mkdir -p texts/.hidden texts/build
cp text.txt texts/a.txt
printf 'gr\374\337e' >texts/latin1.txt
printf 'a\0b' >texts/data.bin
: >texts/nothing.txt
ln -s a.txt texts/link.txt
run "a folder with more than text" 0 "${tiny[@]}" --data texts --no-out
for line in "read 2 files, $((2 * bytes)) bytes" "  texts/a.txt | $bytes bytes" \
  "SKIPPED 6 entries, $((bytes + 8)) bytes" "  texts/latin1.txt | 5 bytes | not UTF-8: invalid byte 2" \
  "  texts/data.bin | 3 bytes | binary: contains NUL bytes" "  texts/nothing.txt | 0 bytes | empty" \
  "  texts/link.txt | $bytes bytes | the same file as texts/a.txt" \
  "  texts/.hidden | 0 bytes | hidden" \
  "  texts/build | 0 bytes | a folder called build, out or runs"; do
  grep -qxF "text | $line" out || fail "no line: text | $line"
done
mkdir many
for number in 01 02 03 04 05 06 07 08 09 10 11 12 13 14; do echo "$number" >"many/$number.txt"; done
run "more files than are named" 0 "${tiny[@]}" --data many --data texts --out read
[ "$(grep -cE '^text \|   (text.txt|many/)' out)" -eq 12 ] || fail "not the first twelve"
grep -qxF "text |   and 4 more" out || fail "it does not say how many more"
metrics read/metrics.jsonl '
assert (lines[0]["files"], lines[0]["skipped_files"]) == (16, 6), lines[0]'
ln text.txt hard.txt
ln -s text.txt soft.txt
ln -s texts alias
for twice in text.txt ./text.txt texts/../text.txt; do
  refused "a file twice: $twice" "$twice is named already" --data text.txt --data "$twice"
done
for twice in hard.txt soft.txt; do
  refused "a file twice: $twice" "is the same file as text.txt" --data text.txt --data "$twice"
done
refused "a folder and a file inside of it" "texts/a.txt is in the folder texts already" --data texts \
  --data ./texts/a.txt
refused "a file and its folder" "texts: its texts/a.txt is named already" --data texts/a.txt --data texts
refused "a file by a link and its folder" "is the same file as alias/a.txt" --data alias/a.txt --data texts
refused "a folder twice" "is the same file as texts/a.txt" --data texts --data alias

# --- token files -----------------------------------------------------------------------------
python3 - <<'PYTHON'
import random, struct
random.seed(3)
def tokens(count):
    return struct.pack(f"<{count}H", *(random.randrange(256) for _ in range(count)))
open("llm_c.bin", "wb").write(struct.pack("<3i1012x", 20240520, 1, 3000) + tokens(3000))
for name in ("shard_1.bin", "shard_2.bin"):
    open(name, "wb").write(tokens(1000))
open("for_validation.bin", "wb").write(tokens(400))
open("few.bin", "wb").write(tokens(30))
open("other.bin", "wb").write(struct.pack("<2000H", *[300] * 1700, *[30] * 300))
open("other_behind.bin", "wb").write(struct.pack("<2000H", *[30] * 1805, 300, *[30] * 194))
open("lines.jsonl", "w").write('{"text": "a line, as texts are"}\n' * 100)
PYTHON
one_step=(--seq-len 32 --batch 1 --steps 1 --warmup 0 --precision bf16 --threads 1
  --validation-batches 1)
run "a mixture of token files" 0 "${one_step[@]}" --data llm_c.bin:0.75 --data 'shard_*.bin:0.25' \
  --validation-data for_validation.bin --out mixture
for line in "read 4 files, 11824 bytes" "  shard_2.bin | 2000 bytes | nanoGPT (no header), 2 bytes per token" \
  "  share of weight 0.25 | 2000 tokens of shard_*.bin" "5000 tokens to train on, 400 for validation"; do
  grep -qxF "text | $line" out || fail "no line: text | $line"
done
metrics mixture/metrics.jsonl '
head, end = lines[0], of("summary")[0]
assert (head["training_tokens"], head["validation_tokens"], head["files"]) == (5000, 400, 4), head
assert end["sample"] == "", "tokens that are no bytes were written as text"'
run "what a mixture was" 0 --config mixture/config.toml --out mixture_again
metrics mixture_again/metrics.jsonl '
assert (lines[0]["training_tokens"], lines[0]["validation_tokens"]) == (5000, 400), lines[0]'
run "JSON Lines, with documents" 0 "${tiny[@]:2}" --data lines.jsonl --document-end 0 \
  --most-documents 4 --no-out
grep -qxF "text | 1890 tokens to train on, 209 for validation" out || fail "not the texts of the lines"
refused "a pattern without files" "absent_*.bin: the pattern matches no file" --data 'absent_*.bin'
refused "training data for validation" "llm_c.bin is named already" --data llm_c.bin \
  --validation-data llm_c.bin
refused "text and tokens" "text and token files cannot be mixed" --data llm_c.bin text.txt
refused "a weight and none" "has one; add or remove weights" --data llm_c.bin:0.5 shard_1.bin
refused "a share without a batch" "shard_1.bin has 900 tokens, but a batch of 128" --batch 16 \
  --micro-batches 8 --seq-len 32 --data llm_c.bin:0.5 --data shard_1.bin:0.5
refused "a file under one batch" "few.bin: must have at least 33 tokens for a batch, but has 30" --seq-len 32 \
  --batch 1 --data llm_c.bin few.bin
refused "a document's end without documents" "--most-documents must be set together" --data text.txt \
  --document-end 10
for end in "256 text.txt" "256 llm_c.bin"; do
  refused "documents of $end" "--document-end must be a token of the text, from 0 to 255, but is 256" \
    --data "${end#* }" --document-end "${end% *}" --most-documents 64 --batch 2 --seq-len 32
done
for most in 1 65; do
  refused "$most documents" "--most-documents must be from 2 to 64 with --batch 2 --seq-len 32, but is $most" \
    --data text.txt --document-end 32 --most-documents "$most" --batch 2 --seq-len 32
done
said=" documents, including those that begin with a sequence; pass --most-documents "
tr ' ' _ <text.txt >rare.txt
refused "more documents than are said, of an evaluation" "$said" "${one_step[@]}" --data text.txt \
  --document-end 32 --most-documents 2
run "more documents than are said" 1 "${one_step[@]}" --data text.txt --validation-data rare.txt \
  --document-end 32 --most-documents 2 --no-out
err_is_one_line_with "$said"
grep -qF most_documents err && fail "it names no flag"
case="a token outside of the vocabulary"
run "$case" 1 "${one_step[@]}" --data other.bin --no-out
err_is_one_line_with "other.bin: the token at byte"
err_is_one_line_with "is 300, outside the vocabulary of 256"
refused "one in what validation is on" "other_behind.bin: the token at byte 3610 is 300, outside the vocabulary of 256" \
  "${one_step[@]}" --data other_behind.bin
run "a start that takes no step" 1 "${one_step[@]}" --data other.bin --out no_step
run "the folder that it leaves" 2 "${one_step[@]}" --data llm_c.bin --out no_step
err_is_one_line_with "no_step/metrics.jsonl exists already, from a run that took no step; if that run has ended, remove the file and no_step/config.toml, or choose another --out"
rm no_step/config.toml
run "what is left of that run" 2 "${one_step[@]}" --data llm_c.bin --out no_step
err_is_one_line_with "if that run has ended, remove the file, or choose another --out"
rm no_step/metrics.jsonl
run "the folder without what it named" 0 "${one_step[@]}" --data llm_c.bin --out no_step

case="text for weights that have a tokenizer"
run "a model of bytes" 0 "${tiny[@]}" --save-hf with_tokenizer --no-out
run "its bytes" 0 "${tiny[@]}" --model hf:with_tokenizer --no-out
touch with_tokenizer/tokenizer.json
refused "text for weights that have a tokenizer" \
  "write token files with prepare_data --tokenizer with_tokenizer/tokenizer.json, and pass those" \
  "${tiny[@]}" --model hf:with_tokenizer
run "tokens for them" 0 "${one_step[@]}" --data llm_c.bin --model hf:with_tokenizer --no-out
grep -q "bytes are the tokens" out && fail "token files are said to be bytes"

# --- on a terminal ---------------------------------------------------------------------------
case="the progress line"
python3 - "$program" >out 2>err <<'PYTHON' || fail "the progress line is not as it should be"
import os, pty, re, subprocess, sys
master, slave = pty.openpty()
run = subprocess.Popen([sys.argv[1], "--data", "text.txt", "--batch", "1", "--seq-len", "32",
    "--steps", "8", "--sample", "0", "--validation-batches", "1", "--no-out", "--threads", "1"],
    stdout=subprocess.DEVNULL, stderr=slave)
os.close(slave)
text = b""
while True:
    try:
        piece = os.read(master, 65536)
    except OSError:
        break
    if not piece:
        break
    text += piece
assert run.wait() == 0
lines = re.findall(r"\[(=* *)\] (\d+)/8 \| loss \d\.\d{4} \| (\d+) s left", text.decode())
assert [int(step) for _, step, _ in lines] == list(range(1, 9)), text
assert all(bar == ("=" * (30 * int(step) // 8)).ljust(30) for bar, step, _ in lines), lines
assert int(lines[-1][2]) == 0, lines
PYTHON

run "micro-batches" 0 "${base[@]}" --steps 1 --sample 0 --batch 1 --micro-batches 2 --no-out
grep -qF "48 of 51 GEMMs in FP8" out || fail "GEMMs are not counted by the micro-batch"
run "version" 0 --version
grep -qE '^octavo [0-9]+\.[0-9]+\.[0-9]+$' out || fail "no version"
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
refused "no data, and a checkpoint" "or pass --config RUN/config.toml with all flags of the run" --resume run-fp32
refused "a name that is empty" "the name of a text file or folder must not be empty" --data ""
refused "missing text" "absent.txt" --data absent.txt
refused "empty text" "empty.txt" --data empty.txt
refused "too short text" "short.txt: 6 bytes are too few for --batch 8 --seq-len 128 and validation; pass more text" \
  --data short.txt
head -c 600 text.txt >few.txt
refused "text for fewer micro-batches" \
  "--batch 1 --seq-len 128 --micro-batches 64 and validation; pass more text, or --batch 1 --seq-len 128 --micro-batches 1" \
  --data few.txt --batch 1 --micro-batches 64
refused "text for a shorter sequence" "few.txt: 600 bytes are too few for --batch 8 --seq-len 128 and validation; pass more text, or --batch 8 --seq-len 32" \
  --data few.txt
run "the shape that is named" 0 --data few.txt --batch 8 --seq-len 32 --steps 1 --sample 0 --no-out
grep -qE "^1 step in .* tok/s \| train loss" out || fail "a rate after the first of one step"
case="text beyond the machine's memory"
truncate -s 8G large.txt
(ulimit -v 6000000 && exec "$program" --data large.txt --threads 1 --out refused) >out 2>err
[ $? -eq 2 ] || fail "the exit code is not 2"
err_is_one_line_with "this machine does not have enough memory for the text and its batches; use less text"
[ ! -e refused ] || fail "a folder was made"
rm large.txt
refused "text for a smaller batch" "or --batch 1 --seq-len 64" --data few.txt --batch 30 \
  --micro-batches 2 --seq-len 64
# A window of validation is more than its share.
refused "text for all but validation" "600 bytes are too few for --batch 3 --seq-len 128 and validation" \
  --data few.txt --batch 3
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
for flag in batch seq-len steps micro-batches max-skipped operands-every log-every \
  validation-batches; do
  for value in 0 -1 nan 1.5 many ""; do
    refused "--$flag '$value'" "$flag" --data text.txt "--$flag=$value"
  done
done
for value in 0 -0.001 nan NaN inf -inf fast; do
  refused "--learning-rate $value" "learning-rate" --data text.txt "--learning-rate=$value"
done
for flag in weight-decay max-gradient-norm temperature; do
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
  refused "--validation-fraction $value" "--validation-fraction: '$value' is not a number above 0 and below 1" \
    --data text.txt "--validation-fraction=$value"
done
refused "--epsilon 0" "epsilon" --data text.txt --epsilon 0
refused "--muon-momentum with AdamW" "also pass --optimizer muon" --data text.txt --muon-momentum 0.9
refused "Muon with 8-bit moments" "pass --moments bf16" --data text.txt --optimizer muon --moments 8bit
refused "Muon with adapters" "pass --optimizer adamw" --data text.txt --optimizer muon --lora 4
refused "--muon-iterations 0" "muon-iterations" --data text.txt --optimizer muon --muon-iterations 0
refused "--seed -1" "seed" --data text.txt --seed=-1

# What fails once the run has begun is an error of the run, not of what it was given.
case="a file of the run that cannot be written"
mkdir -p begun $'\033[31mbegun'
ln -s absent/file begun/metrics.jsonl
ln -s absent/file $'\033[31mbegun/metrics.jsonl'
code=0
timeout 30 "$program" --data text.txt --steps 1 --out begun >out 2>err || code=$?
[ "$code" -eq 1 ] || fail "exit code $code, expected 1"
err_is_one_line_with "begun/metrics.jsonl: cannot be written: it is a link to absent/file, which does not exist"
case="control characters in a message"
timeout 30 "$program" --data text.txt --steps 1 --out $'\033[31mbegun' >out 2>err
[ $? -eq 1 ] || fail "the exit code is not 1"
err_is_one_line_with '\x1B[31mbegun/metrics.jsonl'
refused "control characters in a word" 'unexpected word '"'"'\x1B[31mred' --data text.txt -- $'\033[31mred'
refused "--threads -1" "threads" --data text.txt --threads=-1
refused "a batch beyond any text" "too few for --batch 2000000000 --seq-len 32" --data text.txt --batch 2000000000 --seq-len 32
refused "a power of ten" "--steps: '1e3' is not in plain digits; use 1000" --data text.txt --steps 1e3
refused "a number of base 16" "--steps: '0x10' is not in plain digits; use 16" --data text.txt --steps 0x10
refused "a rate beyond FP32" "'1e39' is outside the range of FP32, which ends at 3.4e38" --data text.txt \
  --learning-rate 1e39
refused "a rate without end" "'inf' is outside the range of FP32" --data text.txt --learning-rate inf
refused "a stage of ZeRO that there is not" "--zero: '4' is not a whole number from 1 to 3" --data text.txt --zero 4
refused "weights that travel in capitals" "--gather: 'FP8' is none of stored, fp8; did you mean 'fp8'?" --data text.txt --gather FP8
refused "gradients that travel in capitals" "--reduce: 'E4M3' is none of stored, fp32, e4m3; did you mean 'e4m3'?" \
  --data text.txt --reduce E4M3
refused "a way in capitals" "--exchange: 'NCCL' is none of copies, nccl; did you mean 'nccl'?" --data text.txt --exchange NCCL
refused "letters that are exchanged" "did you mean 'steps'?" --data text.txt --stpes 5
refused "one dash" "'-steps' has one dash; use --steps" --data text.txt -steps 5
refused "one dash, with a value" "'-steps' has one dash; use --steps" --data text.txt -steps=5
refused "a value for a flag without one" "--deterministic accepts no value; pass it alone, or leave it out" \
  --data text.txt --deterministic=maybe
refused "a number that may be octal" "use 10" --data text.txt --steps 010
refused "a number beyond any type" "steps" --data text.txt --steps 99999999999999999999999
refused "evaluate-every -1" "evaluate-every" --data text.txt --evaluate-every=-1
refused "a preset that is not compiled in" ';llama3_70b" && cmake --build BUILD_FOLDER' --data text.txt \
  --model llama3_70b
err_is_one_line_with 'build again: cmake BUILD_FOLDER -DOCTAVO_PRESETS="llama_tiny;'
refused "a preset that is misspelt" "did you mean 'llama3_8b'" --data text.txt --model llama3_8
mkdir -p shape full
cp "$here/../golden/hugging_face/llama.5.json" shape/config.json
touch full/file
refused "a folder of another shape" "-DOCTAVO_MODELS=my_model:$PWD/shape -DOCTAVO_PRESETS= -DOCTAVO_PRECISIONS=fp8-delayed && cmake --build" \
  --data text.txt --model hf:shape
sed -e 's/llama"/phi3"/' shape/config.json >full/config.json
refused "a folder of another family" "model_type is phi3" --data text.txt --model hf:full
refused "a folder that there is not" "--model hf:none: there is no such folder; pass hf: and the folder" --data text.txt --model hf:none
refused "a folder that is not empty" "--save-hf: full: already exists" "${small[@]}" --save-hf full
printf 'save-hf = "full"\n' >full.toml
refused "one that a file names" 'full.toml:1: --save-hf: full: already exists; name a new or an empty folder; --save-hf "" on the command line' \
  "${small[@]}" --config full.toml
run "none in its place" 0 "${small[@]}" --config full.toml --save-hf "" --no-out
refused "a timeline where nothing can be written" "/proc/trace.json: cannot be written: " "${small[@]}" \
  --timeline /proc/trace.json
refused "a flag twice" "--steps is set 2 times; set it once" --data text.txt --steps 2 --steps 30
for flag in ckpt zzz; do
  refused "unknown flag --$flag" "unknown option '$flag'; see --help" --data text.txt "--$flag" 1
done
while read -r flag answer <&3; do
  refused "another trainer's flag --$flag" "unknown option '$flag'; use $answer. See --help" --data text.txt "--$flag" 1
done 3<<'FLAGS'
lr 'learning-rate' instead
min-lr 'final-fraction' instead, a fraction of 'learning-rate'
max-steps 'steps' instead
train_iters 'steps' instead
gradient-accumulation-steps 'micro-batches' instead
micro-batch-size 'batch' instead
global-batch-size 'micro-batches' instead; a step has batch * micro-batches * ranks sequences
seq-length 'seq-len' instead
tensor-model-parallel-size 'tensor-parallel' instead
fp8-format 'precision' instead, such as fp8-delayed
bf16 'precision' instead, such as fp8-delayed
dtype 'precision' instead, such as fp8-delayed
clip-grad 'max-gradient-norm' instead
lr-warmup-iters 'warmup' instead, in steps
warmup_ratio 'warmup' instead, in steps
save-interval 'checkpoint-every' instead
load 'resume' instead
FLAGS
for flag in threads data config model steps; do
  case="--$flag without a value"
  "$program" --data text.txt "--$flag" >out 2>err
  code=$?
  [ "$code" -eq 2 ] || fail "exit code $code, expected 2"
  err_is_one_line_with "--$flag needs a value"
done
refused "unknown flag without data" "did you mean 'data'" --dat text.txt
refused "unknown preset" "llama_tiny" --data text.txt --model llama_huge
refused "unknown precision" "fp8-tensorwise, fp8-rowwise, fp8-blockwise" --data text.txt --precision fp4
refused "unknown device" "cpu" --data text.txt --device tpu
refused "unknown schedule" "--schedule: 'step' is none of cosine, linear, constant, wsd" \
  --data text.txt --schedule step
refused "a misspelt policy" "--recompute: 'bock' is none of none, norms, swiglu, ffn, block; did you mean 'block'?" \
  --data text.txt --recompute bock
refused "a word in capitals" "--moments: 'BF16' is none of auto, fp32, bf16, 8bit; did you mean 'bf16'?" \
  --data text.txt --moments BF16
refused "copies that are misspelt" "did you mean 'remade'?" --data text.txt --weight-copies Remad
refused "masters that are misspelt" "--master-weights: 'fp16' is none of" --data text.txt \
  --master-weights fp16
refused "a precision that is cut off" "; did you mean 'fp8-delayed'?" --data text.txt --precision fp8
if ! "$program" --help | grep -A1 -e --device | grep -q cuda; then
  refused "a device that is not compiled in" \
    "--device: 'cuda' is not compiled in, only: cpu; build again: cmake BUILD_FOLDER -DOCTAVO_CUDA=ON -DOCTAVO_CUDA_PRESETS=llama_tiny -DOCTAVO_CUDA_PRECISIONS=fp8-delayed && cmake" \
    --data text.txt --precision fp8-delayed --device cuda
fi
refused "a device that there is not, and threads" "--device: 'gpu' is none of" --data text.txt \
  --threads 1 --device gpu
for device in gpu GPU gpu:0 cude CUDA; do
  refused "--device $device" "did you mean 'cuda'?" --data text.txt --device "$device"
done
refused "unknown flag" "did you mean 'learning-rate'" --data text.txt --learning-rat 1e-3
refused "--gpu on the cpu" \
  "--gpu is for the cuda device, but --device is 'cpu'; pass --device cuda, or leave --gpu out" \
  --data text.txt --gpu 0
refused "--gemm-plans on the cpu" "--gemm-plans is for the cuda device" --data text.txt \
  --gemm-plans plans
refused "--threads on a GPU" "--threads is for the cpu device" --data text.txt --device cuda --threads 1
printf 'data = ["text.txt"]\ngpu = 1\n' >bad.toml
refused "a GPU in the configuration" "bad.toml:2: --gpu is for the cuda device" --config bad.toml
refused "a GPU in both" "train_llama: --gpu is for the cuda device" --config bad.toml --gpu 2
refused "a configuration for the other device" "the cpu device, but --device is 'cuda'" \
  --config own.toml --device cuda
refused "unknown flag with a value" "did you mean 'steps'" --data text.txt --step=5
refused "a word too many" "extra" --data text.txt --steps 1 -- extra
# toml_refused NAME TEXT LINES: the first of the lines is the file's second
toml_refused() {
  printf 'data = ["text.txt"]\n%s\n' "$3" >bad.toml
  refused "$1" "bad.toml:2: $2" --config bad.toml
}
toml_refused "a key with dashes" "write the key without dashes: steps" '--steps = 3'
toml_refused "unknown key" "unknown option 'warm-up'; did you mean 'warmup'" 'warm-up = 3'
toml_refused "another trainer's key" "unknown option 'max_grad_norm'; use 'max-gradient-norm' instead" 'max_grad_norm = 1'
toml_refused "a key of no file" "unknown option 'help'" 'help = true'
toml_refused "unknown dotted key" "the file must not contain sections, but contains [training]" 'training.steps = 3'
toml_refused "a section in the configuration" "the file must not contain sections, but contains [training]" '[training]
steps = 3'
toml_refused "batch 0 in the configuration" "batch: '0' is not a whole number from 1" 'batch = 0'
toml_refused "half a step" "steps: '1.5' is not a whole number" 'steps = 1.5'
toml_refused "NaN in the configuration" "learning-rate" 'learning-rate = nan'
toml_refused "a number in quotes" "steps is a text; write a whole number without quotes" \
  'steps = "3"'
toml_refused "a text without quotes" 'model: words must be quoted; write model = "llama_tiny"' 'model = llama_tiny'
for text in 'model = "llama_tiny' "model = 'llama_tiny" 'validation-data = ["text.txt]'; do
  toml_refused "a quote that is missing: $text" "Error while parsing " "$text"
  err_is_one_line_with "; is a quote missing at the line's end?"
done
toml_refused "an escape that there is not" "Error while parsing string: " 'model = "llama\q"'
err_is_one_line_with "; a configuration is TOML"
toml_refused "a number for a text" "out is a number; write a text in quotes" 'out = 3'
toml_refused "a date" "out is a date or a time; write a text in quotes" 'out = 2026-11-22'
toml_refused "a number for a flag" "deterministic is a number; write true or false" \
  'deterministic = 1'
toml_refused "an array for a number" "batch is an array; write one value" 'batch = [1, 2]'
toml_refused "an unknown word" "schedule: 'step' is none of cosine" 'schedule = "step"'
toml_refused "no TOML" "Error while parsing" 'steps = = 3'
printf 'data = ["text.txt"]\nsteps = 3\nsteps = 3\n' >bad.toml
refused "a key twice" "bad.toml:3: " --config bad.toml
for line in 'model = "llama_huge"' 'precision = "fp4"' 'device = "tpu"'; do
  toml_refused "$line" "${line%% *}: '" "$line"
  refused "$line" "is none of" --config bad.toml
done
refused "the command line over a wrong word" "train_llama: --device: 'gpu' is none of" --config bad.toml \
  --device gpu
printf 'data = []\n' >bad.toml
refused "no text in the configuration" "bad.toml:1: data is an empty array; add at least one value" \
  --config bad.toml
cat >full.toml <<'TOML'
# Everything that TOML has for these values.
data = [
  "text.txt",  # with a comment
  'texts/a.txt',
]
steps = 1_0
batch = 0x2
learning-rate = 1_0e-4
weight-decay = 0
warmup = +3
seq-len = 3.2e1
precision = '''bf16'''
out = "full \u0041 \"quoted\""
sample = 0
TOML
run "all of TOML" 0 --config full.toml --steps 2
metrics 'full A "quoted"/metrics.jsonl' '
head = lines[0]
assert (head["steps"], head["batch"], head["sequence_length"]) == (2, 2, 32), head
assert head["precision"] == "bf16" and head["files"] == 2, head
assert abs(of("step")[0]["learning_rate"] - 1e-3 / 3) < 1e-12
'
run "a configuration with such a name" 0 --config 'full A "quoted"/config.toml' --out quoted
metrics quoted/metrics.jsonl 'assert lines[0]["steps"] == 2'
run "a name with a backslash" 0 "${tiny[@]}" --out 'back\new'
rm 'back\new/metrics.jsonl'
mv 'back\new/config.toml' back.toml
run "the configuration with such a name" 0 --config back.toml
[ -s 'back\new/metrics.jsonl' ] || fail "the name is another"
refused "missing configuration" "--config: 'absent.toml' does not exist; pass a TOML file" \
  --config absent.toml
refused "a folder as the configuration" "--config: '.' is a folder; pass a TOML file" --config .
case="a folder that cannot be made"
: >file
run "a folder that cannot be made" 2 "${small[@]}" --out file/run
err_is_one_line_with "file/run"
if [ "$(id -u)" -ne 0 ]; then
  another=(env)
elif command -v setpriv >/dev/null && cp "$program" ./train_llama && chmod 755 . ./train_llama; then
  # Root may write everywhere; another user may not.
  another=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  program_of_another=./train_llama
else
  echo "skipped: folders that cannot be written (root may write everywhere)"
fi
if [ -v another ]; then
  mkdir -p closed
  chmod 555 closed
  for folder in closed closed/run; do
    case="--out $folder, where nothing can be written"
    "${another[@]}" "${program_of_another:-$program}" "${small[@]}" --out "$folder" >out 2>err
    code=$?
    [ "$code" -eq 2 ] || fail "exit code $code, expected 2"
    err_is_one_line_with ": Permission denied; choose another --out, or pass --no-out"
  done
fi

if [ -v another ]; then
  # The lock of another user serves, even where it can only be read.
  mkdir foreign
  chmod 777 foreign
  touch foreign/.lock
  chmod 444 foreign/.lock
  case="a folder whose lock is another user's"
  flock foreign/.lock "${another[@]}" "${program_of_another:-$program}" "${small[@]}" --out foreign >out 2>err
  [ $? -eq 2 ] || fail "the exit code is not 2"
  err_is_one_line_with "foreign: another run is writing there"
  chmod 0 foreign/.lock
  case="a folder whose lock cannot be opened"
  "${another[@]}" "${program_of_another:-$program}" "${small[@]}" --out foreign >out 2>err
  [ $? -eq 2 ] || fail "the exit code is not 2"
  err_is_one_line_with "foreign/.lock: cannot be written: Permission denied"
fi

# --- runs that end early ---------------------------------------------------------------------
run "a run that is not finite" 3 "${base[@]}" --batch 2 --sample 0 --steps 50 --learning-rate 1e30 --warmup 0 \
  --max-skipped 3 --out nan
err_is_one_line_with "3 consecutive steps were not finite"
grep -qE "an Inf or NaN in blocks\.[0-9]+\.[a-z_.]+ and [0-9]+ more operands; see .* in nan/metrics.jsonl" err ||
  fail "it does not say where to look"
grep -q "SKIPPED" out || fail "no step line says that it was skipped"
metrics nan/metrics.jsonl '
steps, last = of("step"), lines[-1]
assert last["event"] == "summary" and last["skipped"] >= 3 and last["steps"] < 50
assert last["end"] == "not finite"
assert [s["skipped"] for s in steps][-3:] == [True] * 3
assert not any([s["skipped"] for s in steps][:1])
assert sum(s["skipped"] for s in steps) == last["skipped"]
for step in steps:
    if step["skipped"]:
        met = [o for o in step["operands"] if o["nonfinite"] > 0]
        assert met and all(o["amax"] is None for o in met if o["name"].endswith("input")), met[:3]
'
run "the same without files" 3 "${base[@]}" --batch 2 --steps 50 --learning-rate 1e30 --warmup 0 \
  --max-skipped 3 --no-out
err_is_one_line_with "more operands. Lower --learning-rate or raise --warmup"
[ -n "$(tail -n 1 out)" ] && [[ $(tail -n 1 out) == *" skipped | peak "* ]] ||
  fail "a sample of a model that was given up"
run "a run that diverges" 0 "${base[@]}" --batch 2 --sample 0 --steps 6 --learning-rate 10 --warmup 0 \
  --precision bf16 --no-out
err_is_one_line_with "warning: the loss is"
grep -qF "lower --learning-rate" err || fail "it does not say what to do"
python3 - <<'PYTHON' || fail "it does not say how far"
import re
losses = [float(loss) for loss in re.findall(r"^step .* \| loss ([0-9.]+) ", open("out").read(), re.M)]
now, step, first = re.search(r"loss is (\S+) at step (\d+), (\S+) at first", open("err").read()).groups()
assert abs(float(first) - losses[0]) < 1e-2 and losses[int(step) - 1] > 2 * losses[0]
assert abs(float(now) / losses[int(step) - 1] - 1) < 1e-2, (now, step, losses)
PYTHON

run "operands in trouble" 0 --data text.txt --seq-len 32 --batch 2 --threads 2 --validation-batches 1 \
  --evaluate-every 0 --operands-every 1 --steps 8 --warmup 0 --learning-rate 1 --sample 0 --out troubled
metrics troubled/metrics.jsonl '
import re
from tensorboard_files import shown
warnings = of("warning")
texts = [(line["step"], line["text"]) for line in warnings]
told = re.findall(r"^train_llama: warning: at step (\d+), (.*)\. If the loss suffers", open("err").read(), re.M)
assert texts and texts == [(int(step), text) for step, text in told], (texts, told)
assert shown("troubled")[1]["warnings"] == texts, texts
names = {operand["name"] for operand in of("step")[0]["operands"]}
for line in warnings:
    assert line["kind"] in ("saturated", "flushed", "drifting") and set(line["operands"]) <= names, line
    assert line["text"].startswith(line["operands"][0] + ": "), line
assert any(len(line["operands"]) > 1 for line in warnings), warnings
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
    "--out", folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
seen = []
for line in run.stdout:
    seen.append(line)
    if line.startswith("step 3 "):
        # Schedulers and terminals may send it more than once.
        for _ in range(3):
            run.send_signal(number)
            time.sleep(0.001)
        break
seen += run.stdout.readlines()
code = run.wait(timeout=60)
assert code == 128 + number, code
assert run.stderr.read() == ("train_llama: stopping after this step; another signal, a second later, "
    "ends it at once\n")
lines = [json.loads(line) for line in open(folder + "/metrics.jsonl")]
steps = [line for line in lines if line["event"] == "step"]
assert lines[-1]["event"] == "summary" and lines[-1]["steps"] == len(steps)
assert lines[-1]["end"] == f"signal {number}", lines[-1]
assert ["operands" in step for step in steps] == [True] + [False] * (len(steps) - 2) + [True]
assert 3 <= len(steps) < 1000, len(steps)
assert any(f"{len(steps)} steps in " in line for line in seen), seen[-3:]
PYTHON
done

# stopped_after STEP FLAG...: sends SIGTERM once that step is printed; what follows it takes longer
# than the signal. Prints the exit code, the last step that was printed, and the summary.
stopped_after() {
  python3 - "$program" "$@" <<'PYTHON' 2>err
import json, re, signal, subprocess, sys
program, step, *flags = sys.argv[1:]
run = subprocess.Popen([program, "--data", "text.txt", "--batch", "4", "--precision", "bf16",
    "--validation-batches", "1", "--threads", "1", "--out", "stopped_after", *flags],
    stdout=subprocess.PIPE, text=True)
printed = 0
for line in run.stdout:
    if match := re.match(r"step (\d+) ", line):
        printed = int(match[1])
    if line.startswith(f"step {step} "):
        run.send_signal(signal.SIGTERM)
code = run.wait(timeout=60)
end = json.loads(open("stopped_after/metrics.jsonl").read().splitlines()[-1])
print(code, printed == end["steps"], end["steps"] < 100, end["end"])
PYTHON
  rm -rf stopped_after
}
case="the last step of an interrupted run is printed"
stopped_after 1 --sample 0 --steps 1000 --log-every 500 >out
[ "$(cat out)" = "143 True True signal 15" ] || fail "$(cat out)"
grep -qF "resume with" err && fail "it tells of a checkpoint, and there is none"
# --- going on from a checkpoint --------------------------------------------------------------
# stopped_by SIGNAL FLAG...: sends the signal once step 4 is printed, KILL once a checkpoint is told of;
# prints the exit code, which is negative where the system has ended the run, and the signal's number
stopped_by() {
  python3 - "$program" "$@" <<'PYTHON' 2>err
import signal, subprocess, sys
program, name, *flags = sys.argv[1:]
run = subprocess.Popen([program, *flags], stdout=subprocess.PIPE, text=True)
for line in run.stdout:
    if line.startswith("checkpoint | " if name == "KILL" else "step 4 "):
        run.send_signal(getattr(signal, "SIG" + name))
print(run.wait(timeout=60), int(getattr(signal, "SIG" + name)))
PYTHON
}
shorter=(--data text.txt --seq-len 32 --batch 2 --validation-batches 2 --evaluate-every 0
  --operands-every 2 --threads 2 --warmup 1 --sample 0)
saved=("${shorter[@]}" --steps 30 --checkpoint-every 3)
run "a run that is saved" 0 "${saved[@]}" --out whole
grep -qE '^checkpoint \| step 3 \| [0-9.]+ MiB \| ' out || fail "the checkpoint is not told of"
case="a run that goes on as it says"
stopped_by TERM "${saved[@]}" --out "my run" --save-hf "my weights" >out
[ ! -e "my weights" ] || fail "weights are written that the run would write when it goes on"
eval "words=($(sed -nE 's/.*; resume with (.*)$/\1/p' err))"
run "what it says to give" 0 "${words[@]}"
[ -e "my weights/model.safetensors" ] || fail "it has not come to its end"
for signal in USR1 TERM HUP KILL; do
  case="a run that SIG$signal stops, and that goes on"
  rm -rf cut
  read -r code number <<<"$(stopped_by "$signal" "${saved[@]}" --out cut)"
  expected=$((128 + number))
  [ "$signal" = KILL ] && expected=$((-number))
  [ "$code" = "$expected" ] || fail "exit code $code, expected $expected"
  [ "$signal" = KILL ] ||
    grep -qxF "train_llama: stopped and saved; resume with --config cut/config.toml --resume cut" err ||
    fail "it does not say how to go on"
  run "going on after SIG$signal" 0 "${saved[@]}" --out cut --resume auto
  grep -qE '^resumed \| after step [0-9]+, from cut/checkpoints/step-[0-9]{8}$' out ||
    fail "it does not say that it goes on"
  grep -qF "may differ" out && fail "it is told of other libraries, and they are the same"
  metrics cut/metrics.jsonl '
whole = [json.loads(line) for line in open("whole/metrics.jsonl")]
names = ("loss", "gradient_norm", "learning_rate", "epoch", "skipped")
steps = lambda all: {line["step"]: [line[name] for name in names] for line in all
                     if line["event"] == "step"}
assert steps(lines) == steps(whole), (steps(lines), steps(whole))
resumed = of("resumed")[0]["step"]
assert 3 <= resumed < 30, resumed
assert [line["event"] for line in lines].index("resumed") >= 4
for name in ("end", "steps", "train_loss", "validation_loss", "skipped"):
    assert lines[-1][name] == whole[-1][name], name
from tensorboard_files import shown
assert shown("cut")[0]["train/loss"] == shown("whole")[0]["train/loss"]
'
done
case="TensorBoard itself shows a run that was killed and went on"
if python3 -c 'import tensorboard' 2>/dev/null; then
  python3 - <<'PYTHON' 2>>err || fail "it does not"
import json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("cut")
events.Reload()
steps = {line["step"]: line["loss"] for line in map(json.loads, open("cut/metrics.jsonl"))
         if line["event"] == "step"}
shown = events.Scalars("train/loss")
assert [event.step for event in shown] == sorted(steps), shown
assert all(abs(event.value / steps[event.step] - 1) < 1e-6 for event in shown), shown
assert {"config", "run"} <= set(events.Tags()["tensors"]), events.Tags()
PYTHON
else
  echo "skipped: $case (its Python package is not installed)"
fi
cp -r whole damaged
python3 - <<'PYTHON'
import glob
name = sorted(glob.glob("damaged/checkpoints/*"))[-1] + "/rank-00000.safetensors"
data = bytearray(open(name, "rb").read())
data[len(data) // 2] ^= 4
open(name, "wb").write(data)
PYTHON
run "a flipped bit" 2 "${saved[@]}" --out damaged --resume latest
err_is_one_line_with "damaged/checkpoints/step-00000030/rank-00000.safetensors: has "
# manifest_has FOLDER TEXT: the manifest of the run's newest checkpoint has these members, too
manifest_has() {
  change_manifest "$1" "" ",$2"
}
cp -r whole planned
manifest_has planned '"gemm_plans":"# octavo gemm plans 2\nsome"'
run "GEMM plans of a checkpoint that are none" 2 "${saved[@]}" --out planned --resume latest
err_is_one_line_with "planned/checkpoints/step-00000030/manifest.json:2: the checksum at its end is missing"
cp -r whole of_gpu
manifest_has of_gpu '"libraries":"a GPU, cuDNN 9.19.0"'
run "a checkpoint of other libraries" 0 "${saved[@]}" --out of_gpu --resume latest
grep -qxF "resumed | the checkpoint was saved with a GPU, cuDNN 9.19.0; this machine has no GPU: steps may \
differ from those of the run that saved it" out || fail "it is not said"
run "a checkpoint of other libraries, converted" 0 "${shorter[@]}" --steps 31 --precision bf16 --convert \
  --resume of_gpu/checkpoints/step-00000030 --out of_gpu_converted
grep -q "^CONVERTED | to bf16" out || fail "it is not said what it becomes"
grep -qF "steps may differ" out && fail "it is said that steps may differ, which are of another precision"
cp -r whole unrecorded
sed -i '/^{"event":"step","step":\(29\|30\),/d' unrecorded/metrics.jsonl
run "steps whose records are lost" 0 "${shorter[@]}" --steps 31 --checkpoint-every 3 --out unrecorded --resume latest
err_is_one_line_with "warning: unrecorded/metrics.jsonl does not record steps 29 to 30, which the run took"
cp -r whole of_before
sed -i 's/"octavo":"[^"]*"/"octavo":"0.0.9"/; s/"run_length":32,//' of_before/checkpoints/step-00000030/manifest.json
manifest_has of_before '"written":"before"'
run "a checkpoint of another version" 0 "${saved[@]}" --out of_before --resume latest
grep -qxF "resumed | the checkpoint was saved by Octavo 0.0.9, and this is $("$program" --version | cut -d' ' -f2), and it \
does not record the padded length of its sequences: steps may differ from those of the run that saved it" out ||
  fail "it is not said"
run "nothing to go on from" 2 "${saved[@]}" --out absent --resume latest
err_is_one_line_with "--resume latest: there is no folder absent in $PWD; pass --resume auto to start a new run"
[ -e absent ] && fail "a folder was made"
mkdir -p empty/checkpoints
# resume_refused NAME TEXT RESUME ARGUMENT...
resume_refused() {
  run "$1" 2 --resume "$3" "${@:4}"
  err_is_one_line_with "--resume $3: $2"
  [ -e absent ] && fail "a folder was made"
}
exporting=(--export-hf hf/absent)
for what in train export; do
  [ $what = train ] && task=("${saved[@]}") || task=("${exporting[@]}")
  resume_refused "$what: a folder that there is not" \
    "there is no such folder in $PWD; pass the folder of a run or a checkpoint" absent "${task[@]}"
  resume_refused "$what: one from the root on" "there is no such folder; pass" "$PWD/absent/run" "${task[@]}"
  resume_refused "$what: a misspelt word" "there is no such folder in $PWD; did you mean 'latest'?" lastest "${task[@]}"
  resume_refused "$what: a checkpoint that is gone" \
    "there is no such checkpoint; the folder contains step-00000027, step-00000030" whole/checkpoints/step-00000020 "${task[@]}"
  resume_refused "$what: a file" "text.txt is not a folder; pass the folder of a run" text.txt "${task[@]}"
  resume_refused "$what: a run without a checkpoint" "empty/checkpoints in $PWD has no complete checkpoint; pass" empty "${task[@]}"
  resume_refused "$what: its folder of checkpoints" "empty/checkpoints in $PWD has no complete checkpoint; pass" \
    empty/checkpoints "${task[@]}"
done
for word in latest auto; do
  resume_refused "$word, to export" "there is no folder absent in $PWD; pass the folder of a run" $word --out absent \
    "${exporting[@]}"
done
run "checkpoints of a folder that there is not" 2 --list-checkpoints --out absent
err_is_one_line_with "--out absent: there is no such folder in $PWD; pass the folder of a run"
run "checkpoints of a run without any" 0 --list-checkpoints --out empty
grep -qxF "empty/checkpoints contains no checkpoint" out || fail "it does not say so"
run "checkpoints of their folder" 0 --list-checkpoints --out whole/checkpoints
grep -q "step-00000030$" out || fail "they are not listed"
run "the folder of checkpoints, to export" 0 --resume whole/checkpoints --export-hf hf/of-checkpoints
grep -qF "weights of step 30 | " out || fail "not those of the newest"
cp -r whole named
run "the folder of checkpoints" 0 "${shorter[@]}" --steps 31 --resume named/checkpoints/
metrics named/metrics.jsonl 'assert of("resumed")[0]["step"] == 30 and of("step")[-1]["step"] == 31'
files_of() { find "$1" -type f -exec sha256sum {} + | sort; }
for out in named/checkpoints ./named/checkpoints/; do
  step=$(($(ls named/checkpoints | tail -n 1 | sed 's/step-0*//') + 1))
  run "the folder of checkpoints as --out, $out" 0 "${shorter[@]}" --steps $step --out $out --resume latest
  grep -qxF "run | saved as in its config.toml: --checkpoint-every 3" out || fail "it is not saved as it was"
  metrics named/metrics.jsonl "assert of('resumed')[-1]['step'] == $step - 1 and of('step')[-1]['step'] == $step"
  find named/checkpoints -name 'config.toml' -o -name metrics.jsonl | grep -q . && fail "there is a run in it"
done
files_of named >files
run "the folder of checkpoints as --out of a new run" 2 "${shorter[@]}" --steps 1 --out named/checkpoints
err_is_one_line_with "$PWD/named/metrics.jsonl exists already, and a run would overwrite it; resume it with --resume latest, "
run "a checkpoint as --out" 2 "${shorter[@]}" --steps 50 --out named/checkpoints/step-00000033 --resume latest
err_is_one_line_with "--out named/checkpoints/step-00000033 is a checkpoint; pass the folder of its run, $PWD/named"
cp -r named/checkpoints/step-00000033 best
run "a copy of a checkpoint as --out" 2 "${shorter[@]}" --steps 50 --out best --resume latest
err_is_one_line_with "--out best is a checkpoint; pass the folder of a run, or of a new one"
rm -r best
files_of named | cmp -s files - || fail "something was written"
mkdir -p bare && cp -r whole/checkpoints bare
run "a folder of checkpoints alone as --out" 0 "${shorter[@]}" --steps 31 --out bare/checkpoints --resume auto
[ -e bare/metrics.jsonl ] || fail "the run is kept elsewhere"
for time in 1 2; do
  run "a run that is called checkpoints, $time" 0 "${shorter[@]}" --steps "$time" --checkpoint-every 1 \
    --out called/checkpoints --resume auto
done
[ "$(ls called/checkpoints/checkpoints)" = $'step-00000001\nstep-00000002' ] || fail "it did not go on"
run "nothing to go on from, and a beginning" 0 "${shorter[@]}" --steps 1 --out fresh --resume auto
# A run that is killed before its first checkpoint leaves its files and a folder without any.
mkdir -p early/checkpoints && echo '{}' >early/metrics.jsonl && touch early/config.toml
run "a run that was ended before its first checkpoint" 0 "${shorter[@]}" --steps 1 --out early --resume auto
grep -qF 'resume | no checkpoint yet, the run starts again; its metrics.jsonl was renamed to early/metrics-' out || fail 'it is not said'
grep -q '"event":"run"' early/metrics.jsonl || fail "it has no metrics"
[ "$(cat early/metrics-*.jsonl)" = '{}' ] || fail "those before are lost"
# One that is killed in its first save leaves some of it, too.
rm -rf early
mkdir -p early/checkpoints/.step-00000003.tmp-1 && echo '{}' >early/metrics.jsonl
run "a run that was ended in its first save" 0 "${shorter[@]}" --steps 3 --checkpoint-every 3 --out early --resume auto
[ "$(cat early/metrics-*.jsonl)" = '{}' ] || fail "those before are lost"
[ "$(ls -A early/checkpoints)" = $'.lock\nstep-00000003' ] || fail "not one checkpoint"
# One that is killed before its metrics has a configuration alone.
rm -rf begun
mkdir -p begun/checkpoints && echo '# mine' >begun/config.toml
run "a run that was ended before its metrics" 0 "${shorter[@]}" --steps 1 --out begun --resume auto
[ "$(cat begun/config-*.toml)" = '# mine' ] || fail "the configuration is lost"
for damage in 'truncate -s 99 rank-00000.safetensors' 'rm manifest.json'; do
  rm -rf hurt
  cp -r early hurt
  (cd hurt/checkpoints/step-00000003 && $damage)
  run "a run whose checkpoint is damaged: $damage" 2 "${saved[@]}" --out hurt --resume auto
  grep -qF "hurt/checkpoints/step-00000003 is damaged, and there is no other checkpoint: " err ||
    fail "it is not said what is damaged"
  grep -qF "; restore its files, or remove it to start the run again" err || fail "nor what to do"
  cmp -s early/metrics.jsonl hurt/metrics.jsonl || fail "the run was touched"
done
run "a run that was done, again" 0 "${saved[@]}" --out whole --resume auto
grep -q '^step ' out && fail "a step was taken"
run "a named checkpoint, in a new folder" 0 "${shorter[@]}" --steps 28 --out branch \
  --resume whole/checkpoints/step-00000027
metrics branch/metrics.jsonl 'assert [s["step"] for s in of("step")] == [28], lines'
run "a named checkpoint that is not the newest" 2 "${saved[@]}" \
  --resume whole/checkpoints/step-00000027
err_is_one_line_with "is not the newest checkpoint of the run: step-00000030 is"
run "another recipe" 2 "${saved[@]}" --out whole --resume latest --precision bf16
err_is_one_line_with "its recipe is fp8 delayed, but that of this run is bf16"
err_is_one_line_with "; it fits with --precision fp8-delayed, or pass --convert to convert the checkpoint"
run "another optimizer" 2 "${saved[@]}" --out whole --resume latest --moments 8bit
err_is_one_line_with "; it fits with --optimizer adamw --master-weights fp32 --moments fp32, or pass --convert to convert the checkpoint"
run "another recipe, converted" 0 "${shorter[@]}" --steps 32 --checkpoint-every 3 --precision bf16 --moments 8bit \
  --resume whole/checkpoints/step-00000030 --out converted --convert
grep -q "^CONVERTED | to bf16, AdamW with fp32 master weights and 8-bit moments$" out ||
  fail "it is not said what it becomes"
metrics converted/metrics.jsonl '
told = of("resumed")[0]["converted"]
assert told["step"] == 30 and told["recipe"] == "fp8 delayed", told
assert any(change.endswith("first moments: made of fp32 first moments, rounded to 8-bit")
           for change in told["changes"]), told
assert [s["step"] for s in of("step")] == [31, 32]
assert of("step")[0]["loss"] < 1.5 * json.loads(open("whole/metrics.jsonl").readlines()[-1])["train_loss"]
manifest = json.load(open("converted/checkpoints/step-00000032/manifest.json"))
assert manifest["recipe"] == "bf16" and manifest["conversions"] == [told], manifest
'
run "--convert without --resume" 2 "${saved[@]}" --out few --convert
err_is_one_line_with "also pass --resume"
cp whole/config.toml whole.toml
# other_batches WHAT FLAG...: it is said what of the run is another
other_batches() {
  run "going on: $1" 2 --config whole.toml --resume latest "${@:2}"
  err_is_one_line_with "whole/checkpoints/step-00000030: the run that saved it had other batches: $1; use the same data"
}
other_batches "--seed is 2, the run had 1" --seed 2
other_batches "--seq-len is 16, the run had 32, and --seed is 2, the run had 1" --seed 2 --seq-len 16
other_batches "--document-end is 32, the run had none" --document-end 32 --most-documents 64
other_batches "--validation-fraction is 0.2, the run had 0.1" --validation-fraction 0.2
other_batches "--validation-data is texts/a.txt, the run had none" --validation-data texts/a.txt
sed -i 's/^data = .*/data = ["short.txt"]/' whole/config.toml
other_batches "--data is text.txt, the run had short.txt, and --seed is 2, the run had 1" --seed 2
cp whole.toml whole/config.toml
cp text.txt text_before
printf more >>text.txt
run "text that was changed" 2 "${saved[@]}" --out whole --resume latest
err_is_one_line_with ": the run that saved it had other batches, although its flags are the same: a file changed, or a path is relative to another folder; use the same data"
mv text_before text.txt
documented=("${shorter[@]}" --document-end 32 --checkpoint-every 2 --out documented)
run "a run of many documents" 0 "${documented[@]}" --steps 2 --most-documents 64
run "going on with fewer" 0 "${documented[@]}" --steps 3 --most-documents 40 --resume latest
[ -s err ] && fail "there is a warning"
# --- a batch with more documents than there is room for --------------------------------------
python3 - <<'PYTHON'
import random
random.seed(2)
words = [bytes(random.choices(b"abcdefgh", k=11)) for _ in range(100)]
text = b" ".join(random.choice(words) for _ in range(140))
open("crowded.txt", "wb").write(text[:805] + 9 * b"\n" + text[805:])
PYTHON
crowded=("${shorter[@]:2}" --data crowded.txt --document-end 10 --steps 23 --seed 2)
run "a batch with room for all documents" 0 "${crowded[@]}" --most-documents 20 --out roomy
run "one with too many" 1 "${crowded[@]}" --most-documents 4 --checkpoint-every 100 --out crowded \
  --save-hf crowded_weights --timeline crowded.json --timeline-steps 100
[ ! -e crowded_weights ] && ! grep -q "^weights | " out || fail "weights are written that the run would write when it goes on"
python3 - <<'PYTHON' 2>>err || fail "the timeline has not the steps that were taken"
import json
steps = [event for event in json.load(open("crowded.json"))["traceEvents"] if event["name"] == "step"]
lines = [json.loads(line) for line in open("crowded/metrics.jsonl")]
told, = [line for line in lines if line["event"] == "timeline"]
assert 0 < told["steps"] == len(steps) == lines[-1]["steps"] - 1, (told, len(steps), lines[-1])
PYTHON
grep -qF " ms per step (rank 0, the maximum of all; steps 2 to " out || fail "the timeline is not told of"
err_is_one_line_with " documents, including those that begin with a sequence, and --most-documents is 4; resume with --config"
read -ra advice < <(sed -E 's/.*; resume with (.*) or more$/\1/' err)
[ "${advice[0]} ${advice[1]} ${advice[2]} ${advice[3]}" = "--config crowded/config.toml --resume crowded" ] ||
  fail "it says to give ${advice[*]}"
run "what it says to give" 0 "${advice[@]}"
[ -s err ] && fail "there is a warning"
[ -e crowded_weights/model.safetensors ] || fail "its weights are not written"
metrics crowded/metrics.jsonl '
ends = [line["end"] for line in of("summary")]
assert ends == ["too many documents", "done"], ends
whole = [json.loads(line) for line in open("roomy/metrics.jsonl")]
losses = lambda lines: [(line["step"], line["loss"]) for line in lines if line["event"] == "step"]
assert 0 < of("summary")[0]["steps"] < 23 and losses(lines) == losses(whole), losses(lines)'
run "one with too many, in a run that is not saved" 1 "${crowded[@]}" \
  --most-documents 4 --no-out --save-hf after_crowd
err_is_one_line_with "is 4; the run keeps no checkpoints: start it again with --most-documents ${advice[5]} or more, and with --checkpoint-every"
[ -e after_crowd/model.safetensors ] || fail "its weights are lost"
case="one with too many, whose weights cannot be written"
# No file may have more than 500 KiB.
(trap '' XFSZ && ulimit -f 500 &&
  exec "$program" "${crowded[@]}" --most-documents 4 --no-out --save-hf too_large) >out 2>err && fail "exit code 0"
[ "$(wc -l <err)" -eq 2 ] && head -n 1 err | grep -qF "is 4; the run keeps no checkpoints: start it again with --most-documents" ||
  fail "it is not said why the run ended"
tail -n 1 err | grep -qF too_large || fail "it is not said what is not written"
[ ! -e too_large ] || fail "a part of it is there"

judged=("${shorter[@]}" --data shard_1.bin --checkpoint-every 1 --out judged)
run "a run with data for validation" 0 "${judged[@]:2}" --steps 1 --validation-data for_validation.bin
run "with the same" 0 "${judged[@]:2}" --steps 2 --validation-data for_validation.bin --resume latest
[ -s err ] && fail "there is a warning"
run "with a part of the training data for validation" 2 "${judged[@]:2}" --steps 3 --resume latest
err_is_one_line_with "had other batches: --validation-data is not set, the run had for_validation.bin; use the same data"
run "with another fraction, which nothing is of" 0 "${judged[@]:2}" --steps 2 --validation-data for_validation.bin \
  --validation-fraction 0.3 --resume latest
run "with other data for validation" 0 "${judged[@]:2}" --steps 3 --validation-data shard_2.bin --resume latest
err_is_one_line_with "warning: the validation tokens differ from those of judged/checkpoints/step-00000002"
touch -d tomorrow shard_1.bin
run "a token file that was written since" 0 "${judged[@]:2}" --steps 4 --validation-data shard_2.bin --resume latest
err_is_one_line_with "warning: shard_1.bin was written after judged/checkpoints/step-00000003; its size and sampled tokens"
run "--resume latest without --out" 2 "${saved[@]}" --resume latest
err_is_one_line_with "--resume latest resumes in the folder that --out names"
run "checkpoints without files" 2 "${saved[@]}" --no-out
err_is_one_line_with "--checkpoint-every needs the run's folder"
run "--keep-last 1" 2 "${saved[@]}" --out few --keep-last 1
err_is_one_line_with "--keep-last"
if mkdir disk && mount -t tmpfs -o size=2m tmpfs disk 2>/dev/null; then
  run "a disk without room" 4 "${saved[@]}" --out disk/run
  grep -qF "NOT SAVED at step 3: " err || fail "it is not said that nothing is saved"
  grep -qE "a checkpoint takes [0-9]+\.[0-9] MiB, but [0-9.]+ [KM]iB are free on the disk" err || fail "it is not said why"
  [ "$(grep -c '^step ' out)" -eq 30 ] || fail "the run did not go on"
  rm -r disk/run
  case="a run that a signal stops, and that is not saved"
  stopped_by TERM "${saved[@]}" --out disk/run --save-hf of_no_checkpoint >codes
  [ "$(cut -d' ' -f1 codes)" = 4 ] || fail "exit code $(cat codes), expected 4"
  [ -e of_no_checkpoint/model.safetensors ] || fail "its weights are lost"
  grep -qF "resume with" err && fail "it tells of a checkpoint, and there is none"
  umount disk
  rmdir disk
else
  rmdir disk 2>/dev/null
  echo "skipped: a disk without room (mounting needs privileges)"
fi

# --- a step that is replayed -----------------------------------------------------------------
run "a run that records hashes" 0 "${shorter[@]}" --steps 8 --checkpoint-every 3 --hash-every 2 \
  --out hashed
metrics hashed/metrics.jsonl '
hashes = {s["step"]: s["weights_hash"] for s in of("step") if "weights_hash" in s}
assert sorted(hashes) == [2, 4, 6, 8] and len(set(hashes.values())) == 4, hashes
assert all(len(text) == 16 and int(text, 16) for text in hashes.values()), hashes
'
# replayed NAME EXPECTED_EXIT_CODE RUN STEP ARGUMENT...: of a run, whose files stay as they are
replayed() {
  files_of "$3" >files
  run "$1" "$2" --config hashed/config.toml --out "$3" --replay-step "$4" "${@:5}"
  files_of "$3" | cmp -s files - || fail "files of the run are others"
}
for replay in "2 2 from the start of the run" "8 3 from hashed/checkpoints/step-00000006"; do
  read -r step times from <<<"$replay"
  replayed "step $step, replayed" 0 hashed "$step" --replays "$times"
  grep -qxF "replay | step $step, $times times, of llama_tiny in fp8 delayed on cpu, $from" out ||
    fail "it does not say what it replays"
  grep -qE "^equal: the step is repeatable, and equal to its record; " out || fail "it is not equal"
  python3 - "$step" "$times" <<'PYTHON' 2>>err || fail "the table is another"
import json, sys
step, times = map(int, sys.argv[1:])
rows = [[cell.strip() for cell in line.split(" | ")] for line in open("out")]
rows = [row for row in rows if len(row) == 5]
recorded = [line for line in map(json.loads, open("hashed/metrics.jsonl"))
            if line["event"] == "step" and line["step"] == step][0]
assert [row[0] for row in rows] == ["replay", "recorded", *map(str, range(1, times + 1))], rows
for row in rows[1:]:
    assert [float(row[1]), float(row[2]), row[3]] == [
        recorded["loss"], recorded["gradient_norm"], recorded["weights_hash"]], row
assert len({row[4] for row in rows[2:]}) == 1 and int(rows[2][4], 16), rows
PYTHON
done
# recorded FOLDER CODE: a copy of the run whose records `lines` are changed by Python
recorded() {
  rm -rf "$1"
  cp -r hashed "$1"
  python3 - "$1/metrics.jsonl" "$2" <<'PYTHON'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
step = {line["step"]: line for line in lines if line["event"] == "step"}
exec(sys.argv[2])
open(sys.argv[1], "w").writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
PYTHON
}
recorded other 'step[7]["loss"] += 1e-15'
replayed "a step behind one that was recorded otherwise" 6 other 8
grep -qF "equal: the step is repeatable, but from step 7 on, the run recorded other results" out ||
  fail "it is not said since when"
replayed "a step before it" 0 other 6
recorded other 'step[8]["weights_hash"] = step[6]["weights_hash"]'
replayed "a step with another hash" 6 other 8
grep -qF "but from step 8 on, the run recorded other results" out || fail "it is not said"
spike='{"event": "spike", "step": 7, "resumed_step": 6}'
recorded other "lines.insert(lines.index(step[8]), $spike); step[8]['loss'] = 1.0"
replayed "a step behind a spike that the run went back from" 0 other 8
grep -qF "but there is no record to compare it with" out || fail "it is compared"
spike='{"event": "spike", "step": 5, "resumed_step": 3}'
recorded other "lines[1:1] = [$spike]; step[8]['loss'] = 1.0"
replayed "a step behind a checkpoint behind that" 6 other 8
recorded other 'del lines[1:]'
replayed "a step that was not recorded" 0 other 8
rm -r other/checkpoints
replayed "a step of a run whose checkpoint is elsewhere" 0 other 8 --resume hashed/checkpoints/step-00000006
grep -qF ", from hashed/checkpoints/step-00000006" out || fail "it does not begin there"
grep -qF "may differ" out && fail "it is told of other libraries, and they are the same"
cp -r hashed other_gpu
rm -r other_gpu/checkpoints/step-00000008
manifest_has other_gpu '"libraries":"a GPU, cuDNN 9.19.0"'
replayed "a step of a run with other libraries" 0 other_gpu 8
grep -qxF "replay | the checkpoint was saved with a GPU, cuDNN 9.19.0; this machine has no GPU: steps may \
differ from those of the run that saved it" out || fail "it is not said"
run "a step before all that is named" 2 --config hashed/config.toml --out other --replay-step 6 \
  --resume hashed/checkpoints/step-00000006
err_is_one_line_with "is of step 6, and --replay-step 6 needs one before it"
run "a step behind the run's last" 2 --config hashed/config.toml --replay-step 9
err_is_one_line_with "--replay-step must be one of the run's 8 steps, but is 9"
run "a step of no run" 2 --data text.txt --replay-step 3
err_is_one_line_with "--replay-step needs the run's folder; pass --out"
run "--replays without --replay-step" 2 "${saved[@]}" --out few --replays 3
err_is_one_line_with "--replays needs --replay-step; pass it as well"

case="a signal in the last step"
stopped_after 1 --sample 0 --steps 2 >out
[ "$(cat out)" = "0 True True done" ] || fail "$(cat out)"
case="a signal ends the sample"
stopped_after 1 --sample 1000000000 --steps 2 >out
[ "$(cat out)" = "0 True True done" ] || fail "$(cat out)"

# full_events MESSAGES ARGUMENT...: a run whose file of TensorBoard's cannot be written
full_events() {
  local messages=$1
  shift
  rm -rf full_events
  mkdir full_events
  # shellcheck disable=SC2016
  bash -c 'now=$(date +%s)
    for more in {0..60}; do
      ln -s /dev/full "full_events/events.out.tfevents.$((now + more)).$(uname -n).$$"
    done
    exec "$@"' - "$program" "${base[@]}" --batch 2 --steps 4 --sample 0 --out full_events "$@" >out 2>"$messages"
  code=$?
  [ "$code" -eq 0 ] || fail "exit code $code, expected 0"
}
case="warnings of which nobody can be told"
full_events /dev/full --warmup 9
case="a file of TensorBoard's that cannot be written"
full_events err --warmup 1
err_is_one_line_with "warning: full_events/events.out.tfevents."
err_is_one_line_with "No space left on device; earlier content is kept; free disk space, or write elsewhere. The run continues, but writes no more TensorBoard events"
metrics full_events/metrics.jsonl 'assert len(of("step")) == 4 and lines[-1]["end"] == "done"'

case="a full disk"
mkdir disk
if mount -t tmpfs -o size=32k none disk 2>/dev/null; then
  run "a full disk" 1 "${base[@]}" --batch 1 --sample 0 --steps 400 --out disk/run
  err_has_reason() { grep -qF "No space left on device" err || fail "the reason is not told"; }
  err_has_reason
  grep -qE "disk/run/(metrics\.jsonl|events\.out)" err || fail "the file is not named"
  metrics disk/run/metrics.jsonl 'assert len(lines) >= 2 and lines[0]["event"] == "run"'
  rm -r disk/run
  mkdir disk/run elsewhere
  ln -s ../../elsewhere disk/run/checkpoints
  run "a full disk, and room for checkpoints" 1 "${base[@]}" --batch 1 --sample 0 --steps 400 \
    --checkpoint-every 1000 --out disk/run
  [ "$(tail -n 1 err | grep -cF "disk/run/metrics.jsonl: cannot be written: No space left on device")" -eq 1 ] ||
    fail "the last line does not say what went wrong"
  [ "$(grep -cF ". The run ends, and first saves a checkpoint if it keeps them" err)" -eq 1 ] ||
    fail "it does not say once what becomes of it"
  steps=$(grep -cE '^step [0-9]+ \|' out)
  [ "$steps" -lt 400 ] || fail "the run went on"
  [ "$(ls elsewhere)" = "$(printf 'step-%08d' "$steps")" ] || fail "the run was not saved: $(ls elsewhere)"
  umount disk
else
  echo "skipped: a full disk (mounting a tmpfs needs more rights)"
fi
run "a summary" 0 "${base[@]}" --batch 2 --precision bf16 --steps 20 --warmup 1 --sample 400 --out summarised
case="a summary that cannot be written"
python3 - "$program" "${base[@]}" --batch 2 --precision bf16 --steps 20 --warmup 1 --sample 400 --out no_summary >out 2>err <<'PYTHON'
import resource, subprocess, sys
lines = open("summarised/metrics.jsonl").read().splitlines(keepends=True)
most = sum(map(len, lines[:-1])) + len(lines[-1]) // 2  # steps have other digits
limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
sys.exit(subprocess.run(sys.argv[1:], preexec_fn=limit, stdout=subprocess.DEVNULL).returncode)
PYTHON
code=$?
[ "$code" -eq 1 ] || fail "exit code $code, expected 1"
tail -n 1 err | grep -qF "train_llama: no_summary/metrics.jsonl: cannot be written: File too large" || fail "it is not said"
grep -qF -e "The run ends" -e "stopping after" err && fail "it is said to end, and has"
metrics no_summary/metrics.jsonl 'assert len(of("step")) == 20 and lines[-1]["event"] == "evaluation", lines[-1]'

case="full standard output"
"$program" "${small[@]}" --out full_stdout >/dev/full 2>err
code=$?
[ "$code" -eq 1 ] || fail "exit code $code, expected 1"
err_is_one_line_with "standard output: cannot be written: No space left on device"

case="closed standard output"
"$program" "${small[@]}" --out closed_stdout >&- 2>err
code=$?
[ "$code" -eq 1 ] || fail "exit code $code, expected 1"
err_is_one_line_with "standard output: cannot be written: Bad file descriptor"
[ ! -s closed_stdout/metrics.jsonl ] || fail "what was printed stands in metrics.jsonl"
for unread in "standard output" "output and error"; do
  case="$unread that nobody reads any more"
  rm -rf unread
  python3 - "$unread" "$program" "${shorter[@]}" --steps 100000 --checkpoint-every 100000 --log-every 1 \
    --out unread <<'PYTHON' >out 2>err || fail "$(cat out)"
import os, subprocess, sys
unread, *command = sys.argv[1:]
error = subprocess.STDOUT if unread == "output and error" else None
run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=error, text=True)
next(line for line in run.stdout if line.startswith("step 3 "))
run.stdout.close()  # as tee does on Ctrl-C
code = run.wait(timeout=60)
saved = [name for name in os.listdir("unread/checkpoints") if name.startswith("step-")]
print(code, saved)
assert code == 1 and len(saved) == 1 and int(saved[0].removeprefix("step-")) >= 3
PYTHON
  metrics unread/metrics.jsonl 'assert lines[-1]["end"] == "signal 15", lines[-1]'
  [ "$unread" = "output and error" ] || {
    [ "$(grep -cF "standard output: cannot be written: Broken pipe. The run ends" err)" -eq 1 ] || fail "it is not said once"
    grep -qF "another signal" err && fail "it speaks of signals, and none came"
    grep -qF "stopped and saved; resume with --config unread/config.toml" err || fail "it does not say how to go on"
    [ "$(tail -n 1 err)" = "train_llama: standard output: cannot be written: Broken pipe" ] || fail "its last word is $(tail -n 1 err)"
  }
done
case="closed standard input and error"
"$program" --config own.toml --steps 3 --sample 0 --out closed_stderr >out <&- 2>&-
code=$?
[ "$code" -eq 0 ] || fail "exit code $code, expected 0"
metrics closed_stderr/metrics.jsonl 'assert len(of("step")) == 3 and lines[-1]["end"] == "done"'

# --- experiments -----------------------------------------------------------------------------
# Each is begun with a small model here; gemm-plans are for the other device.
few=(--model llama_tiny --device cpu --threads 2 --data text.txt --batch 1 --micro-batches 1 --seq-len 64
  --steps 2 --warmup 1 --validation-batches 1 --checkpoint-every 0 --sample 0)
for experiment in "$here"/../../examples/experiments/*.toml; do
  grep -q 'train_llama --config' "$experiment" || continue
  name=$(basename "$experiment" .toml)
  sed -e '/^gemm-plans = /d' "$experiment" >"$name.toml"
  precision=$(sed -n 's/^precision = "\(.*\)"$/\1/p' "$experiment")
  few_of=("${few[@]}" --config "$name.toml" --out "$name")
  if "$program" --help | grep -qE "(^| |,)$precision(,|$| )"; then
    run "$name" 0 "${few_of[@]}"
    [ "$(grep -c '^step ' out)" -eq 2 ] || fail "not two steps"
  else
    run "$name, which is not compiled in" 2 "${few_of[@]}"
    err_is_one_line_with 'cmake BUILD_FOLDER -DOCTAVO_PRECISIONS="'
    err_is_one_line_with ";$precision\" && cmake"
  fi
  # What it says at its head is what the program says.
  if ! "$program" --help | grep -A1 -e --device | grep -q cuda; then
    built=$(sed -n 's/^# Compiled with \(.*\)\.$/\1/p' "$experiment")
    [ -n "$built" ] || continue
    run "$name, without its device" 2 --config "$experiment" --data text.txt
    err_is_one_line_with "build again: cmake BUILD_FOLDER $built && cmake"
  fi
done
case="an experiment whose parameters travel in FP8"
metrics llama3_8b_fp8_delayed/metrics.jsonl 'assert lines[0]["gather"] == "fp8", lines[0]'
run "parameters that no other rank gathers" 0 "${small[@]}" --precision fp8-delayed --gather fp8 --no-out
grep -qxF "ranks | 1: --gather fp8 has no effect" out || fail "it is not said"

# --- what every flag changes -----------------------------------------------------------------
case="the flags"
mkdir flags_test && cd flags_test || exit 1
python3 "$here/train_llama_flags.py" "$program" >../out 2>../err || { cd .. && fail "see above"; }
cd "$scratch" || exit 1
grep '^skipped: ' out

finish
