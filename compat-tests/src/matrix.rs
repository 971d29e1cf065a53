//! Part `matrix`: results of every operation, compared to the bit with the host's reference.
//!
//! Cases with the same ranks share a batch, which is one set of processes and one communicator. A batch that hangs or crashes is the failure of
//! the case it was in; the rest goes on in a new batch.

use crate::cases::{self, Case, Cover, Launch, Operation, Redop, mix};
use crate::communicator::{Comm, MAX, SUM};
use crate::driver::{Buffer, CaptureMode, Span, Stream};
use crate::options::Options;
use crate::outcome::Outcome;
use crate::ranks::{How, Job, Place, Rank, run};
use crate::reference::{Expected, Places, Which, places, scalar};
use crate::report::{self, Tally};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::time::{Duration, Instant};

/// Bytes before and behind each buffer that must stay as they are.
const GUARD: usize = 256;
/// Cases of a batch: few enough that a crash costs little.
const BATCH: usize = 60;

/// Runs the part and prints its lines.
pub fn check(place: &Place, options: &Options) -> Tally {
    let all = if options.full {
        cases::full(options.seed, &options.limits())
    } else {
        Cover::new(options.seed, options.limits()).take(options.case.map_or(options.cases, |index| index as usize + 1)).collect()
    };
    let words = format!("--only matrix {}", options.matrix_words());
    let mut tally = run_all(place, options, all, &words, "matrix");
    if options.huge {
        tally.add(&run_all(
            place,
            options,
            cases::huge(options.seed),
            &format!("--only matrix --huge --cases 0 --seed {}", options.seed),
            "matrix, huge",
        ));
    }
    tally
}

fn run_all(place: &Place, options: &Options, all: Vec<Case>, words: &str, title: &str) -> Tally {
    let mut groups: BTreeMap<(usize, bool), Vec<Case>> = BTreeMap::new();
    for case in all.into_iter().filter(|case| options.case.is_none_or(|index| case.index == index)) {
        groups.entry((case.ranks, case.how == How::Processes)).or_default().push(case);
    }
    let mut tally = Tally::default();
    for ((ranks, _), cases) in groups {
        let begin = Instant::now();
        let mut group = Tally::default();
        let how = cases[0].how;
        for batch in cases.chunks(BATCH) {
            run_batch(place, options, batch, words, &mut group);
        }
        group.line(&format!("{title}: {ranks} ranks as {}", how.name()), begin);
        tally.add(&group);
    }
    tally
}

fn run_batch(place: &Place, options: &Options, batch: &[Case], words: &str, tally: &mut Tally) {
    let mut rest = batch.to_vec();
    while let Some(first) = rest.first() {
        let largest = rest.iter().map(Case::bytes).max().unwrap_or_default();
        // A case of the usual sizes takes a second at the very most; huge ones are limited by the host's arithmetic.
        let limit = Duration::from_secs(30 + (largest >> 30) as u64 * 60);
        let body = |rank: &Rank| run_cases(rank, &rest);
        let report = run(place, &Job { ranks: first.ranks, how: first.how, environment: &[], limit, body: &body });
        // Case numbers of a batch count from 1; 0 is what came before the first.
        let mut failures: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for record in &report.failures {
            failures.entry(record.case as usize).or_default().push(format!("rank {}: {}", record.rank, record.text));
        }
        for (number, texts) in &failures {
            let case = number.checked_sub(1).and_then(|at| rest.get(at));
            let title = match case {
                Some(case) => format!("matrix case {}: {case}", case.index),
                None => format!("matrix: {} ranks as {}, before the first case", first.ranks, first.how.name()),
            };
            let index = case.unwrap_or(first).index;
            report::failure(&title, &texts[..texts.len().min(4)], &format!("conformance {words} --case {index}"));
        }
        if options.verbose || report.cut_short {
            report::output(&report, options.verbose);
        }
        let failed = failures.keys().filter(|number| **number > 0).count();
        if report.cut_short && failed == 0 {
            // Nothing was run, and nothing says that another attempt would come further.
            tally.failed += rest.len();
            return;
        }
        // Cases from the one that some rank was in when the batch ended are run again, but for those that failed.
        let complete = if report.cut_short { (report.last_case as usize).saturating_sub(1) } else { rest.len() };
        tally.failed += failed;
        tally.passed += (1..=complete).filter(|number| !failures.contains_key(number)).count();
        rest = (complete + 1..=rest.len()).filter(|number| !failures.contains_key(number)).map(|number| rest[number - 1].clone()).collect();
    }
}

