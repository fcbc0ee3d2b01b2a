#!/usr/bin/env bash
# Tests evaluate through its command line: evaluate_test.sh PATH_TO_EVALUATE
# train_llama and finetune_llama, beside it, write the checkpoints that it reads.
set -u
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
# shellcheck source=tests/support/program.sh
source "$here/../support/program.sh"
trainer=$(dirname "$program")/train_llama
finetuner=$(dirname "$program")/finetune_llama

# check CODE: runs Python on the results; `results` is the file that --json named
check() { python3 -c "
import json
results = lambda name: json.load(open(name))
$1" 2>>err || fail "check: $1"; }

python3 - <<'PYTHON'
import json, random, struct
random.seed(1)
words = "the a small large model trains learns number step loss eight bits scale of and in".split()
text = lambda count: " ".join(random.choice(words) for _ in range(count))
for name, count in (("train.txt", 2000), ("held_out.txt", 60)):
    with open(name, "w") as file:
        file.write(text(count))
tokens = open("held_out.txt", "rb").read()
with open("held_out.bin", "wb") as file:
    file.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253))
    file.write(struct.pack(f"<{len(tokens)}H", *tokens))
questions = [{"ctx": text(3), "endings": [text(1 + i % 3) for i in range(4)],
              "label": random.randrange(4)} for _ in range(23)]
with open("questions.jsonl", "w") as file:
    for question in questions:
        file.write(json.dumps(question) + "\n")
with open("questions.bin", "wb") as file:
    file.write(struct.pack("<256i", 20240522, 1, len(questions), 0, *[0] * 252))
    for number, question in enumerate(questions):
        numbers = [number, question["label"], 4]
        for part in [question["ctx"]] + [" " + ending for ending in question["endings"]]:
            numbers += [len(part), *part.encode()]
        numbers = [65535, 2 * (len(numbers) + 2), *numbers]
        file.write(struct.pack(f"<{len(numbers)}H", *numbers))
PYTHON
shape=(--batch 2 --seq-len 64 --threads 1)

run "text" 0 --precision fp32 --data held_out.txt "${shape[@]}" --json text.json
grep -qF "perplexity | loss (nats per token) |" out || fail "no loss in the table"
grep -qF "tokenizer | bytes" out || fail "the tokenizer is not said"
[ "$(grep -cE "^ *task \| +metric \| value" out)" -eq 1 ] || fail "not one table"
grep -qxF "memory | $(python3 -c 'import json; print("%.2f" % (json.load(open("text.json"))["peak_bytes"] / 2**20))') MiB" out ||
  fail "the memory is not said"
check '
import math, os
text = results("text.json")
assert text["precision"] == "fp32" and text["device"] == "cpu" and "hellaswag" not in text
one = text["perplexity"]
assert one["tokens"] == os.path.getsize("held_out.txt") - 1 and one["files"] == ["held_out.txt"]
assert math.isclose(one["perplexity"], math.exp(one["loss"]))
assert math.isclose(one["bits_per_byte"], one["loss"] / math.log(2))
assert 5 < one["loss"] < 6  # of 256 bytes, untrained
'
err_is_one_line_with "warning: the weights are random; pass --checkpoint FOLDER or --model hf:FOLDER"
case="lines before the first batch, and results of one kind before the other"
writes --precision fp8-delayed --data held_out.txt --hellaswag questions.jsonl "${shape[@]}" >out || fail "an error"
order=$(grep -oE "^(tokenizer|scales|perplexity \| +tokens|hellaswag \| +questions|---)" out | tr -d '|\n' | tr -s ' ')
[ "$order" = "tokenizer---scales---perplexity tokens---hellaswag questions---" ] || fail "the order is $order"
run "a text as one sequence" 0 --precision fp32 --data held_out.txt --batch 1 --seq-len $(($(wc -c <held_out.txt) - 1)) \
  --threads 1 --json exact.json
