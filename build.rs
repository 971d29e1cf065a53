fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
    std::fs::write(format!("{}/mkernel.fatbin", std::env::var("OUT_DIR").unwrap()), b"emulated").unwrap();
}
