#!/usr/bin/env bash
# Tests finetune_llama through its command line: finetune_llama_test.sh PATH_TO_FINETUNE_LLAMA
set -u

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"

# refused NAME TEXT ARGUMENT...: exit code 2, one line on stderr that has TEXT
refused() {
  local text=$2 code=0
  case=$1
  shift 2
  timeout 10 "$program" "$@" --no-out >out 2>err || code=$?
  [ "$code" -eq 2 ] || fail "exit code $code, expected 2"
  err_is_one_line_with "$text"
}

python3 - <<'PYTHON'
import json, random
random.seed(1)
def chat(i, many=1):
    said = random.choice(["red", "blue", "green"])
    return {"messages": [{"role": "user", "content": f"Say {said}!"},
                         {"role": "assistant", "content": " ".join([said] * many)}]}
with open("chats.jsonl", "w") as file:
    for i in range(60):
        file.write(json.dumps(chat(i)) + "\n")
with open("held_out.jsonl", "w") as file:
    for i in range(5):
        file.write(json.dumps(chat(i)) + "\n")
with open("long.jsonl", "w") as file:
    file.write(json.dumps(chat(0, 40)) + "\n" + json.dumps({"messages": [
        {"role": "user", "content": "x" * 80}, {"role": "assistant", "content": "y"}]}) + "\n")
with open("bad.jsonl", "w") as file:
    file.write(json.dumps(chat(0)) + "\n{\"messages\": [{\"role\": \"user\"}]}\n")
json.dump({"user": {"before": "Q: ", "end": "\n"},
           "assistant": {"before": "A: ", "end": "\x03"}, "behind": "\n"}, open("own.json", "w"))
PYTHON
shape=(--tokenizer bytes --seq-len 64 --batch 2 --threads 1)
model=(--model llama_tiny --precision fp32 "${shape[@]}")
base=("${model[@]}" --chat-template own.json)
data=(--chats chats.jsonl --validation-chats held_out.jsonl)

# --- a run -----------------------------------------------------------------------------------
whole=("${base[@]}" "${data[@]}" --epochs 2 --learning-rate 3e-3 --warmup 2
  --evaluate-every 5 --checkpoint-every 7 --keep-last 9)
run "a run" 0 "${whole[@]}" --sample 12 --temperature 0 --out whole
[ -s err ] && fail "there was something on stderr"
grep -qF "chats | 60 of chats.jsonl" out || fail "the file is not named"
grep -qE '^chats \| 60 to train on: [0-9]+ tokens, [0-9]+ of them by the assistant$' out ||
  fail "no count of what is said"
python3 - <<'PYTHON' 2>>err || fail "metrics"
import json
lines = [json.loads(line) for line in open("whole/metrics.jsonl")]
run, = (line for line in lines if line["event"] == "run")
chats = [json.loads(line)["messages"] for line in open("chats.jsonl")]
held_out = [json.loads(line)["messages"] for line in open("held_out.jsonl")]
said = lambda chats: sum(len(chat[1]["content"]) + 1 for chat in chats)
tokens = lambda chats: sum(len("Q: \n\nA: \3\n" + chat[0]["content"] + chat[1]["content"]) for chat in chats)
assert run["chats"] == 60 and run["validation_chats"] == 5 and run["files"] == 2, run
assert run["training_tokens"] == tokens(chats) and run["validation_tokens"] == tokens(held_out), run
assert run["training_targets"] == said(chats), (run, said(chats))
assert run["cut_chats"] == run["dropped_chats"] == 0, run
steps = [line for line in lines if line["event"] == "step"]
assert len(steps) == run["steps"], (len(steps), run["steps"])
assert 2 <= steps[-1]["epoch"] < 2.2 and steps[-2]["epoch"] < 2, steps[-1]
evaluations = [line for line in lines if line["event"] == "evaluation"]
assert all(line["tokens"] == said(held_out) for line in evaluations), evaluations
# Of a uniform guess among bytes the loss is log(256); what is asked for is learnt soon.
assert evaluations[-1]["loss"] < 0.7 * evaluations[0]["loss"] and steps[0]["loss"] > 5, evaluations
sample = lines[-1]["sample"]
question = "Q: " + held_out[0][0]["content"] + "\n\nA: "
assert sample.startswith(question) and len(sample) > len(question), sample
PYTHON