run "sequences beyond the text" 0 --precision fp32 --data held_out.txt --batch 1 --seq-len 100000 --threads 1 --json beyond.json
grep -qxF "batch | the text has $(wc -c <held_out.txt) tokens: sequences have $(($(wc -c <held_out.txt) - 1)), not --seq-len 100000" out ||
  fail "it is not said"
check 'assert results("beyond.json")["perplexity"]["loss"] == results("exact.json")["perplexity"]["loss"]'
run "a tokenizer that a token file does not need" 0 --precision fp32 --data held_out.bin "${shape[@]}" --tokenizer bytes
grep -qxF "evaluate: warning: --tokenizer bytes has no effect on token files" err || fail "it is not said"
run "a token file" 0 --precision fp32 --data held_out.bin "${shape[@]}" --json tokens.json
grep -qF -- "--tokenizer" err && fail "there was none"
check 'assert results("tokens.json")["perplexity"]["loss"] == results("text.json")["perplexity"]["loss"]
assert "bits_per_byte" not in results("tokens.json")["perplexity"]'
run "some batches" 0 --precision fp32 --data held_out.txt "${shape[@]}" --batches 2 --json some.json
grep -qE '^batch \| 2 of [0-9]+ batches of --data: sequences at equal distances in the text$' out ||
  fail "which sequences it takes is not said"
check 'assert results("some.json")["perplexity"]["tokens"] == 256'
run "documents" 0 --precision fp32 --data held_out.txt "${shape[@]}" --document-end 32 --most-documents 128 \
  --json documents.json
check '
documents, text = results("documents.json")["perplexity"], open("held_out.txt").read()
assert documents["tokens"] == len(text) - 1 - text[:-1].count(" "), documents  # of words alone
assert documents["loss"] != results("text.json")["perplexity"]["loss"]
'

# Each file is a document of its own, as the trainer has them.
head -c 70 held_out.txt >first.txt
tail -c +71 held_out.txt >second.txt
printf '{"text": "a line"}\n{"text": "and its next"}\n' >lines_of_text.jsonl
python3 - <<'PYTHON'
import struct
parts = [open(name, "rb").read() for name in ("first.txt", "second.txt")] + [b"a line", b"and its next"]
for name, between in (("apart.bin", b"\0"), ("joined.bin", b"\n")):
    tokens = between.join(parts)
    with open(name, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253))
        file.write(struct.pack(f"<{len(tokens)}H", *tokens))
PYTHON
documents=(--precision fp32 "${shape[@]}" --document-end 0 --most-documents 8)
run "documents of several files" 0 "${documents[@]}" --data first.txt second.txt lines_of_text.jsonl --json files.json
run "their tokens with ends between them" 0 "${documents[@]}" --data apart.bin --json apart.json
run "with none" 0 "${documents[@]}" --data joined.bin --json joined.json
check '
files, apart, joined = (results(name + ".json")["perplexity"] for name in ("files", "apart", "joined"))
assert (files["loss"], files["tokens"]) == (apart["loss"], apart["tokens"])
assert files["loss"] != joined["loss"] and files["tokens"] == joined["tokens"] - 3'

run "questions of both kinds" 0 --precision fp32 --hellaswag questions.jsonl "${shape[@]}" --json lines.json
grep -qE "hellaswag \| accuracy, by characters \| 0\.[0-9]{6}" out || fail "no accuracy by characters"
run "questions of llm.c" 0 --precision fp32 --hellaswag questions.bin "${shape[@]}" --json llm_c.json
check '
lines, llm_c = results("lines.json")["hellaswag"], results("llm_c.json")["hellaswag"]
assert lines["questions"] == llm_c["questions"] == 23
assert lines["accuracy"] == llm_c["accuracy"] and 0 < lines["accuracy"] < 1
assert lines["accuracy_by_tokens"] == llm_c["accuracy_by_tokens"]
assert 0 <= lines["accuracy_by_characters"] <= 1 and "accuracy_by_characters" not in llm_c
'
run "delayed scales" 0 --precision fp8-delayed --data held_out.txt --hellaswag questions.bin "${shape[@]}" \
  --json delayed.json
