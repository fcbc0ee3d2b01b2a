#!/usr/bin/env bash
# Tests generate through its command line: generate_test.sh PATH_TO_GENERATE
set -u
golden=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../golden
# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"

# A llama_tiny of bytes that counts: the likeliest byte is the one after the last. Blocks add
# nothing, and the head's row of a byte is the embedding of the one before it.
python3 - <<'PY' || exit 1
import json, os, random, struct
random.seed(1)
layers, hidden, ffn, heads, kv_heads, head_dim, vocabulary = 4, 128, 384, 4, 2, 32, 256
table = [[random.choice((-1.0, 1.0)) for _ in range(hidden)] for _ in range(vocabulary)]
tensors = {"model.embed_tokens.weight": table, "model.norm.weight": [0.1] * hidden,
           "lm_head.weight": table[-1:] + table[:-1]}
zeros = lambda rows, columns: [[0.0] * columns] * rows
for i in range(layers):
    p = f"model.layers.{i}."
    tensors[p + "input_layernorm.weight"] = tensors[p + "post_attention_layernorm.weight"] = [1.0] * hidden
    for name, rows, columns in (
            ("self_attn.q_proj", heads * head_dim, hidden), ("self_attn.k_proj", kv_heads * head_dim, hidden),
            ("self_attn.v_proj", kv_heads * head_dim, hidden), ("self_attn.o_proj", hidden, heads * head_dim),
            ("mlp.gate_proj", ffn, hidden), ("mlp.up_proj", ffn, hidden), ("mlp.down_proj", hidden, ffn)):
        tensors[p + name + ".weight"] = zeros(rows, columns)
header, data = {}, b""
for name, values in tensors.items():
    matrix = isinstance(values[0], list)
    shape = [len(values), len(values[0])] if matrix else [len(values)]
    flat = [v for row in values for v in row] if matrix else values
    piece = struct.pack(f"<{len(flat)}f", *flat)
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(piece)]}
    data += piece
