#!/usr/bin/env bash
# Tests prepare_data through its command line: prepare_data_test.sh PATH_TO_PREPARE_DATA
set -u
golden=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../golden/tokenizers")
# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"

# tokens FILE WIDTH: the tokens behind a header of llm.c
tokens() { od -An -v -t "u$2" -j 1024 -w1000000 "$1" | tr -s ' ' | sed 's/^ //'; }
no_rest() { [ -z "$(find . -name '.octavo-*')" ] || fail "a temporary file is left"; }

printf 'ab' >a.txt
printf 'c' >b.txt
run "bytes" 0 a.txt b.txt --out bytes.bin
[ "$(tokens bytes.bin 2)" = "97 98 10 99 10" ] || fail "the tokens are $(tokens bytes.bin 2)"
[ "$(od -An -t d4 -N 12 bytes.bin | tr -s ' ')" = " 20240520 1 5" ] || fail "the header is wrong"
grep -qF "3 bytes of 2 documents to 5 tokens of a vocabulary of 256" out || fail "figures are wrong"
no_rest

case="a limit of file sizes"
head -c 100000 /dev/zero | tr '\0' a >long.txt
(ulimit -f 2; exec "$program" long.txt --out limited.bin) >out 2>err
code=$?
[ "$code" -eq 1 ] || fail "exit code $code, expected 1"
err_is_one_line_with "limited.bin: cannot be written: File too large"
[ ! -e limited.bin ] || fail "a part of it is left"
no_rest

cp bytes.bin kept
run "a file that is there" 1 a.txt --out bytes.bin
err_is_one_line_with "bytes.bin: already exists"
cmp -s bytes.bin kept || fail "it was changed"

run "no name" 2 a.txt --out ""
err_is_one_line_with "prepare_data: --out must name a file, but is empty; pass a new file"
run "no such text" 1 absent.txt --out x.bin
err_is_one_line_with "absent.txt"
mkdir folder.txt
run "a folder" 1 folder.txt --out x.bin
err_is_one_line_with "folder.txt: is a folder; pass its files"
ln a.txt hard.txt
ln -s a.txt soft.txt
for twice in a.txt ./a.txt hard.txt soft.txt; do
  run "a file twice: $twice" 2 b.txt a.txt "$twice" --out x.bin
  err_is_one_line_with "name each file once, so that validation sees no training data"
  grep -qF "prepare_data: $twice is " err || fail "the file is not named: $(cat err)"
done
: >empty.txt
run "no text at all" 2 empty.txt --out x.bin
err_is_one_line_with "the files contain no text"
printf '\n\n' >blank.jsonl
run "no token at all" 2 blank.jsonl --end none --out x.bin
err_is_one_line_with "no token"
run "tokens for text" 2 a.txt kept --out x.bin
err_is_one_line_with "kept: byte 5 is 0, so it is not text"
no_rest

printf '{"text":"ab","id":[1,{}]}\n\n{"id":2,"text":"c\\n"}' >lines.jsonl
run "JSON Lines" 0 lines.jsonl --out lines.bin --end none
[ "$(tokens lines.bin 2)" = "97 98 99 10" ] || fail "the tokens are $(tokens lines.bin 2)"
gzip <lines.jsonl >packed.jsonl.gz
if "$program" packed.jsonl.gz --out x.bin 2>&1 | grep -qF "install zlib1g-dev"; then
  echo "gzip: not tested, because prepare_data was built without zlib"
else
  rm -f x.bin
  run "gzip" 0 packed.jsonl.gz --out packed.bin --end none
  cmp -s packed.bin lines.bin || fail "the tokens differ from those of the file that is not compressed"
  head -c 30 packed.jsonl.gz >cut.jsonl.gz
  run "a gzip file that is cut off" 1 cut.jsonl.gz --out cut.bin
  err_is_one_line_with "cut.jsonl.gz: cannot be read: its gzip data are cut off at byte 30"
  printf 'a\0b' | gzip >nul.gz
  run "compressed bytes" 2 nul.gz --out cut.bin
  err_is_one_line_with "nul.gz: byte 1 is 0, so it is not text"
  no_rest
fi
printf '{"text":"ab"}\n{"text":"c"\n' >broken.jsonl
run "a broken line" 1 broken.jsonl --out broken.bin
err_is_one_line_with "broken.jsonl: line 2: at byte 11"
printf '{"text":"ab"}\n{"title":"c"}\n' >other.jsonl
run "no text in an object" 1 other.jsonl --out other.bin
err_is_one_line_with 'other.jsonl: line 2: the object has no "text", but only "title"; pass the key'
[ ! -e broken.bin ] && [ ! -e other.bin ] || fail "a file was written"
printf '{"title":"ab","text":1}\n' >title.jsonl
run "another key" 0 title.jsonl --key title --out title.bin --end none
[ "$(tokens title.bin 2)" = "97 98" ] || fail "the tokens are $(tokens title.bin 2)"
no_rest

