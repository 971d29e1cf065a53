#!/usr/bin/env bash
# Installs into temporary folders and uses what is there. Needs gcc, and `make build` before.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
built=${CARGO_TARGET_DIR:-target}/release
[ -e "$built/libmkernel.so" ] || { echo "$built/libmkernel.so is not there: run make build first"; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/usr
lib=$prefix/lib/mkernel
passed=0 failed=0

check() {
  local name=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
    sed 's/^/    /' "$work/log"
  fi
}
same() { [ "$1" = "$2" ] || { printf 'got:      %s\nexpected: %s\n' "$1" "$2"; return 1; }; }
file_of() { realpath --relative-to "$lib" "$lib/$1"; }

check "install" env PREFIX="$prefix" packaging/install.sh
check "install again" env PREFIX="$prefix" packaging/install.sh
check "libnccl.so.2 is the library" same "$(file_of libnccl.so.2)" libmkernel.so
check "libnccl.so is the library" same "$(file_of libnccl.so)" libmkernel.so

cat >"$work/version.c" <<'C'
#include <nccl.h>
#include <stdio.h>
int main(void) {
  int version = 0;
  ncclResult_t result = ncclGetVersion(&version);
  printf("%d %d\n", result, version);
  return 0;
}
C
# What pkg-config would print; where it is installed, it must agree.
field() { sed -n "s/^$1: //p" "$prefix/lib/pkgconfig/mkernel.pc" | sed "s#\${libdir}#$lib#g; s#\${includedir}#$prefix/include/mkernel#g"; }
if command -v pkg-config >/dev/null; then
  pc() { PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config "$@" mkernel | sed 's/ *$//'; }
  check "pkg-config's flags" same "$(pc --cflags --libs)" "$(field Cflags) $(field Libs)"
  check "pkg-config's version" same "$(pc --modversion)" "$(field Version)"
else
  echo "skipped: pkg-config is not installed"
fi
read -ra cflags <<<"$(field Cflags)"
read -ra libs <<<"$(field Libs)"
answer="0 ${MKERNEL_REPORT_VERSION:=22809}"
export MKERNEL_REPORT_VERSION
check "link" gcc -Wall -Werror "${cflags[@]}" -I compat-tests/abi/stub "$work/version.c" -o "$work/linked" "${libs[@]}"
check "run linked" same "$("$work/linked" 2>&1)" "$answer"

# A program linked against another libnccl.so.2, here one that answers nothing, gets ours when it is preloaded.
mkdir "$work/other"
echo 'int ncclGetVersion(int* version) { *version = 1; return 5; }' >"$work/other.c"
check "build another libnccl" gcc -shared -fPIC -Wl,-soname,libnccl.so.2 "$work/other.c" -o "$work/other/libnccl.so.2"
check "link with it" gcc "${cflags[@]}" -I compat-tests/abi/stub "$work/version.c" -o "$work/preloaded" "$work/other/libnccl.so.2" -Wl,-rpath,"$work/other"
check "run without preloading" same "$("$work/preloaded" 2>&1)" "5 1"
check "run preloaded" same "$(LD_PRELOAD=$lib/libmkernel.so "$work/preloaded" 2>&1)" "$answer"

check "the program starts by its link" "$prefix/bin/mkernel" --help
check "install into a staging folder" env PREFIX=/opt/x DESTDIR="$work/stage" packaging/install.sh
check "the staging folder is not in mkernel.pc" same "$(grep -c "$work" "$work/stage/opt/x/lib/pkgconfig/mkernel.pc")" 0
check "uninstall" env PREFIX="$prefix" packaging/install.sh --uninstall
check "nothing is left" same "$(find "$prefix" ! -type d)" ""

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