run "a part of the chats for validation" 0 "${base[@]}" --chats chats.jsonl --validation-fraction 0.5 \
  --validation-batches 1 --micro-batches 3 --steps 1 --sample 0 --out half
sequences=$(sed -n 's/^chats | packed into \([0-9]*\) sequences.*/\1/p' out)
python3 - "$sequences" <<'PYTHON' 2>>err || fail "metrics"
import json, math, sys
lines = [json.loads(line) for line in open("half/metrics.jsonl")]
run, = (line for line in lines if line["event"] == "run")
assert run["chats"] == run["validation_chats"] == 30, run
step, = (line for line in lines if line["event"] == "step")
assert math.isclose(step["epoch"], 2 * 3 / int(sys.argv[1])), (step, sys.argv)
chats = [json.loads(line)["messages"] for line in open("chats.jsonl")][30:]
said = sum(len(chat[1]["content"]) + 1 for chat in chats)
evaluation = [line for line in lines if line["event"] == "evaluation"][-1]
assert 0 < evaluation["tokens"] < said, (evaluation, said)
PYTHON

# --- going on --------------------------------------------------------------------------------
before=whole/checkpoints/step-00000014 # near the end of an epoch
run "going on" 0 "${whole[@]}" --sample 0 --out again --resume "$before"
grep -qF "resumed | after step 14, from $before" out || fail "it is not said"
python3 - <<'PYTHON' 2>>err || fail "it is another run"
import json
def steps(path):
    lines = [json.loads(line) for line in open(path)]
    return [(line["step"], line["loss"], line["epoch"]) for line in lines if line["event"] == "step"]
whole, again = steps("whole/metrics.jsonl"), steps("again/metrics.jsonl")
assert again == whole[14:] and again[0][2] < 1.2, again
PYTHON
refused "other chats" "used different batches: --chats is held_out.jsonl, the run had " "${base[@]}" --chats held_out.jsonl --epochs 2 --resume "$before"

case="a signal while chats are encoded"
python3 - "$program" "$here/../golden/tokenizers/gpt2.json" <<'PYTHON' 2>>err || fail "it did not end at once"
import base64, json, os, signal, subprocess, sys, time
with open("many.jsonl", "w") as file:
    for i in range(6000):
        words = base64.b32encode(os.urandom(6000)).decode().lower()
        json.dump({"messages": [{"role": "user", "content": " ".join(words[at:at + 7] for at in range(0, 9600, 7))},
                                {"role": "assistant", "content": words}]}, file)
        file.write("\n")
