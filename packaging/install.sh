#!/usr/bin/env bash
# Installs what `make build` made, or removes it again.
#
#   packaging/install.sh [--uninstall]      PREFIX=/usr/local DESTDIR= (both from the environment)
#
#   PREFIX/lib/mkernel/      libmkernel.so; libnccl.so.2 and libnccl.so, links to it; the mkernel program; emulator/libcuda.so.1
#   PREFIX/include/mkernel/  nccl.h and what it includes
#   PREFIX/lib/pkgconfig/    mkernel.pc
#   PREFIX/bin/mkernel       a link
#
# The library lies in a folder of its own, so nothing uses it in place of NVIDIA's before it is asked to: by LD_PRELOAD, by LD_LIBRARY_PATH,
# or by the flags of `pkg-config mkernel`.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}$prefix
built=${CARGO_TARGET_DIR:-target}/release
lib=$root/lib/mkernel

case ${1:-} in
  --uninstall)
    rm -rf "$lib" "$root/include/mkernel"
    rm -f "$root/lib/pkgconfig/mkernel.pc" "$root/bin/mkernel"
    exit
    ;;
  '') ;;
  *)
    sed -n '2,4p' "$0" >&2
    exit 2
    ;;
esac

for file in libmkernel.so mkernel; do
  [ -e "$built/$file" ] || { echo "$built/$file is not there: run make build first" >&2; exit 1; }
done
install -d "$lib" "$root/include/mkernel" "$root/lib/pkgconfig" "$root/bin"
install -m 755 "$built/libmkernel.so" "$built/mkernel" "$lib"
ln -sfn libmkernel.so "$lib/libnccl.so.2"
ln -sfn libnccl.so.2 "$lib/libnccl.so"
ln -sfn ../lib/mkernel/mkernel "$root/bin/mkernel"
install -m 644 include/*.h "$root/include/mkernel"
if [ -e "$built/emulator/libcuda.so.1" ]; then
  install -d "$lib/emulator"
  install -m 755 "$built/emulator/libcuda.so.1" "$lib/emulator"
  ln -sfn libcuda.so.1 "$lib/emulator/libcuda.so"
fi

number() { sed -n "s/^#define NCCL_$1 *\([0-9]*\)$/\1/p" include/nccl.h; }
cat >"$root/lib/pkgconfig/mkernel.pc" <<PC
prefix=$prefix
libdir=\${prefix}/lib/mkernel
includedir=\${prefix}/include/mkernel

Name: mkernel
Description: Drop-in replacement for NCCL: collectives in one persistent kernel per GPU
Version: $(number MAJOR).$(number MINOR).$(number PATCH)
Libs: -L\${libdir} -lnccl -Wl,-rpath,\${libdir}
Cflags: -I\${includedir}
PC
echo "installed to $root; preload with LD_PRELOAD=$prefix/lib/mkernel/libmkernel.so"