grep -qF "delayed scales were calibrated" out || fail "it is not said"
check '
import math
delayed = results("delayed.json")
assert math.isclose(delayed["perplexity"]["loss"], results("text.json")["perplexity"]["loss"], rel_tol=0.01)
assert delayed["hellaswag"]["questions"] == 23
'

case="a checkpoint"
if [ -x "$trainer" ]; then
  for precision in fp32 fp8-delayed; do
    "$trainer" --data train.txt --validation-data held_out.txt --precision "$precision" --batch 2 --seq-len 64 \
      --steps 4 --warmup 1 --sample 0 --threads 1 --checkpoint-every 2 --out "run-$precision" >out 2>err ||
      fail "train_llama could not train"
    run "the checkpoint of a run in $precision" 0 --checkpoint "run-$precision" --data held_out.txt \
      "${shape[@]}" --json checkpoint.json
    check "
losses = [json.loads(line) for line in open('run-$precision/metrics.jsonl')]
loss = [line['loss'] for line in losses if line['event'] == 'evaluation'][-1]
assert results('checkpoint.json')['perplexity']['loss'] == loss
assert results('checkpoint.json')['precision'] == '$precision'
assert loss < results('text.json')['perplexity']['loss'] - 0.1"
  done
  run "a checkpoint in another precision" 0 --checkpoint run-fp8-delayed/checkpoints/step-00000004 \
    --precision fp32 --data held_out.txt "${shape[@]}" --json wide.json
  check '
import math
wide, own = results("wide.json"), results("checkpoint.json")
assert wide["recipe"] == "fp32"
assert wide["perplexity"]["loss"] != own["perplexity"]["loss"]
assert math.isclose(wide["perplexity"]["loss"], own["perplexity"]["loss"], rel_tol=0.01)
'
  if ! "$program" --help | grep -A1 -e --device | grep -q cuda; then
    run "a checkpoint on a device that is not compiled in" 2 --checkpoint run-fp8-delayed --data held_out.txt --device cuda
    err_is_one_line_with "cmake BUILD_FOLDER -DOCTAVO_CUDA=ON -DOCTAVO_CUDA_PRESETS=llama_tiny -DOCTAVO_CUDA_PRECISIONS=fp8-delayed && cmake"
  fi
  # in_manifest OLD NEW: the checkpoint of run-changed has other members
  in_manifest() {
    rm -rf run-changed
    cp -r run-fp32 run-changed
    change_manifest run-changed "$@"
  }
  if ! "$program" --help | grep -qE "(^| |,)fp8-rowwise-fp8-head(,|$| )"; then
    in_manifest '"recipe":"fp32"' '"recipe":"fp8 rowwise, head fp8 rowwise"'  # as Octavo 0.1.0 wrote it
    run "a checkpoint in a precision that is not compiled in" 2 --checkpoint run-changed --data held_out.txt
    err_is_one_line_with ';fp8-rowwise-fp8-head" && cmake'
  fi
  if ! "$program" --help | grep -qE "(^| |,)llama3_70b(,|$| )"; then
    in_manifest '"model":"llama_tiny"' '"model":"llama3_70b"'
    run "a checkpoint of a preset that is not compiled in" 2 --checkpoint run-changed --data held_out.txt
    err_is_one_line_with ": model 'llama3_70b' is not compiled in, only: "
  fi
  in_manifest '"recipe":"fp32"' '"recipe":"one of my own"'
  run "a checkpoint in a precision of one's own" 2 --checkpoint run-changed --data held_out.txt
  err_is_one_line_with "contains a llama_tiny in one of my own, which is not a precision of this program; pass --precision with one of "
  in_manifest '"model":"llama_tiny"' '"model":"my_own"'
  run "a checkpoint of a model of one's own" 2 --checkpoint run-changed --data held_out.txt
  err_is_one_line_with "contains the model my_own, which this program does not know; use a program built with the same models as"
else
  echo "evaluate: no train_llama beside it, so no checkpoint is read"
