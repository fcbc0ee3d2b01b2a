#!/usr/bin/env bash
# Tests train_llama on several ranks: train_llama_ranks_test.sh PATH_TO_TRAIN_LLAMA [PATH_TO_MPIRUN]
set -u

mpirun=$(realpath "${2:-$(command -v mpirun)}")
# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"

# Whoever tests may be root, and have fewer processors than ranks.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_btl_base_warn_component_unused=0 OMP_NUM_THREADS=1

# on_ranks NAME EXPECTED_EXIT_CODE RANKS ARGUMENT...
on_ranks() {
  case=$1
  local expected=$2 ranks=$3 code=0
  shift 3
  timeout 120 "$mpirun" -n "$ranks" "$program" "$@" >out 2>err || code=$?
  [ "$code" -eq "$expected" ] || fail "exit code $code, expected $expected"
}

python3 - <<'PYTHON'
import random
random.seed(1)
words = "the a small large model trains learns number step loss eight bits scale of and in".split()
with open("text.txt", "w") as file:
    file.write(" ".join(random.choice(words) for _ in range(8000)))
PYTHON
base=(--data text.txt --seq-len 32 --batch 2 --validation-batches 5 --evaluate-every 20
  --learning-rate 5e-4 --threads 1)

# --- losses are those of one rank: of groups that share each layer, too ------------------------------------------------------------
for precision in fp32 fp8-delayed; do
  steps=(--precision "$precision" --steps 50 --sample 0)
  run "one rank in $precision" 0 "${base[@]}" "${steps[@]}" --micro-batches 4 --out "$precision-1-1"
  for zero in 1 2 3; do
    on_ranks "two ranks in $precision, ZeRO-$zero" 0 2 "${base[@]}" "${steps[@]}" --micro-batches 2 \
      --zero "$zero" --out "$precision-2-$zero"
    [ "$(grep -c '^step ' out)" -eq 50 ] || fail "not one rank prints the steps"
    grep -q "^ranks | 1:" out && fail "they are said to be one"
    on_ranks "four ranks in $precision, ZeRO-$zero" 0 4 "${base[@]}" "${steps[@]}" \
      --micro-batches 1 --zero "$zero" --out "$precision-4-$zero"
  done
  parallel=(--tensor-parallel 2)
  on_ranks "two ranks that share layers, in $precision" 0 2 "${base[@]}" "${steps[@]}" \
    --micro-batches 4 "${parallel[@]}" --out "$precision-shared-1"
  for zero in 1 2 3; do
    on_ranks "two such groups in $precision, ZeRO-$zero" 0 4 "${base[@]}" "${steps[@]}" \
      --micro-batches 2 --zero "$zero" "${parallel[@]}" --check-replicas $((zero < 3 ? 20 : 0)) \
      --out "$precision-shared-4-$zero"
    grep -qF "ranks | 4, of which 2 share each layer, ZeRO-$zero" out || fail "it is not said"
  done
done
on_ranks "weights that travel in FP8" 0 4 "${base[@]}" --precision fp8-delayed --steps 50 --sample 0 \
  --micro-batches 1 --zero 3 --gather fp8 --out fp8-delayed-4-fp8
grep -qE "^gather \| [1-9][0-9]* of [0-9]+ parameters in FP8" out || fail "it is not said"
on_ranks "weights that cannot" 2 2 "${base[@]}" --precision fp32 --gather fp8 --no-out
grep -qF "gathering weights in FP8 needs a block of the model" err || fail "it is not said"
run "gradients in what was not built" 2 "${base[@]}" --precision fp32 --reduce e4m3 --no-out
grep -qF -- '-DOCTAVO_REDUCE="stored;e4m3"' err || fail "it is not said how to build it"
case="losses of ranks"
python3 - <<'PYTHON' 2>>err || fail "they differ from one rank's"
import glob, json
def losses(folder):
    lines = [json.loads(line) for line in open(f"{folder}/metrics.jsonl")]
    return [line["loss"] for line in lines if line["event"] in ("step", "evaluation")]
def memory(folder):
    return [json.loads(line) for line in open(f"{folder}/metrics.jsonl")][-1]["peak_bytes"]
