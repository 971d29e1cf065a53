//! Runs the built `mkernel perf` on a fake CUDA driver and a fake NCCL (both in fakes/), in threads and in processes, and when they misbehave.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_mkernel");

/// A shared library that cargo has built from an example target of this package.
fn library(name: &str) -> PathBuf {
    let path = Path::new(PROGRAM).with_file_name("examples").join(format!("lib{name}.so"));
    assert!(path.exists(), "{} is not built: run all tests of the package (cargo test -p mkernel-cli)", path.display());
    path
}

/// A folder of its own for one test, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mkernel-perf-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the tool on the fakes. The fake driver takes the emulator's place, so this also shows that the tool finds it and starts again.
fn perf_with(name: &str, fault: &str, line: &str) -> Output {
    let folder = Folder::new(name);
    std::os::unix::fs::symlink(library("fake_cuda"), folder.0.join("libcuda.so.1")).unwrap();
    Command::new(PROGRAM)
        .args(["perf", "--emulated"])
        .args(line.split_whitespace())
        .env("MKERNEL_EMULATOR", &folder.0)
        .env("MKERNEL_LIBRARY", library("fake_nccl"))
        .env("FAKE_NCCL", fault)
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap()
}

fn texts(output: &Output) -> (String, String) {
    (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The rows of the table, as words.
fn rows(stdout: &str) -> Vec<Vec<String>> {
    stdout.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

#[test]
fn every_operation_in_threads() {
    let output = perf_with("threads", "", "all -g 3 -b 4 -e 100K -f 5 -n 3 -c 2 -r all");
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.starts_with("# mkernel perf on the emulated GPU (no CUDA device here; times mean nothing)\n"), "{stdout}");
    assert!(stdout.contains("# 3 ranks as threads on 1 GPU\n"), "{stdout}");
    assert!(stdout.contains("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : "), "{stdout}");
    // 7 sizes; five operations without a root, four with each of 3 roots.
    assert_eq!(rows(&stdout).len(), 7 * (5 + 4 * 3));
    for row in rows(&stdout) {
        assert_eq!(row.len(), 13);
        assert_eq!(row[8], "0", "{row:?}");
        assert!(row[12] == "0" || row[12] == "N/A", "{row:?}");
    }
}

#[test]
fn every_operation_in_processes() {
    let output = perf_with("processes", "", "all --procs -g 3 -b 4 -e 20K -f 50 -n 2 -N 3 -m 2");
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("# 3 ranks as processes on 1 GPU\n"), "{stdout}");
    assert_eq!(rows(&stdout).len(), 9 * 3);
}

#[test]
fn every_operation_in_graphs() {
    for (name, mode) in [("graph-threads", ""), ("graph-processes", "--procs")] {
        let output = perf_with(name, "", &format!("all {mode} -g 3 -b 4 -e 20K -f 50 -n 2 -G 5 -o mulsum"));
        let (stdout, stderr) = texts(&output);
        assert!(output.status.success(), "{stdout}\n{stderr}");
        assert!(stdout.contains("in a graph launched 5 times"), "{stdout}");
        assert_eq!(rows(&stdout).len(), 9 * 3);
        // 1 ms for 5 launches of 2 iterations.
        assert_eq!(rows(&stdout)[0][5], "100.0");
    }
}

#[test]
fn a_wrong_element_in_a_graph_is_counted() {
    // Two rounds of one launch with 8 operations, out of place and in place.
    let stdout = fails_with("wrong:1", "all_reduce -g 2 -b 256 -e 256 -n 1 -G 1", "rank 1, all_reduce float sum, 256 bytes: output");
    assert!(stdout.contains("# Out of bounds values : 32 FAILED"), "{stdout}");
}

#[test]
fn every_operator_that_the_fake_knows() {
    for line in ["-o all -d float", "-o sum,prod,max,min,avg -d int32"] {
        let output =
            perf_with(&format!("operators{}", line.len()), "", &format!("all_reduce,reduce_scatter,reduce -g 4 -b 64 -e 64 -n 1 {line}"));
        let (stdout, stderr) = texts(&output);
        assert!(output.status.success(), "{stdout}\n{stderr}");
        assert!(stdout.contains(" avg ") && stdout.contains("0 OK"), "{stdout}");
    }
}

#[test]
fn registered_buffers() {
    let output = perf_with("registered", "", "all -g 2 -b 1K -e 1K -n 1 -R 1");
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert_eq!(rows(&stdout).len(), 9);
}

#[test]
fn exact_values() {
    let output = perf_with("exact", "", "all_reduce -g 3 -b 4K -e 4K -n 1 --check-all --values exact -o sum,prod,mulsum");
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stdout}\n{stderr}");
}

#[test]
fn figures_come_from_the_gpu_clock() {
    // The fake GPU's events are always 1 ms apart: 10 iterations take 100 us each.
    let output = perf_with("figures", "", "all_gather -g 4 -b 1M -e 1M -n 10 -c 0");
    let row = rows(&texts(&output).0).remove(0);
    assert_eq!(row[..5], ["1048576", "65536", "float", "none", "-1"]);
    assert_eq!(row[5..9], ["100.0", "10.49", "7.86", "N/A"]);
}

#[test]
fn json_holds_what_was_printed() {
    let folder = Folder::new("json-out");
    let file = folder.0.join("perf.json");
    let output = perf_with("json", "", &format!("reduce -g 2 -r 1 -b 1K -e 1K -n 4 -J {}", file.display()));
    assert!(output.status.success(), "{:?}", texts(&output));
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!((&json["ranks"], &json["emulated"], &json["wrong"]), (&2.into(), &true.into(), &0.into()));
    let row = &json["rows"][0];
    assert_eq!((&row["operation"], &row["size"], &row["root"]), (&"reduce".into(), &1024.into(), &1.into()));
    assert_eq!((&row["in_place"]["time_us"], &row["out_of_place"]["wrong"]), (&250.0.into(), &0.into()));
}

