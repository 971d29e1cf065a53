#!/usr/bin/env bash
# Surroundings that break kernels which wait: one hardware queue, blocking launches, the memory checker; and the price
# of residency for a neighbour, a matrix product.
#
#   environment.sh [--budget SECONDS] [--from STEP] [--quick]
#
# Parts: CUDA_DEVICE_MAX_CONNECTIONS=1 and CUDA_LAUNCH_BLOCKING=1 (onegpu_perf, the conformance program, c10d.py), memcheck (a
# small selection), the 8192^3 product, the conformance program as it is. They are mixed so that a small budget sees something of each.
# Programs: .carry/conformance (package mkernel-compat), .carry/onegpu_perf, and torch/c10d.py, torch/gemm.py.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
start environment "$@"

find_library
conformance=$CARRY/conformance
onegpu=$CARRY/onegpu_perf
export PYTHONUNBUFFERED=1
chmod +x "$conformance" "$onegpu" 2>/dev/null

# conform NAME LIMIT COMMAND-PREFIX... -- OPTIONS...: the conformance program behind `env ...` or a tool.
conform() {
  local name=$1 limit=$2 prefix=()
  shift 2
  while [ "$1" != -- ]; do
    prefix+=("$1")
    shift
  done
  shift
  if [ -x "$conformance" ]; then
    suite "$name: conformance $(printf '%s ' "$@")" "$limit" "${prefix[@]}" "$conformance" --library "$MKERNEL_LIB" "$@"
  else
    skip "$name: conformance" "conformance is not carried"
  fi
}

# perf MODE OPERATION VARIABLE=VALUE
perf() {
  if [ -x "$onegpu" ]; then
    step_check "$3: $2 $1, 4 threads" 60 onegpu_rows env "${threads_need[@]}" "$3" LD_PRELOAD="$MKERNEL_LIB" \
      "$onegpu" -r 4 -o "$2" -m "$1" -t f32 -b 8 -e 16777216 -f 128 -n 20 -c 1
  else
    skip "$3: $2 $1" "onegpu_perf is not carried"
  fi
  return 0
}

torchrun() {
  local name=$1 limit=$2 processes=$3 script=$4
  shift 4
  if ! has_torch; then
    skip "$name" "python3 has no torch"
    return 0
  fi
  suite "$name" "$limit" env "$@" LD_PRELOAD="$MKERNEL_LIB" python3 -m torch.distributed.run \
    --nnodes 1 --nproc-per-node "$processes" --master-addr 127.0.0.1 --master-port "$(free_port)" "$gpu_tests/torch/$script"
}

# What memcheck must leave: right results and no error of its own.
clean() {
  onegpu_rows "$1" || return 1
  if ! grep -q 'ERROR SUMMARY: 0 errors' "$1"; then
    grep -m 3 -E 'ERROR SUMMARY|Invalid|Error' "$1"
    return 1
  fi
}
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
# Every process prints a summary of its own; the command fails when one of them counts an error, or none was watched.
# shellcheck disable=SC2016 # for the inner shell
watched=(bash -c '"$@" | awk "{ print } /ERROR SUMMARY:/ { seen++ } /ERROR SUMMARY: [1-9]/ { bad++ } END { exit bad || !seen }"
  exit $((PIPESTATUS[0] | PIPESTATUS[1]))' - "$sanitizer" --tool memcheck --target-processes all)

operations="allreduce alltoall allgather reducescatter broadcast sendrecv"
cases=400
if [ "$quick" -eq 1 ]; then
  operations="allreduce alltoall"
  cases=80
fi
one_queue=CUDA_DEVICE_MAX_CONNECTIONS=1
blocking=CUDA_LAUNCH_BLOCKING=1
threads=(env "${threads_need[@]}")

for setting in $one_queue $blocking; do
  for operation in $operations; do
    for mode in stream graph; do perf $mode "$operation" $setting; done
  done
done
conform "$one_queue" 200 "${threads[@]}" $one_queue -- --how threads --cases $cases --only matrix,order,group,graph
conform "$blocking" 200 "${threads[@]}" $blocking -- --how threads --cases $cases --only matrix,group,graph
skip "$blocking: conformance, order" "two opposite streams cannot complete when each launch blocks"

mps_start
torchrun "8192^3 product 1 ms after the last collective" 90 2 gemm.py
mps_stop

# compute-sanitizer cannot watch clients of MPS, so its runs come without MPS and with ranks as threads.
if [ -z "$sanitizer" ]; then
  skip "memcheck" "no compute-sanitizer here"
elif [ ! -x "$onegpu" ]; then
  skip "memcheck: onegpu_perf" "onegpu_perf is not carried"
else
  for operation in $operations; do
    step_check "memcheck: $operation, 2 threads" 90 clean env "${threads_need[@]}" LD_PRELOAD="$MKERNEL_LIB" "$sanitizer" --tool memcheck \
      "$onegpu" -r 2 -o "$operation" -m stream -t f32 -b 64 -e 262144 -f 64 -n 3 -c 1
  done
fi

# Under MPS a process has about two hardware queues, too few for several communicators in opposite orders: `order` goes without.
conform "without MPS" 100 env -- --how processes --only order
conform "$one_queue, without MPS" 100 env $one_queue -- --how processes --only order
mps_start
conform "$one_queue" 200 env $one_queue -- --how processes --cases $cases --only matrix,group,graph
conform "$blocking" 200 env $blocking -- --how processes --cases $cases --only matrix,group,graph
for setting in $one_queue $blocking; do
  torchrun "$setting: c10d, 2 processes" 150 2 c10d.py "$setting"
done
conform "as it is, under MPS" 200 env -- --how processes --cases $cases --only matrix,group,graph,lifecycle,badinput
mps_stop
conform "as it is" 200 "${threads[@]}" -- --how threads --cases $cases
if [ -n "$sanitizer" ]; then
  conform "memcheck" 240 "${threads[@]}" "${watched[@]}" -- \
    --how threads --ranks 2,4 --cases $((cases / 10)) --only matrix,order,group,graph --patience 20
fi
finish
