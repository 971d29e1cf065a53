#!/usr/bin/env bash
# What a program sees of libmkernel.so and its headers, compared with NCCL 2.30.7. Needs gcc, g++, nm and readelf; no GPU, no CUDA.
#
#   compat-tests/abi/run.sh [LIBRARY]      LIBRARY defaults to the debug build, which this script does not make
#
#   NCCL_HEADERS=DIR   also compare with NVIDIA's own nccl.h 2.30.7 in DIR (from the wheel nvidia-nccl-cu13==2.30.7)
#   CUDA_HOME=DIR      also compile against that toolkit's headers; the stub headers are used in any case
set -uo pipefail
cd "$(dirname "$0")/../.."
library=$(realpath "${1:-target/debug/libmkernel.so}")
here=compat-tests/abi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# check NAME COMMAND...: the command must succeed; its output is shown if it does not.
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
skip() { echo "skipped: $1"; }
same() { [ "$1" = "$2" ] || { printf 'got:      %s\nexpected: %s\n' "$1" "$2"; return 1; }; }

[ -e "$library" ] || { echo "$library is not there; build it with: cargo build -p mkernel"; exit 2; }
ln -s "$library" "$work/libnccl.so.2"
ln -s libnccl.so.2 "$work/libnccl.so"

# 1. The file.
exports() { nm -D --defined-only "$library" | awk '{ print $3 }' | sort; }
check "exported names are those of NCCL 2.30.7" diff <(grep -v '^#' $here/symbols-2.30.7.txt | sort) <(exports)
dynamic() { readelf -dW "$library" | sed -n "s/.*($1).*\[\(.*\)\]/\1/p" | sort | tr '\n' ' '; }
check "SONAME" same "$(dynamic SONAME)" "libnccl.so.2 "
check "stays loaded after dlclose" grep -q NODELETE <(readelf -dW "$library")
foreign() { dynamic NEEDED | tr ' ' '\n' | grep -vxE 'libc\.so\.6|libgcc_s\.so\.1|libm\.so\.6|ld-linux-x86-64\.so\.2|' || true; }
check "needs the C library and nothing else" same "$(foreign)" ""
check "no rpath" same "$(dynamic RPATH)$(dynamic RUNPATH)" ""
# The linker's own frame_dummy is the one entry; DT_INIT is crti's empty function.
entries() { readelf -dW "$library" | sed -n "s/.*($1) *\([0-9]*\) (bytes)/\1/p"; }
check "one load-time function at most" test "$(entries INIT_ARRAYSZ)" -le 16
# A call from one exported function to another would be such a reference, unless the optimiser happened to inline it.
check "no reference to an export of its own" same "$(readelf -rW "$library" | awk '$5 ~ /^p?nccl/ { print $5 }')" ""

# 2. The headers.
stub="-I $here/stub"
compile_c() { gcc -std=c11 -Wall -Wextra -Werror "$@"; }
compile_cc() { g++ -std=c++17 -Wall -Wextra -Werror -x c++ "$@"; }
check "layout in C" compile_c -fsyntax-only -I include $stub $here/layout.c
check "layout in C++" compile_cc -fsyntax-only -I include $stub $here/layout.c
check "device layout in C" compile_c -fsyntax-only -I include $stub $here/device_layout.c
check "device layout in C++" compile_cc -fsyntax-only -I include $stub $here/device_layout.c
check "what PyTorch uses" compile_cc -fsyntax-only -I include $stub $here/torch.cc
if [ -e "${CUDA_HOME:-}/include/cuda_runtime.h" ]; then
  check "layout with the toolkit, C" compile_c -fsyntax-only -I include -isystem "$CUDA_HOME/include" $here/layout.c
  check "layout with the toolkit, C++" compile_cc -fsyntax-only -I include -isystem "$CUDA_HOME/include" $here/layout.c
else
  skip "headers with a CUDA toolkit: CUDA_HOME names none"
fi