ranks = lambda folder: json.loads(open(f"{folder}/metrics.jsonl").readline())["ranks"]
assert [ranks(f"fp32-{name}") for name in ("1-1", "4-1", "shared-1", "shared-4-3")] == [1, 4, 2, 4]
worst = {}
for precision, allowed in (("fp32", 1e-6), ("fp8-delayed", 2e-3)):
    one = losses(f"{precision}-1-1")
    assert len(one) == 54, len(one)
    assert one[-1] < 0.9 * one[0], one
    folders = glob.glob(f"{precision}-[24]-*") + glob.glob(f"{precision}-shared-*")
    assert len(folders) == (10 if precision == "fp32" else 11), folders
    for folder in sorted(folders):
        several = losses(folder)
        assert len(several) == len(one), folder
        difference = max(abs(a - b) / a for a, b in zip(one, several))
        print(f"{folder}: losses differ by {difference:.1e} at most, {allowed:.0e} allowed")
        assert difference <= allowed, folder
    # With one micro-batch a rank, what is sharded changes no bit.
    for zero in (2, 3):
        assert losses(f"{precision}-4-{zero}") == losses(f"{precision}-4-1"), (precision, zero)
    if precision == "fp8-delayed":
        assert losses("fp8-delayed-4-fp8") == losses("fp8-delayed-4-3")
        assert memory("fp8-delayed-4-fp8") < memory("fp8-delayed-4-3")
    assert memory(f"{precision}-4-3") < memory(f"{precision}-4-1") < memory(f"{precision}-1-1")
PYTHON

# --- a text on all ranks ---------------------------------------------------------------------
on_ranks "a sample of two ranks" 0 2 "${base[@]}" --precision fp8-delayed --steps 2 --zero 3 \
  --sample 12 --no-out
on_ranks "a sample of two ranks that share layers" 0 2 "${base[@]}" --precision fp8-delayed \
  --steps 2 --tensor-parallel 2 --zero 2 --sample 12 --no-out
grep -q "^ranks | 1:" out && fail "they are said to be one"

# --- the timeline ----------------------------------------------------------------------------
on_ranks "a timeline of two ranks" 0 2 "${base[@]}" --precision fp8-delayed --steps 4 --sample 0 \
  --timeline trace.json --timeline-steps 2 --out timeline --check-replicas 2
grep -qE "^exposed communication [0-9.]+ ms of [0-9.]+ ms per step \(rank [01], .* steps 2 to 3\)" out ||
  fail "exposed communication is not printed"
python3 - <<'PYTHON' 2>>err || fail "the timeline is not that of the run"
import json
events = [event for event in json.load(open("trace.json"))["traceEvents"] if event["ph"] == "X"]
line, = [line for line in map(json.loads, open("timeline/metrics.jsonl"))
         if line["event"] == "timeline"]
def within(part, whole):
    return whole["ts"] <= part["ts"] and part["ts"] + part["dur"] <= whole["ts"] + whole["dur"]
exposed = {}
for rank in (0, 1):
    own = [event for event in events if event["pid"] == rank]
    def named(name):
        return [event for event in own if event["name"] == name]
    assert len(named("step")) == 2, rank
    for step in named("step"):
        backward, = [event for event in named("backward") if within(event, step)]
        reduces = [event for event in own
                   if event["name"].startswith("reduce blocks.") and within(event, step)]
        blocks = {event["name"].removeprefix("forward ") for event in own
                  if event["name"].startswith("forward blocks.")}
        assert {event["name"].removeprefix("reduce ") for event in reduces} == blocks
        assert all(within(event, backward) for event in reduces), reduces
    # On the cpu device nothing runs beside an operation between ranks.
    exposed[rank] = sum(event["dur"] for event in own if event["cat"] == "communication") / 2e3
worst = max(exposed, key=exposed.get)
assert line["rank"] == worst, (line, exposed)
found = line["exposed_communication_milliseconds"]
assert abs(found - exposed[worst]) < 1e-6 * found and found > 0, (line, exposed)
PYTHON
on_ranks "a timeline in no folder" 2 2 "${base[@]}" --steps 1 --no-out --timeline nowhere/trace.json
grep -qF "pass a file in an existing folder" err || fail "it is not said what to give"
# Only rank 0 looks; the others must not begin what all do together.
on_ranks "a timeline in no folder, of ranks that share layers" 2 2 "${base[@]}" --steps 1 --no-out \
  --precision fp32 --tensor-parallel 2 --timeline nowhere/trace.json
[ "$(grep -c '^train_llama: ' err)" -eq 1 ] || fail "not one rank's error"

# --- errors ----------------------------------------------------------------------------------
on_ranks "too little text for all ranks" 2 4 "${base[@]}" --steps 1 --micro-batches 200 --no-out
grep -qF "on 4 ranks" err || fail "it is not said for how many ranks"
on_ranks "ranks that are no groups" 2 3 "${base[@]}" --steps 1 --tensor-parallel 2 --no-out
grep -qF -- "the number of ranks must be a multiple of --tensor-parallel 2, but is 3" err ||
  fail "it is not said of how many"
