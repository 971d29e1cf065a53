#!/usr/bin/env bash
# Builds NVIDIA's nccl-tests, unmodified, with MPI for sm_90, against a given nccl.h and no real NCCL.
#
#   build-nccl-tests.sh SOURCE HEADERS DEST [PROGRAM...]
#
# SOURCE   a git checkout of github.com/NVIDIA/nccl-tests; its files are read, never written
# HEADERS  the folder that holds nccl.h: this repository's include/, or that of an NCCL release
# DEST     receives the stripped programs, libverifiable.so.0, libcudart.so.13 and a MANIFEST
# PROGRAM  all_reduce, alltoallv, ... (all eleven when left out)
#
# Needs a CUDA 13 toolkit ($CUDA_HOME, default .toolchain/cuda/nvidia/cu13 of this repository) and Open MPI 4.1
# ($MPI_HOME, default .peers/openmpi-4.1.8). At link time `-lnccl` is a stub (nccl-stub.sh), so that which library
# answers is decided where the programs run. From 2.28 on nccl-tests includes nccl_device.h too; where HEADERS has
# none, $DEVICE_HEADERS names the folder of an NCCL release that lends its own, and MANIFEST says so.
set -euo pipefail

if [ $# -lt 3 ]; then
  sed -n '2,15p' "$0" | sed 's/^# \{0,1\}//' >&2
  exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
source=$(cd "$1" && pwd)
headers=$(cd "$2" && pwd)
mkdir -p "$3"
dest=$(cd "$3" && pwd)
shift 3
programs=("$@")
if [ ${#programs[@]} -eq 0 ]; then
  programs=(all_reduce all_gather broadcast reduce_scatter reduce alltoall alltoallv scatter gather sendrecv hypercube)
fi
cuda_home=${CUDA_HOME:-$repo/.toolchain/cuda/nvidia/cu13}
mpi_home=${MPI_HOME:-$repo/.peers/openmpi-4.1.8}
jobs=${JOBS:-2}
for needed in "$cuda_home/bin/nvcc" "$mpi_home/include/mpi.h" "$headers/nccl.h" "$source/src/common.cu"; do
  if [ ! -e "$needed" ]; then
    echo "build-nccl-tests: $needed is missing (CUDA_HOME=$cuda_home MPI_HOME=$mpi_home)" >&2
    exit 1
  fi
done

# A change in the sources would make the result worth nothing, so it is refused rather than reported.
if [ -n "$(git -C "$source" status --porcelain 2>/dev/null)" ]; then
  echo "build-nccl-tests: $source has local changes; build an unmodified checkout" >&2
  exit 1
fi
revision=$(git -C "$source" describe --tags --always 2>/dev/null || echo unknown)

work=$(mktemp -d "${TMPDIR:-/tmp}/nccl-tests.XXXXXX")
trap 'rm -rf "$work"' EXIT

# What `make` calls NCCL_HOME.
mkdir -p "$work/nccl/include" "$work/cuda/lib"
ln -s "$headers"/nccl* "$work/nccl/include/"
device_header="its own nccl_device.h"
if [ ! -e "$headers/nccl_device.h" ] && [ -n "${DEVICE_HEADERS:-}" ]; then
  ln -s "$(cd "$DEVICE_HEADERS" && pwd)"/nccl_device* "$work/nccl/include/"
  device_header="nccl_device.h borrowed from $DEVICE_HEADERS"
fi
"$here/nccl-stub.sh" "$work/nccl/include" "$work/nccl/lib"
# The toolkit's wheels lack the unversioned name that -lcudart looks for.
ln -s "$cuda_home"/lib/* "$work/cuda/lib/"
[ -e "$work/cuda/lib/libcudart.so" ] || ln -s "$cuda_home/lib/libcudart.so.13" "$work/cuda/lib/libcudart.so"

targets=()
for program in "${programs[@]}"; do
  targets+=("$work/build/${program}_perf")
done
make_variables=(
  BUILDDIR="$work/build" CUDA_HOME="$cuda_home" CUDA_LIB="$work/cuda/lib" NCCL_HOME="$work/nccl"
  MPI=1 MPI_HOME="$mpi_home" DSO=1 NVCC_GENCODE="-gencode=arch=compute_90,code=sm_90"
)
echo "build-nccl-tests: $revision against $headers/nccl.h"
# Twice: the second call links the archive that the first one makes.
nice -n 5 make -s -C "$source/src" "${make_variables[@]}" os.build
nice -n 5 make -s -j"$jobs" -C "$source/src" "${make_variables[@]}" "${targets[@]}"

for target in "${targets[@]}"; do
  strip -o "$dest/$(basename "$target")" "$target"
done
strip -o "$dest/libverifiable.so.0" "$work/build/verifiable/libverifiable.so.0"
cp -L "$cuda_home/lib/libcudart.so.13" "$dest/"
{
  echo "nccl-tests $revision ($(git -C "$source" rev-parse HEAD 2>/dev/null || echo unknown)), sources unmodified"
  echo "header $(sha256sum <"$headers/nccl.h" | cut -c1-16) $(grep -oE 'NCCL_(MAJOR|MINOR|PATCH) +[0-9]+' "$headers/nccl.h" | grep -oE '[0-9]+$' | paste -sd.), $device_header"
  echo "nvcc $("$cuda_home/bin/nvcc" --version | grep -oE 'V[0-9.]+$'), sm_90, DSO=1, MPI=1"
} >"$dest/MANIFEST"
cat "$dest/MANIFEST"
du -sh "$dest"
