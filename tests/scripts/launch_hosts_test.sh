#!/usr/bin/env bash
# scripts/launch-hosts and scripts/train.sbatch start what they are asked to, with stand-ins for ssh, mpirun
# and srun: launch_hosts_test.sh
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1

failures=0
fail() {
  echo "FAILED: $case: $*" >&2
  cat out >&2
  failures=$((failures + 1))
}
# Prints what it was given, a word a line, and the variables that ranks would get.
mkdir bin
for name in mpirun srun; do
  printf '#!/bin/sh\nprintf "%%s\\n" "$@"\nenv | grep -E "^(MASTER|OMP_|OCTAVO_R)" | sort\n' >"bin/$name"
done
# The host called other has another program, the one called gone does not answer, and this one has no ssh.
cat >bin/agent <<'AGENT'
#!/bin/sh
case $1 in
  gone) echo "no route to host"; exit 255 ;;
  localhost | 127.0.0.1 | "$(uname -n)") echo "connection refused"; exit 255 ;;
  other) echo "0123 program" ;;
  *) sh -c "$2" ;;
esac
AGENT
printf '#!/bin/sh\n' >program
chmod +x bin/* program
unset MASTER_ADDR MASTER_PORT OCTAVO_RENDEZVOUS_SECRET
export PATH=$scratch/bin:$PATH OCTAVO_LAUNCH_AGENT=$scratch/bin/agent OMP_NUM_THREADS=3

# launch NAME EXPECTED_EXIT_CODE ARGUMENT...
launch() {
  case=$1
  local expected=$2 code=0
  shift 2
  "$root/scripts/launch-hosts" "$@" >out 2>&1 || code=$?
  [ "$code" -eq "$expected" ] || fail "exit code $code, expected $expected"
}
says() {
  grep -qF -- "$1" out || fail "it does not say: $1"
}
# words WORD...: they stand in `out` one after the other
words() {
  tr '\n' ' ' <out | grep -qF -- "$* " || fail "it has not: $*"
}

launch "hosts and ranks" 0 a:2,b,c:8 -x OWN=1 -m --mca -m btl_tcp_if_include -m eth0 ./program --data "two words"
words -n 11 -H a:2,b:1,c:8
words --mca plm_rsh_agent "$scratch/bin/agent"
words -x OWN=1
words -x MASTER_ADDR
words -x OCTAVO_RENDEZVOUS_SECRET
grep -qE '^OCTAVO_RENDEZVOUS_SECRET=[0-9a-f]{32}$' out || fail "there is no random secret"
words -x OMP_NUM_THREADS
words --mca btl_tcp_if_include eth0 "$scratch/program" --data two words
says MASTER_ADDR=a
[ "$(grep -c '^two words$' out)" -eq 1 ] || fail "an argument is two"
for host in localhost 127.0.0.1 "$(uname -n)"; do
  launch "this host, as $host" 0 "$host:2" ./program
  words -n 2 -H "$host:2"
done
launch "this host and another" 2 "$(uname -n),gone" ./program
says "gone: no route to host"
for host in localhost 127.0.1.1; do
  launch "rank 0 on $host, and another host" 2 "$host:2,b:2" ./program
  says "launch-hosts: rank 0 is on $host, which on b is b itself; write a name or an address of this host that b reaches"
  says ", or set MASTER_ADDR to it"
  MASTER_ADDR=m launch "$host and another, which meet elsewhere" 0 "$host,b" ./program
  says MASTER_ADDR=m
  launch "$host and another, which are told where" 0 "$host,b" -x MASTER_ADDR=m ./program
  words -x MASTER_ADDR=m
  launch "$host behind another" 0 "b,$host" ./program
  says MASTER_ADDR=b
done
for host in 127.0.0.1 "$(uname -n)"; do
  launch "localhost and $host, names of one host" 0 "localhost,$host" ./program
  says MASTER_ADDR=localhost
done
OCTAVO_RENDEZVOUS_SECRET=own launch "a secret that is set" 0 a,b ./program
says OCTAVO_RENDEZVOUS_SECRET=own
MASTER_ADDR=m launch "an address that is set" 0 a,b ./program
says MASTER_ADDR=m
launch "a variable that is given" 0 a,b -x OMP_NUM_THREADS=7 ./program
words -x OMP_NUM_THREADS=7
[ "$(grep -c '^OMP_NUM_THREADS$' out)" -eq 0 ] || fail "it is given twice"

launch "another program on a host" 2 a,other ./program
says "other: $scratch/program is not this host's"
launch "a host that does not answer" 2 a,gone ./program
says "gone: no route to host"
launch "no ranks" 2 a:0 ./program
says "'a:0' is not HOST or HOST:RANKS"
launch "no program" 2 a
says "name the program"
launch "a program that there is not" 2 a ./nowhere
says "./nowhere: no such program"
launch "no hosts" 2 -x A ./program
says "the first argument must be the hosts"

case="SIGTERM"
cat >bin/mpirun <<'MPIRUN'
#!/bin/bash
trap 'echo saving; sleep 0.3; echo saved; exit 138' USR1
trap 'echo killed; exit 1' TERM
echo started
while :; do sleep 0.1; done
MPIRUN
for signal in TERM USR1; do
  rm -f out
  "$root/scripts/launch-hosts" a,b ./program >out 2>&1 & run=$!
  until grep -qs started out; do sleep 0.1; done
  until grep -q -e saving -e killed out; do
    kill -"$signal" "$run"
    sleep 0.2
  done
  code=0
  wait "$run" || code=$?
  [ "$code" -eq 138 ] || fail "exit code $code of SIG$signal"
  says saved
done

case="the batch script"
export SLURM_JOB_ID=4711 SLURM_CPUS_PER_TASK=5 OCTAVO_PROGRAM=./program
bash "$root/scripts/train.sbatch" --device cuda --data "two words" >out 2>&1 || fail "exit code $?"
words --kill-on-bad-exit=1 --cpus-per-task=5 ./program --device cuda --data two words
says MASTER_PORT=24711
grep -qE '^OCTAVO_RENDEZVOUS_SECRET=[0-9a-f]{32}$' out || fail "there is no random secret"
says OMP_NUM_THREADS=5
grep -q pmix out && fail "ranks on GPUs need no PMIx"
bash "$root/scripts/train.sbatch" --data text >out 2>&1 || fail "exit code $?"
words --mpi=pmix --kill-on-bad-exit=1

[ "$failures" -eq 0 ] || { echo "$failures failures" >&2; exit 1; }
echo "launch-hosts: all tests passed"