fi

python3 - <<'PYTHON'
import json, random
random.seed(2)
def chat(words):
    said = random.choice(["red", "blue", "green"])
    return {"messages": [{"role": "user", "content": f"Say {said}!"},
                         {"role": "assistant", "content": " ".join([said] * words)}]}
for name, count in (("chats.jsonl", 30), ("held_out_chats.jsonl", 11)):
    with open(name, "w") as file:
        for i in range(count):
            file.write(json.dumps(chat(1 + i % 3)) + "\n")
        file.write(json.dumps(chat(30)) + "\n")  # longer than a sequence
json.dump({"user": {"before": "Q: ", "end": "\n"},
           "assistant": {"before": "A: ", "end": "\x03"}, "behind": "\n"}, open("own.json", "w"))
PYTHON
chats=(--chats held_out_chats.jsonl --chat-template own.json)
case="chats"
if [ -x "$finetuner" ]; then
  # same_loss PRECISION FLAG...: trains with the flags, and evaluates the checkpoint with them
  same_loss() {
    local precision=$1
    shift
    rm -rf run-chats
    "$finetuner" --model llama_tiny --precision "$precision" --tokenizer bytes --chats chats.jsonl \
      --validation-chats held_out_chats.jsonl --chat-template own.json "${shape[@]}" "$@" --steps 3 --warmup 1 \
      --sample 0 --checkpoint-every 3 --out run-chats >out 2>err || fail "finetune_llama could not train"
    run "chats in $precision $*" 0 --checkpoint run-chats "${chats[@]}" "${shape[@]}" "$@" --json chats.json
    check '
lines = [json.loads(line) for line in open("run-chats/metrics.jsonl")]
loss = [line for line in lines if line["event"] == "evaluation"][-1]
chats = results("chats.json")["chats"]
assert (chats["loss"], chats["tokens"]) == (loss["loss"], loss["tokens"]), (chats, loss)'
  }
  same_loss fp32
  check 'chats = results("chats.json")["chats"]
assert (chats["chats"], chats["cut_chats"], chats["dropped_chats"]) == (12, 1, 0), chats
assert chats["files"] == ["held_out_chats.jsonl"] and chats["loss"] < 5.5'
  grep -qxF "chats | 1 longer than --seq-len, CUT" out || fail "the cut chat is not said"
  grep -qE "^ *chats \| +loss \(nats per token\) \| [0-9]" out || fail "no loss in the table"
  same_loss fp8-delayed
  same_loss fp8-tensorwise --most-chats 1 # each batch has its own scales, so packing matters
  same_loss fp32 --long-chats drop
  check 'assert results("chats.json")["chats"]["dropped_chats"] == 1'
  run "some batches of chats" 0 --checkpoint run-chats "${chats[@]}" "${shape[@]}" --batches 1 --json some.json
  check 'assert all(0 < results("some.json")["chats"][key] < results("chats.json")["chats"][key]
           for key in ("chats", "tokens"))'
  run "chats, text and questions" 0 --checkpoint run-chats "${chats[@]}" --data held_out.txt \
    --hellaswag questions.jsonl "${shape[@]}" --long-chats drop --json all.json
  check '
together, alone = results("all.json"), results("chats.json")
assert together["chats"]["loss"] == alone["chats"]["loss"] and "perplexity" in together and "hellaswag" in together'
else
  echo "evaluate: no finetune_llama beside it, so no chats are compared"
fi

