//! Names the library as NCCL's loader name, and embeds the kernels as one fatbin.
//!
//! `MKERNEL_GENCODE=sm_90a` compiles for one target only (quick builds); `MKERNEL_NO_NVCC=1` embeds nothing: such a library serves
//! lints, documentation, header generation, and the emulated GPU, which brings the kernels itself.

use std::hash::{DefaultHasher, Hash, Hasher};
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
        panic!(
            "nvcc was not found: run `make toolchain`, which puts it into .toolchain/, or set CUDA_HOME to a CUDA 12.8 or newer toolkit"
        );
    };
    let chosen = std::env::var("MKERNEL_GENCODE").ok();
    let targets: Vec<&str> = chosen.as_deref().map_or(TARGETS.to_vec(), |t| t.split(',').collect());
    // No contraction of multiply and add: results must be those of the emulated GPU, bit for bit.
    let mut flags =
        ["-std=c++20", "-O3", "-fmad=false", "--threads", "2", "-Ikernels", "-fatbin", "kernels/mkernel.cu"].map(String::from).to_vec();
    flags.extend(targets.iter().map(|target| format!("-gencode=arch={},code={target}", target.replace("sm_", "compute_"))));

    let kept = kept_path(&out, &nvcc, &flags);
    if !kept.exists() {
        // Under its name only when it is whole: another build may look for it at the same time.
        let fresh = kept.with_extension(std::process::id().to_string());
        let status = Command::new(&nvcc).args(&flags).arg("-o").arg(&fresh).status();
        let status = status.unwrap_or_else(|e| panic!("{} cannot be run: {e}", nvcc.display()));
        assert!(status.success(), "{} could not compile the kernels (see above)", nvcc.display());
        std::fs::rename(&fresh, &kept).expect("the target folder is writable");
    }
    std::fs::copy(&kept, &out).expect("OUT_DIR is writable");
}

/// Where the result of this compilation is kept, for all profiles and for the next time that the same is asked for: all targets together take
/// minutes, and cargo runs this script anew whenever a variable changes.
fn kept_path(out: &Path, nvcc: &Path, flags: &[String]) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    Command::new(nvcc).arg("--version").output().map(|o| o.stdout).unwrap_or_default().hash(&mut hasher);
    flags.hash(&mut hasher);
    hash_folder(Path::new("kernels"), &mut hasher);
    // OUT_DIR is <target>/<profile>/build/<package>/out.
    let folder = out.ancestors().nth(5).expect("OUT_DIR lies in the target folder").join("kernels");
    std::fs::create_dir_all(&folder).expect("the target folder is writable");
    folder.join(format!("{:016x}.fatbin", hasher.finish()))
}

fn hash_folder(folder: &Path, hasher: &mut DefaultHasher) {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).expect("kernels/ is readable").flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            hash_folder(&path, hasher);
        } else {
            (&path, std::fs::read(&path).expect("kernels/ is readable")).hash(hasher);
        }
    }
}

fn find_nvcc() -> Option<PathBuf> {
    let home = |name: &str| std::env::var_os(name).map(|home| Path::new(&home).join("bin/nvcc"));
    let on_path = std::env::var_os("PATH").and_then(|path| std::env::split_paths(&path).map(|dir| dir.join("nvcc")).find(|p| p.exists()));
    [home("MKERNEL_CUDA_HOME"), home("CUDA_HOME"), on_path, Some(PathBuf::from(".toolchain/cuda/nvidia/cu13/bin/nvcc"))]
        .into_iter()
        .flatten()
        .find(|p| p.exists())
}
