#!/usr/bin/env bash
# Ranks on two hosts, which are network namespaces with a cable between them:
# two_hosts_test.sh PATH_TO_TRAIN_LLAMA PATH_TO_RENDEZVOUS_RANK. Ends with 77 where this machine does not let
# it make them.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
meeting=$(realpath "${2:?usage: $(basename "$0") PATH_TO_TRAIN_LLAMA PATH_TO_RENDEZVOUS_RANK}")
# shellcheck source=tests/support/program.sh
source "$root/tests/support/program.sh"

skip() {
  echo "skipped: $*"
  exit 77
}
command -v ip >/dev/null || skip "there is no ip; scripts/install-dependencies test installs it"
here=octavo-$$-1 there=octavo-$$-2
ip netns add "$here" 2>out || skip "network namespaces cannot be made: $(tail -n 1 out)"
clean_up() {
  local name
  [ -z "${run-}" ] || kill -KILL "$run" 2>/dev/null
  for name in "$here" "$there"; do
    ip netns pids "$name" 2>/dev/null | xargs -r kill -KILL
    ip netns delete "$name" 2>/dev/null
  done
  rm -rf "$scratch"
}
trap clean_up EXIT
# Nobody else has these addresses in the namespaces, whatever this machine's network is.
first=192.0.2.1 second=192.0.2.2
{
  ip netns add "$there" &&
    ip link add cable netns "$here" type veth peer name cable netns "$there" &&
    ip -n "$here" address add $first/24 dev cable && ip -n "$there" address add $second/24 dev cable
} 2>out || skip "no cable can be put between network namespaces: $(tail -n 1 out)"
for name in "$here" "$there"; do
  ip -n "$name" link set lo up
  ip -n "$name" link set cable up
done

cat >as <<'AS'
#!/bin/sh
hostname "$1"
shift
exec "$@"
AS
chmod +x as
# on NAMESPACE HOST_NAME COMMAND...: hosts have names of their own, or MPI takes them for one
on() {
  local name=$1 host=$2
  shift 2
  ip netns exec "$name" unshare --uts "$scratch/as" "$host" "$@"
}
on "$here" first true 2>out || skip "a host's name cannot be set: $(tail -n 1 out)"

# What stands in ssh's place: HOST COMMAND...
cat >agent <<AGENT
#!/bin/bash
case \$1 in
  $first) exec ip netns exec $here sh -c "\${*:2}" ;;
  $second) echo \$\$ >>$scratch/agents
    exec ip netns exec $there unshare --uts sh -c "hostname second; \${*:2}" ;;
esac
echo "there is no host \$1" >&2
exit 255
AGENT
chmod +x agent
export OCTAVO_LAUNCH_AGENT=$scratch/agent
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1
launch=("$root/scripts/launch-hosts" "$first,$second" -m --mca -m btl -m "tcp,self")

python3 - <<'PYTHON'
import random
random.seed(1)
words = "the a small large model trains learns number step loss eight bits scale of and in".split()
with open("text.txt", "w") as file:
    file.write(" ".join(random.choice(words) for _ in range(4000)))
PYTHON
base=(--data text.txt --seq-len 32 --batch 2 --validation-batches 2 --threads 1 --sample 0
  --precision fp8-delayed)

# --- losses ----------------------------------------------------------------------------------
for zero in 1 3; do
  case="two ranks on one host, ZeRO-$zero"
  timeout 60 mpirun -n 2 "$program" "${base[@]}" --steps 5 --zero "$zero" --out "one-$zero" >out 2>err ||
    fail "exit code $?"
  case="two ranks on two hosts, ZeRO-$zero"
  on "$here" first timeout 60 "${launch[@]}" "$program" "${base[@]}" --steps 5 --zero "$zero" \
    --out "two-$zero" >out 2>err || fail "exit code $?"
done
[ -s agents ] || fail "no rank was started on the second host"
case="losses on two hosts"
python3 - <<'PYTHON' 2>err || fail "they are not those on one host"
import json
def losses(folder):
    lines = [json.loads(line) for line in open(f"{folder}/metrics.jsonl")]
    return [line["loss"] for line in lines if line["event"] in ("step", "evaluation")]
