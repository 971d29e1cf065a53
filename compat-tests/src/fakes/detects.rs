//! The program finds what is wrong: it is run on a fake library that is right, and that is wrong in every way the matrix looks for.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder of this test's own where the fake driver has the driver's names.
struct Fakes {
    driver: PathBuf,
    library: PathBuf,
}

impl Fakes {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let program = Path::new(env!("CARGO_BIN_EXE_conformance"));
        let built = program.with_file_name("examples");
        let name = format!("detects-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let driver = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&driver).unwrap();
        for name in ["libcuda.so", "libcuda.so.1"] {
            std::os::unix::fs::symlink(built.join("libconformance_fake_cuda.so"), driver.join(name)).unwrap();
        }
        Self { driver, library: built.join("libconformance_fake_nccl.so") }
    }

    /// Runs the program's matrix; returns the exit status and what it printed.
    fn run(&self, fault: &str, words: &str) -> (i32, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_conformance"))
            .arg("--library")
            .arg(&self.library)
            .arg("--emulator")
            .arg(&self.driver)
            .args(["--only", "matrix"])
            .args(words.split(' '))
            .env("FAKE_NCCL", fault)
            .output()
            .unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.code().unwrap(), text)
    }
}

impl Drop for Fakes {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.driver);
    }
}

/// Forty small cases on two ranks. One of them, an all-reduce out of place, has this count.
const FEW: &str = "--cases 40 --ranks 2 --counts small-odd,around-line";
const COUNT: u32 = 217;

#[test]
fn a_right_library_passes() {
    let (status, text) = Fakes::new().run("", "--cases 150 --counts zero,one,small-odd,around-line,around-chunk --ranks 1,2,3");
    assert_eq!(status, 0, "{text}");
    assert!(text.ends_with("150 passed, 0 failed\n"), "{text}");
}

/// A fault of rank 1 fails the one case that has it, and no other.
fn finds(fault: &str, options: &str, words: &str) {
    let (status, text) = Fakes::new().run(&format!("{fault}:1:{COUNT}"), &format!("{FEW}{options}"));
    assert_eq!(status, 1, "{fault}: {text}");
    assert!(text.contains(words), "{fault}: {text}");
    assert!(text.contains("again: conformance --only matrix --seed 1 --ranks 2 --counts small-odd,around-line --case "), "{fault}: {text}");
    assert!(text.ends_with("\n39 passed, 1 failed\n"), "{fault}: {text}");
}

#[test]
fn wrong_elements_are_found() {
    finds("wrong", "", "217 elements are wrong");
}

#[test]
fn a_result_that_was_not_written_is_found() {
    finds("stale", "", "(still the poison)");
}

#[test]
fn writes_behind_a_buffer_are_found() {
    finds("overrun", "", "byte 0 behind it was overwritten");
}

#[test]
fn writes_before_a_buffer_are_found() {
    finds("spoil", "", "byte 1 before it was overwritten");
}

#[test]
fn a_failed_call_is_found_and_the_rest_goes_on() {
    finds("fail", "", "ncclInternalError (paper jam)");
}

#[test]
fn a_crash_is_found_and_the_rest_goes_on() {
    finds("die", "", "died of signal 6 (abort)");
}

#[test]
fn a_hang_is_found_and_the_rest_goes_on() {
    finds("hang", " --patience 0.1", "rank 1: no progress for 3 s, killed: it has not finished: AllReduce");
}

#[test]
fn without_a_library_it_says_so() {
    let mut fakes = Fakes::new();
    fakes.library = PathBuf::from("/nonexistent/libnccl.so");
    let (status, text) = fakes.run("", "--cases 1");
    assert_eq!(status, 2, "{text}");
    assert!(text.contains("/nonexistent/libnccl.so"), "{text}");
}
