#!/usr/bin/env bash
# Tests compare_runs through its command line: compare_runs_test.sh PATH_TO_COMPARE_RUNS
# The expected figures are worked out by hand from tests/examples/fixtures/compare_runs.
set -u

program=$(realpath "${1:?usage: compare_runs_test.sh PATH_TO_COMPARE_RUNS}")
cd "$(dirname "${BASH_SOURCE[0]}")/fixtures/compare_runs" || exit 1
scratch=$(mktemp -d) || exit 1
trap 'umount "$scratch/full" 2>/dev/null; rm -rf "$scratch"' EXIT

failures=0
fail() {
  echo "FAILED: $case: $*" >&2
  sed 's/^/    /' "$scratch/out" "$scratch/err" >&2
  failures=$((failures + 1))
}
# run NAME EXPECTED_EXIT_CODE ARGUMENT...
run() {
  case=$1
  local expected=$2 code=0
  shift 2
  "$program" "$@" >"$scratch/out" 2>"$scratch/err" || code=$?
  [ "$code" -eq "$expected" ] || fail "exit code $code, expected $expected"
}
out_has() { grep -qxF -- "$1" "$scratch/out" || fail "no line on stdout is: $1"; }
out_mentions() { grep -qF -- "$1" "$scratch/out" || fail "stdout does not have: $1"; }
out_mentions_not() { ! grep -qF -- "$1" "$scratch/out" || fail "stdout has: $1"; }
err_is_one_line_with() {
  [ "$(wc -l <"$scratch/err")" -eq 1 ] || fail "stderr is not one line"
  grep -qF -- "$1" "$scratch/err" || fail "stderr does not have: $1"
}
html_has() { grep -qF -- "$1" "$scratch/report.html" || fail "the report does not have: $1"; }
html_lacks() { ! grep -qF -- "$1" "$scratch/report.html" || fail "the report has: $1"; }
# The table's row of a recipe, with single spaces.
row_is() {
  tr -s ' ' <"$scratch/out" | sed 's/ $//' | grep -qxF -- "$1" || fail "no row is: $1"
}

# (2.55 - 2.5) / 2.5 is 2 %.
run "two finished runs" 0 bf16 fp8_delayed --html "$scratch/report.html"
row_is "run train loss min train loss validation loss min validation loss gap to bf16 tokens/s FP8 GEMMs skipped steps end"
row_is "bf16 2.5000 2.5000 2.5000 2.5000 baseline 15,200 0 of 48 0 done after 4 steps"
row_is "fp8-delayed 2.6000 2.6000 2.5500 2.5500 +2.00 % 1,234,567 45 of 48 1 done after 4 steps"
out_mentions_not "STOPPED"
out_mentions_not "are equal"
out_mentions "Different seed: "
[ "$(sed -n 1,4p "$scratch/out" | awk '{ print length }' | sort -u | wc -l)" -eq 1 ] ||
  fail "the table's lines differ in length"
out_has "sample of fp8-delayed"
out_has "line one↵"
out_has 'line <two>\x1B[31m'
html_has 'line &lt;two&gt;\x1B[31m</pre>'
html_has "25.00 % (1)"
html_lacks "http:"
html_lacks "https:"
# Loss in 4 views, difference, gap, gradient norm in 2 views, throughput.
[ "$(grep -c '<svg class="chart wide"' "$scratch/report.html")" -eq 9 ] || fail "not nine charts"
for view in loss-view-0 loss-view-1 loss-view-2 loss-view-3 norm-view-0 norm-view-1; do
  html_has "id=\"$view\""
done
html_has 'data-scale="logarithmic"'
html_has 'Difference to bf16 in training loss'
html_has '<g class="run-1 s1 d1">'
html_has 'data-name="saturated, mean">25.00 %'
html_lacks "Off this chart"
case="the values under the pointer"
python3 - "$scratch/report.html" <<'PYTHON' || fail "they are wrong"
import json, re, sys
charts = json.loads(re.search(r'id="data">(.*?)</script>', open(sys.argv[1]).read())[1])["charts"]
near = lambda points, wanted: [step for step, _ in points] == [step for step, _ in wanted] and all(
    a is b is None or abs(a - b) < 1e-9 for (_, a), (_, b) in zip(points, wanted))
percent = lambda a, b: 100 * (a - b) / b
losses = [(1, 5.5), (2, None), (3, 3.1), (4, 2.6)]
assert near(charts["loss"][1], losses), charts["loss"]
base = dict(charts["loss"][0])
assert charts["difference"][0] == [] and charts["gap"][0] == []
assert near(charts["difference"][1], [(step, loss and percent(loss, base[step])) for step, loss in losses])
assert near(charts["gap"][1], [(2, percent(4.1, 4)), (4, percent(2.55, 2.5))]), charts["gap"]
assert near(charts["norm"][1], [(1, 3), (2, None), (3, 1.5), (4, 1)]), charts["norm"]
PYTHON

# (2.5 - 2.55) / 2.55 is -1.96 %.
run "another baseline" 0 bf16 fp8_delayed --baseline fp8-delayed
row_is "bf16 2.5000 2.5000 2.5000 2.5000 -1.96 % 15,200 0 of 48 0 done after 4 steps"

run "a baseline that is named by its folder" 0 bf16 fp8_delayed --baseline "$PWD/fp8_delayed/"
row_is "bf16 2.5000 2.5000 2.5000 2.5000 -1.96 % 15,200 0 of 48 0 done after 4 steps"

