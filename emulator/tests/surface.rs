//! The exported names: everything that the library and the tools ask for is there, under the loader's name.

use cuda::exports::FUNCTIONS;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The driver functions that a file calls through cudarc.
fn calls(text: &str) -> impl Iterator<Item = String> {
    text.split("sys::cu").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        format!("cu{}", &rest[..end])
    })
}

#[test]
fn everything_that_is_called_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for folder in ["src", "cli/src", "compat-tests/src", "compat-tests/gpu"] {
        sources(&root.join(folder), &mut files);
    }
    let mut called = BTreeSet::new();
    for file in files {
        called.extend(
            calls(&std::fs::read_to_string(file).unwrap()).filter(|name| name.as_bytes().get(2).is_some_and(u8::is_ascii_uppercase)),
        );
    }
    assert!(called.contains("cuLaunchKernelEx"), "the sources were not found");
    let missing: Vec<_> = called.iter().filter(|name| !FUNCTIONS.iter().any(|function| function.name == *name)).collect();
    assert!(missing.is_empty(), "called but not exported: {missing:?}");
}

/// Cargo puts the shared library beside the folder of the test.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libcuda.so")
}

#[test]
fn the_shared_library_exports_every_function() {
    let path = CString::new(library().into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: loading our own library runs nothing.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{path:?} does not load");
    for function in FUNCTIONS {
        let name = CString::new(function.name).unwrap();
        // SAFETY: an open library and a C string.
        assert!(!unsafe { libc::dlsym(handle, name.as_ptr()) }.is_null(), "{} is not exported", function.name);
    }
}

#[test]
fn the_shared_library_has_the_drivers_name() {
    let bytes = std::fs::read(library()).unwrap();
    assert!(bytes.windows(14).any(|window| window == b"\0libcuda.so.1\0"));
}

#[test]
fn functions_are_found_by_the_names_of_cuda_h() {
    let find = |name: &CStr, version: i32| {
        let (mut address, mut status) = (std::ptr::null_mut(), -1);
        // SAFETY: the outputs are valid.
        let code = unsafe { cuda::exports::cuGetProcAddress_v2(name.as_ptr(), &mut address, version, 0, &mut status) };
        (code, address as usize, status)
    };
    use cuda::exports::{graph, memory, stream};
    assert_eq!(find(c"cuMemAlloc", 12000), (0, memory::cuMemAlloc_v2 as *const () as usize, 0));
    assert_eq!(find(c"cuStreamGetCaptureInfo", 12030), (0, stream::cuStreamGetCaptureInfo_v3 as *const () as usize, 0));
    assert_eq!(find(c"cuStreamGetCaptureInfo", 12000), (0, stream::cuStreamGetCaptureInfo_v2 as *const () as usize, 0));
    assert_eq!(find(c"cuStreamUpdateCaptureDependencies", 12000), (0, stream::cuStreamUpdateCaptureDependencies as *const () as usize, 0));
    assert_eq!(find(c"cuGraphInstantiate", 12000), (0, graph::cuGraphInstantiateWithFlags as *const () as usize, 0));
    assert_eq!(find(c"cuTexObjectCreate", 12000), (500, 0, 1));
}
