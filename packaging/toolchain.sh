#!/usr/bin/env bash
# Puts what the build needs beyond a Rust toolchain where it will be found: nvcc and the CUDA headers from PyPI into .toolchain/cuda, and,
# as root on Debian or Ubuntu, the system's packages. Quick when everything is there. Called by `make toolchain`.
#
#   MKERNEL_CUDA_HOME=DIR   use the CUDA toolkit there (12.8 or newer) and install none
set -euo pipefail
cd "$(dirname "$0")/.."

# All five, each pinned: one of another release does not compile with the rest.
cuda=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85)
into=.toolchain/cuda

fail() {
  echo "make toolchain: $*" >&2
  exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

# The system's packages: gcc and g++ compile the emulated GPU and serve nvcc, binutils checks the library's symbols.
packages=()
has gcc || packages+=(gcc)
has g++ || packages+=(g++)
has nm && has readelf || packages+=(binutils)
[ -e /usr/include/stdlib.h ] || packages+=(libc6-dev)

home=${MKERNEL_CUDA_HOME:-}
if [ "$home" ] && [ "$(realpath -m "$home")" != "$(realpath -m $into/nvidia/cu13)" ]; then
  [ -x "$home/bin/nvcc" ] || fail "MKERNEL_CUDA_HOME is $home, but there is no bin/nvcc in it"
  cuda=()
fi
# A package is there if its record is: folders are moved into place whole.
there() {
  local name=${1%%==*}
  [ -d "$into/${name//-/_}-${1##*==}.dist-info" ]
}
missing=()
for wheel in "${cuda[@]}"; do there "$wheel" || missing+=("$wheel"); done
if [ ${#missing[@]} -gt 0 ] && ! python3 -m pip --version >/dev/null 2>&1; then packages+=(python3 python3-pip); fi

if [ ${#packages[@]} -gt 0 ]; then
  if [ "$(id -u)" != 0 ] || ! has apt-get; then
    fail "missing on this machine: ${packages[*]}. On Debian or Ubuntu: sudo apt-get install ${packages[*]}"
  fi
  echo "installing ${packages[*]}"
  log=$(mktemp)
  if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"; } >"$log" 2>&1; then
    tail -5 "$log" >&2
    fail "apt-get cannot install ${packages[*]} (see above)"
  fi
  rm -f "$log"
fi

has cargo || fail "there is no Rust toolchain (cargo): install one from https://rustup.rs"
for component in fmt:rustfmt clippy:clippy; do
  cargo "${component%%:*}" --version >/dev/null 2>&1 && continue
  has rustup && rustup component add "${component##*:}" || echo "make toolchain: no cargo ${component%%:*} here; only make test needs it"
done

if [ ${#missing[@]} -gt 0 ]; then
  echo "fetching nvcc and CUDA headers 13.0 from PyPI (104 MB) into $into"
  fresh=.toolchain/cuda.new
  rm -rf "$fresh"
  mkdir -p .toolchain
  log=$(mktemp)
  if ! python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$fresh" "${cuda[@]}" >"$log" 2>&1; then
    tail -5 "$log" >&2
    fail "pip cannot install ${cuda[*]} (see above): is PyPI reachable? A CUDA toolkit 12.8 or newer will do instead: MKERNEL_CUDA_HOME=/usr/local/cuda make ..."
  fi
  rm -f "$log"
  rm -rf "$into"
  mv "$fresh" "$into"
fi
nvcc=${cuda[*]:+$into/nvidia/cu13}/bin/nvcc
[ ${#cuda[@]} -gt 0 ] || nvcc=$home/bin/nvcc
version=$("$nvcc" --version | sed -n 's/.*, V//p') || fail "$nvcc does not run"
echo "nvcc $version at $nvcc"