on_ranks "a degree that is not compiled in" 2 4 "${base[@]}" --steps 1 --tensor-parallel 4 --no-out
grep -qF -- '-DOCTAVO_TENSOR_PARALLEL="llama_tiny:fp32:2;llama_tiny:fp8-delayed:2;llama_tiny:fp8-delayed:4"' err || fail "it is not said how to build it"
on_ranks "a ZeRO stage that there is not" 2 2 "${base[@]}" --steps 1 --zero 4 --no-out
# differ WHAT ARGUMENT_OF_RANK_0... : ARGUMENT_OF_RANK_1...; the latter in the folder $where
differ() {
  local what=$1 code=0 first=()
  case="ranks with other $what"
  shift
  while [ "$1" != : ]; do
    first+=("$1")
    shift
  done
  shift
  timeout 60 "$mpirun" -n 1 "$program" "${base[@]}" --no-out "${first[@]}" \
    : -n 1 -wdir "${where:-$PWD}" "$program" "${base[@]}" --no-out "$@" >out 2>err || code=$?
  [ "$code" -ne 0 ] || fail "they train"
  grep -F "the ranks differ in " err | grep -qE "in $what: rank [01] has" || fail "it is not said which differ"
}
differ --steps --steps 2 : --steps 3
differ model --precision fp32 : --precision fp8-delayed
differ optimizer --moments fp32 : --moments bf16
mkdir elsewhere
tr a b <text.txt >elsewhere/text.txt
where=$PWD/elsewhere differ data :
for seed in 1 2; do
  run "weights of seed $seed" 0 "${base[@]}" --precision fp32 --steps 1 --sample 0 --no-out --seed "$seed" \
    --save-hf "weights-$seed"
  run "adapters of seed $seed" 0 "${base[@]}" --precision fp32 --steps 1 --sample 0 --no-out --seed "$seed" \
    --lora 2 --save-adapters "adapters-$seed"
done
differ weights --precision fp32 --model hf:weights-1 : --precision fp32 --model hf:weights-2
differ adapters --precision fp32 --lora 2 --load-adapters adapters-1 : --precision fp32 --lora 2 \
  --load-adapters adapters-2
case="torchrun and the cpu device"
code=0
RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 timeout 60 "$program" "${base[@]}" --steps 1 --no-out \
  >out 2>err || code=$?
[ "$code" -eq 2 ] || fail "exit code $code"
grep -qF "torchrun cannot start MPI ranks" err || fail "it is not said what to do"

