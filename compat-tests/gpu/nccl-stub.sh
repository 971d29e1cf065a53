#!/usr/bin/env bash
# Makes a library to link NCCL programs against where no NCCL is: nccl-stub.sh HEADERS DEST
#
# DEST/libnccl.so (SONAME libnccl.so.2) exports every name that nccl*.h below HEADERS mentions as a function; names
# that are macros or inline functions get a stub too, which harms nobody. No stub does anything: which library
# answers is decided where the program runs.
set -euo pipefail
headers=$1
dest=$2
mkdir -p "$dest"
source=$(mktemp "${TMPDIR:-/tmp}/nccl-stub.XXXXXX.c")
trap 'rm -f "$source"' EXIT
find -L "$headers" \( -name 'nccl*.h' -o -path '*/nccl_device/*.h' \) -exec cat {} + |
  grep -oE '\bp?nccl[A-Z][A-Za-z0-9]*[[:space:]]*\(' | tr -d ' \t(' | sort -u |
  sed 's/.*/void &(void) {}/' >"$source"
if [ ! -s "$source" ]; then
  echo "nccl-stub: no function of NCCL is declared in $headers" >&2
  exit 1
fi
gcc -shared -fPIC -w -Wl,-soname,libnccl.so.2 -o "$dest/libnccl.so" "$source"