for zero in (1, 3):
    assert len(losses(f"one-{zero}")) == 7
    assert losses(f"one-{zero}") == losses(f"two-{zero}"), zero
PYTHON

# --- the rendezvous of ranks on GPUs, which needs none ---------------------------------------
# meet RANK TIME_OUT_MS GATHERS: a rank as torchrun starts it, on the host of its number
meet() {
  local rank=$1 names=("$here" "$there")
  shift
  ip netns exec "${names[rank]}" env RANK="$rank" WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 \
    MASTER_ADDR=$first MASTER_PORT=29500 "$meeting" "$@" >"met.$rank" 2>"err.$rank"
}
case="a rendezvous of two hosts"
meet 1 20000 200 &
other=$!
meet 0 20000 200 || fail "exit code $? of rank 0: $(cat err.0)"
wait "$other" || fail "exit code $? of rank 1: $(cat err.1)"
case="a rendezvous whose cable is cut"
rm -f met.*
pids=()
for rank in 0 1; do
  meet "$rank" 3000 1000000 &
  pids+=($!)
done
for ((i = 0; i < 200; ++i)); do
  [ -s met.0 ] && [ -s met.1 ] && break
  sleep 0.1
done
ip -n "$here" link set cable down
SECONDS=0
for rank in 0 1; do
  code=0
  wait "${pids[rank]}" || code=$?
  [ "$code" -eq 3 ] || fail "exit code $code of rank $rank"
  grep -qE "rank $((1 - rank)) has (been silent|not answered) for 3 s.*'targets of a step'" "err.$rank" ||
    fail "rank $rank says: $(cat "err.$rank")"
done
[ "$SECONDS" -lt 15 ] || fail "it took $SECONDS s"
ip -n "$here" link set cable up

# --- the cable is cut ------------------------------------------------------------------------
case="the cable is cut"
: >agents
: >out
on "$here" first timeout 120 "${launch[@]}" -m --output-filename -m "$scratch/ranks" "$program" "${base[@]}" \
  --steps 1000000 --no-out --comm-timeout 3 >out 2>err &
run=$!
# ranks_in NAMESPACE: the processes of ranks there
ranks_in() {
  local pid
  for pid in $(ip netns pids "$1"); do
    [ "/proc/$pid/exe" -ef "$program" ] && echo "$pid"
  done
}
for ((i = 0; i < 300; ++i)); do
  grep -q '^step 2 ' out && break
  sleep 0.1
done
grep -q '^step 2 ' out || fail "no step in 30 s"
for name in "$here" "$there"; do
  [ "$(ranks_in "$name" | wc -l)" -eq 1 ] || fail "not each host has a rank"
done
ip -n "$here" link set cable down
SECONDS=0
while [ -n "$(ranks_in "$here")$(ranks_in "$there")" ] && [ "$SECONDS" -lt 30 ]; do sleep 0.1; done
[ "$SECONDS" -lt 15 ] || fail "ranks are there after $SECONDS s: $(ranks_in "$here") $(ranks_in "$there")"
for rank in 0 1; do
  cat ranks/*/rank.$rank/stderr >>err
  grep -qE "^rank $rank: .*rank $((1 - rank)) has not answered for 3 s in the [a-z-]+ '[A-Za-z0-9_. ]+'" \
    ranks/*/rank.$rank/stderr || fail "rank $rank does not say what it waited for"
done
# ssh ends after a silence, as launch-hosts asks it to.
xargs -r kill -KILL <agents 2>/dev/null
for ((i = 0; i < 200; ++i)); do
  kill -0 "$run" 2>/dev/null || break
  sleep 0.1
done
if kill -0 "$run" 2>/dev/null; then
  fail "mpirun is there without the second host"
  kill -KILL "$run"
fi
wait "$run" && fail "exit code 0"
grep -qF "mpirun waits for a host that does not respond" err || fail "it is not said why mpirun ended"

finish