# refused NAME TEXT ARGUMENT...
refused() {
  local text=$2 name=$1
  shift 2
  run "$name" 2 --threads 1 "$@"
  err_is_one_line_with "$text"
}
refused "nothing to do" "pass --data, --chats or --hellaswag"
printf x >one.txt
refused "one token" "the text to evaluate must have at least 2 tokens, an input and its target, but has 1; add text" --data one.txt
refused "a text without a flag" "pass --data held_out.txt" held_out.txt
refused "a run without a flag" "pass --checkpoint run-fp32" run-fp32
refused "chats without a template" "--chat-template is required" --chats chats.jsonl
refused "a template without chats" "--chat-template needs --chats FILE" --data held_out.txt --chat-template own.json
refused "documents without data" "--document-end needs --data FILE" --hellaswag held_out.txt --document-end 3
refused "chats that are not there" "--chats absent.jsonl: there is no such file" --chats absent.jsonl --chat-template own.json
refused "two models" "--checkpoint determines the model" --model llama_tiny --checkpoint run-fp32 --data held_out.txt
refused "no checkpoint" "--checkpoint absent: there is no such folder in $PWD" --checkpoint absent --data held_out.txt
refused "no file" "absent.txt" --data absent.txt
refused "a model that is not compiled in" "'nothing'" --model nothing --data held_out.txt
head -c 1500 questions.bin >cut.bin
refused "a file that is cut off" "cut.bin: at byte 14" --hellaswag cut.bin --precision fp32
refused "no questions" "held_out.bin: at byte 0: the file begins with 20240520" --hellaswag held_out.bin --precision fp32
printf '{"ctx": "a"\n' >broken.jsonl
refused "a broken line" "broken.jsonl: line 1: at byte" --hellaswag broken.jsonl --precision fp32
refused "a short sequence" "raise --seq-len" --hellaswag questions.bin --precision fp32 --seq-len 16
refused "a batch beyond the memory" \
  "evaluate: --batch 1000000 of --seq-len 64: the model and a batch of this size do not fit in memory: the host has " \
  --data held_out.txt --precision fp32 --batch 1000000 --seq-len 64
grep -qE "do not fit in memory: the host has [^;]*; pass smaller values$" err || fail "there is other advice"
refused "documents that never end" "--document-end must be a token of the text, from 0 to 255, but is 256" --data held_out.txt --precision fp32 \
  --batch 2 --seq-len 64 --document-end 256 --most-documents 128
refused "more documents than are said" "a batch has 4 documents, including those that begin with a sequence; pass --most-documents 4 or more" \
  --precision fp32 --batch 1 --seq-len 400 --data first.txt second.txt lines_of_text.jsonl --document-end 0 --most-documents 1
refused "half of documents" "--most-documents must be set together" --data held_out.txt --document-end 10
python3 -c "
import struct
open('wrong.bin', 'wb').write(struct.pack('<256i', 20240520, 1, 300, *[0] * 253) + struct.pack('<300H', *[1] * 299, 256))"
refused "a token outside of the vocabulary" "wrong.bin: the token at byte 1622 is 256" --data wrong.bin --precision fp32 \
  --batch 2 --seq-len 64
cp held_out.txt precious.txt
refused "results in a file of others" "--json precious.txt: exists and was not written by this program" --data held_out.txt \
  --precision fp32 --json precious.txt
cmp -s held_out.txt precious.txt || fail "it is replaced"
refused "weights of files" "--data held_out.txt:0.5: every token of every file is evaluated, so a weight has no effect; leave it out" \
  --data held_out.txt:0.5 --precision fp32
refused "results in no folder" "--json absent/results.json: the folder absent does not exist; create it, or pass another file" \
  --data held_out.txt --json absent/results.json

if mpirun=$(command -v mpirun); then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1
  export OMPI_MCA_btl_base_warn_component_unused=0 OMP_NUM_THREADS=1
  case="two ranks"
  if timeout 60 "$mpirun" -n 2 "$program" --precision fp32 --data held_out.txt --hellaswag questions.jsonl \
    "${shape[@]}" --json ranks.json >out 2>err; then
    check '
import math
ranks, one, lines = results("ranks.json"), results("text.json")["perplexity"], results("lines.json")["hellaswag"]
assert ranks["ranks"] == 2 and ranks["perplexity"]["tokens"] == one["tokens"]
assert math.isclose(ranks["perplexity"]["loss"], one["loss"], rel_tol=1e-12)
for key in ("questions", "accuracy", "accuracy_by_tokens", "accuracy_by_characters"):
    assert ranks["hellaswag"][key] == lines[key], key
