#!/usr/bin/env bash
# NVIDIA's nccl-tests, one MPI process a rank, all ranks on GPU 0 under MPS, answered by libmkernel.so.
#
#   nccl-tests.sh [--budget SECONDS] [--from STEP] [--quick] [--ranks "4 8 2"] [--only PART]
#
# Parts, the most telling first: sizes (8 B to 256 MB), types (every type and operator), beside (two mpiruns at once),
# options (graphs, registration, blocking, null stream), link (found as libnccl.so.2 on LD_LIBRARY_PATH instead of
# preloaded), header (the same programs compiled against NCCL's own header). All of it takes longer than one command may
# on the GPU machine: the first number of ranks goes through every part before the others go through types and options,
# and --from goes on where a budget ended. A run passes when it ends with status 0 and nccl-tests.awk accepts its rows.
# --quick measures fewer iterations and fewer of the sizes' steps.
# Programs come from .carry/nccl-tests.tar.xz, Open MPI from .carry/openmpi.tar.xz.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
start nccl-tests "$@"
set -- ${arguments[@]+"${arguments[@]}"}
ranks="4 8 2"
only=
while [ $# -gt 0 ]; do
  case $1 in
    --ranks) ranks=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    *) echo "nccl-tests.sh: unknown option $1" >&2; exit 2 ;;
  esac
done

find_library
for package in nccl-tests openmpi; do
  if ! reason=$(unpack $package); then
    fail "unpack $package" "$reason"
    finish
    exit 1
  fi
done
programs=$scratch/nccl-tests
mpi=$scratch/openmpi
export OPAL_PREFIX=$mpi NCCL_TESTS_DEVICE=0 OMPI_MCA_plm_rsh_agent=false
export LD_LIBRARY_PATH=$mpi/lib:$mpi/lib/openmpi:$programs/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

if [ "$quick" -eq 1 ]; then effort="-w 1 -n 3"; else effort="-w 2 -n 20"; fi
all="all_reduce all_gather reduce_scatter broadcast reduce alltoall sendrecv gather scatter alltoallv hypercube"
reducing="all_reduce reduce_scatter reduce"

# Shared memory and nothing else between the MPI ranks: no RDMA, no sockets, no hooks into the CUDA driver.
mpirun=("$mpi/bin/mpirun" --allow-run-as-root --oversubscribe --bind-to none
  --mca pml ob1 --mca btl "self,vader" --mca btl_vader_single_copy_mechanism none)

# rows_are_right OUTPUT, for the program and the number of sizes that run is about.
rows_are_right() {
  local in_place=checked
  case $program_run in alltoall | alltoallv | sendrecv) in_place=unchecked ;; esac
  awk -f "$gpu_tests/nccl-tests.awk" -v "sizes=$sizes" -v "in_place=$in_place" "$1"
}

# how_many_sizes OPTIONS...: the sizes from -b to -e, each -f times the one before.
how_many_sizes() {
  local at=8 last=8 factor=2 count=0
  while [ $# -gt 1 ]; do
    case $1 in -b) at=$(bytes "$2") ;; -e) last=$(bytes "$2") ;; -f) factor=$2 ;; esac
    shift 2
  done
  while [ "$at" -le "$last" ]; do count=$((count + 1)) at=$((at * factor)); done
  echo "$count"
}
bytes() { case $1 in *M) echo $((${1%M} << 20)) ;; *K) echo $((${1%K} << 10)) ;; *) echo "$1" ;; esac; }

# The smallest time of the small sizes and the largest bus bandwidth, for the table at the end.
table=$scratch/table.$$
: >"$table"
note_speed() { awk -f "$gpu_tests/nccl-tests.awk" -v "speed=$1" "$2" >>"$table"; }

# run VARIANT RANKS PROGRAM LABEL LIMIT OPTIONS...; every option has a value.
run() {
  local variant=$1 count=$2 program_run=$3 label=$4 limit=$5 name sizes
  shift 5
  name="$program_run $count ranks $label"
  if [ ! -x "$programs/$variant/${program_run}_perf" ]; then
    skip "$name" "not carried"
    return 0
  fi
  sizes=$(how_many_sizes "$@")
  # shellcheck disable=SC2086 # $effort is a list of words
  if step_check "$name" "$limit" rows_are_right "${mpirun[@]}" -np "$count" "${how[@]}" \
    "$programs/$variant/${program_run}_perf" -c 1 $effort -T $((limit - 5)) "$@"; then
    note_speed "$name" "$step_output"
  fi
  return 0
}

