# What tests of programs share; a test sources it with the program's path as its first argument and
# then stands in an empty folder, where `out` and `err` hold what the last run printed.
# shellcheck shell=bash

program=$(realpath "${1:?usage: $(basename "$0") PATH_TO_PROGRAM}")
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
# A thread that waits must not spin on another test's core.

# Seconds that a run may take.
run_limit=60
failures=0
# Counts a failure, and goes on unless OCTAVO_STOP_AT_FAILURE is set.
fail() {
  echo "FAILED: $case: $*" >&2
  tail -n 40 out err >&2
  failures=$((failures + 1))
  [ -z "${OCTAVO_STOP_AT_FAILURE-}" ] || exit 1
}
# run NAME EXPECTED_EXIT_CODE ARGUMENT...
run() {
  case=$1
  local expected=$2 code=0
  shift 2
  timeout "$run_limit" "$program" "$@" >out 2>err || code=$?
  [ "$code" -eq "$expected" ] || fail "exit code $code, expected $expected"
}
err_is_one_line_with() {
  [ "$(wc -l <err)" -eq 1 ] || fail "stderr is not one line"
  grep -qF -- "$1" err || fail "stderr does not have: $1"
}
# writes ARGUMENT...: what the program writes to standard output, and a line of --- behind each time that it does
writes() {
  python3 - "$program" "$@" 2>err <<'PYTHON'
import socket, subprocess, sys
ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps writes apart
run = subprocess.Popen(sys.argv[1:], stdout=its)
its.close()
while text := ours.recv(1 << 16).decode():
    print(text, end="\n---\n")
sys.exit(run.wait())
PYTHON
}
# finish: the test's last line
finish() {
  [ "$failures" -eq 0 ] || { echo "$failures failures" >&2; exit 1; }
  echo "$(basename "$program"): all tests passed"
}

# change_manifest FOLDER OLD NEW: the run's newest checkpoint has NEW in place of OLD among its manifest's members; behind
# them where OLD is empty
change_manifest() {
  python3 - "$@" <<'PYTHON'
import glob, sys
def crc32c(data):
    total = 0xffffffff
    for byte in data:
        total ^= byte
        for _ in range(8):
            total = total >> 1 ^ (0x82f63b78 if total & 1 else 0)
    return total ^ 0xffffffff
folder, old, new = sys.argv[1:]
name = sorted(glob.glob(folder + "/checkpoints/*"))[-1] + "/manifest.json"
begin = open(name).read().rsplit(',"crc32c"', 1)[0]
assert old in begin
begin = begin.replace(old, new) if old else begin + new
open(name, "w").write(f'{begin},"crc32c":"{crc32c(begin.encode()):08x}"}}\n')
PYTHON
}
