#!/usr/bin/env bash
# Tests of the scripts here that need no GPU: programs that only print take the places of mpirun, nccl-tests and the
# others. Called by .ci/test; ends with `N passed, N failed`.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# expect NAME TEXT...: each of these extended regular expressions is found in $work/out.
expect() {
  local name=$1 text
  shift
  for text in "$@"; do
    if ! grep -qE -- "$text" "$work/out"; then
      failed=$((failed + 1))
      echo "FAIL  $name: no line has: $text"
      sed 's/^/      | /' "$work/out" | tail -n 40
      return
    fi
  done
  passed=$((passed + 1))
  echo "ok    $name"
}

# Rows in the form of nccl-tests' util.cu: rows OPERATOR ROOT WRONG WRONG_IN_PLACE SIZE...
rows() {
  local operator=$1 root=$2 wrong=$3 in_place=$4 bytes
  shift 4
  printf '#\n# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place          \n' "" "" "" "" ""
  printf '# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s \n' \
    size count type redop root time algbw busbw '#wrong' time algbw busbw '#wrong'
  for bytes in "$@"; do
    printf '%12d  %12d  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s\n' "$bytes" $((bytes / 4)) float "$operator" "$root" \
      12.34 0.01 0.02 "$wrong" 11.87 0.01 0.02 "$in_place"
  done
}
footer() { printf '# %-20s : %d %s\n# %-20s : %g \n#\n' 'Out of bounds values' "$1" "$([ "$1" = 0 ] && echo OK || echo FAILED)" 'Avg bus bandwidth' 0.02; }

# judge NAME TEXT OPTION...: what nccl-tests.awk says about standard input.
judge() {
  local name=$1 text=$2
  shift 2
  awk -f "$here/nccl-tests.awk" "$@" >"$work/out" 2>&1
  echo "status $?" >>"$work/out"
  expect "$name" "$text"
}
judge "rows: all is right" '^2 rows' -v sizes=2 < <(rows sum -1 0 0 8 16; footer 0)
judge "rows: with a root" '^2 rows' -v sizes=2 < <(rows none 3 0 0 8 16; footer 0)
judge "rows: no operator, as hypercube prints it" '^2 rows' -v sizes=2 < <(rows '' -1 0 0 8 16; footer 0)
judge "rows: no operator and wrong" '^2 of 2 rows are wrong' -v sizes=2 < <(rows '' -1 5 0 8 16; footer 0)
judge "rows: wrong in place" '^1 of 1 rows are wrong' -v sizes=1 < <(rows sum -1 0 1 8; footer 0)
judge "rows: a million wrong" '^1 of 1 rows are wrong' -v sizes=1 < <(rows sum -1 1e+06 0 8; footer 0)
judge "rows: N/A in place where nobody checks" '^1 rows' -v sizes=1 -v in_place=unchecked < <(rows none -1 0 N/A 8; footer 0)
judge "rows: N/A in place where it is checked" '^1 of 1 rows are wrong' -v sizes=1 < <(rows none -1 0 N/A 8; footer 0)
judge "rows: N/A out of place" '^1 of 1 rows are wrong' -v sizes=1 -v in_place=unchecked < <(rows none -1 N/A N/A 8; footer 0)
judge "rows: none" '^no row' -v sizes=1 < <(rows sum -1 0 0; footer 0)
judge "rows: fewer than sizes" 'not a multiple' -v sizes=2 < <(rows sum -1 0 0 8; footer 0)
judge "rows: cut short" 'do not fit the header' -v sizes=2 < <(rows sum -1 0 0 8 16 | cut -c1-90; footer 0)
judge "rows: the program counts errors" "program's own count: .*3 FAILED" -v sizes=1 < <(rows sum -1 0 0 8; footer 3)
judge "rows: no footer" "program's own count: not printed" -v sizes=1 < <(rows sum -1 0 0 8)

