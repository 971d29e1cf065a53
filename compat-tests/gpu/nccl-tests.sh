#!/usr/bin/env bash
# NVIDIA's nccl-tests, one MPI process a rank, all ranks on GPU 0 under MPS, answered by libmkernel.so.
#
#   nccl-tests.sh [--budget SECONDS] [--quick] [--ranks "4 2 8"] [--only PART]
#
# Parts, in order of importance: sizes (8 B to 256 MB), options (graphs, registration, blocking, null stream),
# types (every type and operator), header (the same programs compiled against NCCL's own header), link (found as
# libnccl.so.2 on LD_LIBRARY_PATH instead of preloaded). A run passes when it ends with status 0, printed at least
# one row, and counted no wrong element. --quick measures fewer iterations and fewer of the sizes' steps.
# Programs come from .carry/nccl-tests.tar.xz, Open MPI from .carry/openmpi.tar.xz.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
start nccl-tests "$@"
set -- ${arguments[@]+"${arguments[@]}"}
ranks="4 2 8"
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

# Prints what is wrong with a run's output, and fails, unless every row counts 0 wrong elements.
rows_are_right() {
  awk '
    /^ *[0-9]+ +[0-9]+ +[a-z0-9]+ / && NF >= 13 {
      rows++
      if (($9 != "0" && $9 != "N/A") || ($13 != "0" && $13 != "N/A")) { wrong++; if (!first) first = $0 }
      if ($9 == "0" || $13 == "0") checked++
    }
    /Out of bounds values/ { concluded = $0 }
    END {
      if (wrong) { print wrong " of " rows " rows are wrong, first: " first; exit 1 }
      if (!checked) { print "no checked row in the output"; exit 1 }
      if (concluded !~ /: 0 OK/) { print "the programs own count: " (concluded ? concluded : "not printed"); exit 1 }
    }' "$1"
}

# The smallest time of the small sizes and the largest bus bandwidth, for the table at the end.
table=$scratch/table.$$
: >"$table"
note_speed() {
  awk -v name="$1" '
    /^ *[0-9]+ +[0-9]+ +[a-z0-9]+ / && NF >= 13 {
      if ($1 + 0 > 0 && $1 + 0 <= 4096 && (!small || $6 < small)) small = $6
      if ($8 + 0 > bus) bus = $8
      if ($1 + 0 > size) { size = $1; last = $6 }
    }
    END { printf "%-34s %10s %12s %14s %10s\n", name, small ? small : "-", size, last, bus }' "$step_output" >>"$table"
}

# run VARIANT RANKS PROGRAM LABEL LIMIT OPTIONS...
run() {
  local variant=$1 count=$2 program=$3 label=$4 limit=$5 name
  shift 5
  name="$program $count ranks $label"
  if [ ! -x "$programs/$variant/${program}_perf" ]; then
    skip "$name" "not carried"
    return 0
  fi
  # shellcheck disable=SC2086 # $effort is a list of words
  if step_check "$name" "$limit" rows_are_right "${mpirun[@]}" -np "$count" "${how[@]}" \
    "$programs/$variant/${program}_perf" -c 1 $effort -T $((limit - 5)) "$@"; then
    note_speed "$name"
  fi
  return 0
}

wanted() { [ -z "$only" ] || [ "$only" = "$1" ]; }

mps_start
how=(-x "LD_PRELOAD=$MKERNEL_LIB")
first=${ranks%% *}

if wanted sizes; then
  for count in $ranks; do
    factor=2
    if [ "$quick" -eq 1 ] && [ "$count" != "$first" ]; then factor=16; fi
    for program in $all; do
      run ours "$count" "$program" "8..256M" 90 -b 8 -e 256M -f $factor
    done
  done
fi
if wanted options; then
  for count in $ranks; do
    if [ "$quick" -eq 1 ] && [ "$count" != "$first" ]; then continue; fi
    for option in "-G 10" "-R 1" "-z 1" "-y 1"; do
      for program in $all; do
        # shellcheck disable=SC2086 # an option and its value
        run ours "$count" "$program" "$option" 90 -b 8 -e 256M -f "$([ "$quick" -eq 1 ] && echo 4096 || echo 16)" $option
      done
    done
  done
fi
if wanted types; then
  for count in $ranks; do
    if [ "$quick" -eq 1 ] && [ "$count" != "$first" ]; then continue; fi
    for program in $reducing; do
      run ours "$count" "$program" "-d all -o all" 120 -b 8 -e 2M -f 512 -d all -o all
    done
    for program in $all; do
      case " $reducing " in *" $program "*) continue ;; esac
      run ours "$count" "$program" "-d all" 60 -b 8 -e 2M -f 512 -d all
    done
  done
fi
if wanted header; then
  for count in $ranks; do
    for program in $all; do
      run nccl "$count" "$program" "NCCL's header" 60 -b 8 -e 256M -f "$([ "$quick" -eq 1 ] && echo 64 || echo 2)"
    done
    if [ "$quick" -eq 1 ]; then break; fi
  done
fi
if wanted link; then
  export LD_LIBRARY_PATH=$scratch/lib:$LD_LIBRARY_PATH
  how=()
  run ours "$first" all_reduce "as libnccl.so.2" 60 -b 8 -e 16M -f 16
fi

detail "$(printf '%-34s %10s %12s %14s %10s' "run" "us <= 4KB" "largest B" "us at largest" "best busbw")"
detail "$(cat "$table")"
rm -f "$table"
finish
