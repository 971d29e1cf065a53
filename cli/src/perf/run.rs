//! One run: from the options to ranks, and each rank's way through the rows of the table.

use super::board::Board;
use super::element::ElementType;
use super::emulated::{self, Devices};
use super::inputs::{Inputs, mix};
use super::nccl::Nccl;
use super::operation::{Operation, RedOp};
use super::options::{Options, Root};
use super::report::{Figures, Report, Row};
use super::sizes::Sizes;
use super::worker::Worker;
use super::{Result, ranks};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What every rank of a run knows.
pub struct Plan {
    pub options: Options,
    sizes: Sizes,
    devices: Devices,
    library: PathBuf,
}

/// What one row of the table measures.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub operation: Operation,
    pub dtype: ElementType,
    pub redop: RedOp,
    pub root: usize,
    /// The message size asked for, in elements.
    pub elements: usize,
    pub inputs: Inputs,
}

impl Case {
    /// The row in words, for progress and complaints.
    pub fn describe(&self) -> String {
        let bytes = self.elements * self.dtype.size();
        let redop = if self.operation.reduces() { format!(" {}", self.redop.name()) } else { String::new() };
        let root = if self.operation.has_root() { format!(" root {}", self.root) } else { String::new() };
        format!("{} {}{redop}{root}, {bytes} bytes", self.operation.name(), self.dtype.name())
    }
}

/// Runs the whole command. Returns whether all went well; what did not has been printed.
pub fn start(options: Options) -> Result<bool> {
    let sizes = options.sizes()?;
    let devices = emulated::find(options.emulated)?;
    let ranks = options.rank_count(devices.count)?;
    const SHARE: &str = "NCCL_MULTI_RANK_GPU_ENABLE";
    if ranks > devices.count && std::env::var_os(SHARE).is_none() {
        // NCCL refuses several ranks on one GPU without it.
        // SAFETY: this process has one thread, so nobody reads the environment meanwhile.
        unsafe { std::env::set_var(SHARE, "1") };
    }
    println!("# mkernel perf {}", devices.headline());
    let board = Board::new(ranks)?;
    let limit = (options.timeout > 0).then(|| Duration::from_secs(options.timeout));
    let (procs, hosts, library) = (options.procs, options.hosts as usize, library(&options));
    let plan = Plan { options, sizes, devices, library };
    let body = move |rank| {
        if hosts > 1 {
            // SAFETY: the rank is a process of its own, which has one thread yet.
            unsafe { std::env::set_var("NCCL_HOSTID", format!("host{}", rank / ranks.div_ceil(hosts))) };
        }
        run_rank(rank, board, &plan)
    };
    let verdict = if procs { ranks::run_processes(board, limit, &body) } else { ranks::run_threads(board, limit, Arc::new(body)) };
    for message in &verdict.messages {
        eprintln!("mkernel perf: {message}");
    }
    if verdict.stuck {
        // Exit handlers could wait for the stuck threads.
        // SAFETY: ends the process; what was printed is out, for both streams are flushed by line.
        unsafe { libc::_exit(1) };
    }
    Ok(verdict.messages.is_empty() && board.all_right())
}

/// The library under test.
fn library(options: &Options) -> PathBuf {
    if let Some(path) = &options.library {
        return path.clone();
    }
    if let Some(path) = std::env::var_os("MKERNEL_LIBRARY").filter(|path| !path.is_empty()) {
        return path.into();
    }
    let beside = std::env::current_exe().map(|program| program.with_file_name("libmkernel.so")).unwrap_or_default();
    if beside.exists() { beside } else { "libnccl.so.2".into() }
}

