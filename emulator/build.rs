//! Compiles the library's kernels for the host and names the library as the CUDA driver is named.

use std::path::PathBuf;

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Threads and thread-local state outlive a dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../kernels");
    for name in ["MKERNEL_CUDA_HOME", "CUDA_HOME"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let Some(cuda) = cuda_headers() else {
        panic!("the CUDA headers (cuda_fp16.h) were not found: run `make toolchain`, or set CUDA_HOME to a CUDA 12.8 or newer toolkit");
    };
    // No contraction of multiply and add: results must be those of a real GPU, bit for bit.
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .opt_level(2)
        .flag("-ffp-contract=off")
        .flag("-Wno-unknown-pragmas")
        // Cannot follow that a value is only used where the function that sets it said so.
        .flag_if_supported("-Wno-maybe-uninitialized")
        .include("../kernels")
        .flag("-isystem")
        .flag(cuda.to_str().expect("the path of the CUDA headers is UTF-8"))
        .file("../kernels/host_kernels.cpp")
        .compile("mkernel_host_kernels");
}

fn cuda_headers() -> Option<PathBuf> {
    let home = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let local = Some(PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?).join("../.toolchain/cuda/nvidia/cu13"));
    [home("MKERNEL_CUDA_HOME"), home("CUDA_HOME"), local, Some(PathBuf::from("/usr/local/cuda"))]
        .into_iter()
        .flatten()
        .map(|home| home.join("include"))
        .find(|include| include.join("cuda_fp16.h").exists())
}