# Without a run in BF16, the first is the baseline: at step 2, (3.9 - 4.1) / 4.1 is -4.88 %, and the opposite 5.13 %.
run "two runs in FP8" 0 fp8_delayed killed --html "$scratch/report.html"
row_is "run train loss min train loss validation loss min validation loss gap to fp8-delayed tokens/s FP8 GEMMs skipped steps end"
row_is "fp8-delayed 2.6000 2.6000 2.5500 2.5500 baseline 1,234,567 45 of 48 1 done after 4 steps"
row_is "fp8-tensorwise 4.5000 4.5000 3.9000 3.9000 -4.88 % 20,480 45 of 48 0 STOPPED at step 2 of 4: no summary"
html_has "2 runs; the baseline is fp8-delayed"
run "two runs in FP8, the other way round" 0 killed fp8_delayed
row_is "fp8-tensorwise 4.5000 4.5000 3.9000 3.9000 baseline 20,480 45 of 48 0 STOPPED at step 2 of 4: no summary"
row_is "fp8-delayed 2.6000 2.6000 2.5500 2.5500 +5.13 % 1,234,567 45 of 48 1 done after 4 steps"

# Train loss is step 2's, as the mean is over one step, and so is its speed: 1,024 tokens in 0.05 s; (3.9 - 4) / 4.
run "a killed run" 0 bf16 killed
row_is "fp8-tensorwise 4.5000 4.5000 3.9000 3.9000 -2.50 % 20,480 45 of 48 0 STOPPED at step 2 of 4: no summary"
out_has "note: fp8-tensorwise: line 5 of its metrics.jsonl is truncated and was ignored."
out_has "note: fp8-tensorwise STOPPED at step 2 of 4: no summary."
out_has "note: fp8-tensorwise: no summary: it was killed, or is still running. Its train loss is that of its last step, its validation loss that of its last evaluation."
out_has "note: fp8-tensorwise: the gap is that after step 2, the last at which both were evaluated; fp8-tensorwise was evaluated until step 2, bf16 until step 4."

# stopped FOLDER END LAST: bf16's run as one that ended before its end, evaluated after step LAST
stopped() {
  mkdir -p "$scratch/$1"
  sed -e 's/"steps":4,"gemms/"steps":30,"gemms/' -e 's/"precision":"bf16"/"precision":"fp8-blockwise"/' \
    -e 's/"recipe":"bf16"/"recipe":"fp8 blockwise"/' -e 's/"loss":2.5,"tokens"/"loss":0.01,"tokens"/' \
    -e "s/\"evaluation\",\"step\":4/\"evaluation\",\"step\":$3/" \
    -e "s/\"event\":\"summary\",/\"event\":\"summary\",\"end\":\"$2\",/" bf16/metrics.jsonl \
    >"$scratch/$1/metrics.jsonl"
}
stopped signal "signal 15" 4
stopped late "not finite" 3
# Both were evaluated at step 4; of the late one only step 2 counts, where both have 4.
run "a run that a signal stopped" 0 bf16 "$scratch/signal" --html "$scratch/report.html"
row_is "fp8-blockwise 2.5000 2.5000 2.5000 0.0100 -99.60 % 15,200 0 of 48 0 STOPPED at step 4 of 30: signal 15"
out_has "note: fp8-blockwise STOPPED at step 4 of 30: signal 15."
html_has 'class=" stopped"'
run "a run that was not finite" 0 bf16 "$scratch/late"
row_is "fp8-blockwise 2.5000 2.5000 2.5000 0.0100 +0.00 % 15,200 0 of 48 0 STOPPED at step 4 of 30: not finite"
out_mentions "the gap is that after step 2, the last at which both were evaluated"
# Files of before the summary said how it ended.
sed -i 's/"end":"not finite",//' "$scratch/late/metrics.jsonl"
run "a stopped run of an older version" 0 bf16 "$scratch/late"
row_is "fp8-blockwise 2.5000 2.5000 2.5000 0.0100 +0.00 % 15,200 0 of 48 0 STOPPED at step 4 of 30: stopped"
sed -i 's/"step":2,"loss":4,/"step":1,"loss":4,/' "$scratch/late/metrics.jsonl"
run "no step in common" 0 bf16 "$scratch/late"
row_is "fp8-blockwise 2.5000 2.5000 2.5000 0.0100 - 15,200 0 of 48 0 STOPPED at step 4 of 30: stopped"
out_mentions "no gap: there is no step at which both it and bf16 have a finite validation loss"

# Runs of one precision: the baseline is one that is done, or at least has a validation loss.
mkdir "$scratch/early" "$scratch/edges"
grep -v '"event":"\(evaluation\|summary\)"' bf16/metrics.jsonl >"$scratch/early/metrics.jsonl"
run "a baseline that was killed, and one that is done" 0 "$scratch/early" bf16 fp8_delayed
out_has "note: Several runs have the precision bf16; the gap is measured against bf16 (bf16)."
row_is "fp8-delayed 2.6000 2.6000 2.5500 2.5500 +2.00 % 1,234,567 45 of 48 1 done after 4 steps"
grep -v '"event":"summary"' bf16/metrics.jsonl >"$scratch/late/metrics.jsonl"
run "a baseline without a loss, and one with" 0 "$scratch/early" "$scratch/late" fp8_delayed
out_has "note: Several runs have the precision bf16; the gap is measured against bf16 (late)."
run "the other of two baselines, by its folder" 0 "$scratch/late" bf16 --baseline "$scratch/late"
out_has "note: Several runs have the precision bf16; the gap is measured against bf16 (late)."
run "only a baseline that was killed" 0 "$scratch/early" fp8_delayed
out_mentions "note: bf16 has no finite validation loss, so no gap can be given."