# run_both OUT COMMAND... -- COMMAND...: both at once, each with an output file of its own (OUT.1, OUT.2); fails when one of
# them does, and says which. When the time is up it still shows what there is.
run_both() {
  local out=$1 before=() one two status=0
  shift
  while [ "$1" != -- ]; do
    before+=("$1")
    shift
  done
  shift
  trap 'cat "$out.1" "$out.2"; exit 143' TERM
  "${before[@]}" >"$out.1" 2>&1 &
  one=$!
  "$@" >"$out.2" 2>&1 &
  two=$!
  wait $one || { status=$?; echo "the first ended with status $status" >>"$out.1"; }
  wait $two || { status=$?; echo "the second ended with status $status" >>"$out.2"; }
  cat "$out.1" "$out.2"
  return $status
}
export -f run_both

# beside RANKS PROGRAM RANKS PROGRAM: two mpiruns at once that know nothing of each other. An operation of a rank takes up to
# 16 of the GPU's 132 blocks, and a block that waits gives none of them up, so all ranks together may be 8 at most.
beside() {
  local name="$2 $1 ranks beside $4 $3 ranks" program sizes pair=("$2" "$4") options=(-b 8 -e 64M -f 8)
  for program in "${pair[@]}"; do
    if [ ! -x "$programs/ours/${program}_perf" ]; then
      skip "$name" "not carried"
      return 0
    fi
  done
  sizes=$(how_many_sizes "${options[@]}")
  # shellcheck disable=SC2016,SC2086 # the quoted text is for the inner shell; $effort is a list of words
  step_check "$name" 90 both_are_right bash -c 'run_both "$@"' - "$step_output" \
    "${mpirun[@]}" -np "$1" "${how[@]}" "$programs/ours/$2_perf" -c 1 $effort -T 85 "${options[@]}" \
    -- "${mpirun[@]}" -np "$3" "${how[@]}" "$programs/ours/$4_perf" -c 1 $effort -T 85 "${options[@]}"
  rm -f "$step_output.1" "$step_output.2"
  return 0
}
both_are_right() {
  local program_run number reason reasons=() verdict=0
  for number in 1 2; do
    program_run=${pair[number - 1]}
    reason=$(rows_are_right "$step_output.$number") || verdict=1
    reasons+=("$program_run $reason")
  done
  echo "${reasons[0]}; ${reasons[1]}"
  return $verdict
}

wanted() { [ -z "$only" ] || [ "$only" = "$1" ]; }
quick_or() { if [ "$quick" -eq 1 ]; then echo "$1"; else echo "$2"; fi; }

sizes() {
  local program
  for program in $all; do run ours "$1" "$program" "8..256M" 90 -b 8 -e 256M -f "$2"; done
}
types() {
  local program
  for program in $all; do
    case " $reducing " in
      *" $program "*) run ours "$1" "$program" "-d all -o all" 120 -b 8 -e 2M -f 512 -d all -o all ;;
      *) run ours "$1" "$program" "-d all" 60 -b 8 -e 2M -f 512 -d all ;;
    esac
  done
}
options() {
  local option program
  for option in "-G 10" "-R 1" "-z 1" "-y 1"; do
    for program in $all; do
      # shellcheck disable=SC2086 # an option and its value
      run ours "$1" "$program" "$option" 90 -b 8 -e 256M -f "$(quick_or 4096 16)" $option
    done
  done
}

mps_start
how=(-x "LD_PRELOAD=$MKERNEL_LIB")
first=${ranks%% *}
others=
case $ranks in *' '*) others=${ranks#* } ;; esac

if wanted sizes; then
  sizes "$first" 2
  for count in $others; do sizes "$count" "$(quick_or 16 2)"; done
fi
if wanted types; then types "$first"; fi
if wanted beside; then
  beside 2 all_reduce 4 all_reduce
  beside 4 all_reduce 4 alltoall
  beside 2 sendrecv 2 reduce_scatter
fi
if wanted options; then options "$first"; fi
if wanted link; then
  preload=("${how[@]}")
  how=(-x "LD_LIBRARY_PATH=$scratch/lib:$LD_LIBRARY_PATH")
  run ours "$first" all_reduce "as libnccl.so.2" 60 -b 8 -e 16M -f 16
  how=("${preload[@]}")
fi
if wanted header; then
  for program in $all; do run nccl "$first" "$program" "NCCL's header" 60 -b 8 -e 256M -f "$(quick_or 64 16)"; done
fi
if [ "$quick" -eq 0 ]; then
  for count in $others; do
    if wanted types; then types "$count"; fi
    if wanted options; then options "$count"; fi
  done
fi

detail "$(printf '%-34s %10s %12s %14s %10s' "run" "us <= 4KB" "largest B" "us at largest" "best busbw")"
detail "$(cat "$table")"
rm -f "$table"
finish