# 3. NVIDIA's header. Repeating a prototype is legal only if it is the same.
prototypes() { sed -n '/^extern "C" {/,/^}/p' "$1" | sed '1,2d;$d' | sed '/^#/d'; }
if [ -e "${NCCL_HEADERS:-}/nccl.h" ]; then
  { echo '#include <nccl.h>'; prototypes include/nccl.h; } >"$work/clash.c"
  check "prototypes equal NVIDIA's, C" gcc -DNCCL_OS_LINUX -Werror -Wno-deprecated-declarations -fsyntax-only -I "$NCCL_HEADERS" $stub "$work/clash.c"
  { echo '#include <nccl.h>'; echo 'extern "C" {'; prototypes include/nccl.h; echo '}'; } >"$work/clash.cc"
  check "prototypes equal NVIDIA's, C++" g++ -DNCCL_OS_LINUX -Werror -Wno-deprecated-declarations -fsyntax-only -I "$NCCL_HEADERS" $stub "$work/clash.cc"
  names() { sed -nE 's/^ *(ncclResult_t|void|const char ?\*) *(p?nccl[A-Za-z0-9]*) *\(.*/\2/p' "$1" | sort -u; }
  check "all functions of NVIDIA's nccl.h are declared" same "$(comm -23 <(names "$NCCL_HEADERS/nccl.h") <(names include/nccl.h))" ""
  macros() { grep -oE '^ *# *define NCCL_[A-Z_]+' "$1" | awk '{ print $NF }' | sort -u; }
  check "all macros of NVIDIA's nccl.h are defined" same "$(comm -23 <(macros "$NCCL_HEADERS/nccl.h") <(macros include/nccl.h) | tr '\n' ' ')" ""
  check "layout holds for NVIDIA's header" compile_cc -fsyntax-only -I "$NCCL_HEADERS" $stub $here/layout.c
  if [ -e "${CUDA_HOME:-}/bin/nvcc" ]; then
    # Two functions are declared by NVIDIA in a header for Windows only, so their paragraphs are left out.
    shared() { prototypes include/nccl_device_host.h | awk -v RS= '!/Gin(Outbox|Inbox)/'; }
    { echo '#include <nccl_device.h>'; echo 'extern "C" {'; shared; echo '}'; echo '#define THEIRS'; echo "#include \"$PWD/$here/device_layout.c\""; } >"$work/device.cu"
    check "device prototypes and layout equal NVIDIA's" "$CUDA_HOME/bin/nvcc" -std=c++17 -I "$NCCL_HEADERS" -c "$work/device.cu" -o "$work/device.o"
  fi
else
  skip "comparison with NVIDIA's nccl.h: NCCL_HEADERS names no folder that holds one"
fi

# 4. Programs.
link="-L $work -lnccl -Wl,-rpath,$work"
check "build calls.c as C" compile_c -I include $stub $here/calls.c -o "$work/calls" $link
check "every call, from C" "$work/calls"
check "build calls.c as C++" compile_cc -I include $stub $here/calls.c -o "$work/calls_cc" $link
check "every call, from C++" "$work/calls_cc"
check "build the profiler" compile_c -shared -fPIC -I include $stub $here/profiler.c -o "$work/profiler.so"
check "build what it watches" compile_c -I include $stub $here/profiled.c -o "$work/profiled" $link
check "a profiler that calls pncclX is called once" same "$(LD_PRELOAD=$work/profiler.so "$work/profiled" 2>&1; echo "rc $?")" $'profiled 2\nrc 0'

# 5. Preloaded into programs that never heard of NCCL.
silent() { same "$(LD_PRELOAD=$library "$@" 2>&1; echo "rc $?")" "rc 0"; }
check "preloaded sh" silent sh -c :
check "preloaded gcc" silent gcc -fsyntax-only $here/threads.c
if command -v python3 >/dev/null; then check "preloaded python" silent python3 -c pass; else skip "preloaded python: python3 is not installed"; fi
check "build threads.c" compile_c $here/threads.c -o "$work/threads"
check "preloading starts no thread" same "$(LD_PRELOAD=$library "$work/threads" 2>&1)" 1

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