/// A run that must end with status 1 and a message.
fn fails_with(fault: &str, line: &str, message: &str) -> String {
    let name = format!("{}{}", fault.replace(':', ""), line.len());
    let output = perf_with(&name, fault, line);
    let (stdout, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{stdout}\n{stderr}");
    assert!(stderr.contains(message), "{message}\n---\n{stdout}\n{stderr}");
    stdout
}

#[test]
fn a_wrong_element_is_counted_and_told() {
    // 8 operations back to back, out of place and in place; one wrong element each.
    let message = "rank 1, all_reduce float sum, 256 bytes: output: element 0 is 0x";
    let stdout = fails_with("wrong:1", "all_reduce -g 2 -b 256 -e 256 -n 1", message);
    assert!(stdout.contains("# Out of bounds values : 16 FAILED"), "{stdout}");
    assert!(stdout.contains("compare with --values exact"), "{stdout}");
    fails_with("wrong:1", "all_gather --procs -g 2 -b 256 -e 256 -n 1", "rank 1, all_gather float, 256 bytes: output: element 0");
}

#[test]
fn a_write_behind_the_output_is_found() {
    let stdout = fails_with("overrun:0", "broadcast -g 2 -b 64 -e 64 -n 1", "guard behind the output: element 0 is 0xa5a5a500");
    assert!(stdout.contains("# Out of bounds values : 16 FAILED"), "{stdout}");
}

#[test]
fn a_changed_input_is_found() {
    fails_with("spoil:1", "all_reduce -g 2 -b 64 -e 64 -n 1", "rank 1, all_reduce float sum, 64 bytes: unchanged input: element 0");
}

#[test]
fn a_failing_call_ends_the_run_with_the_librarys_words() {
    let message = "rank 1: ncclAllReduce failed with code 3: fake error: paper jam";
    fails_with("fail:1", "all_reduce -g 2 -n 1", message);
    fails_with("fail:1", "all_reduce -g 2 -n 1 --procs", message);
}

#[test]
fn a_rank_that_dies_ends_the_run() {
    let message =
        "rank 2: its process was killed by signal 6, during: all_reduce float sum, 8 bytes, out of place, operations of a check round";
    fails_with("die:2", "all_reduce -g 3 -n 1 --procs", message);
}

#[test]
fn a_hang_ends_the_run_and_names_the_rank() {
    let message = "rank 0 has not finished: broadcast float root 0, 64 bytes, out of place, operations of a check round";
    // Long enough for a busy machine to get as far as the operation.
    fails_with("hang:0", "broadcast -g 2 -b 64 -e 64 -T 5", message);
    fails_with("hang:0", "broadcast -g 2 -b 64 -e 64 -T 5 --procs", message);
}

#[test]
fn what_the_driver_cannot_do_is_told() {
    let message = "cuMemAlloc of 2199023255808 bytes failed: CUDA_ERROR_OUT_OF_MEMORY";
    fails_with("", "all_reduce -g 2 -b 2048G", message);
}

#[test]
fn missing_parts_are_told() {
    let run = |library: &str, emulator: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(["perf", "--emulated", "-g", "2", "--library", library]).env("MKERNEL_EMULATOR", emulator);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        texts(&output).1
    };
    let stderr = run("libnccl.so.2", "/nowhere");
    assert!(stderr.contains("no emulated GPU at /nowhere/libcuda.so.1: build it with make"), "{stderr}");
    let folder = Folder::new("missing");
    std::os::unix::fs::symlink(library("fake_cuda"), folder.0.join("libcuda.so.1")).unwrap();
    let stderr = run("/nowhere/libnccl.so", folder.0.to_str().unwrap());
    assert!(stderr.contains("cannot open the NCCL library /nowhere/libnccl.so"), "{stderr}");
    assert!(stderr.contains("--library or MKERNEL_LIBRARY"), "{stderr}");
    let stderr = run(library("fake_cuda").to_str().unwrap(), folder.0.to_str().unwrap());
    assert!(stderr.contains("has no function ncclGetVersion"), "{stderr}");
}

#[test]
fn a_gpu_is_used_where_there_is_one() {
    let folder = Folder::new("gpu");
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::os::unix::fs::symlink(library("fake_cuda"), folder.0.join(name)).unwrap();
    }
    let line = "perf broadcast -b 64 -e 64 -n 1 --library".split(' ');
    let mut command = Command::new(PROGRAM);
    let output = command.args(line).arg(library("fake_nccl")).env("LD_LIBRARY_PATH", &folder.0).output().unwrap();
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.starts_with("# mkernel perf on GPU Fake GPU (1 of them)\n"), "{stdout}");
    assert!(stdout.contains("# 2 ranks as threads on 1 GPU\n"), "{stdout}");
}

#[test]
fn command_line() {
    let output = Command::new(PROGRAM).arg("--version").output().unwrap();
    assert_eq!(texts(&output).0, concat!("mkernel ", env!("CARGO_PKG_VERSION"), "\n"));
    let help = texts(&Command::new(PROGRAM).args(["perf", "--help"]).output().unwrap()).0;
    assert!(help.contains("float32 accumulator") && help.contains("above 16 MiB are sampled"), "{help}");
    let output = Command::new(PROGRAM).args(["perf", "all_redcue"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