mkdir "$scratch/begun" "$scratch/one"
head -n 1 fp8_delayed/metrics.jsonl >"$scratch/begun/metrics.jsonl"
run "a run without a step" 0 bf16 "$scratch/begun"
row_is "fp8-delayed - - - - - - 45 of 48 0 STOPPED at step 0 of 4: no summary"
out_has "note: fp8-delayed: no summary: it was killed, or is still running. It has no step yet."
sed -e 's/"steps":4/"steps":1/' -e '/"step":[234]/d' bf16/metrics.jsonl >"$scratch/one/metrics.jsonl"
run "a run of one step" 0 "$scratch/one" --html "$scratch/report.html"
row_is "bf16 2.5000 5.5000 2.5000 - baseline 15,200 0 of 48 0 done after 1 step"
html_has "1 run; the baseline is bf16"
html_has "Running means are over 1 step."
sed -i '/"event":"summary"/d' "$scratch/one/metrics.jsonl"
run "a run of one step, which was killed" 0 "$scratch/one"
row_is "bf16 5.5000 5.5000 - - baseline 10,240 0 of 48 0 STOPPED at step 1 of 1: no summary"

sed -e 's/"precision":"fp8-delayed"/"precision":"fp8-delayed-bf16-edges"/' \
  -e 's/"recipe":"[^"]*"/"recipe":"first 1 bf16, fp8 delayed, last 1 bf16"/' \
  fp8_delayed/metrics.jsonl >"$scratch/edges/metrics.jsonl"
mkdir -p "$scratch/typed"
sed 's/"precision":"fp8-delayed"/"precision":"Fp8Recipe<Own>"/' fp8_delayed/metrics.jsonl >"$scratch/typed/metrics.jsonl"
run "a precision without a name" 0 bf16 "$scratch/typed" --html "$scratch/report.html"
row_is "fp8 <delayed> 2.6000 2.6000 2.5500 2.5500 +2.00 % 1,234,567 45 of 48 1 done after 4 steps"
html_has "fp8 &lt;delayed&gt;"
html_lacks "fp8 <delayed>"
run "a recipe of several parts" 0 bf16 "$scratch/edges" --html "$scratch/report.html"
row_is "fp8-delayed-bf16-edges 2.6000 2.6000 2.5500 2.5500 +2.00 % 1,234,567 45 of 48 1 done after 4 steps"
out_has "note: fp8-delayed-bf16-edges: first 1 bf16, fp8 delayed, last 1 bf16."
html_has "Of each step. Values above zero are worse"
python3 - "$scratch" <<'PYTHON'
import json, pathlib, sys
for name, precision in (("long", "bf16"), ("longer", "fp8-delayed")):
    folder = pathlib.Path(sys.argv[1]) / name
    folder.mkdir()
    lines = [json.loads(line) for line in open("bf16/metrics.jsonl")]
    head, step = lines[0], next(line for line in lines if line["event"] == "step")
    head.update(precision=precision, recipe=precision, steps=120)
    step.pop("operands", None)
    steps = [dict(step, step=number) for number in range(1, 121)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(l) + "\n" for l in [head, *steps]))
PYTHON
# A run that was resumed from step 3 on: the last record of each step counts. Its steps take 100, 50, 300 and 60 ms, of
# which the first of each process do not count: 2,048 tokens in 0.11 s.
mkdir -p "$scratch/resumed" "$scratch/elsewhere/bf16" "$scratch/announced" "$scratch/operands"
{
  sed -e '/"summary"/d' -e 's/"precision":"bf16"/"precision":"fp8-blockwise"/' \
    -e 's/"loss":2.5,"tokens"/"loss":9,"tokens"/' bf16/metrics.jsonl
  sed -e 's/"precision":"bf16"/"precision":"fp8-blockwise"/' -e '/"step":[12],/d' \
    -e '/"event":"evaluation"/d' -e '/"event":"summary"/d' \
    -e '/"step":3,/s/"milliseconds":50,"tokens_per_second":20480/"milliseconds":300,"tokens_per_second":3413.3333/' \
    -e '/"step":4,/s/"milliseconds":50,"tokens_per_second":20480/"milliseconds":60,"tokens_per_second":17066.6667/' \
    bf16/metrics.jsonl
} >"$scratch/resumed/metrics.jsonl"
run "a resumed run" 0 bf16 "$scratch/resumed"
out_mentions "resumed; the records from step 3 on replace earlier ones"
row_is "fp8-blockwise 2.5000 2.5000 4.0000 4.0000 +0.00 % 18,618 0 of 48 0 STOPPED at step 4 of 4: no summary"
# The summary of a resumed run has the speed of its last process.
mkdir "$scratch/ended"
{
  cat "$scratch/resumed/metrics.jsonl"
  grep '"event":"summary"' bf16/metrics.jsonl | sed 's/"tokens_per_second":[0-9.e+]*/"tokens_per_second":7/'
} >"$scratch/ended/metrics.jsonl"
run "a resumed run that ended" 0 bf16 "$scratch/ended"
grep -F 'fp8-blockwise' "$scratch/out" | grep -qF ' 18,618 ' || fail "it has the speed of its last process"
# A run that was killed after its last checkpoint: the process that resumed it had nothing to train, and ran no GEMM.
mkdir "$scratch/complete"
{
  grep -v '"summary"' fp8_delayed/metrics.jsonl
  sed -n 1p fp8_delayed/metrics.jsonl
  echo '{"event":"resumed","step":4,"checkpoint":"step_4","ranks":1,"version":"1"}'
  grep '"summary"' fp8_delayed/metrics.jsonl |
    sed -e 's/"tokens_per_second":[0-9.]*/"tokens_per_second":0/' -e 's/"gemms_fp8":45,"gemms_total":48/"gemms_fp8":0,"gemms_total":0/'
} >"$scratch/complete/metrics.jsonl"
run "a complete run that was resumed" 0 bf16 "$scratch/complete"
out_mentions "45 of 48"
out_mentions_not "expected 45 of 48 GEMMs"
# A run that goes on in another precision by --convert after step 3: then it is what it is now.
mkdir "$scratch/converted"
converted() {
  sed -e '/"summary"/d' -e 's/"bf16"/"fp8-delayed"/; s/"recipe":"fp8-delayed"/"recipe":"fp8 delayed"/' bf16/metrics.jsonl
  sed -n 1p bf16/metrics.jsonl
  printf '%s\n' "$1"
  sed -e 1d -e '/"step":[123],/d' bf16/metrics.jsonl
}
converted '{"event":"resumed","step":3,"checkpoint":"step_3","ranks":1,"version":"1","converted":{"step":3,"recipe":"fp8 <delayed>","optimizer":"AdamW","changes":["all"]}}' >"$scratch/converted/metrics.jsonl"
run "a run that was converted" 0 "$scratch/converted" bf16 --html "$scratch/report.html"
row_is "bf16 (converted) 2.5000 2.5000 2.5000 2.5000 baseline 20,480 0 of 48 0 done after 4 steps"
out_has "note: bf16 (converted): converted after step 3 from fp8 <delayed>, AdamW, which computed the steps until then."
html_has "converted after step 3 from fp8 &lt;delayed&gt;, AdamW"
{
  grep -v '"summary"' "$scratch/converted/metrics.jsonl"
  sed -n 1p fp8_delayed/metrics.jsonl
  echo '{"event":"resumed","step":3,"checkpoint":"step_3","ranks":1,"version":"1"}'
  grep '"event":"step","step":4,' fp8_delayed/metrics.jsonl
} >"$scratch/one_again"
mv "$scratch/one_again" "$scratch/converted/metrics.jsonl"
run "a run that goes on from before it was converted" 0 bf16 "$scratch/converted"
out_mentions "fp8-delayed  "
out_mentions_not "converted after step"
converted '{"event":"other"}' >"$scratch/converted/metrics.jsonl"
run "a second run in the file of another" 2 bf16 "$scratch/converted"
err_is_one_line_with "metrics.jsonl:10: a second run (llama_tiny, bf16) begins in the file of another (llama_tiny, fp8-delayed)"