'
    case="ranks that share weights"
    if [ -x "$trainer" ]; then
      # What ranks that train with these flags take is planned, and held to it, elsewhere.
      state=(--moments 8bit --recompute block)
      for precision in fp32 fp8-delayed; do
        [ "$precision" = fp32 ] || state+=(--master-weights bf16 --weight-copies remade)
        run "one rank in $precision" 0 --checkpoint "run-$precision" --data held_out.txt "${shape[@]}" \
          --json alone.json
        for ranks in 2 3; do
          case="$ranks ranks in $precision"
          timeout 60 "$mpirun" -n $ranks "$program" --checkpoint "run-$precision" --data held_out.txt \
            "${shape[@]}" --json shared.json >out 2>err || fail "it ended with an error"
          grep -qE "^memory \| [0-9.]+ MiB on each of $ranks ranks, which share the weights$" out ||
            fail "the memory is not said"
          timeout 60 "$mpirun" -n $ranks "$trainer" --data train.txt --precision "$precision" --zero 3 \
            "${state[@]}" --batch 2 --seq-len 64 --steps 1 --warmup 1 --sample 0 --threads 1 \
            --checkpoint-every 0 --out "shares-$precision-$ranks" >out 2>err || fail "train_llama could not train"
          check "
import math
shared, alone = results('shared.json'), results('alone.json')
assert shared['ranks'] == $ranks and shared['perplexity']['tokens'] == alone['perplexity']['tokens']
assert math.isclose(shared['perplexity']['loss'], alone['perplexity']['loss'], rel_tol=1e-12), (shared, alone)
lines = [json.loads(line) for line in open('shares-$precision-$ranks/metrics.jsonl')]
of_training = [line['peak_bytes'] for line in lines if 'peak_bytes' in line][-1]
assert shared['peak_bytes'] == of_training < alone['peak_bytes'], (shared['peak_bytes'], of_training)"
        done
      done
    fi
    case="two ranks, of which one has a batch of too many documents"
    python3 -c 'print(64 * "a" + 32 * "a|" + 128 * "a", end="")' >crowded.txt
    code=0
    timeout 60 "$mpirun" -n 2 "$program" --precision fp32 --data crowded.txt --batch 1 --seq-len 64 --threads 1 \
      --document-end 124 --most-documents 4 --comm-timeout 20 >out 2>err || code=$?
    [ "$code" -eq 2 ] || fail "exit code $code, expected 2"
    grep -qF "evaluate: rank 1: a batch has 32 documents, including those that begin with a sequence; pass --most-documents 32" err ||
      fail "it is not said what to give"
    grep -qF "has not answered" err && fail "a rank waits for the other"
    case="two ranks, of which one has another text and other questions"
    tr a-m n-z <held_out.txt >other.txt
    sed "s/\"label\": 0/\"label\": 1/" questions.jsonl >others.jsonl
    for what in "text --data held_out.txt --data other.txt" "questions --hellaswag questions.jsonl --hellaswag others.jsonl" \
      "batches --data held_out.txt --batch 1 --data held_out.txt --batch 2" \
      "model --data held_out.txt --precision fp32 --data held_out.txt --precision bf16"; do
      read -ra words <<<"$what"
      half=$(((${#words[@]} - 1) / 2))
      flags=(--seq-len 64 --threads 1 --comm-timeout 20)
      [ "${words[0]}" = model ] || flags+=(--precision fp32)
      code=0
      timeout 60 "$mpirun" -n 1 "$program" "${words[@]:1:half}" "${flags[@]}" : \
        -n 1 "$program" "${words[@]:1+half}" "${flags[@]}" >out 2>err || code=$?
      [ "$code" -eq 1 ] || fail "${words[0]}: exit code $code, expected 1"
      grep -qF "the ranks differ in ${words[0]}: " err || fail "${words[0]}: it is not said that they differ"
    done
  else
    grep -qF "was built without MPI" err || fail "it ended with an error"
  fi
fi
finish