# --- faults and signals ----------------------------------------------------------------------
# began: waits until the run in `out` has printed a step
began() {
  for ((i = 0; i < 300; ++i)); do
    grep -q '^step 2 ' out && return
    sleep 0.1
  done
  fail "no step in 30 s"
}
long=("${base[@]}" --precision fp8-delayed --steps 100000 --no-out --comm-timeout 3)
# ranks_of PID: the processes of its ranks, the first one first
ranks_of() {
  local status pid rank
  for status in /proc/[0-9]*/status; do
    grep -q "^PPid:[[:space:]]*$1\$" "$status" 2>/dev/null || continue
    pid=${status#/proc/}
    pid=${pid%/status}
    rank=$(tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
    [ -n "$rank" ] && echo "$rank $pid"
  done | sort -n | cut -d' ' -f2
}
for signal in STOP KILL; do
  rm -f out err  # of the run before: `began` must not read them
  case="a rank gets SIG$signal"
  : >out  # that of the run before has steps
  "$mpirun" -n 2 "$program" "${long[@]}" >out 2>err &
  run=$!
  began
  mapfile -t pids < <(ranks_of "$run")
  [ "${#pids[@]}" -eq 2 ] || fail "found ${#pids[@]} ranks"
  kill "-$signal" "${pids[1]}"
  SECONDS=0
  code=0
  wait "$run" || code=$?
  [ "$code" -ne 0 ] || fail "exit code 0"
  [ "$SECONDS" -le 30 ] || fail "the run ended after $SECONDS s"
  grep -qE "rank 1|for rank 1" err || fail "it is not said which rank"
  # mpirun does not wait for those that it kills.
  for pid in "${pids[@]}"; do
    for ((i = 0; i < 100; ++i)); do
      [ -e "/proc/$pid" ] || break
      sleep 0.1
    done
    [ ! -e "/proc/$pid" ] || { kill -KILL "$pid"; fail "process $pid is left"; }
  done
done

rm -f out err
case="SIGTERM to mpirun"
: >out
"$mpirun" -n 2 "$program" "${long[@]}" >out 2>err &
run=$!
began
kill -TERM "$run"
wait "$run" && fail "exit code 0"
grep -q "^evaluation" out || grep -q "stopping after this step" err || fail "nothing was noted"

rm -f out err
case="SIGTERM to one rank"
: >out
"$mpirun" -n 2 "$program" "${base[@]}" --precision fp8-delayed --steps 100000 --sample 0 --out stopped \
  --checkpoint-every 100000 --comm-timeout 20 >out 2>err &
run=$!
began
mapfile -t pids < <(ranks_of "$run")
kill -TERM "${pids[1]}"
code=0
wait "$run" || code=$?
[ "$code" -eq 143 ] || fail "exit code $code"
[ "$(grep -c "stopped and saved; resume with " err)" -eq 1 ] ||
  fail "not one rank says how to go on"
python3 - <<'PYTHON' 2>>err || fail "it did not end as a run that is stopped"
import json, os
lines = [json.loads(line) for line in open("stopped/metrics.jsonl")]
last, = [line for line in lines if line["event"] == "summary"]
assert last["end"] == "signal 15", last
assert last["steps"] == [line["step"] for line in lines if line["event"] == "step"][-1], last
saved = [name for name in os.listdir("stopped/checkpoints") if name.startswith("step-")]
assert saved == [f"step-{last['steps']:08}"], (saved, last)
open("steps", "w").write(str(last["steps"]))
PYTHON
on_ranks "what was stopped by one rank's signal goes on" 0 2 "${base[@]}" --precision fp8-delayed --sample 0 \
  --steps $(($(cat steps) + 2)) --out resumed --resume stopped
grep -q "^resumed | after step $(cat steps), " out || fail "it does not go on"

# --- a batch of one rank that has more documents than there is room for --------------------------
python3 - <<'PYTHON'
text = open("text.txt").read()[:3000]
open("crowded.txt", "w").write(text[:1605] + 9 * "\n" + text[1605:])
PYTHON
for shared in 1 2; do
  on_ranks "too many documents, $shared sharing layers" 1 4 "${base[@]:2}" --precision fp8-delayed --sample 0 \
    --data crowded.txt --seed 1 --document-end 10 --most-documents 4 --steps 12 --checkpoint-every 100 \
    --micro-batches "$shared" --tensor-parallel "$shared" --out "crowded-$shared" --comm-timeout 20 \
    --timeline "crowded-$shared.json" --timeline-steps 100 --save-hf "crowded-weights-$shared"
  grep -qF "and --most-documents is 4; resume with --config crowded-$shared/config.toml --resume crowded-$shared --most-documents" err ||
    fail "it is not said how to go on"
  grep -q "has not answered" err && fail "a rank waits for others"
  [ ! -e "crowded-weights-$shared" ] || fail "weights are written that the run would write when it goes on"
  python3 - "crowded-$shared.json" <<'PYTHON' 2>>err || fail "the timeline is not that of all ranks"
import json, sys
steps = [event["pid"] for event in json.load(open(sys.argv[1]))["traceEvents"] if event["name"] == "step"]
assert all(steps.count(rank) == steps.count(0) > 0 for rank in range(4)), steps
PYTHON
  # shellcheck disable=SC2046
  on_ranks "with room for them, $shared sharing layers" 0 4 $(sed -nE 's/.*; resume with (.*) or more$/\1/p' err)
  grep -q "^resumed | after step " out || fail "it does not go on"
done

# --- ranks go on from a checkpoint, and others do ----------------------------------------------
# exports_as_saved RUN FOLDER: the last checkpoint of a run has the weights that it saved
exports_as_saved() {
  run "the weights of $1" 0 --resume "$1" --export-hf "exported-$1"
  for file in model.safetensors config.json; do
    cmp "exported-$1/$file" "$2/$file" >>err 2>&1 || fail "$file is another than $2's"
  done
}
saved=("${base[@]}" --precision fp8-delayed --sample 0 --checkpoint-every 4 --keep-last 9)
for shared in 1 2; do
  parallel=(--tensor-parallel "$shared")
  on_ranks "four ranks that are saved, $shared sharing layers" 0 4 "${saved[@]}" "${parallel[@]}" \
    --micro-batches 2 --steps 10 --out "saved-$shared" --save-hf "weights-of-$shared"
  exports_as_saved "saved-$shared" "weights-of-$shared"
  for zero in 1 3; do
    on_ranks "four ranks go on with ZeRO-$zero, $shared sharing layers" 0 4 "${saved[@]}" \
      "${parallel[@]}" --micro-batches 2 --zero "$zero" --steps 10 --out "on-$shared-$zero" \
      --resume "saved-$shared/checkpoints/step-00000008"
  done
  on_ranks "two ranks go on, $shared sharing layers" 0 2 "${saved[@]}" "${parallel[@]}" \
    --micro-batches 4 --steps 10 --out "on-$shared-2" \
    --resume "saved-$shared/checkpoints/step-00000008"
done
on_ranks "weights that travel in FP8 and are saved" 0 4 "${saved[@]}" --tensor-parallel 2 --zero 3 \
  --gather fp8 --micro-batches 2 --steps 4 --out saved-fp8 --save-hf weights-of-fp8
exports_as_saved saved-fp8 weights-of-fp8
on_ranks "ranks go on that share layers" 0 2 "${saved[@]}" --tensor-parallel 2 --micro-batches 8 \
  --steps 10 --out on-1-shared --resume saved-1/checkpoints/step-00000008
grep -qF "resumed | with these flags, a step has 512 tokens, but 2048 on the checkpoint's number of ranks (4); pass --micro-batches 32 for the same number" out ||
  fail "it is not said how many tokens a step has"
on_ranks "ranks go on that share no layers" 0 2 "${saved[@]}" --micro-batches 2 --steps 10 \
  --out on-2-shared --resume saved-2/checkpoints/step-00000008
on_ranks "an export of several ranks" 0 2 --resume saved-2 --export-hf exported-by-two
[ "$(grep -c '^weights of step' out)" -eq 1 ] || fail "not one of them writes it"
case="losses of ranks that go on"
python3 - <<'PYTHON' 2>>err || fail "they are others"
import json
def losses(folder):
    lines = [json.loads(line) for line in open(f"{folder}/metrics.jsonl")]
    return {line["step"]: line["loss"] for line in lines if line["event"] == "step"}
for shared in (1, 2):
    whole = losses(f"saved-{shared}")
    for others in ("1", "3", "2", "shared"):
        on = losses(f"on-{shared}-{others}")
        assert sorted(on) == [9, 10], on
        for step, loss in on.items():
            # As many ranks have the same bits.
            allowed = {"1": 0, "3": 1e-4, "2": 1e-3, "shared": 2e-3}[others]
            assert abs(loss - whole[step]) <= allowed * loss, (shared, others, step, loss, whole[step])
PYTHON
on_ranks "the folder of another number of ranks" 0 2 "${saved[@]}" --micro-batches 4 --steps 12 \
  --out saved-1 --resume auto
grep -q "^resumed | after step 10, from saved-1/checkpoints/step-00000010$" out || fail "it does not go on"

# --- a step of ranks, replayed -------------------------------------------------------------------
for zero in 1 3; do
  on_ranks "two ranks that record hashes, ZeRO-$zero" 0 2 "${saved[@]}" --zero "$zero" --steps 6 \
    --hash-every 3 --out "hashed-$zero"
  on_ranks "a step of theirs, replayed" 0 2 --config "hashed-$zero/config.toml" --replay-step 6
  grep -qF ", from hashed-$zero/checkpoints/step-00000004" out || fail "it does not begin there"
  grep -qE "^equal: the step is repeatable, and equal to its record; " out || fail "it is not equal"
done
case="hashes of stages"
python3 - <<'PYTHON' 2>>err || fail "they differ"
import json
def hashes(zero):
    return {line["step"]: line["weights_hash"]
            for line in map(json.loads, open(f"hashed-{zero}/metrics.jsonl"))
            if "weights_hash" in line}
assert sorted(hashes(1)) == [3, 6] and hashes(1) == hashes(3), (hashes(1), hashes(3))
PYTHON
on_ranks "replicas of what nobody else has" 2 2 "${base[@]}" --precision fp8-delayed --sample 0 --zero 3 \
  --steps 6 --check-replicas 2 --no-out
grep -qF -- "--check-replicas 2 with --zero 3: no weights are replicated; pass --check-replicas 0, or --zero 1 or 2" err || fail "it is not said"
for every in 0 1; do
  on_ranks "replicas compared every $every steps" 0 2 "${base[@]}" --precision fp32 --sample 0 \
    --steps 1 --check-replicas "$every" --out "replicas-$every"
done
case="replicas that are compared"
python3 - <<'PYTHON' 2>>err || fail "there is no room for what is compared"
import json
def memory(folder):
    return [json.loads(line) for line in open(f"{folder}/metrics.jsonl")][-1]["peak_bytes"]
assert memory("replicas-1") > memory("replicas-0"), (memory("replicas-1"), memory("replicas-0"))
PYTHON

finish