cp bf16/metrics.jsonl "$scratch/elsewhere/bf16"
run "two folders of one name" 0 bf16 "$scratch/elsewhere/bf16"
row_is "bf16 (bf16) 2.5000 2.5000 2.5000 2.5000 baseline 15,200 0 of 48 0 done after 4 steps"
row_is "bf16 ($scratch/elsewhere/bf16) 2.5000 2.5000 2.5000 2.5000 +0.00 % 15,200 0 of 48 0 done after 4 steps"
sed 's/\("steps":4,"gemms_fp8":\)45/\148/' fp8_delayed/metrics.jsonl >"$scratch/announced/metrics.jsonl"
run "other GEMMs than expected" 0 bf16 "$scratch/announced"
out_has "note: fp8-delayed expected 48 of 48 GEMMs in FP8, but ran 45 of 48."
run "the expected GEMMs" 0 bf16 fp8_delayed
out_mentions_not "expected"
# Operand 3 of 4 loses most; what is lost most in is step 2 of 3.
python3 - "$scratch" <<'PYTHON'
import json, pathlib, sys
lines = [json.loads(line) for line in open("fp8_delayed/metrics.jsonl")]
steps = [line for line in lines if line["event"] == "step"]
for step, share in zip(steps, (0.01, 0.03, 0.02, 0)):
    step["operands"] = [dict(name=f"operand {i}", format="E4M3", amax=step["step"], scale=2,
                             saturated=i * share, flushed=0) for i in (1, 3, 2, 0)]
pathlib.Path(sys.argv[1], "operands", "metrics.jsonl").write_text(
    "".join(json.dumps(line) + "\n" for line in lines))
PYTHON
run "operands that lose" 0 bf16 "$scratch/operands" --html "$scratch/report.html"
case="the worst operands"
python3 - "$scratch/report.html" <<'PYTHON' || fail "they are others"
import re, sys
worst = open(sys.argv[1]).read().split("<h2>FP8 operands</h2>")[1].split("<details>")[0]
rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in worst.split("<tr>")[1:]]
rows = [row for row in rows if len(row) == 8]
assert [row[0] for row in rows] == ["operand 3", "operand 2"], rows
assert rows[0][2:6] == ["1 to 4", "2", "4.50 %", "9.00 % (2)"], rows
PYTHON
run "runs of 120 steps" 0 "$scratch/long" "$scratch/longer" --html "$scratch/report.html"
html_has "Of the running means over 5 steps."
case="runs without their colours, and on a phone"
python3 - "$scratch/report.html" <<'PYTHON' 2>"$scratch/err" || fail "they cannot be told apart, or read"
import re, sys
page = open(sys.argv[1], encoding="utf-8").read()


def rules(css):
    """The declarations of a style sheet by selector, without those for media."""
    css = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", css)
    return {selector.strip(): body for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", css)
            for selector in selectors.split(",")}


# Both lines have markers, of different shapes, at different places, and one has dashes.
for width in ("wide", "narrow"):
    chart = page.split(f'<svg class="chart {width}"')[1].split("</svg>")[0]
    lines = [group for group in re.findall(r'<g class="run-\d[^"]*">.*?</g>', chart, re.DOTALL)
             if 'class="smooth"' in group]
    markers = [re.findall(r'class="line-marker" d="M([\d.]+) [\d.]+([^"]*)"><title>.*?, step (\d+):', line)
               for line in lines]
    assert len(lines) == 2 and all(len(of_line) > 2 for of_line in markers), markers
    shapes, steps = ([{marker[i] for marker in of_line} for of_line in markers] for i in (1, 2))
    assert not shapes[0] & shapes[1] and not steps[0] & steps[1], (shapes, steps)
sheet = rules("".join(re.findall(r"<style>(.*?)</style>", page, re.DOTALL)))
dashes = [[sheet.get(f".{name} .smooth", "") for name in re.search(r'class="([^"]*)"', line)[1].split()]
          for line in lines]
