#!/usr/bin/env bash
# One visit to the GPU machine: the quick form of every test here, within a budget, with logs in $OUT. It prints
# failures and totals; the logs hold every line.
#
#   all.sh [--budget SECONDS] [PART ...]
#
# Parts: torch onegpu nccl-tests environment (all of them when left out). The budget (default 560 s, since one command
# there may take 600 s) is shared out in that order, and what a part leaves over goes to the next. --full runs the full
# forms instead of the quick ones.
set -u
here=$(cd "$(dirname "$0")" && pwd)
budget=560
mode=--quick
parts=()
while [ $# -gt 0 ]; do
  case $1 in
    --budget) budget=$2; shift 2 ;;
    --full) mode=; shift ;;
    torch | onegpu | nccl-tests | environment) parts+=("$1"); shift ;;
    *) echo "all.sh: unknown argument $1" >&2; exit 2 ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=(torch onegpu nccl-tests environment)
export OUT=${OUT:-/tmp/mkernel-gpu/logs} TERSE=1
mkdir -p "$OUT"

weight() { case $1 in nccl-tests) echo 4 ;; torch | environment) echo 3 ;; *) echo 2 ;; esac; }

nvidia-smi --query-gpu=name,driver_version,clocks.sm --format=csv,noheader 2>/dev/null | sed 's/^/# /'
begin=$SECONDS
verdicts=()
status=0
for index in "${!parts[@]}"; do
  weights=0
  for part in "${parts[@]:$index}"; do weights=$((weights + $(weight "$part"))); done
  part=${parts[$index]}
  share=$(((budget - (SECONDS - begin)) * $(weight "$part") / weights))
  echo "=== $part, at most $share s"
  "$here/$part.sh" --budget "$share" $mode | tee "$OUT/$part.out"
  result=${PIPESTATUS[0]}
  [ "$result" -eq 0 ] || status=1
  verdicts+=("$(printf '%-12s %s' "$part" "$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$OUT/$part.out" | tail -n 1)")")
  rm -f "$OUT/$part.out"
done
echo "=== $((SECONDS - begin)) s in all"
printf '%s\n' "${verdicts[@]}" | tee "$OUT/summary.txt"
awk '{ for (i = 1; i < NF; i++) { if ($(i + 1) ~ /^passed/) passed += $i; if ($(i + 1) ~ /^failed/) failed += $i; if ($(i + 1) ~ /^skipped/) skipped += $i } }
     END { printf "%d passed, %d failed%s\n", passed, failed, skipped ? sprintf(", %d skipped", skipped) : "" }' "$OUT/summary.txt"
exit $status
