fn main() {
    // SAFETY: no other thread runs.
    unsafe { std::env::set_var("RUSTC_BOOTSTRAP", "1"); std::env::set_var("MKERNEL_NO_NVCC","1"); }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let b = cbindgen::Builder::new().with_crate(root).with_config(config).generate().unwrap();
    b.write(std::io::stdout());
}
