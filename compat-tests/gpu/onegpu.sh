#!/usr/bin/env bash
# Six operations in every mode of onegpu_perf: all ranks on GPU 0, as threads of one process and as processes.
#
#   onegpu.sh [--budget SECONDS] [--quick]
#
# A run passes when it ends, and its last column (wrong elements) is 0 in every row; its line then says the time of one
# operation at each size (the median in mode loaded). One more check holds the only speed limit of this stage:
# 4 ranks, 4 KB, back to back, at most 20 us.
# The program is .carry/onegpu_perf, built from shared/bench/onegpu_perf.cu by pack.sh.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
start onegpu "$@"

find_library
program=$CARRY/onegpu_perf
if [ ! -x "$program" ]; then
  fail "find onegpu_perf" "$program is missing (pack.sh makes it)"
  finish
  exit 1
fi
chmod +x "$program"

# Says the time per operation at each size, unless an element is wrong.
rows_are_right() {
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
fast_enough() {
  rows_are_right "$1" >"$scratch/rows.$$" || { cat "$scratch/rows.$$"; return 1; }
  awk '/^ *4096 / { if ($2 + 0 > 20) { print $2 " us is more than 20"; exit 1 } found = 1 } END { if (!found) { print "no row for 4096"; exit 1 } }' "$1"
}

# run RANKS OPERATION TYPE MODE PROCESSES LAST FACTOR ITERATIONS
run() {
  local name="$2 $3 $4, $1 threads"
  [ "$5" = 1 ] && name="$2 $3 $4, $1 processes"
  step_check "$name" 60 rows_are_right env LD_PRELOAD="$MKERNEL_LIB" "$program" \
    -r "$1" -o "$2" -t "$3" -m "$4" -p "$5" -b 8 -e "$6" -f "$7" -n "$8" -c 1
}

operations="allreduce allgather reducescatter broadcast alltoall sendrecv"
last=268435456 factor=8
if [ "$quick" -eq 1 ]; then last=33554432 factor=64; fi
iterations() { case $1 in loaded) echo 10 ;; *) if [ "$quick" -eq 1 ]; then echo 20; else echo 50; fi ;; esac; }

# Three tries, since a shared host can disturb any one of them.
for try in 1 2 3; do
  limited 60 env LD_PRELOAD="$MKERNEL_LIB" "$program" -r 4 -o allreduce -t f32 -m stream -b 4096 -e 4096 -f 2 -n 500 -c 1
  status=$?
  if [ $status -eq 0 ] && reason=$(fast_enough "$step_output"); then break; fi
  [ $status -eq 0 ] || reason="status $status: $(tail -n 1 "$step_output")"
done
if [ "$status" -eq 0 ] && [ -z "$reason" ]; then
  pass "4 threads, 4 KB all-reduce, back to back: $(awk '/^ *4096 / { print $2 }' "$step_output") us (try $try, limit 20)"
else
  fail "4 threads, 4 KB all-reduce, back to back, within 20 us" "$reason"
fi

# All modes first at 4 ranks, then the other counts, then processes.
for count in 4 2 8; do
  for mode in stream spaced graph loaded; do
    for type in f32 bf16; do
      if [ "$quick" -eq 1 ] && [ "$count" != 4 ] && [ "$type$mode" != f32stream ] && [ "$type$mode" != bf16graph ]; then continue; fi
      for operation in $operations; do
        run $count "$operation" $type $mode 0 $last $factor "$(iterations $mode)"
      done
    done
  done
  if [ "$count" = 4 ]; then
    mps_start
    for operation in $operations; do run 4 "$operation" f32 stream 1 $last $factor "$(iterations stream)"; done
    mps_stop
  fi
done
mps_start
for count in 2 4; do
  for mode in stream spaced graph loaded; do
    for type in f32 bf16; do
      if [ "$count$type$mode" = 4f32stream ]; then continue; fi
      if [ "$quick" -eq 1 ] && [ "$type$mode" != f32stream ] && [ "$type$mode" != bf16graph ] && [ "$type$mode" != f32loaded ]; then continue; fi
      for operation in $operations; do
        run $count "$operation" $type $mode 1 $last $factor "$(iterations $mode)"
      done
    done
  done
done
mps_stop

finish
