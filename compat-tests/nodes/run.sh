#!/usr/bin/env bash
# The conformance program with its ranks in network namespaces, which are hosts of their own to the library: real TCP over veth pairs and a router,
# the emulated GPU. Needs ip (iproute2); the lossy runs need nft (nftables), the slow ones tc. As root, or as a user who may make user namespaces.
#
#   compat-tests/nodes/run.sh [--library PATH] [--emulator DIR] [--conformance PATH] [clean|loss|slow|cut]...
#
# clean: four layouts of hosts and ranks, the whole matrix. loss: 1 % of all packets are dropped. slow: 100 Mbit/s for each host. cut: a host's link
# goes down in the middle of operations. Without a name: all. The last line is "N passed, N failed".
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
bin=$root/target/debug
library=$bin/libmkernel.so emulator=$bin/emulator conformance=$bin/conformance
runs=()
while [ $# -gt 0 ]; do
  case $1 in
    --library) library=$2; shift 2 ;;
    --emulator) emulator=$2; shift 2 ;;
    --conformance) conformance=$2; shift 2 ;;
    clean | loss | slow | cut) runs+=("$1"); shift ;;
    *) echo "run.sh: what is $1?" >&2; exit 2 ;;
  esac
done
[ ${#runs[@]} -gt 0 ] || runs=(clean loss slow cut)

# A network, mounts and (for users) an identity of our own, so that nothing of it is left behind.
if [ -z "${MKERNEL_IN_NAMESPACE:-}" ]; then
  MKERNEL_IN_NAMESPACE=1 exec unshare --map-root-user --net --mount --propagation private \
    "$0" --library "$library" --emulator "$emulator" --conformance "$conformance" "${runs[@]}"
fi
command -v ip >/dev/null || { echo "run.sh: ip is not installed (Debian: iproute2)" >&2; exit 2; }
mount -t tmpfs none /run
mkdir /run/netns
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward

hosts=8
for ((k = 0; k < hosts; k++)); do
  ip netns add "node$k"
  ip link add "host$k" type veth peer name eth0 netns "node$k"
  ip addr add "10.77.$k.1/24" dev "host$k"
  ip link set "host$k" up
  ip -n "node$k" addr add "10.77.$k.2/24" dev eth0
  ip -n "node$k" link set lo up
  ip -n "node$k" link set eth0 up
  ip -n "node$k" route add default via "10.77.$k.1"
done

passed=0 failed=0
# check TITLE ARGUMENTS...: one run of the conformance program, its failures shown and its counts added.
check() {
  local title=$1 out good bad begin=$SECONDS
  shift
  out=$("$conformance" --library "$library" --emulator "$emulator" --how processes --netns node "$@" 2>&1) || true
  read -r good bad < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' <<<"$out" | tail -n 1) || true
  if [ -z "${good:-}" ] || [ "$bad" != 0 ]; then
    tail -n 60 <<<"$out" | sed "s#^#  $title | #"
  fi
  [ -n "${good:-}" ] || { good=0 bad=1; }
  passed=$((passed + good)) failed=$((failed + bad))
  echo "$title: $good passed, $bad failed ($((SECONDS - begin)) s)"
}

clean() {
  check "2 hosts of 4 ranks" --nodes 2 --ranks 8 --only matrix --cases 150
  check "4 hosts of 2 ranks" --nodes 4 --ranks 8 --only matrix --cases 150
  check "2 hosts of 3 and 1 ranks" --nodes 2 --uneven --ranks 4 --only matrix --cases 150
  check "8 hosts of 1 rank" --nodes 8 --ranks 8 --only matrix --cases 150
}

loss() {
  command -v nft >/dev/null || { echo "skipped loss: nft is not installed (Debian: nftables)"; return; }
  nft -f - <<'RULES'
table ip loss {
  chain forward {
    type filter hook forward priority 0;
    numgen random mod 100 < 1 counter drop
  }
}
RULES
  check "1 % loss, 2 hosts of 4 ranks" --nodes 2 --ranks 8 --only matrix --cases 40 --patience 10
  check "1 % loss, 8 hosts of 1 rank" --nodes 8 --ranks 8 --only matrix --cases 40 --patience 10
  nft list table ip loss | sed -n 's/.*counter packets \([0-9]*\) .*/  packets lost: \1/p'
  nft delete table ip loss
}

slow() {
  command -v tc >/dev/null || { echo "skipped slow: tc is not installed (Debian: iproute2)"; return; }
  local k
  for ((k = 0; k < hosts; k++)); do
    tc qdisc add dev "host$k" root tbf rate 100mbit burst 64kb latency 50ms
    tc -n "node$k" qdisc add dev eth0 root tbf rate 100mbit burst 64kb latency 50ms
  done
  check "100 Mbit/s, 2 hosts of 3 and 1 ranks" --nodes 2 --uneven --ranks 4 --only matrix --cases 40 --patience 10
  check "100 Mbit/s, 4 hosts of 2 ranks" --nodes 4 --ranks 8 --only matrix --cases 40 --patience 10
  for ((k = 0; k < hosts; k++)); do
    tc qdisc del dev "host$k" root
    tc -n "node$k" qdisc del dev eth0 root
  done
}

cut() {
  check "links cut and hosts lost" --only faults
}

for run in "${runs[@]}"; do "$run"; done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
