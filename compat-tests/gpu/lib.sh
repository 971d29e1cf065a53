# Helpers of the GPU tests, to be sourced: finding what is tested, MPS, steps with a time limit, counting results.
# shellcheck shell=bash
# shellcheck disable=SC2034 # the scripts read what is set here
#
# A script sources this file, calls `start NAME "$@"`, runs its steps and ends with `finish`, which prints
# `N passed, N failed[, N not reached][, N skipped (why)]` and returns non-zero when anything failed. What the budget of
# seconds did not allow for is "not reached": it says nothing about the library, so it counts neither as passed nor as failed.
#
# Settings, all optional:
#   BUDGET        seconds that the script may take (the option --budget wins; without either there is no limit)
#   MKERNEL_LIB   the library under test (default .carry/libmkernel.so, else target/release/libmkernel.so)
#   CARRY         the folder with prebuilt programs (default .carry)
#   OUT           the folder for logs (default /tmp/mkernel-gpu/logs); each script writes OUT/NAME.log
#   TERSE         print failures and totals only; the log has everything

set -u
gpu_tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$gpu_tests/../.." && pwd)
CARRY=${CARRY:-$repo/.carry}
scratch=${MKERNEL_TEST_SCRATCH:-/tmp/mkernel-gpu}
mkdir -p "$scratch"

passed=0
failed=0
skipped=0
failures=()
skip_reasons=()
missed=()
budget=${BUDGET:-}
quick=0
turn=0
first_turn=1
first_missed=
log=/dev/null
step_number=0
hangs=0
step_output=$scratch/step.$$
step_errors=$scratch/step.$$.stderr

# Ranks that are threads of one process must not load kernels lazily: loading waits for the GPU, which waits for the rank
# whose thread loads.
threads_need=(CUDA_MODULE_LOADING=EAGER)

# start NAME [--budget SECONDS] [--from STEP] [--quick] ...: opens the log and reads the common options; the rest lands in
# `arguments`. --from goes on where an earlier command's budget ended; finish says with which number.
start() {
  script=$1
  shift
  arguments=()
  while [ $# -gt 0 ]; do
    case $1 in
      --budget) budget=$2; shift 2 ;;
      --from) first_turn=$2; shift 2 ;;
      --quick) quick=1; shift ;;
      *) arguments+=("$1"); shift ;;
    esac
  done
  : "${OUT:=$scratch/logs}"
  mkdir -p "$OUT"
  log=$OUT/$script.log
  : >"$log"
  started=$SECONDS
  trap 'mps_stop; rm -f "$step_output"*' EXIT
  say "# $script: $(date -u +%H:%M:%S), log $log${budget:+, at most $budget s}"
  if [ "$first_turn" -gt 1 ]; then say "# from step $first_turn on; the steps before it belong to an earlier command"; fi
}

say() { printf '%s\n' "$*" | tee -a "$log"; }

# What only a reader of the log needs when many scripts run in one visit (TERSE=1, set by visit.sh).
detail() { if [ -n "${TERSE:-}" ]; then printf '%s\n' "$*" >>"$log"; else say "$*"; fi; }

pass() { passed=$((passed + 1)); detail "ok    $1"; }
fail() { failed=$((failed + 1)); failures+=("$1"); say "FAIL  $1${2:+: $2}"; }
not_reached() {
  missed+=("$1")
  : "${first_missed:=$turn}"
  printf -- '-     %s: not reached: %s\n' "$1" "$2" >>"$log"
}
skip() { skipped=$((skipped + 1)); skip_reasons+=("${2:-no reason given}"); detail "skip  $1: ${2:-}"; }

# Seconds left of the script's budget (a large number without one).
left() {
  if [ -n "$budget" ]; then echo $((budget - (SECONDS - started))); else echo 100000; fi
}

