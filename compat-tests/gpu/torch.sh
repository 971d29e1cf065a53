#!/usr/bin/env bash
# PyTorch under torchrun with LD_PRELOAD=libmkernel.so, every rank on GPU 0: DDP, every c10d collective, and what waits
# for the whole device after a collective.
#
#   torch.sh [--budget SECONDS] [--from STEP] [--quick]
#
# Each script counts its own cases; the numbers are added up here. They stop at once when another library answers.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
start torch "$@"

find_library
if ! has_torch; then
  skip "PyTorch" "python3 has no torch"
  finish
  exit
fi

mps_start
export PYTHONUNBUFFERED=1
# run NAME LIMIT PROCESSES SCRIPT OPTIONS...
run() {
  local name=$1 limit=$2 processes=$3 script=$4
  shift 4
  suite "$name, $processes processes" "$limit" env LD_PRELOAD="$MKERNEL_LIB" python3 -m torch.distributed.run \
    --nnodes 1 --nproc-per-node "$processes" --master-addr 127.0.0.1 --master-port "$(free_port)" \
    "$gpu_tests/torch/$script" "$@"
}

# Torch maps its own copy of NCCL too; this proves which one its calls reach, and that without preloading it is not ours.
step "the preloaded library answers" 60 env LD_PRELOAD="$MKERNEL_LIB" \
  python3 -c "import sys; sys.path.insert(0, '$gpu_tests/torch'); import harness; harness.check_library()"
# shellcheck disable=SC2016 # for the inner shell
step "without preloading another library answers" 60 bash -c '"$@"; [ $? -eq 3 ]' - \
  python3 -c "import sys; sys.path.insert(0, '$gpu_tests/torch'); import harness; harness.check_library()"

run "DDP" 90 2 ddp.py
run "c10d" 150 2 c10d.py
run "device-wide waits" 120 2 sync.py
run "c10d" 180 4 c10d.py --eager
run "DDP" 90 4 ddp.py
run "device-wide waits" 120 4 sync.py
run "c10d" 150 2 c10d.py --eager
run "c10d" 180 4 c10d.py
if [ "$quick" -eq 0 ]; then
  run "c10d" 240 3 c10d.py
  run "c10d" 300 8 c10d.py --eager
fi
finish
