#!/usr/bin/env bash
# Surroundings that break kernels which wait: one hardware queue, blocking launches, the memory checker; and the price
# of residency for a neighbour, a matrix product.
#
#   environment.sh [--budget SECONDS] [--quick]
#
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
    suite "$name: conformance" "$limit" "${prefix[@]}" "$conformance" --library "$MKERNEL_LIB" "$@"
  else
    skip "$name: conformance" "conformance is not carried"
  fi
}

no_wrong_rows() {
  awk '/^ *[0-9]+ +[0-9.-]+ / && NF == 6 { rows++; if ($6 != 0) wrong++ }
       END { if (wrong || !rows) { print wrong + 0 " of " rows + 0 " sizes are wrong"; exit 1 } }' "$1"
}
# perf NAME MODE OPERATION VARIABLE=VALUE...
perf() {
  local name=$1 mode=$2 operation=$3
  shift 3
  if [ -x "$onegpu" ]; then
    step_check "$name: $operation $mode, 4 threads" 60 no_wrong_rows env "$@" LD_PRELOAD="$MKERNEL_LIB" \
      "$onegpu" -r 4 -o "$operation" -m "$mode" -t f32 -b 8 -e 16777216 -f 128 -n 20 -c 1
  else
    skip "$name: $operation $mode" "onegpu_perf is not carried"
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
  no_wrong_rows "$1" || return 1
  if ! grep -q 'ERROR SUMMARY: 0 errors' "$1"; then
    grep -m 3 -E 'ERROR SUMMARY|Invalid|Error' "$1"
    return 1
  fi
}
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
operations="allreduce alltoall allgather reducescatter broadcast sendrecv"
cases=400
if [ "$quick" -eq 1 ]; then
  operations="allreduce alltoall"
  cases=80
fi
settings="CUDA_DEVICE_MAX_CONNECTIONS=1 CUDA_LAUNCH_BLOCKING=1"

# The short ones of each kind first, so that a small budget sees a little of everything.
for setting in $settings; do
  for operation in $operations; do
    for mode in stream graph; do perf "$setting" $mode "$operation" "$setting"; done
  done
done
# compute-sanitizer cannot watch clients of MPS, so its runs come without MPS and with ranks as threads.
if [ -z "$sanitizer" ]; then
  skip "memcheck" "no compute-sanitizer here"
elif [ ! -x "$onegpu" ]; then
  skip "memcheck" "onegpu_perf is not carried"
else
  for operation in $operations; do
    step_check "memcheck: $operation, 2 threads" 90 clean env LD_PRELOAD="$MKERNEL_LIB" "$sanitizer" --tool memcheck \
      "$onegpu" -r 2 -o "$operation" -m stream -t f32 -b 64 -e 262144 -f 64 -n 3 -c 1
  done
fi

mps_start
torchrun "8192^3 product 1 ms after the last collective" 90 2 gemm.py
for setting in $settings; do
  conform "$setting" 200 env "$setting" -- --cases $cases --only matrix,order,group,graph
done
conform "as it is" 200 env -- --cases $cases
for setting in $settings; do
  torchrun "$setting: c10d, 2 processes" 150 2 c10d.py "$setting"
done
mps_stop
if [ -n "$sanitizer" ]; then
  conform "memcheck" 240 "$sanitizer" --tool memcheck --target-processes all --error-exitcode 9 -- \
    --how threads --ranks 2,4 --cases $((cases / 10)) --only matrix,order,group,graph --patience 20
fi
finish