printf '[{"text":"ab"}]\n' >array.json
printf 'gr\xfc\xdf' >latin1.txt
run "texts that may not be what they seem" 0 array.json latin1.txt a.txt --out x.bin
[ "$(wc -l <err)" -eq 2 ] || fail "stderr has $(wc -l <err) lines"
grep -qF "warning: array.json: JSON" err || fail "no warning of JSON"
grep -qF "warning: latin1.txt: not UTF-8: invalid byte 2" err || fail "no warning of Latin-1"
rm x.bin
run "JSON as text" 0 array.json --input-format text --out x.bin
[ ! -s err ] || fail "a warning although the format is chosen"
rm x.bin

run "a key of texts" 2 a.txt --key title --out x.bin
err_is_one_line_with "--key needs --input-format jsonl, but --input-format is auto; pass --input-format jsonl"
run "special tokens of bytes" 2 a.txt --special --out x.bin
err_is_one_line_with "--special needs --tokenizer FILE, but --tokenizer is bytes"

run "a text with the name of JSON Lines" 0 lines.jsonl --input-format text --out x.bin --end none
cmp -s <(tail -c +1025 x.bin | od -An -v -t u2 -w2 | tr -d ' ') <(od -An -v -t u1 -w1 lines.jsonl | tr -d ' ') ||
  fail "the tokens are not the bytes"
rm x.bin
cp lines.jsonl lines.json
run "JSON Lines of another name" 0 lines.json --input-format jsonl --out x.bin --end none
cmp -s x.bin lines.bin || fail "the tokens differ"
rm x.bin
run "standard input" 0 - --out x.bin --end none < <(cat lines.jsonl)
cmp -s x.bin lines.bin || fail "the tokens differ"
rm x.bin
if [ -e packed.bin ]; then
  run "compressed standard input" 0 - --out x.bin --end none <packed.jsonl.gz
  cmp -s x.bin lines.bin || fail "the tokens differ"
  rm x.bin
fi
run "standard input between files" 0 a.txt - b.txt --input-format text --out x.bin < <(printf 'xy')
[ "$(tokens x.bin 2)" = "97 98 10 120 121 10 99 10" ] || fail "the tokens are $(tokens x.bin 2)"
rm x.bin
run "a broken line of standard input" 1 - --out x.bin < <(printf '{"text":"ab"}\n{')
err_is_one_line_with "standard input: line 2: at byte 1"
run "text from standard input" 1 - --out x.bin < <(printf '\n the rain\n')
err_is_one_line_with "standard input: line 2: must be a JSON object with a text; for plain text, pass --input-format text"
run "bytes from standard input" 2 - --input-format text --out x.bin < <(printf 'a\0')
err_is_one_line_with "standard input: byte 1 is 0, so it is not text"
run "standard input twice" 2 - - --out x.bin </dev/null
err_is_one_line_with "standard input (-) is named twice"
run "empty standard input" 2 - --end none --out x.bin </dev/null
err_is_one_line_with "the files contain no tokens"
no_rest

run "Megatron" 0 a.txt b.txt --out both.idx --format megatron
[ "$(od -An -t u2 both.bin | tr -s ' ')" = " 97 98 10 99 10" ] || fail "the tokens are wrong"
[ "$(head -c 7 both.idx)" = MMIDIDX ] || fail "the index is wrong"
run "an unknown format" 2 a.txt --out x.bin --format tfrecord

# A text longer than what is read at once, of lines.
for i in $(seq 1 2000); do printf '{"text":"%0*d"}\n' 5000 "$i"; done >long.jsonl
run "long lines" 0 long.jsonl --out long.bin --end none
[ "$(stat -c %s long.bin)" -eq $((1024 + 2 * 5000 * 2000)) ] || fail "the size is $(stat -c %s long.bin)"

case="the progress line"
python3 - "$program" >out 2>err <<'PYTHON' || fail "the progress line is not as it should be"
import os, pty, re, subprocess, sys
# As much as is read at once, and a bit.
sizes = [(1 << 25) + 1, 1 << 22]
for number, size in enumerate(sizes):
    with open(f"part_{number}.txt", "wb") as file:
        file.write(b"a" * size)
command = [sys.argv[1], "part_0.txt", "part_1.txt", "--end", "none", "--out"]
master, slave = pty.openpty()
run = subprocess.Popen([*command, "shown.bin"], stdout=subprocess.PIPE, stderr=slave, text=True)
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
said = run.stdout.read()
assert run.wait() == 0 and said.count("\n") == 1, said
*lines, last = text.decode().split("\r\x1b[K")[1:]
assert last == "", "the line stays: " + last
found = [re.fullmatch(r"\[(=* *)\] (\d+) % \| ([\d,]+) tokens \| [\d,]+ tokens/s \| (\d+) s left", line).groups()
         for line in lines]