config = {"model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden,
          "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
          "head_dim": head_dim, "vocab_size": vocabulary, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
          "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
for folder, end in (("counts", None), ("ends", ord("h"))):
    os.mkdir(folder)
    open(folder + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
    json.dump(dict(config, eos_token_id=end), open(folder + "/config.json", "w"))
PY

out_is() { [ "$(cat out)" = "$1" ] || fail "the text is $(cat out), not $1"; }
greedy=(--model hf:counts --temperature 0)

run "the likeliest" 0 "${greedy[@]}" --prompt abc --max-tokens 5
out_is "abcdefgh"
grep -qE "^prompt of 3 tokens in .* \| 5 tokens, .* tokens/s" err || fail "no summary"
run "weights in FP8" 0 "${greedy[@]}" --precision fp8-tensorwise --prompt abc --max-tokens 5
out_is "abcdefgh"
run "standard input" 0 "${greedy[@]}" --prompt - --max-tokens 2 <<<"w"
case="standard input"; [ "$(head -c 2 out)" = "w" ] || fail "the text is $(cat out)"
run "the model's end of text" 0 --model hf:ends --temperature 0 --prompt abc
out_is "abcdefg"
cp -r counts configured
printf '{"eos_token_id": [200, 104], "temperature": 50.0, "top_p": 0.5, "top_k": 1, "min_p": 0.1}' \
  >configured/generation_config.json
run "the defaults of generation_config.json" 0 --model hf:configured --prompt abc
out_is "abcdefg"
grep -qxF "configured/generation_config.json | end of text 200, end of text 104, temperature 50, top-k 1, top-p 0.5, min_p (not supported)" err \
  || fail "they are not stated: $(cat err)"
run "flags that override them" 0 --model hf:configured --prompt abc --temperature 0.001 --top-k 7 --top-p 1
out_is "abcdefg"
grep -qxF "configured/generation_config.json | end of text 200, end of text 104, min_p (not supported)" err \
  || fail "they are stated: $(cat err)"
printf '{"top_p": 2}' >configured/generation_config.json
run "a wrong generation_config.json" 2 --model hf:configured --prompt abc
err_is_one_line_with "configured/generation_config.json: top_p must be a number from 1e-09 to 1, but is 2"
run "a text that stops it" 0 "${greedy[@]}" --prompt abc --stop zz --stop fgh
out_is "abcde"
run "one token to choose from" 0 --model hf:counts --temperature 9 --top-k 1 --prompt abc --max-tokens 4
out_is "abcdefg"
run "the likeliest nucleus" 0 --model hf:counts --temperature 1 --top-p 1e-6 --prompt abc --max-tokens 4
out_is "abcdefg"
run "whole characters only" 0 "${greedy[@]}" --prompt '}' --max-tokens 6
out_is '}~\x7F'$'\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd'

hot=(--model hf:counts --temperature 50 --prompt abc --max-tokens 30)
run "a seed" 0 "${hot[@]}" --seed 7
grep -q "^seed 7 |" err || fail "the seed is not printed"
mv out seven
run "the same seed" 0 "${hot[@]}" --seed 7
cmp -s out seven || fail "it gives another text"
run "another seed" 0 "${hot[@]}" --seed 8
cmp -s out seven && fail "it gives the same text"
run "no seed" 0 "${hot[@]}"
seed=$(sed -n 's/^seed \([0-9]*\) .*/\1/p' err)
mv out drawn
for i in {1..12}; do
  run "no seed, time $i" 0 "${hot[@]}"
  [ "$(sed -n 's/^seed \([0-9]*\) .*/\1/p' err)" -le 2147483647 ] || fail "--seed does not take it"
done
run "the seed that was drawn" 0 "${hot[@]}" --seed "$seed"
cmp -s out drawn || fail "it gives another text"

printf '{"behind":"\\n","user":{"before":"u","end":"."},"assistant":{"before":"a","end":"h"}}' >turns.json
case="a prompt is there before what comes of it"
[ "$(writes "${greedy[@]}" --prompt abc --max-tokens 5 | head -n 2)" = $'abc\n---' ] || fail "it is not"

run "what may stop it, up to the end" 0 "${greedy[@]}" --prompt abc --stop fgz --max-tokens 4
out_is "abcdefg"

run "a question" 0 "${greedy[@]}" --chat turns.json --prompt why
out_is "bcdefg"
run "a chat" 0 "${greedy[@]}" --chat turns.json <<<$'why\n\nand now'
out_is $'bcdefg\nbcdefg'
# Of the second prompt, "uwhy.\nabcdefgh\nuand now.\na", all up to the g is cached: the rest has 13 bytes.
grep -qF "prompt of 13 tokens" err || fail "the chat so far is read again"

# A line that is too long is left out, and the chat continues as if it had not been there.
run "a line that cannot be answered" 0 "${greedy[@]}" --chat turns.json --context 40 \
  <<<$'why\nthis line has more than the forty tokens of context\nand now'
out_is $'bcdefg\nbcdefg'
[ "$(grep -c "^generate: this line was left out of the chat: the prompt must have at most 40 tokens" err)" -eq 1 ] \
  || fail "it is not said once"

printf '{"system":{"before":"s"},"user":{"before":"u"},"assistant":{"before":"a","end":"h"}}' >system.json
run "what the system says" 0 "${greedy[@]}" --chat system.json --system "be brief" --prompt why
grep -qF "prompt of 14 tokens" err || fail "sbe briefuwhya has 14 bytes"
case="no question"; code=0
timeout -s KILL 10 "$program" "${greedy[@]}" --chat turns.json --prompt - </dev/null >out 2>err || code=$?
[ "$code" -eq 2 ] || fail "exit code $code, expected 2"
if ldd "$program" | grep -q pcre2; then
  # Its special tokens are numbers 0 and 1.
  special=("${greedy[@]}" --tokenizer "$golden/chats/chatml.json" --prompt "" --begin "<|begin|>")
  run "a special token to begin with" 0 "${special[@]}" --max-tokens 1
  out_is "<|begin|><|end|>"
  run "a special token that stops it" 0 "${special[@]}" --stop "<|end|>"
  out_is "<|begin|>"
  grep -qF "| 0 tokens" err || fail "it is a token of the text"
  case="a signal while a line of a chat is encoded"
  python3 - "$program" "${greedy[@]}" --tokenizer "$golden/tokenizers/gpt2.json" --chat turns.json \
    <<'PYTHON' 2>err || fail "it did not stop within a second"
import base64, os, signal, subprocess, sys, time
chat = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
words = base64.b32encode(os.urandom(20000000)).lower()
chat.stdin.write(b" ".join(words[i:i + 7] for i in range(0, len(words), 7)) + b"\n")
chat.stdin.flush()
time.sleep(1.5)
chat.send_signal(signal.SIGINT)
code = chat.wait(timeout=1)
assert code == 128 + signal.SIGINT, code
PYTHON
fi

case="a signal while a prompt is processed"
python3 - "$program" "${greedy[@]}" --prompt - <<'PYTHON' 2>err || fail "it did not stop"
import re, signal, subprocess, sys, time
run = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
try:
    run.stdin.write("abc " * 25000)
    run.stdin.close()
    assert run.stderr.readline().startswith("octavo ")
    time.sleep(1)
    run.send_signal(signal.SIGINT)
    code = run.wait(timeout=10)
    told = run.stderr.read()
    assert code == 128 + signal.SIGINT, code
    assert re.fullmatch("generate: stopped after [0-9,]+ of the prompt's 100,000 tokens\n", told), told
finally:
    run.kill()
PYTHON

run "a context" 0 "${greedy[@]}" --prompt abc --context 5
out_is "abcdef"
err_has() { grep -qF -- "$1" err || fail "stderr does not have: $1"; }
err_has "generate: the text stops here: the context has room for 5 tokens, but --max-tokens 200 need more; pass --context 202"
case="a context that is full, of which nobody can be told"
"$program" "${greedy[@]}" --prompt abc --context 5 >out 2>/dev/full || fail "exit code $?, expected 0"
run "a context with room for all" 0 "${greedy[@]}" --prompt abc --context 5 --max-tokens 3
out_is "abcdef"
! grep -qF "stops here" err || fail "it says that it stopped"
run "a context with room for the prompt" 0 "${greedy[@]}" --prompt abc --context 3 --max-tokens 1
out_is "abcd"
run "a context that is too short" 2 "${greedy[@]}" --prompt abc --context 2
out_is ""
err_is_one_line_with "generate: the prompt must have at most 2 tokens, but has 3; pass --context 202"
run "a context that is too short for a question" 2 "${greedy[@]}" --chat turns.json --prompt why --context 5
err_has "the prompt must have at most 5 tokens, but has 7; pass --context 206"
run "an empty text that stops it" 2 "${greedy[@]}" --prompt abc --stop ""
err_is_one_line_with "generate: --stop must not be empty"
run "no prompt" 2 "${greedy[@]}"
err_is_one_line_with "--prompt is empty"
for flag in "--top-k 5" "--top-p 0.5" "--seed 3"; do
  # shellcheck disable=SC2086
  run "sampling of the likeliest" 2 "${greedy[@]}" --prompt abc $flag
  err_is_one_line_with "generate: ${flag% *} needs --temperature above 0, but --temperature is 0; pass --temperature above 0, or leave ${flag% *} out"
done
printf '{"do_sample": false}' >configured/generation_config.json
run "sampling that generation_config.json disables" 2 --model hf:configured --prompt abc --top-k 5
err_is_one_line_with "generate: --top-k needs --temperature above 0, but configured/generation_config.json chooses the most likely token; pass --temperature, or leave --top-k out"
run "a temperature that enables it" 0 --model hf:configured --prompt abc --top-k 1 --temperature 1 --max-tokens 5
out_is "abcdefgh"
run "a preset" 2 --model llama_tiny --prompt abc
err_is_one_line_with "a preset has no weights"
run "no such folder" 2 --model hf:absent --prompt abc
err_is_one_line_with "--model hf:absent: there is no such folder; pass hf: and the folder of a Hugging Face model"
run "no folder at all" 2 --model hf: --prompt abc
err_is_one_line_with "--model hf: names no folder; pass hf: and the folder"
run "a file as folder" 2 --model hf:turns.json --prompt abc
err_is_one_line_with "--model hf:turns.json: is not a folder; pass hf: and the folder"
mkdir bare
run "a folder without a model" 2 --model hf:bare --prompt abc
err_is_one_line_with "--model hf:bare: the folder has no config.json; pass hf: and the folder"
run "no such template" 2 "${greedy[@]}" --chat absent --prompt abc
err_is_one_line_with "there is no chat template 'absent'"
run "no such template's file" 2 "${greedy[@]}" --chat absent.json --prompt abc
err_is_one_line_with "--chat absent.json: there is no such file; pass the name of a template"
run "no such checkpoint" 2 --checkpoint absent --prompt abc
err_is_one_line_with "--checkpoint absent: there is no such folder in $PWD; pass the folder of a run or a checkpoint"
run "a folder without checkpoints" 2 --checkpoint bare --prompt abc
err_is_one_line_with "--checkpoint bare is not a complete checkpoint, and contains none in its folder checkpoints"
run "no such tokenizer" 2 "${greedy[@]}" --tokenizer absent.json --prompt abc
if ldd "$program" | grep -q pcre2; then
  err_is_one_line_with "--tokenizer absent.json: there is no such file; pass bytes, a tokenizer.json"
fi
run "a system without a chat" 2 "${greedy[@]}" --system be --prompt abc
err_is_one_line_with "--system needs --chat TEMPLATE"
run "the begin of a chat" 2 "${greedy[@]}" --chat llama3 --begin "<s>" --prompt abc
err_is_one_line_with "--begin has no effect with --chat; leave one of them out"
for seed in -1 abc 1.5; do
  run "a seed of $seed" 2 "${greedy[@]}" --seed "$seed" --prompt abc
  err_is_one_line_with "--seed: '$seed' is not a whole number from 0 to 2147483647"
done
run "a context beyond the memory" 2 "${greedy[@]}" --prompt abc --context 2147483647
err_is_one_line_with "generate: --context 2147483647: the model and a text of this length do not fit in memory: the host has "
grep -qE "do not fit in memory: the host has [^;]*; pass a smaller value$" err || fail "there is other advice"
run "a context of a chat beyond the memory" 2 "${greedy[@]}" --chat turns.json --prompt abc --context 2147483647
err_is_one_line_with "generate: --context 2147483647: "
run "more tokens than the memory has room for" 2 "${greedy[@]}" --prompt abc --max-tokens 2147483647
err_is_one_line_with "generate: --max-tokens 2147483647: "
run "a folder without hf:" 2 --model counts --prompt abc
err_is_one_line_with "; pass hf:counts"
run "a model that there is not" 2 --model count --prompt abc
err_is_one_line_with "generate: --model: 'count' is not one of "
grep -qF "hf:" err && fail "there is no such folder"
mkdir models
run "a folder that is no model" 2 --model models --prompt abc
err_is_one_line_with "generate: --model: 'models' is not one of "
grep -qF "hf:" err && fail "it is no model"
run "a probability of 0" 2 "${greedy[@]}" --top-p 0 --prompt abc
err_is_one_line_with "--top-p"

# Ranks would each generate alone.
export RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2
run "a rank of two" 2 "${greedy[@]}" --prompt abc
err_is_one_line_with "torchrun started 2 ranks, but generate runs on one GPU, or the host's processors; start it without a launcher"
[ -s out ] && fail "it generates"
export RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1
run "a rank alone" 0 "${greedy[@]}" --prompt abc --max-tokens 5
out_is "abcdefgh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
if mpirun=$(command -v mpirun); then
  case="two ranks of mpirun"
  code=0
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 "$mpirun" --oversubscribe -n 2 "$program" \
    "${greedy[@]}" --prompt abc >out 2>err || code=$?
  [ "$code" -eq 2 ] || fail "exit code $code, expected 2"
  grep -qF "Open MPI started 2 ranks, but generate runs on one GPU" err || fail "it is not said why"
  grep -qF "abc" out && fail "it generates"
fi
case="help of --gpu"
"$program" --help >out 2>err
grep -A1 -e "--gpu" out | grep -qF "rank" && fail "it tells of ranks"

# A checkpoint has the weights that its run's folder has.
case="a checkpoint"
trainer=$(dirname "$program")/train_llama
if [ -x "$trainer" ]; then
  printf 'the cat sat on the mat. %.0s' {1..200} >text.txt
  "$trainer" --data text.txt --model llama_tiny --precision fp32 --steps 3 --batch 1 --seq-len 32 --sample 0 \
    --checkpoint-every 3 --out run --save-hf saved >out 2>err || fail "the trainer"
  run "a saved folder" 0 --model hf:saved --precision fp32 --prompt the --temperature 0 --max-tokens 20
  mv out expected
  run "the folder of a run" 0 --checkpoint run --prompt the --temperature 0 --max-tokens 20
  cmp -s out expected || fail "it gives another text"
  grep -qF "weights in fp32" err || fail "it has another precision"
  run "a checkpoint and a model" 2 --checkpoint run --model llama_tiny --prompt the
  err_is_one_line_with "pass only one"
fi
finish