finish() {
  local name summary="$passed passed, $failed failed"
  if [ "$failed" -gt 0 ]; then
    for name in "${failures[@]}"; do say "  failed: $name"; done
  fi
  if [ ${#missed[@]} -gt 0 ]; then
    say "  not reached within $budget s (go on with --from $first_missed):"
    say "$(printf '%s; ' "${missed[@]}" | fold -s -w 140 | sed 's/^/    /')"
    summary+=", ${#missed[@]} not reached"
  fi
  if [ "$skipped" -gt 0 ]; then
    summary+=", $skipped skipped ($(printf '%s\n' "${skip_reasons[@]}" | sort | uniq -c | sed 's/^ *\([0-9]*\) /\1 x /' |
      paste -sd';' | sed 's/;/; /g'))"
  fi
  say "# $script took $((SECONDS - started)) s"
  say "$summary"
  echo "$passed $failed ${#missed[@]} $skipped" >"$scratch/$script.counts"
  # A run in which nothing passed has shown nothing.
  [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}

# Runs a command with a time limit and its output in $step_output, standard error last, so that no warning cuts a row in two.
# Returns its status, 124 when it ran out of time (and not when it was killed for another reason).
# Whatever the command leaves running is found by the mark in its environment and killed, so that a hung rank
# cannot disturb the next step.
limited() {
  local limit=$1 status=0 begin=$SECONDS
  shift
  step_number=$((step_number + 1))
  local mark="$script.$$.$step_number"
  MKERNEL_TEST_STEP=$mark timeout -k 5 "$limit" "$@" >"$step_output" 2>"$step_errors" </dev/null || status=$?
  if [ "$status" -eq 137 ] && [ $((SECONDS - begin)) -ge "$limit" ]; then status=124; fi
  sweep "MKERNEL_TEST_STEP=$mark"
  # A killed program may have stopped in the middle of a line.
  { if [ -n "$(tail -c 1 "$step_output" | tr -d '\n')" ]; then echo; fi; cat "$step_errors"; } >>"$step_output"
  { printf -- '---- %s (status %d, limit %s s): ' "$mark" "$status" "$limit"; printf '%q ' "$@"; printf '\n'; cat "$step_output"; } >>"$log"
  return "$status"
}

# turn_comes NAME: whether the next step is to run; one before --from is passed over, one without time left is not reached.
turn_comes() {
  turn=$((turn + 1))
  [ "$turn" -ge "$first_turn" ] || return 1
  [ "$(left)" -lt 5 ] || return 0
  not_reached "$1" "out of budget"
  return 1
}

# The limit for the next step: what is left of the budget at most, and little once several steps have hung, because a
# library that hangs everywhere need not be waited for everywhere.
capped() {
  local limit=$1 remaining
  remaining=$(left)
  [ "$hangs" -ge 3 ] && [ "$limit" -gt 30 ] && limit=30
  [ "$limit" -gt "$remaining" ] && limit=$remaining
  echo "$limit"
}

# ran_out STATUS: whether a step was ended by the budget rather than by its own limit, in which case nothing is known.
ran_out() { [ "$1" -eq 124 ] && [ "$(left)" -le 1 ]; }

# The end of a failed step's output, without what mpirun and torchrun say about any failed job.
show_end() {
  sed -E '/Sending process [0-9]+ closing signal|failed \(exitcode: /,$d' "$step_output" |
    grep -vE '^-+$|^$|mpirun detected|^the job to be|^Primary job|^a non-zero exit code|^ *(Process name|Exit code):' |
    tail -n 12 | cut -c1-300 | sed 's/^/      | /'
}

# Kills the processes that were started with this NAME=VALUE in their environment.
sweep() {
  local file process
  while read -r file; do
    process=${file#/proc/}
    kill -9 "${process%/environ}" 2>/dev/null
  done < <(grep -lzx -- "$1" /proc/[0-9]*/environ 2>/dev/null)
  return 0
}

# step NAME LIMIT COMMAND...: one test that passes when the command ends with status 0.
# step_check NAME LIMIT CHECK COMMAND...: and when the function CHECK accepts the output file. CHECK prints why not, or a
# few words about how it went.
# Both return 0 only when the step passed.
step() {
  local name=$1 limit=$2
  shift 2
  step_check "$name" "$limit" true "$@"
}
step_check() {
  local name=$1 limit=$2 check=$3 status=0 reason=
  shift 3
  turn_comes "$name" || return 1
  limit=$(capped "$limit")
  limited "$limit" "$@" || status=$?
  if [ "$status" -eq 0 ] && reason=$($check "$step_output"); then
    pass "$name${reason:+: $reason}"
    return 0
  fi
  if ran_out "$status"; then
    not_reached "$name" "cut off by the budget after $limit s"
    return 1
  fi
  if [ "$status" -eq 124 ]; then
    hangs=$((hangs + 1))
    reason="no end within $limit s"
  elif [ "$status" -ne 0 ]; then
    reason="status $status"
  fi
  fail "$name" "$reason"
  show_end | tee -a "$log"
  # A fault or a killed rank can leave the MPS server unusable for everybody after it.
  mps_restart
  return 1
}

# What a program says it counted, as PASSED FAILED: its last line, or, if it did not get there, the cases and groups that it
# had finished. A case is named once for each rank on which it failed.
counted() {
  awk '
    /^[0-9]+ passed, [0-9]+ failed/ { whole = $1 " " $3 }
    /: [0-9]+ passed, [0-9]+ failed/ { sub(/^.*: /, ""); passed += $1; failed += $3 }
    /^ok / { passed++ }
    /^FAIL / { name = $0; sub(/ \(rank [0-9]+\).*/, "", name); if (!(name in seen)) failed++; seen[name] = 1 }
    END { print whole ? whole : passed + 0 " " failed + 0 }' "$step_output"
}

# suite NAME LIMIT COMMAND...: a program that counts its own cases and prints `N passed, N failed[, ...]` last; its
# numbers are added to this script's. A program that ends badly without having counted a failure is one failure more.
suite() {
  local name=$1 limit=$2 status=0 cut=0 good bad reason
  shift 2
  turn_comes "$name" || return 1
  limit=$(capped "$limit")
  limited "$limit" "$@" || status=$?
  read -r good bad <<<"$(counted)"
  passed=$((passed + good))
  if ran_out "$status"; then
    cut=1
    not_reached "$name, the rest" "cut off by the budget after $limit s, $good passed, $bad failed until then"
    say "-     $name: cut off by the budget after $limit s, $good passed, $bad failed until then"
    [ "$bad" -gt 0 ] || return 1
  elif [ "$status" -eq 0 ] && [ "$bad" -eq 0 ] && [ "$good" -gt 0 ]; then
    say "ok    $name: $(grep -E '^[0-9]+ passed, [0-9]+ failed' "$step_output" | tail -n 1)"
    grep '^# ' "$step_output" | sed 's/^/      | /' | tee -a "$log"
    return 0
  fi
  reason="$good passed, $bad failed, status $status"
  if [ "$status" -eq 124 ]; then
    reason="no end within $limit s, $good passed, $bad failed until then"
    hangs=$((hangs + 1))
  fi
  # A time-out of its own is a failure beside those that were counted.
  if [ "$bad" -eq 0 ] || { [ "$status" -eq 124 ] && [ $cut -eq 0 ]; }; then bad=$((bad + 1)); fi
  failed=$((failed + bad))
  failures+=("$name: $reason")
  say "FAIL  $name: $reason"
  grep -E '^FAIL|^# ' "$step_output" | head -n 20 | cut -c1-300 | sed 's/^/      | /' | tee -a "$log"
  # Without a count of its own it broke down, and the reason is at the end.
  if ! grep -qE '^[0-9]+ passed, [0-9]+ failed' "$step_output"; then show_end | tee -a "$log"; fi
  mps_restart
  return 1
}

# onegpu_rows OUTPUT: says the time per operation at each size that onegpu_perf printed, unless an element is wrong.
onegpu_rows() {
  awk '
    function size(bytes) { return bytes >= 1048576 ? bytes / 1048576 " MB" : bytes >= 1024 ? bytes / 1024 " KB" : bytes " B" }
    /^ *[0-9]+ +[0-9.-]+ / && NF == 6 {
      rows++
      times = times (rows > 1 ? ", " : "") size($1) " " $2
      if ($6 != 0) { wrong++; if (!first) first = $0 }
    }
    END {
      if (wrong) { print wrong " of " rows " sizes are wrong, first: " first; exit 1 }
      if (!rows) { print "no row in the output"; exit 1 }
      print times " us"
    }' "$1"
}

# MPS lets processes share the GPU at the same time; without it they take turns of milliseconds.
mps_directory=
mps_start() {
  # Nothing more will run.
  [ "$(left)" -ge 5 ] || return 0
  if ! command -v nvidia-cuda-mps-control >/dev/null; then
    say "# no MPS here: processes share the GPU by time slices"
    return 0
  fi
  mps_directory=$(mktemp -d "$scratch/mps.XXXXXX")
  export CUDA_MPS_PIPE_DIRECTORY=$mps_directory/pipe CUDA_MPS_LOG_DIRECTORY=$mps_directory/log
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  if ! timeout 20 nvidia-cuda-mps-control -d >>"$log" 2>&1; then
    say "# MPS did not start: processes share the GPU by time slices"
    mps_stop
  fi
}
mps_stop() {
  [ -n "$mps_directory" ] || return 0
  echo quit | timeout 10 nvidia-cuda-mps-control >>"$log" 2>&1
  sweep "CUDA_MPS_PIPE_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY"
  cat "$CUDA_MPS_LOG_DIRECTORY"/server.log >>"$log" 2>/dev/null
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  mps_directory=
}
mps_restart() {
  [ -n "$mps_directory" ] || return 0
  mps_stop
  mps_start
}

# Sets MKERNEL_LIB to an absolute path and makes $scratch/lib, where it goes by the name libnccl.so.2.
find_library() {
  local candidate
  if [ -z "${MKERNEL_LIB:-}" ]; then
    for candidate in "$CARRY/libmkernel.so" "$repo/target/release/libmkernel.so"; do
      if [ -f "$candidate" ]; then MKERNEL_LIB=$candidate; break; fi
    done
  fi
  if [ ! -f "${MKERNEL_LIB:-}" ]; then
    fail "find the library" "set MKERNEL_LIB, or put libmkernel.so into $CARRY (pack.sh does)"
    finish
    exit 1
  fi
  MKERNEL_LIB=$(realpath "$MKERNEL_LIB")
  export MKERNEL_LIB
  mkdir -p "$scratch/lib"
  ln -sfn "$MKERNEL_LIB" "$scratch/lib/libnccl.so.2"
  say "# library $MKERNEL_LIB ($(sha256sum <"$MKERNEL_LIB" | cut -c1-12), $(stat -c %s "$MKERNEL_LIB") bytes)"
}

# unpack NAME: extracts $CARRY/NAME.tar.xz into $scratch/NAME once; Python is asked because xz may be missing.
unpack() {
  local archive=$CARRY/$1.tar.xz
  if [ ! -f "$archive" ]; then
    echo "$archive is missing (pack.sh makes it)"
    return 1
  fi
  if [ ! -e "$scratch/$1/.unpacked" ] || [ "$archive" -nt "$scratch/$1/.unpacked" ]; then
    rm -rf "${scratch:?}/$1"
    mkdir -p "$scratch/$1"
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$archive" "$scratch/$1" || return 1
    touch "$scratch/$1/.unpacked"
  fi
}

# Whether python3 has PyTorch. (`import torch` alone would be content with the folder torch/ here.)
has_torch() { python3 -c 'import torch.distributed.run' 2>/dev/null; }

# A port that nothing listens on at the moment.
free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