done = [sum(sizes[:number + 1]) for number in range(len(sizes))]
assert [tokens for _, _, tokens, _ in found] == [f"{tokens:,}" for tokens in done], found
shares = [tokens / done[-1] for tokens in done]
assert [percent for _, percent, _, _ in found] == [f"{100 * share:.0f}" for share in shares], found
assert [bar for bar, _, _, _ in found] == [("=" * int(30 * share)).ljust(30) for share in shares], found
assert found[-1][3] == "0", found
silent = subprocess.run([*command, "silent.bin"], capture_output=True, text=True, check=True)
assert silent.stderr == "", "no terminal, and yet: " + silent.stderr
PYTHON
rm -f part_*.txt shown.bin silent.bin

case="a tokenizer"
"$program" a.txt --tokenizer "$golden/gpt2.json" --end none --out gpt2.bin >out 2>err
if ! grep -qF "built without PCRE2" err; then
  python3 - "$golden/expected.json" <<'EOF' || fail "the texts could not be made"
import json, sys
expected = json.load(open(sys.argv[1]))
with open("texts.jsonl", "w") as file:
    for text in expected["texts"]:
        file.write(json.dumps({"text": text}) + "\n")
for kind, name in (("text", "as_text"), ("special", "as_special")):
    documents = expected["tokens"]["gpt2"][kind]
    with open(name, "w") as file:  # <|begin|> is 0, <|end|> is 1
        print(*(token for tokens in documents for token in [0, *tokens, 1]), file=file)
EOF
  marks=(--tokenizer "$golden/gpt2.json" --begin "<|begin|>" --end "<|end|>")
  run "documents" 0 texts.jsonl "${marks[@]}" --out as_text.bin --threads 2
  [ "$(tokens as_text.bin 2)" = "$(cat as_text)" ] || fail "the tokens are not those expected"
  run "special tokens" 0 texts.jsonl "${marks[@]}" --special --out as_special.bin
  [ "$(tokens as_special.bin 2)" = "$(cat as_special)" ] || fail "the tokens are not those expected"
  run "no end of text" 2 a.txt --tokenizer "$golden/gpt2.json" --out x.bin
  err_is_one_line_with "--end auto"
  run "a SentencePiece model" 0 a.txt --tokenizer "$golden/sentencepiece.model" --out pieces.bin
  read -ra pieces <<<"$(tokens pieces.bin 2)"
  [ "${#pieces[@]}" -gt 1 ] && [ "${pieces[-1]}" = 2 ] || fail "the document does not end with </s>: ${pieces[*]}"
  printf 'u\314\210 \340\270\201' >decomposed.txt # NFC composes the first two characters
  printf '\303\274 \340\270\201' >composed.txt
  for text in decomposed composed; do
    run "$text text" 0 $text.txt --tokenizer "$golden/qwen.json" --end none --out $text.bin
  done
  cmp decomposed.bin composed.bin || fail "text is not brought into NFC"
  : >empty.json
  run "an empty tokenizer" 1 a.txt --tokenizer empty.json --out x.bin
  err_is_one_line_with "--tokenizer empty.json: is empty; download the file again"
  run "no such tokenizer" 1 a.txt --tokenizer absent.json --out x.bin
  err_is_one_line_with "--tokenizer absent.json: there is no such file; pass bytes, a tokenizer.json"
  run "a folder as tokenizer" 1 a.txt --tokenizer folder.txt --out x.bin
  err_is_one_line_with "--tokenizer folder.txt: is a folder; pass bytes, a tokenizer.json"
  run "an unknown token" 2 a.txt --tokenizer "$golden/gpt2.json" --end "<|no|>" --out x.bin
  err_is_one_line_with "no special token '<|no|>'"

  python3 - "$golden/gpt2.json" <<'PYTHON'
import json, sys
tokenizer = json.load(open(sys.argv[1]))
json.dump({**tokenizer, "padding": None}, open("unset.json", "w"))
json.dump({**tokenizer, "truncation": {"max_length": 2}, "padding": {"pad_id": 0}}, open("set.json", "w"))
PYTHON
  run "padding that is not set" 0 a.txt --tokenizer unset.json --end none --out unset.bin
  [ -s err ] && fail "there was something on stderr"
  run "padding that is set" 0 a.txt --tokenizer set.json --end none --out set.bin
  err_is_one_line_with "set.json: ignores truncation and padding, because"
  cmp -s set.bin unset.bin || fail "there are other tokens"

  case="a signal within a document"
  base64 -w 12 /dev/urandom | head -c 60000000 >words.txt # encodes for many seconds
  "$program" words.txt --tokenizer "$golden/gpt2.json" --end none --threads 1 --out x.bin >out 2>err &
  sleep 2
  kill -INT $! || fail "it ended before"
  start=$(date +%s%N)
  wait $!
  code=$?
  [ $((($(date +%s%N) - start) / 1000000)) -lt 1000 ] || fail "it took longer than a second to stop"
  [ "$code" -eq 3 ] || fail "exit code $code, expected 3"
  err_is_one_line_with "stopped; nothing was written"
  no_rest
  rm words.txt
fi
[ ! -e x.bin ] || fail "x.bin was written"
finish