assert ["stroke-dasharray" in "".join(of_line) for of_line in dashes] == [False, True], dashes
# Where there is little room, the narrow charts stand in the place of the wide ones, and cells in that of columns.
(phone,) = re.findall(r"@media \(max-width: (?:[4-9]\d\d)px\) \{\n(.*?)\n\}", page, re.DOTALL)
phone = rules(phone)
assert sheet["svg.narrow"].strip() == phone["svg.wide"].strip() == "display: none", phone
assert "svg.wide" not in sheet and phone["svg.narrow"].strip() == "display: block", phone
assert "display: none" in phone[".cards thead"] and "attr(data-name)" in "".join(phone.values()), phone
PYTHON
python3 - "$scratch" <<'PYTHON'
import json, pathlib, sys
path = pathlib.Path(sys.argv[1], "long", "metrics.jsonl")
head, step = [json.loads(line) for line in path.read_text().splitlines()][:2]
steps = [dict(step, step=number, loss=4 if number in (777, 1333) else 3.5 + number % 2 / 100)
         for number in range(1, 2001)]
steps[1332]["loss"] = 3
path.write_text("".join(json.dumps(line) + "\n" for line in [head, *steps]))
PYTHON
run "a value up and one down among 2000 steps" 0 "$scratch/long" --html "$scratch/report.html"
python3 - "$scratch/report.html" <<'PYTHON' || fail "one is hidden"
import re, sys
for width in ("wide", "narrow"):
    chart = open(sys.argv[1]).read().split(f'<svg class="chart {width}"')[1].split("</svg>")[0]
    line = re.search(r'class="raw" d="([^"]*)"', chart)[1]
    places = sorted(float(point.split()[1]) for point in re.split("[ML]", line)[1:])
    middle = places[len(places) // 2]
    apart = [place - middle for place in places if abs(place - middle) > 20]
    assert len(apart) == 2 and apart[0] < 0 < apart[1], apart
PYTHON

# A line that ends early has its name at its end, and nothing is drawn from there to the margin.
mkdir "$scratch/short"
head -n 30 "$scratch/longer/metrics.jsonl" >"$scratch/short/metrics.jsonl"
run "a run that ended early" 0 "$scratch/long" "$scratch/short" --html "$scratch/report.html"
python3 - "$scratch/report.html" <<'PYTHON' 2>"$scratch/err" || fail "labels are not where they should be"
import re, sys
page = open(sys.argv[1], encoding="utf-8").read()
for svg in re.findall(r'<svg class="chart (?:wide|narrow)".*?</svg>', page, re.S):
    right = float(re.search(r'data-right="([\d.]+)"', svg)[1])
    for run, path in re.findall(r'<g class="run-(\d)[^>]*><path class="leader" d="M([\d.]+) ', svg):
        assert float(path) > right, (path, right)
loss = re.search(r'<svg class="chart wide"[^>]*data-chart="loss".*?</svg>', page, re.S)[0]
right = float(re.search(r'data-right="([\d.]+)"', loss)[1])
ends = {run: float(path.replace("L", "M").split("M")[-1].split()[0]) for run, path in re.findall(
    r'<g class="run-(\d)[^>]*><path class="smooth" d="([^"]*)"', loss)}
labels = {run: float(at) for run, at in re.findall(
    r'<g class="run-(\d)[^>]*><text class="label" x="([\d.]+)"', loss)}
assert labels["0"] > right and ends["0"] == right, (labels, ends, right)
assert 0 < labels["1"] - ends["1"] < 12, (labels, ends)
PYTHON

# What is far above the start is cut off, and said.
mkdir "$scratch/wild" "$scratch/blocks"
sed -e 's/"step":3,"epoch":0.01,"loss":3.1/"step":3,"epoch":0.01,"loss":1758/' \
  fp8_delayed/metrics.jsonl >"$scratch/wild/metrics.jsonl"
run "a loss off the chart" 0 bf16 "$scratch/wild" --html "$scratch/report.html"
html_has "Off this chart: fp8-delayed: 1 value, as far as 1758 at step 3."
sed -e 's/"format":"E4M3","amax":3.1,"scale":144.5/"format":"E4M3","granularity":"1x128","amax":null,"scale":null/' \
  fp8_delayed/metrics.jsonl >"$scratch/blocks/metrics.jsonl"
run "a scale for each block" 0 bf16 "$scratch/blocks" --html "$scratch/report.html"
html_has 'data-name="last scale">one for each 1x128</td>'
html_has 'data-name="amax">not finite (1)</td>'
html_has 'data-name="last scale">2.24e+03</td>'

# A report replaces reports, and nothing else.
cp -r bf16 "$scratch/kept"
run "a report in the place of a run's metrics" 2 "$scratch/kept" --html "$scratch/kept/metrics.jsonl"
err_is_one_line_with "--html $scratch/kept/metrics.jsonl: exists and was not written by this program"
cmp -s bf16/metrics.jsonl "$scratch/kept/metrics.jsonl" || fail "the metrics of a run were replaced"

# A damaged run is named, and the others are shown.
run "a broken line" 2 broken bf16 fp8_delayed --html "$scratch/report.html"
err_is_one_line_with "broken/metrics.jsonl:3: not valid JSON"
row_is "fp8-delayed 2.6000 2.6000 2.5500 2.5500 +2.00 % 1,234,567 45 of 48 1 done after 4 steps"
html_has "<li>Damaged and left out: broken/metrics.jsonl:3: not valid JSON"
run "a broken line in a run that is watched" 2 broken bf16 --watch 0.1
out_mentions "broken/metrics.jsonl:3: not valid JSON"
row_is "bf16 2.5000 2.5000 2.5000 2.5000 baseline 15,200 0 of 48 0 done after 4 steps"
run "only a run with a broken line" 2 broken
err_is_one_line_with "broken/metrics.jsonl:3: not valid JSON"
run "a damaged baseline" 2 broken fp8_delayed --baseline bf16
err_is_one_line_with 'of one of the runs, but is "bf16"'
err_is_one_line_with "broken/metrics.jsonl:3: not valid JSON"
run "a damaged run in BF16" 2 broken fp8_delayed
err_is_one_line_with "broken/metrics.jsonl:3: not valid JSON"
row_is "fp8-delayed 2.6000 2.6000 2.5500 2.5500 baseline 1,234,567 45 of 48 1 done after 4 steps"
mkdir -p "$scratch/packed" "$scratch/nuls" "$scratch/odd/metrics.jsonl"
printf '\xfd7zXZ\0' >"$scratch/packed/metrics.jsonl"
python3 - "$scratch/nuls/metrics.jsonl" <<'PYTHON'
import sys
lines = open("fp8_delayed/metrics.jsonl", "rb").read().splitlines(keepends=True)
lines[3] = bytes(len(lines[3]) - 1) + b"\n"
open(sys.argv[1], "wb").write(b"".join(lines))
PYTHON
run "a compressed file" 2 bf16 "$scratch/packed"
err_is_one_line_with "packed/metrics.jsonl must be UTF-8 text, but is xz data"
row_is "bf16 2.5000 2.5000 2.5000 2.5000 baseline 15,200 0 of 48 0 done after 4 steps"
run "a line of NULs" 2 bf16 "$scratch/nuls"
err_is_one_line_with "nuls/metrics.jsonl:4: not valid JSON"
row_is "bf16 2.5000 2.5000 2.5000 2.5000 baseline 15,200 0 of 48 0 done after 4 steps"
run "a folder in the file's place" 2 bf16 "$scratch/odd"
err_is_one_line_with "odd/metrics.jsonl: cannot be read: it is a folder, not a regular file"
row_is "bf16 2.5000 2.5000 2.5000 2.5000 baseline 15,200 0 of 48 0 done after 4 steps"

mkdir "$scratch/empty" "$scratch/typed" "$scratch/full" "$scratch/reports"
run "a missing folder" 2 bf16 "$scratch/absent"
err_is_one_line_with "absent: no such folder"
run "an empty folder" 2 bf16 "$scratch/empty"
err_is_one_line_with "no metrics.jsonl in this folder; pass a folder of a run (--out of the trainer)"
run "a folder of runs" 2 "$scratch/elsewhere/"
err_is_one_line_with "no metrics.jsonl in this folder; pass runs in it: $scratch/elsewhere/bf16"
mkdir "$scratch/ten"
for number in 5 0 9 4 7 2 6 1 8 3; do cp -r bf16 "$scratch/ten/$number"; done
run "a folder of ten runs" 2 "$scratch/ten"
err_is_one_line_with "pass runs in it: $(printf "$scratch/ten/%s, " 0 1 2 3 4 5 6)$scratch/ten/7 and 2 more"
: >"$scratch/empty/metrics.jsonl"
run "an empty file" 2 bf16 "$scratch/empty"
err_is_one_line_with 'no "run" event'
sed 's/"loss":4,/"loss":"low",/' bf16/metrics.jsonl >"$scratch/typed/metrics.jsonl"
run "a loss of the wrong type" 2 "$scratch/typed"
err_is_one_line_with 'metrics.jsonl:3: "loss" must be a number or null'
run "no run of the baseline's precision" 2 fp8_delayed --baseline bf16
err_is_one_line_with '--baseline must be the folder or the precision of one of the runs, but is "bf16"'
run "no baseline among two of one precision" 2 fp8_delayed "$scratch/announced" --baseline bf16
err_is_one_line_with "pass one of these: fp8-delayed"
run "a baseline that is none of the runs" 2 fp8_delayed "$scratch/announced" --baseline bf16/
err_is_one_line_with 'but is "bf16/"'
! grep -qF "fp8-delayed, fp8-delayed" "$scratch/err" || fail "a precision is named twice"
run "a folder twice" 2 bf16 ./bf16
err_is_one_line_with "named twice"
run "no folder" 2
err_is_one_line_with "RUN_FOLDER is required"
run "an unknown flag" 2 bf16 --baselin bf16
err_is_one_line_with "unknown option 'baselin'; did you mean 'baseline'?"
case="an unknown flag, of which nobody can be told"
"$program" bf16 --baselin bf16 >"$scratch/out" 2>/dev/full
code=$?
[ "$code" -eq 2 ] || fail "exit code $code, expected 2"
run "a flag twice" 2 bf16 --baseline bf16 --baseline fp32
err_is_one_line_with "--baseline is set 2 times; set it once"
run "a decimal comma" 2 bf16 --watch 0,5
err_is_one_line_with "'0,5' is not a number of seconds from 0.1 to 86400; use 0.5"
run "digits in groups" 2 bf16 --watch 1,000
err_is_one_line_with "'1,000' is not a number of seconds from 0.1 to 86400"
grep -qF "write" "$scratch/err" && fail "it is taken for decimals"
for behind in "--baseline bf16" "--baseline=bf16"; do
  read -ra words <<<"$behind"
  run "a flag where a value belongs, $behind" 2 bf16 --html "${words[@]}"
  err_is_one_line_with "--html needs a value, but --baseline follows; add the value, or leave --html out"
done
run "a value that is called as a flag" 2 bf16 --baseline=--html
err_is_one_line_with 'of one of the runs, but is "--html"'
run "a folder that is called as a flag" 2 bf16 -- --html --watch
err_is_one_line_with "--html"
grep -qF "needs a value" "$scratch/err" && fail "a folder is taken for a flag"
run "control characters in a name" 1 bf16 --html "$scratch/absent/"$'\033[31m.html'
err_is_one_line_with 'absent/\x1B[31m.html'
run "version" 0 --version
grep -qE '^octavo [0-9]+\.[0-9]+\.[0-9]+$' "$scratch/out" || fail "no version"
run "help" 0 --help
out_mentions "--baseline"

echo "<!DOCTYPE html>old" >"$scratch/reports/report.html"
run "the report replaces a file" 0 bf16 --html "$scratch/reports/report.html"
grep -q "</html>" "$scratch/reports/report.html" || fail "the report is not complete"
[ "$(ls -A "$scratch/reports")" = report.html ] || fail "something was left beside the report"
run "a full device" 1 bf16 --html /dev/full
err_is_one_line_with "/dev/full: cannot be written: No space left on device"
run "a folder as the report" 1 bf16 --html "$scratch/reports"
err_is_one_line_with "Is a directory"
run "a report in a missing folder" 1 bf16 --html "$scratch/absent/report.html"
err_is_one_line_with "No such file or directory"
case="full standard output"
"$program" bf16 >/dev/full 2>"$scratch/err" && fail "exit code 0"
err_is_one_line_with "standard output: cannot be written: No space left on device"

case="a full disk"
if mount -t tmpfs -o size=16k none "$scratch/full" 2>/dev/null; then
  echo "<!DOCTYPE html>old" >"$scratch/full/report.html"
  run "a full disk" 1 bf16 --html "$scratch/full/report.html"
  err_is_one_line_with "No space left on device"
  [ "$(cat "$scratch/full/report.html")" = "<!DOCTYPE html>old" ] || fail "the old report was touched"
  [ "$(ls -A "$scratch/full")" = report.html ] || fail "something was left beside the old report"
else
  echo "skipped: a full disk (mounting a tmpfs needs more rights)"
fi
if [ "$(id -u)" -ne 0 ]; then
  chmod a-w "$scratch/empty"
  run "a folder without write permission" 1 bf16 --html "$scratch/empty/report.html"
  err_is_one_line_with "Permission denied"
else
  echo "skipped: a folder without write permission (root may write everywhere)"
fi

# Steps of 100, 50, 50 and 50 ms of 1,024 tokens, on two cards: 20,480 tokens/s are 1,024 TFLOP/s, 512 of each
# card, of 989.4. The other's steps are of 80, 40, 40 and 40 ms, and its least loss is not its last.
mkdir "$scratch/cards" "$scratch/faster"
sed 's/"event":"run",/&"card":"NVIDIA H200","ranks":2,"flops_per_token":5e10,/' bf16/metrics.jsonl \
  >"$scratch/cards/metrics.jsonl"
sed -e 's/"precision":"bf16"/"precision":"fp8-delayed"/; s/"recipe":"bf16"/"recipe":"fp8 delayed"/' \
  -e 's/"milliseconds":100,"tokens_per_second":10240/"milliseconds":80,"tokens_per_second":12800/' \
  -e 's/"milliseconds":50,"tokens_per_second":20480/"milliseconds":40,"tokens_per_second":25600/' \
  -e 's/"evaluation","step":2,"loss":4/"evaluation","step":2,"loss":2.25/' bf16/metrics.jsonl \
  >"$scratch/faster/metrics.jsonl"
run "speeds" 0 "$scratch/cards" "$scratch/faster" --html "$scratch/report.html"
row_is "run runtime ms/step tokens/s TFLOP/s MFU speed-up"
row_is "bf16 0.2 s 50.0 20,480 512 51.7 % 1.00 x"
row_is "fp8-delayed 0.2 s 40.0 25,600 - - 1.25 x"
row_is "fp8-delayed 2.5000 2.5000 2.5000 2.2500 +0.00 % 15,200 0 of 48 0 done after 4 steps"
html_has 'data-name="MFU">51.7 %</td>'
run "speeds over the first, which is not the baseline" 0 "$scratch/faster" "$scratch/cards"
row_is "bf16 0.2 s 50.0 20,480 512 51.7 % 0.80 x"
run "speeds over a run without a step" 0 "$scratch/begun" bf16
row_is "bf16 0.2 s 50.0 20,480 - - -"
sed -i 's/NVIDIA H200/Some card/' "$scratch/cards/metrics.jsonl"
run "a card that is not known" 0 "$scratch/cards"
row_is "bf16 0.2 s 50.0 20,480 512 - 1.00 x"
while IFS='|' read -r card mfu; do
  sed "s/Some card/$card/" "$scratch/cards/metrics.jsonl" >"$scratch/one/metrics.jsonl"
  run "the peak of $card" 0 "$scratch/one"
  row_is "bf16 0.2 s 50.0 20,480 512 $mfu % 1.00 x"
done <<'CARDS'
NVIDIA H100 PCIe|67.7
NVIDIA H100 NVL|61.3
NVIDIA H100 80GB HBM3|51.7
NVIDIA H20|345.9
NVIDIA H800 PCIe|67.7
NVIDIA H200 NVL|61.3
CARDS
sed 's/Some card/NVIDIA H100 80GB HBM3 MIG 1g.10gb/' "$scratch/cards/metrics.jsonl" >"$scratch/one/metrics.jsonl"
run "a part of a card" 0 "$scratch/one"
row_is "bf16 0.2 s 50.0 20,480 512 - 1.00 x"
{
  grep -v '"event":"summary"' "$scratch/cards/metrics.jsonl"
  sed -e 's/"ranks":2/"ranks":4/' -e '/"step":[123],/d' "$scratch/cards/metrics.jsonl"
} >"$scratch/one/metrics.jsonl"
run "a run that goes on with other ranks" 0 "$scratch/one"
row_is "bf16 0.2 s 50.0 20,480 - - 1.00 x"
mkdir "$scratch/uneven" "$scratch/nan"
sed -e '/"step":2,/s/"milliseconds":50/"milliseconds":90/' -e '/"step":3,/s/"milliseconds":50/"milliseconds":70/' \
  bf16/metrics.jsonl >"$scratch/uneven/metrics.jsonl"
run "times in no order" 0 "$scratch/uneven" # 100, 90, 70, 50 ms; 10,240 and three times 20,480 tokens/s
row_is "bf16 0.3 s 90.0 20,480 - - 1.00 x"
sed 's/"step":4,"loss":2.5,"tokens"/"step":4,"loss":null,"tokens"/' bf16/metrics.jsonl >"$scratch/nan/metrics.jsonl"
run "a last validation that is not finite" 0 "$scratch/nan"
row_is "bf16 2.5000 2.5000 2.5000 4.0000 baseline 15,200 0 of 48 0 done after 4 steps"
row_is "bf16 0.2 s 50.0 20,480 - - 1.00 x"
run "no validation" 0 "$scratch/early"
row_is "bf16 0.2 s 50.0 20,480 - - 1.00 x"
sed 's/"milliseconds":50,/"milliseconds":1900000,/' bf16/metrics.jsonl >"$scratch/faster/metrics.jsonl"
run "a long run" 0 "$scratch/faster"
out_mentions " 1:35:00 "
sed 's/"milliseconds":50,/"milliseconds":1241600,/' bf16/metrics.jsonl >"$scratch/faster/metrics.jsonl" # 3724.9 s
run "seconds are rounded" 0 "$scratch/faster"
out_mentions " 1:02:05 "
sed 's/"milliseconds":50,/"milliseconds":20300,/' bf16/metrics.jsonl >"$scratch/faster/metrics.jsonl" # 61.0 s
run "a minute" 0 "$scratch/faster"
out_mentions " 0:01:01 "
run "two runs that do not differ" 0 bf16 "$scratch/cards" --html "$scratch/report.html"
out_has "note: bf16 (bf16) and bf16 (cards) are equal: the same losses in 4 steps."
html_has 'data-name="ranks">2</td>'
html_lacks 'data-name="MFU">' # no run has it
html_lacks nan
python3 - "$scratch/report.html" <<'PYTHON' || fail "zero is not in the middle"
import re, sys
svg = re.search(r'<svg class="chart wide"[^>]*data-chart="difference".*?</svg>', open(sys.argv[1], encoding="utf-8").read(), re.S)[0]
path = re.search(r'<g class="run-1[^>]*><path class="smooth" d="([^"]*)"', svg)[1]
ys = [float(point.split()[1]) for point in re.split("[ML]", path)[1:]]
assert ys and all(abs(y - 174) < .2 for y in ys), ys
PYTHON

# One run of the two has not ended yet: its summary comes while it is watched.
mkdir "$scratch/running"
# What is started in the background empties its output by itself, perhaps after it is first looked at.
case="watching what has not begun"
: >"$scratch/out"
timeout 60 "$program" "$scratch/running" --watch 0.1 >"$scratch/out" 2>"$scratch/err" &
for _ in $(seq 200); do grep -q "Ctrl-C" "$scratch/out" && break; sleep 0.05; done
out_mentions "not yet: "
cp bf16/metrics.jsonl "$scratch/running"
wait $! || fail "exit code $?"
row_is "bf16 2.5000 2.5000 2.5000 2.5000 baseline 15,200 0 of 48 0 done after 4 steps"
grep -v '"event":"summary"' fp8_delayed/metrics.jsonl >"$scratch/running/metrics.jsonl"
case="watching"
: >"$scratch/out"
timeout 60 "$program" bf16 "$scratch/running" --watch 0.1 --html "$scratch/report.html" >"$scratch/out" 2>"$scratch/err" &
for _ in $(seq 200); do grep -q "Ctrl-C" "$scratch/out" && break; sleep 0.05; done
html_has '<meta http-equiv="refresh" content="1">'
for _ in $(seq 200); do [ "$(grep -c Ctrl-C "$scratch/out")" -ge 3 ] && break; sleep 0.02; done
[ "$(grep -c Ctrl-C "$scratch/out")" -ge 3 ] || fail "it is not read every 0.1 s"
grep '"event":"summary"' fp8_delayed/metrics.jsonl >>"$scratch/running/metrics.jsonl"
wait $! || fail "exit code $?"
out_mentions "until all runs have ended"
out_mentions_not $'\x1b'
out_mentions "at step 4 of 4"
out_mentions_not "STOPPED"
row_is "fp8-delayed 2.6000 2.6000 2.5500 2.5500 +2.00 % 1,234,567 45 of 48 1 done after 4 steps"
html_lacks 'http-equiv="refresh"'
case="a signal while watching"
grep -v '"event":"summary"' bf16/metrics.jsonl >"$scratch/running/metrics.jsonl"
: >"$scratch/out"
"$program" "$scratch/running" --watch 10 --html "$scratch/report.html" >"$scratch/out" 2>"$scratch/err" &
for _ in $(seq 200); do grep -q "Ctrl-C" "$scratch/out" && break; sleep 0.05; done
sleep 0.5
[ "$(grep -c Ctrl-C "$scratch/out")" -eq 1 ] || fail "it is read more often than every 10 s"
html_has '<meta http-equiv="refresh" content="10">'
kill -TERM $!
wait $! || fail "exit code $?"
html_lacks 'http-equiv="refresh"'
case="watching what a signal stopped"
timeout 30 "$program" bf16 "$scratch/signal" --watch 0.1 >"$scratch/out" 2>"$scratch/err" || fail "exit code $?"
out_mentions "STOPPED at step 4 of 30: signal 15"
out_mentions_not "Ctrl-C"
out_has "sample of bf16"
for period in 0 0.09 86401 nan inf often; do
  case="watched every $period s"
  timeout 10 "$program" bf16 --watch "$period" >"$scratch/out" 2>"$scratch/err"
  [ $? -eq 2 ] || fail "the exit code is not 2"
  err_is_one_line_with "--watch: '$period' is not a number of seconds from 0.1 to 86400"
done

[ "$failures" -eq 0 ] || { echo "$failures failures" >&2; exit 1; }
echo "compare_runs: all tests passed"