/// One rank's life.
fn run_rank(rank: usize, board: Board, plan: &Plan) -> Result<()> {
    board.progress(rank, "opening the library and joining the communicator");
    let options = &plan.options;
    let nccl = Nccl::open(&plan.library)?;
    super::device::bind(rank % plan.devices.count)?;
    if rank == 0 {
        board.publish_id(&nccl.unique_id()?);
    }
    let communicator = nccl.join(board.ranks(), board.await_id()?, rank)?;
    let version = nccl.version()?;
    let mut worker = Worker::new(plan, board, &nccl, communicator, largest(plan, board.ranks()))?;
    board.barrier(rank)?;
    let mut report = (rank == 0).then(|| Report::begin(options, &plan.devices, &nccl.path, version, board.ranks()));
    let mut number = 0;
    for &operation in &options.operations.0 {
        if let Some(report) = &report {
            report.operation(operation);
        }
        for (dtype, redop, root) in variants(options, operation, version, board.ranks()) {
            for bytes in plan.sizes.iter() {
                number += 1;
                let elements = bytes as usize / dtype.size();
                let inputs = Inputs::new(mix(options.seed ^ mix(number)), options.values, dtype, redop, board.ranks());
                let row = measure(&mut worker, &Case { operation, dtype, redop, root, elements, inputs })?;
                if let Some(report) = &mut report {
                    report.row(row);
                }
            }
        }
    }
    board.progress(rank, "destroying the communicator");
    worker.close()?;
    if let Some(report) = report
        && report.end(options.json.as_deref())?
    {
        board.set_all_right();
    }
    Ok(())
}

/// Bytes of the largest buffer of a run.
fn largest(plan: &Plan, ranks: usize) -> usize {
    let elements = plan.sizes.iter().last().unwrap_or(0) as usize;
    plan.options.operations.0.iter().map(|operation| operation.layout(elements, 0, ranks).span()).max().unwrap_or(0)
}

/// The types, operators and roots that an operation is measured with.
fn variants(options: &Options, operation: Operation, version: i32, ranks: usize) -> Vec<(ElementType, RedOp, usize)> {
    // "all" means all that the library knows; a choice by name is tried, and the library says what it thinks.
    let all_types = options.dtypes.0.len() == ElementType::ALL.len();
    let all_ops = options.redops.0.len() == RedOp::ALL.len();
    let known_type =
        |dtype: ElementType| !all_types || version >= 22400 || !matches!(dtype, ElementType::Float8e4m3 | ElementType::Float8e5m2);
    let known_op = |op: RedOp| !all_ops || version >= 21100 || op != RedOp::MulSum;
    let redops = if operation.reduces() { options.redops.0.as_slice() } else { &[RedOp::Sum] };
    let roots = match options.root {
        Root::All if operation.has_root() => 0..ranks,
        Root::Rank(root) if operation.has_root() => root..root + 1,
        _ => 0..1,
    };
    let mut variants = Vec::new();
    for &dtype in options.dtypes.0.iter().filter(|dtype| known_type(**dtype)) {
        for &redop in redops.iter().filter(|op| known_op(**op)) {
            variants.extend(roots.clone().map(|root| (dtype, redop, root)));
        }
    }
    variants
}

/// Measures one row, on all ranks together.
fn measure(worker: &mut Worker, case: &Case) -> Result<Row> {
    let layout = worker.layout(case);
    let bytes = case.operation.bytes(&layout, case.dtype.size());
    let operator = worker.operator(case)?;
    let mut figures = [None; 2];
    for in_place in [false, true] {
        if in_place && !case.operation.has_in_place() {
            continue;
        }
        let wrong = worker.check(case, operator, in_place)?;
        let mut cycles = Vec::new();
        for _ in 0..worker.options().cycles.max(1) {
            cycles.push(worker.time(case, operator, in_place)?);
        }
        let (microseconds, wrong) = worker.gather(&cycles, wrong)?;
        let wrong = (worker.options().check > 0).then_some(wrong);
        figures[usize::from(in_place)] = Some(Figures::new(case.operation, bytes, worker.ranks(), microseconds, wrong));
    }
    worker.release_operator(case, operator)?;
    let [out_of_place, in_place] = figures;
    Ok(Row {
        operation: case.operation,
        bytes,
        count: layout.count,
        dtype: case.dtype.name(),
        redop: case.operation.reduces().then_some(case.redop),
        root: case.operation.has_root().then_some(case.root),
        // Every operation has an out-of-place form, so the loop has filled it.
        out_of_place: out_of_place.unwrap_or_else(|| Figures::new(case.operation, bytes, worker.ranks(), 0.0, None)),
        in_place,
    })
}