run = subprocess.Popen([sys.argv[1], "--chats", "many.jsonl", "--chat-template", "own.json", "--tokenizer", sys.argv[2],
                        "--threads", "1", "--steps", "1", "--out", "stopped"],
                       preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
time.sleep(1.5)
run.send_signal(signal.SIGINT)
code = run.wait(timeout=1)
assert code in (-signal.SIGINT, 128 + signal.SIGINT), code
assert not os.path.exists("stopped"), os.listdir("stopped")
os.remove("many.jsonl")
PYTHON
[ -z "$(find . -name '.octavo-*')" ] || fail "a temporary file is left"

# --- chats that are too long -----------------------------------------------------------------
few=(--validation-chats held_out.jsonl --steps 1 --sample 0 --no-out)
run "chats that are cut" 0 "${base[@]}" --chats long.jsonl "${few[@]}"
grep -qF "chats | 1 longer than --seq-len, CUT" out || fail "it is not said"
grep -qF "chats | 1 longer than --seq-len, DROPPED" out || fail "the one without a target stays"
refused "chats that are dropped" "there is no chat for training: 2 were longer" "${base[@]}" \
  --chats long.jsonl --validation-chats held_out.jsonl --long-chats drop
run "a chat in a sequence" 0 "${base[@]}" --chats chats.jsonl "${few[@]}" --most-chats 1
grep -qF "packed into 60 sequences" out || fail "more than one"

# --- adapters ----------------------------------------------------------------------------------
run "a model to adapt" 0 "${base[@]}" "${data[@]}" --steps 3 --learning-rate 1e-3 --sample 0 --no-out \
  --save-hf model
echo '{"a": 1}' >model/tokenizer_config.json
adapted=(--model hf:model --precision fp32 "${shape[@]}" "${data[@]}" --chat-template own.json --learning-rate 1e-2 --warmup 2 --sample 0
  --lora-alpha 8 --lora-targets q_proj,v_proj,down_proj --evaluate-every 5)
run "adapters" 0 "${adapted[@]}" --lora 4 --steps 12 --checkpoint-every 6 --out adapted \
  --save-adapters adapters --save-hf merged
[ -s err ] && fail "there was something on stderr"
grep -qxF "adapters | rank 4, alpha 8, q_proj, v_proj, down_proj" out || fail "they are not named"
cp out adapted.out
run "adapters that go on" 0 "${adapted[@]}" --lora 4 --steps 12 --out adapted-again \
  --resume adapted/checkpoints/step-00000006 --save-adapters adapters-again
run "adapters by their configuration" 0 --config adapted/config.toml --out adapted-config \
  --save-adapters adapters-config --save-hf merged-config
run "no adapters, by their configuration" 0 --config whole/config.toml --out whole-config --steps 1
run "adapters to begin with" 0 "${adapted[@]}" --lora 4 --steps 1 --out with-adapters --load-adapters adapters
run "weights with adapters in them" 0 --model hf:merged --precision fp32 "${shape[@]}" "${data[@]}" \
  --chat-template own.json --steps 1 --sample 0 \
  --out with-merged
cmp model/tokenizer_config.json merged/tokenizer_config.json || fail "the tokenizer was left behind"
run "adapters once more, into weights" 0 --config adapted/config.toml --resume adapted --save-hf later \
  --save-adapters "" --out later-run
cmp merged/model.safetensors later/model.safetensors || fail "they are others"
run "adapters beside other weights" 0 --model hf:merged --precision fp32 "${shape[@]}" "${data[@]}" \
  --chat-template own.json --sample 0 --no-out --steps 1 --lora 4 --lora-alpha 8 \
  --lora-targets "q_proj, v_proj,down_proj" --load-adapters adapters
grep -qF "adapters names 'model' as the base model of its adapters, but --model is 'hf:merged'" err || fail "no warning"
run "adapters beside random weights" 0 "${base[@]}" "${data[@]}" --sample 0 --no-out --steps 1 --lora 4 \
  --lora-targets all
grep -qF "without --model hf:FOLDER, the base model of the adapters has the random weights of --seed 1" err || fail "no warning"
case="what becomes of adapters"
python3 - <<'PYTHON' 2>>err || fail "it is not so"
import array, json, math
def tensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    header.pop("__metadata__", None)
    for name, entry in header.items():
        assert entry["dtype"] == "F32", entry
    return {name: (entry["shape"], array.array("f", data[slice(*entry["data_offsets"])]))
            for name, entry in header.items()}
def steps(run):
    lines = [json.loads(line) for line in open(run + "/metrics.jsonl")]
    return [line["loss"] for line in lines if line["event"] == "step"]
config = json.load(open("adapters/adapter_config.json"))
assert config["r"] == 4 and config["lora_alpha"] == 8 and config["base_model_name_or_path"] == "model", config
assert sorted(config["target_modules"]) == ["down_proj", "q_proj", "v_proj"], config
before, after = tensors("model/model.safetensors"), tensors("merged/model.safetensors")
adapters = tensors("adapters/adapter_model.safetensors")
assert before.keys() == after.keys()
changed = 0
for name, (shape, values) in before.items():
    a, b = (adapters.get(f"base_model.model.{name.removesuffix('.weight')}.lora_{which}.weight") for which in "AB")
    if a is None:
        assert values == after[name][1], name
        continue
    changed += 1
    rows, columns = shape
    for row in (0, rows // 2, rows - 1):
        for column in (0, columns // 3, columns - 1):
            sum_ = sum(b[1][row * 4 + k] * a[1][k * columns + column] for k in range(4))
            expected = values[row * columns + column] + 2 * sum_
            assert math.isclose(after[name][1][row * columns + column], expected, abs_tol=1e-6), name
assert changed * 2 == len(adapters) and changed % 3 == 0 and changed > 0, (changed, len(adapters))
whole = steps("adapted")
assert whole[-1] < 0.9 * whole[0], whole
assert steps("adapted-again") == whole[6:] and steps("adapted-config") == whole, "another run"
run, = (json.loads(line) for line in open("adapted/metrics.jsonl") if '"event":"run"' in line)
assert run["adapters"] == "rank 4, alpha 8, q_proj, v_proj, down_proj", run
trained = sum(len(values) for _, values in adapters.values())
assert run["trained_parameters"] == trained, (run, trained)
assert run["parameters"] == trained + sum(len(values) for _, values in before.values()), run
assert f'| {run["parameters"]} parameters, {trained} of them trained |' in open("adapted.out").read(), trained
assert open("adapters/adapter_model.safetensors", "rb").read() == \
    open("adapters-again/adapter_model.safetensors", "rb").read(), "other adapters"
begun, merged = steps("with-adapters")[0], steps("with-merged")[0]
assert begun < 0.95 * whole[0] and math.isclose(begun, merged, rel_tol=1e-5), (begun, merged, whole[0])
PYTHON
refused "adapters of another rank" "its adapters have rank 4, alpha 8" "${adapted[@]}" --lora 8 \
  --load-adapters adapters
err_is_one_line_with "; they fit with --lora 4"
refused "adapters of other layers" "; they fit with --lora-alpha 8 --lora-targets q_proj,v_proj,down_proj" \
  --model hf:model --precision fp32 "${shape[@]}" "${data[@]}" --chat-template own.json --lora 4 \
  --load-adapters adapters
refused "adapters that are not there" "--load-adapters absent: there is no such folder; pass a folder written by --save-adapters or PEFT" \
  "${adapted[@]}" --lora 4 --load-adapters absent
refused "adapters of a file" "--load-adapters chats.jsonl: is not a folder; pass a folder written by --save-adapters or PEFT" \
  "${adapted[@]}" --lora 4 --load-adapters chats.jsonl
refused "adapters to begin with, to go on with" "--load-adapters sets the adapters with which a run begins, but --resume adapted continues" \
  "${adapted[@]}" --lora 4 --steps 13 --load-adapters adapters --resume adapted
run "adapters to begin with, unless there is a checkpoint" 0 "${adapted[@]}" --lora 4 --steps 1 --out maybe \
  --checkpoint-every 1 --load-adapters adapters --resume auto
run "a run that began with adapters, and goes on" 0 --config maybe/config.toml --steps 2
grep -qxF 'load-adapters = "adapters"' maybe/config.toml || fail "it is not known with which"
run "its first step" 0 --config maybe/config.toml --replay-step 1
grep -qE "^equal: .* equal to its record" out || fail "it is another"
refused "adapters of another rank, to go on with" "; it fits with --lora 4" "${adapted[@]}" --lora 8 --steps 12 \
  --resume adapted/checkpoints/step-00000006
err_is_one_line_with "the adapters are of rank 4, alpha 8, q_proj, v_proj, down_proj in the checkpoint, but rank 8"
refused "a layer that there is not" "'qkv' is not a linear layer" "${base[@]}" "${data[@]}" --lora 4 \
  --lora-targets qkv
refused "an alpha without adapters" "--lora-alpha needs --lora RANK" "${base[@]}" "${data[@]}" --lora-alpha 8
refused "a folder that is there" "adapters: already exists" "${adapted[@]}" --lora 4 --save-adapters adapters
refused "adapters that go on without" "has adapters, which this run lacks; pass --lora" --model hf:model \
  --precision fp32 "${shape[@]}" "${data[@]}" --chat-template own.json --steps 12 \
  --resume adapted/checkpoints/step-00000006
refused "adapters that go on from a model" "has a whole model, while this run trains adapters" \
  --model hf:model --precision fp32 "${shape[@]}" "${data[@]}" --chat-template own.json --steps 20 \
  --lora 4 --resume "$before" --convert
refused "adapters as a model" "contains PEFT adapters but no model" --model hf:adapters --precision fp32 \
  "${shape[@]}" "${data[@]}" --chat-template own.json
refused "one folder for two things" "--save-hf both is in the folder of --save-adapters, both" "${adapted[@]}" \
  --lora 4 --save-adapters both --save-hf both
refused "adapters that go on beside another model" "--model must have the weights with which the adapters" --model hf:merged --precision fp32 \
  "${shape[@]}" "${data[@]}" --chat-template own.json --lora 4 --lora-alpha 8 \
  --lora-targets q_proj,v_proj,down_proj --learning-rate 1e-2 --warmup 2 --steps 12 \
  --resume adapted/checkpoints/step-00000006
err_is_one_line_with "; pass --model hf:model, with unchanged files"
case="weights of a checkpoint that has adapters only"
"$program" --resume adapted --export-hf exported >out 2>err && fail "it is no error"
err_is_one_line_with "contains only adapters"
[ ! -e exported ] || fail "something was written"
refused "adapters that are not compiled in" '-DOCTAVO_LORA="llama_tiny:fp32;llama_tiny:bf16"' --model llama_tiny --precision bf16 \
  "${shape[@]}" "${data[@]}" --chat-template own.json --lora 4
refused "frozen weights that travel in FP8" "frozen weights are not gathered in FP8" "${base[@]}" "${data[@]}" --lora 4 \
  --gather fp8

# --- the experiment --------------------------------------------------------------------------
for experiment in llama3_8b_ultrachat_bf16 llama3_8b_ultrachat_fp8_delayed smollm2_chats smollm2_chats_lora; do
  sed -e '/^gemm-plans = /d' "$here/../../examples/experiments/$experiment.toml" >"$experiment.toml"
  run "$experiment, of another model" 0 --config "$experiment.toml" "${model[@]}" --device cpu --gather stored \
    --micro-batches 1 --checkpoint-every 0 --chat-template own.json --chats chats.jsonl "${few[@]}"
done
grep -qF "adapters | rank 16, alpha 32, q_proj" out || fail "there are no adapters"

# --- configurations --------------------------------------------------------------------------
# toml_refused NAME TEXT LINE: it is the file's second
toml_refused() {
  printf 'steps = 3\n%s\nseed = 3\n' "$3" >bad.toml
  refused "$1" "finetune_llama: bad.toml:2: $2" --config bad.toml
}
for word in bf16 fp8-delayed true.txt 8bit; do
  toml_refused "a word without quotes: $word" "precision: words must be quoted; write precision = \"$word\"" "precision = $word"
done
toml_refused "a path, a comment and the end of a line of Windows" \
  'out: words must be quoted; write out = "my runs\\u\\1"' $'  out=  my runs\\u\\1\t# here\r'
toml_refused "a number that is none" "Error while parsing" 'steps = 3O'
toml_refused "an array without quotes" "Error while parsing" 'chats = [a.jsonl, b.jsonl]'
toml_refused "half of the quotes" "Error while parsing" 'precision = bf16"'
toml_refused "a key without a value" "Error while parsing" 'precision ='
toml_refused "two keys on a line" "Error while parsing" 'precision = bf16 model = llama_tiny'
toml_refused "a key that there is not, without quotes" "Error while parsing" 'precisions = bf16'

# --- the other trainer -----------------------------------------------------------------------
toml_refused "a configuration of the other trainer" "'data' is a flag of train_llama, not of finetune_llama" 'data = ["text.txt"]'
refused "chats without a flag" "pass --chats chats.jsonl" chats.jsonl
refused "a flag of the other trainer" "finetune_llama: 'document-end' is a flag of train_llama, not of finetune_llama" --document-end=3
trainer=$(dirname "$program")/train_llama
if [ -x "$trainer" ]; then
  flags_of() { "$1" --help | sed -n 's/^ *\(-[a-z],\)\?--\([a-z0-9-]*\).*/\2/p' | sort; }
  flags_of "$program" >own
  flags_of "$trainer" >others
  for flag in $(comm -13 own others); do
    refused "a flag of train_llama alone" "'$flag' is a flag of train_llama, not of finetune_llama" "--$flag" 1
  done
  for flag in $(comm -23 own others); do
    case="a flag of finetune_llama alone: $flag"
    "$trainer" "--$flag" 1 >out 2>err
    err_is_one_line_with "train_llama: '$flag' is a flag of finetune_llama, not of train_llama"
  done
  [ "$(comm -3 own others | wc -l)" -ge 11 ] || fail "flags are missing: $(comm -3 own others)"
else
  echo "finetune_llama: no train_llama beside it, so their flags are not compared"
fi

# --- one rank --------------------------------------------------------------------------------
run "flags of ranks for one" 0 "${base[@]}" --chats chats.jsonl "${few[@]}" --zero 3 --gather stored --check-replicas 5
grep -qF "warning: --zero 3, --check-replicas 5 have no effect on one rank" err || fail "there is no warning"
run "a flag of ranks for one" 0 "${base[@]}" --chats chats.jsonl "${few[@]}" --zero 2
grep -qF "warning: --zero 2 has no effect on one rank" err || fail "there is no warning"
run "no flag of ranks" 0 "${base[@]}" --chats chats.jsonl "${few[@]}" --zero 1
grep -q "on one rank" err && fail "there is a warning"

# --- how long a run is -----------------------------------------------------------------------
refused "epochs and steps" "--epochs and --steps both set the length" "${base[@]}" "${data[@]}" --epochs 2 --steps 3
run "steps in place of a file's epochs" 0 --config whole/config.toml --steps 2 --sample 0 --out shorter
[ "$(grep -c '^step ' out)" -eq 2 ] || fail "not two steps"
printf '\xEF\xBB\xBF' | cat - chats.jsonl >marked.jsonl
run "a byte order mark" 0 "${base[@]}" --chats marked.jsonl "${few[@]}"
grep -qF "chats | 60 of marked.jsonl" out || fail "not all chats"
head -n 1 chats.jsonl >one.jsonl
refused "one chat" "the only chat is kept for validation" "${base[@]}" --chats one.jsonl --steps 1

# --- what is refused -------------------------------------------------------------------------
refused "no chats" "--chats is required" --chat-template chatml
refused "no chats, and a checkpoint" "or pass --config RUN/config.toml with all flags of the run" --chat-template chatml --resume tuned
refused "no template" "--chat-template is required" --chats chats.jsonl
refused "no tokenizer" "--tokenizer is required" --model llama_tiny --precision fp32 \
  --chats chats.jsonl --chat-template own.json
refused "an unknown template" "there is no chat template 'llama2'" "${model[@]}" "${data[@]}" \
  --chat-template llama2
refused "a tokenizer without the template's tokens" "no special token '<|im_start|>'" \
  "${model[@]}" "${data[@]}" --chat-template chatml
err_is_one_line_with "; it has no special tokens; use the tokenizer of a model with this template, or a template file"
refused "a line that is no chat" "bad.jsonl: line 2: at byte" "${base[@]}" --chats bad.jsonl
refused "a file that is not there" "--chats absent.jsonl: there is no such file; pass a file with one chat per line" \
  "${base[@]}" --chats absent.jsonl
refused "a folder of chats" "--chats .: is a folder; pass a file with one chat per line" "${base[@]}" --chats .
refused "validation that is not there" "--validation-chats absent.jsonl: there is no such file" "${base[@]}" \
  --chats chats.jsonl --validation-chats absent.jsonl
refused "a template that is not there" "--chat-template absent.json: there is no such file; pass the name of a template" \
  "${model[@]}" "${data[@]}" --chat-template absent.json
refused "a file twice" "named already" "${base[@]}" --chats chats.jsonl \
  --validation-chats chats.jsonl
if ldd "$program" | grep -q pcre2; then
  python3 - <<'PYTHON'
import json
with open("thai.jsonl", "w") as file:
    for _ in range(6):
        file.write(json.dumps({"messages": [{"role": "user", "content": "\u0e01"},
                                            {"role": "assistant", "content": "\u0e02"}]}) + "\n")
json.dump({"user": {"before": "Q", "end": "!"}, "assistant": {"before": "A", "end": "\x03"}},
          open("short.json", "w"))
PYTHON
  thai=(--model llama_tiny --precision fp32 "${shape[@]:2}" --tokenizer "$here/../golden/tokenizers/qwen.json"
    --chat-template short.json --chats thai.jsonl)
  run "text that is normalised to NFC" 0 "${thai[@]}" --steps 1 --sample 0 --no-out
  refused "a tokenizer of more tokens than the model" "outside the model's vocabulary of 256" \
    --model llama_tiny --precision fp32 --chats chats.jsonl --chat-template chatml \
    --tokenizer "$here/../golden/chats/chatml.json"
fi
finish
