//! Names the library as NCCL's loader name, and embeds the kernels as one fatbin.
//!
//! `MKERNEL_GENCODE=sm_90a` compiles for one target only (quick builds); `MKERNEL_NO_NVCC=1` embeds nothing: such a library serves
//! lints, documentation, header generation, and the emulated GPU, which brings the kernels itself.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Real targets, and PTX of the oldest so that newer GPUs can translate it.
const TARGETS: [&str; 4] = ["sm_80", "sm_90a", "sm_100", "compute_80"];

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // Threads and thread-local state outlive a dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    for name in ["MKERNEL_GENCODE", "MKERNEL_NO_NVCC", "MKERNEL_CUDA_HOME", "CUDA_HOME"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=kernels");

    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("mkernel.fatbin");
    if std::env::var_os("MKERNEL_NO_NVCC").is_some_and(|v| v != "0") {
        std::fs::write(&out, b"no kernels: MKERNEL_NO_NVCC\0").expect("OUT_DIR is writable");
        return;
    }
    let Some(nvcc) = find_nvcc() else {
        panic!("nvcc was not found: run `make toolchain`, which puts it into .toolchain/, or set CUDA_HOME to a CUDA 12.8 or newer toolkit");
    };
    let chosen = std::env::var("MKERNEL_GENCODE").ok();
    let targets: Vec<&str> = chosen.as_deref().map_or(TARGETS.to_vec(), |t| t.split(',').collect());
    let mut command = Command::new(&nvcc);
    // No contraction of multiply and add: results must be those of the emulated GPU, bit for bit.
    command.args(["-std=c++20", "-O3", "-fmad=false", "--threads", "2", "-Ikernels", "-fatbin", "kernels/mkernel.cu", "-o"]).arg(&out);
    for target in targets {
        let virtual_arch = target.replace("sm_", "compute_");
        command.arg(format!("-gencode=arch={virtual_arch},code={target}"));
    }
    let status = command.status().unwrap_or_else(|e| panic!("{} cannot be run: {e}", nvcc.display()));
    assert!(status.success(), "{} could not compile the kernels (see above)", nvcc.display());
}

fn find_nvcc() -> Option<PathBuf> {
    let home = |name: &str| std::env::var_os(name).map(|home| Path::new(&home).join("bin/nvcc"));
    let on_path = std::env::var_os("PATH").and_then(|path| std::env::split_paths(&path).map(|dir| dir.join("nvcc")).find(|p| p.exists()));
    [home("MKERNEL_CUDA_HOME"), home("CUDA_HOME"), on_path, Some(PathBuf::from(".toolchain/cuda/nvidia/cu13/bin/nvcc"))]
        .into_iter()
        .flatten()
        .find(|p| p.exists())
}