/// A buffer with its guard zones, and where the elements begin in it.
struct Field {
    span: Span,
    /// Bytes from the span's start to the first element.
    start: usize,
    bytes: usize,
    which: Which,
}

impl Field {
    fn elements(&self) -> Span {
        self.span.part(self.start, self.bytes)
    }
}

/// The body of a batch.
fn run_cases(rank: &Rank, cases: &[Case]) -> Outcome {
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let room = cases.iter().map(Case::bytes).max().unwrap_or_default() + 2 * GUARD + 16;
    let buffers = [Buffer::new(room)?, Buffer::new(room)?];
    let scalars = Buffer::new(16)?;
    for (at, case) in cases.iter().enumerate() {
        rank.board().begin_case(rank.rank, at as u32 + 1);
        rank.doing(&case.to_string());
        run_case(rank, &comm, &stream, case, &buffers, &scalars)?;
    }
    comm.healthy()?;
    // All ranks have finished before any of them destroys.
    rank.barrier()?;
    rank.doing("destroying the communicator");
    comm.destroy()
}

/// Runs one case. Wrong results are written down and the batch goes on; failed calls of the library end it.
fn run_case(rank: &Rank, comm: &Comm, stream: &Stream, case: &Case, buffers: &[Buffer; 2], scalars: &Buffer) -> Outcome {
    let me = rank.rank;
    let layout = places(case, me);
    let size = case.dtype.size();
    let shift = |which: usize| {
        let steps = 16 / size;
        // At least one element off the 16-byte boundary.
        if case.unaligned { (1 + mix(case.seed ^ (me * 2 + which) as u64) as usize % (steps - 1)) * size } else { 0 }
    };
    let fields = [Which::First, Which::Second].map(|which| {
        let (start, bytes) = (GUARD + shift(which as usize), layout.elements[which as usize] * size);
        Field { span: buffers[which as usize].span(0, start + bytes + GUARD), start, bytes, which }
    });
    let operator = operator(comm, stream, case, me, scalars)?;
    let enqueue = || enqueue(comm, stream, case, &layout, &fields, operator);
    let graph = match case.launch {
        Launch::Eager => None,
        Launch::Graph => Some(stream.capture(CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, enqueue)?),
    };
    // The inputs of each run. The same ones twice must give the same bits; a replay must also see new ones.
    let runs: &[u32] = if graph.is_some() { &[0, 0, 1] } else { &[0, 0] };
    let mut wrong = false;
    for (number, inputs) in runs.iter().enumerate() {
        let poison = mix(case.seed.rotate_left(number as u32 + 1)) as u8;
        for field in &fields {
            stream.fill(field.span, poison)?;
            if layout.input.0 == field.which {
                let mut image = vec![0; field.bytes];
                Expected::before(case, me, *inputs, field.which, poison).write(0, &mut image);
                stream.upload(field.elements(), &image)?;
            }
        }
        match &graph {
            None => enqueue()?,
            Some(graph) => graph.launch(stream)?,
        }
        for field in &fields {
            let difference = compare(stream, case, me, *inputs, field, poison)?;
            // One text a case is enough, but every run is made: the other ranks make it, too.
            if let (Some(text), false) = (difference, wrong) {
                wrong = true;
                rank.record(&format!("run {number}: {text}"));
            }
        }
    }
    if case.redop.multiplies_first() {
        comm.destroy_operator(operator)?;
    }
    Ok(())
}

/// The operator's number, made for this rank's scalar if it multiplies first.
fn operator(comm: &Comm, stream: &Stream, case: &Case, rank: usize, scalars: &Buffer) -> Outcome<c_int> {
    Ok(match case.redop {
        Redop::Sum => SUM,
        Redop::Prod => 1,
        Redop::Max => MAX,
        Redop::Min => 3,
        Redop::Avg => 4,
        Redop::PreMulHost => comm.pre_mul_sum(scalar(case, rank).as_ptr(), false, case.dtype)?,
        Redop::PreMulDevice => {
            let value = scalar(case, rank);
            // The operator is made before the scalar is there.
            let operator = comm.pre_mul_sum(scalars.all().as_ptr().cast(), true, case.dtype)?;
            stream.upload(scalars.all(), &value)?;
            stream.synchronize()?;
            operator
        }
    })
}