# A GPU machine of programs that only print. FAKE says what they do: well, wrong, mute, crash or hang.
programs="all_reduce all_gather reduce_scatter broadcast reduce alltoall sendrecv gather scatter alltoallv hypercube"
mkdir -p "$work/carry" "$work/openmpi/bin" "$work/openmpi/lib" "$work/nccl-tests/ours" "$work/nccl-tests/nccl"
echo fake >"$work/carry/libmkernel.so"
cat >"$work/openmpi/bin/mpirun" <<'END'
#!/usr/bin/env bash
while [[ $1 != *_perf ]]; do shift; done
exec "$@"
END
{
  declare -f rows footer
  cat <<'END'
program=$(basename "$0" _perf)
operator=none in_place=0
case $program in all_reduce | reduce | reduce_scatter) operator=sum ;; hypercube) operator= ;; esac
case $program in alltoall | alltoallv | sendrecv) in_place=N/A ;; esac
sizes=() factor=2
while [ $# -gt 1 ]; do
  case $1 in -f) factor=$2 ;; -e) last=$2 ;; esac
  shift 2
done
for ((at = 8; at <= ${last%M} << 20; at *= factor)); do sizes+=($at); done
does=well
case " ${FAKE:-} " in *" $program:"*) does=${FAKE##*"$program:"} does=${does%% *} ;; esac
case $does in
  mute) sizes=() ;;
  crash) echo "a rank said its last words" >&2; exit 3 ;;
  killed) kill -9 $$ ;;
  hang) echo "a rank waits"; sleep 100 ;;
  slow) sleep 2 ;;
esac
wrong=0
[ $does != wrong ] || wrong=7
rows "$operator" -1 $wrong $in_place "${sizes[@]}"
footer 0
END
} >"$work/nccl-tests/program"
for program in $programs; do
  for folder in ours nccl; do
    { echo '#!/usr/bin/env bash'; cat "$work/nccl-tests/program"; } >"$work/nccl-tests/$folder/${program}_perf"
    chmod +x "$work/nccl-tests/$folder/${program}_perf"
  done
done
chmod +x "$work/openmpi/bin/mpirun"
for package in openmpi nccl-tests; do
  python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1], "w:xz").add(sys.argv[2], ".")' "$work/carry/$package.tar.xz" "$work/$package"
done

# go SCRIPT OPTION...: runs it on the fakes; its output and status are in $work/out.
go() {
  local script=$1
  shift
  env CARRY="$work/carry" MKERNEL_LIB="$work/carry/libmkernel.so" OUT="$work/logs" MKERNEL_TEST_SCRATCH="$work/scratch" \
    PATH="$work/bin:$PATH" "$here/$script" "$@" >"$work/out" 2>&1
  echo "status $?" >>"$work/out"
}
go nccl-tests.sh --quick --ranks 4 --only sizes
expect "nccl-tests: every program passes" '^ok    hypercube 4 ranks 8\.\.256M: 26 rows' '^ok    alltoallv 4' '^11 passed, 0 failed$' '^status 0$'
FAKE="hypercube:wrong reduce:mute gather:crash scatter:killed" go nccl-tests.sh --quick --ranks 4 --only sizes
expect "nccl-tests: what fails is named and shown" '^FAIL  hypercube 4 ranks.*: 26 of 26 rows are wrong' '^FAIL  reduce 4 ranks.*: no row' \
  '^FAIL  gather 4 ranks.*: status 3' 'a rank said its last words' '^FAIL  scatter 4 ranks.*: status 137' '^7 passed, 4 failed$' '^status 1$'
go nccl-tests.sh --quick --ranks 4 --only beside
expect "nccl-tests: two mpiruns at once" '^ok    all_reduce 4 ranks beside alltoall 4 ranks: all_reduce [0-9]+ rows; alltoall [0-9]+ rows' '^3 passed, 0 failed$'
FAKE="alltoall:crash" go nccl-tests.sh --quick --ranks 4 --only beside
expect "nccl-tests: one of two fails" '^FAIL  all_reduce 4 ranks beside alltoall' 'the second ended with status 3' '^2 passed, 1 failed$'
FAKE="reduce_scatter:hang" go nccl-tests.sh --quick --ranks 4 --only sizes --budget 9
expect "nccl-tests: a budget's end is no failure and no success" '^[0-9]+ passed, 0 failed, [0-9]+ not reached$' 'go on with --from [0-9]+\)' 'broadcast 4 ranks'
go nccl-tests.sh --quick --ranks 4 --only sizes --from 9
expect "nccl-tests: goes on" 'from step 9 on' '^3 passed, 0 failed$'
BUDGET=0 go nccl-tests.sh --quick
expect "nccl-tests: no time at all" '^0 passed, 0 failed, [0-9]+ not reached$' '^status 1$'

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
