#!/usr/bin/env bash
# Makes FOLDER/emulator/, which in LD_LIBRARY_PATH stands for a GPU driver, from the emulator that cargo built in FOLDER.
#
#   packaging/emulator-folder.sh FOLDER       (target/release or target/debug)
#
# A folder of its own, so that it is used only when it is named: FOLDER is in the path of programs that `cargo run` starts.
set -euo pipefail
built=$1/libcuda.so
[ -e "$built" ] || { echo "$built is not there: build it with cargo build -p mkernel-emulator" >&2; exit 1; }
install -d "$1/emulator"
install -m 755 "$built" "$1/emulator/libcuda.so.1"
ln -sfn libcuda.so.1 "$1/emulator/libcuda.so"