/// Puts the case's operation on the stream.
fn enqueue(comm: &Comm, stream: &Stream, case: &Case, layout: &Places, fields: &[Field; 2], operator: c_int) -> Outcome {
    let size = case.dtype.size();
    let span = |(which, offset): (Which, usize), elements: usize| fields[which as usize].elements().part(offset * size, elements * size);
    let (send, recv) = (span(layout.input, case.send_count()), span(layout.output, case.recv_count()));
    let (count, dtype, root) = (case.count, case.dtype, case.root);
    let block = |span: Span, index: usize| span.part(index * count * size, count * size);
    match case.operation {
        Operation::AllReduce => comm.all_reduce(send, recv, count, dtype, operator, stream),
        Operation::Broadcast => comm.broadcast(send, recv, count, dtype, root, stream),
        Operation::Bcast => comm.bcast(send, count, dtype, root, stream),
        Operation::Reduce => comm.reduce(send, recv, count, dtype, operator, root, stream),
        Operation::AllGather => comm.all_gather(send, recv, count, dtype, stream),
        Operation::ReduceScatter => comm.reduce_scatter(send, recv, count, dtype, operator, stream),
        Operation::AllToAll => comm.all_to_all(send, recv, count, dtype, stream),
        Operation::Gather => comm.gather(send, recv, count, dtype, root, stream),
        Operation::Scatter => comm.scatter(send, recv, count, dtype, root, stream),
        Operation::Ring => {
            comm.nccl.group_start()?;
            comm.send(send, count, dtype, (comm.rank + 1) % comm.ranks, stream)?;
            comm.recv(recv, count, dtype, (comm.rank + comm.ranks - 1) % comm.ranks, stream)?;
            comm.nccl.group_end()
        }
        Operation::Pairs => {
            comm.nccl.group_start()?;
            for step in 0..comm.ranks {
                // Every rank goes round from another peer on.
                let peer = (comm.rank + step) % comm.ranks;
                comm.send(block(send, peer), count, dtype, peer, stream)?;
                comm.recv(block(recv, peer), count, dtype, peer, stream)?;
            }
            comm.nccl.group_end()
        }
    }
}

/// Reads a field back and compares elements and guard zones; says what is wrong.
fn compare(stream: &Stream, case: &Case, rank: usize, inputs: u32, field: &Field, poison: u8) -> Outcome<Option<String>> {
    let name = match (case.in_place, field.which) {
        (true, Which::First) => "the buffer",
        (false, Which::First) => "the send buffer",
        (_, Which::Second) => "the receive buffer",
    };
    let mut content = vec![0; field.span.bytes];
    stream.download(field.span, &mut content)?;
    let (before, rest) = content.split_at(field.start);
    let (elements, behind) = rest.split_at(field.bytes);
    // Elements first: wrong elements beside a broken guard tell more than the guard.
    if let Err(difference) = Expected::after(case, rank, inputs, field.which, poison).compare(elements) {
        let hex = |bytes: &[u8]| bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>();
        let poisoned = if difference.got.iter().all(|byte| *byte == poison) { " (still the poison)" } else { "" };
        return Ok(Some(format!(
            "{name}: element {} of {} is 0x{}{poisoned}, expected 0x{}; {} elements are wrong",
            difference.element,
            field.bytes / case.dtype.size(),
            hex(&difference.got),
            hex(&difference.want),
            difference.wrong
        )));
    }
    if let Some(at) = before.iter().rposition(|byte| *byte != poison) {
        return Ok(Some(format!("{name}: byte {} before it was overwritten with {:#04x}", before.len() - at, before[at])));
    }
    let at = behind.iter().position(|byte| *byte != poison);
    Ok(at.map(|at| format!("{name}: byte {at} behind it was overwritten with {:#04x}", behind[at])))
}
