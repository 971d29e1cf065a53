//! Runs a check on several ranks, as forked processes or as threads of one forked process, and tells failures, crashes and hangs apart.
//!
//! This process never touches CUDA or the library itself, so it can fork as often as it likes; whatever happens to the ranks, it goes on.

use crate::board::{Board, Record};
use crate::communicator::Comm;
use crate::driver;
use crate::hosts::Hosts;
use crate::library::{Config, Nccl, UniqueId};
use crate::outcome::{Outcome, Stop};
use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What the ranks of a check are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum How {
    Threads,
    Processes,
}

impl How {
    pub const ALL: [Self; 2] = [Self::Threads, Self::Processes];

    pub fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Processes => "processes",
        }
    }
}

/// Where checks run; the same for all of them.
#[derive(Debug, Clone)]
pub struct Place {
    pub library: PathBuf,
    /// GPUs to use; rank r takes GPU r modulo this.
    pub gpus: usize,
    pub hosts: Hosts,
    /// Stretches every time limit.
    pub patience: f64,
}

/// What the driver and the library say of themselves.
#[derive(Debug)]
pub struct Found {
    pub version: i32,
    pub device: String,
    pub devices: usize,
}

/// Asks a forked process, so that this one stays free of CUDA. Fails if there is nothing to check, or nothing to check it on.
pub fn probe(place: &Place) -> Result<Found, String> {
    const VERSION: usize = 0;
    const DEVICES: usize = 1;
    let body = |rank: &Rank| {
        rank.board().word(VERSION).store(rank.nccl.version()? as u64, Ordering::Release);
        rank.board().word(DEVICES).store(driver::open()? as u64, Ordering::Release);
        println!("{}", driver::device_name(0)?);
        Ok(())
    };
    let job = Job { ranks: 1, how: How::Processes, environment: &[], limit: Duration::from_secs(60), body: &body };
    let report = run(place, &job);
    if let Some(record) = report.failures.first() {
        return Err(record.text.clone());
    }
    let [version, devices] = [VERSION, DEVICES].map(|index| report.words.get(index).copied().unwrap_or_default());
    let device = report.output.lines().last().unwrap_or("an unnamed device").to_owned();
    Ok(Found { version: version as i32, device, devices: devices as usize })
}

/// What to run.
pub struct Job<'a> {
    pub ranks: usize,
    pub how: How,
    pub environment: &'a [(&'a str, String)],
    /// Without a sign of life (`Rank::doing`) from any rank for this long, the ranks are stuck.
    pub limit: Duration,
    pub body: &'a (dyn Fn(&Rank) -> Outcome + Sync),
}

/// How it went.
#[derive(Debug, Default)]
pub struct Report {
    /// What failed, by case; what the harness adds (crashes, hangs) comes last.
    pub failures: Vec<Record>,
    pub skipped: Option<String>,
    /// The ranks were killed because they did not end.
    pub stuck: bool,
    /// Some rank ended before it had run all cases.
    pub cut_short: bool,
    /// The lowest case that any rank was in when it ended.
    pub last_case: u32,
    /// What the ranks wrote to stdout and stderr.
    pub output: String,
    /// The board's words at the end.
    pub words: Vec<u64>,
}

/// One rank of a running check.
pub struct Rank {
    pub rank: usize,
    pub ranks: usize,
    how: How,
    pub hosts: Hosts,
    pub nccl: &'static Nccl,
    board: Board,
    next_id: Cell<usize>,
}

impl Rank {
    pub fn barrier(&self) -> Outcome {
        self.board.barrier(self.rank)
    }

    /// A barrier where ranks share a context. There, a call that waits for the whole context (synchronise, free, load a module) also waits for
    /// the peers' operations, so the peers must have issued theirs, and no later ones: that is the user's duty under any NCCL.
    pub fn barrier_of_context(&self) -> Outcome {
        if self.how == How::Threads { self.barrier() } else { Ok(()) }
    }

    /// Ends this rank's process in the middle of the check, as a crash would. Nobody may call a barrier from now on: the one that follows the body
    /// is the last, and counts this rank in.
    pub fn vanish(&self) -> ! {
        self.board.finish(self.rank);
        self.board.arrive();
        // SAFETY: ends the process without exit handlers, so nobody is told of anything.
        unsafe { libc::_exit(0) }
    }

    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Says what comes next, for the report of a hang, and is a sign of life.
    pub fn doing(&self, text: &str) {
        self.board.doing(self.rank, text);
    }

    pub fn record(&self, text: &str) {
        self.board.record(self.rank, text);
    }

    /// A fresh unique id, the same on all ranks. All ranks must ask in the same order; `maker` makes it.
    pub fn id_from(&self, maker: usize) -> Outcome<UniqueId> {
        let index = self.next_id.replace(self.next_id.get() + 1);
        if self.rank == maker {
            self.board.publish_id(index, &self.nccl.unique_id()?);
        }
        self.board.await_id(index)
    }

    /// A communicator of all ranks.
    pub fn communicator(&self) -> Outcome<Comm> {
        self.doing("creating a communicator");
        Comm::init(self.nccl, self.id_from(0)?, self.rank, self.ranks, None)
    }

    pub fn communicator_with(&self, config: &mut Config) -> Outcome<Comm> {
        self.doing("creating a communicator with a config");
        Comm::init(self.nccl, self.id_from(0)?, self.rank, self.ranks, Some(config))
    }
}

/// Runs the body as one rank and writes down how it ended.
fn run_rank(place: &Place, job: &Job, board: Board, rank: usize) {
    let run = || {
        board.doing(rank, "loading the driver and the library");
        driver::open()?;
        driver::bind(rank % place.gpus)?;
        let nccl = Nccl::open(&place.library)?;
        (job.body)(&Rank { rank, ranks: board.ranks(), how: job.how, hosts: place.hosts.clone(), nccl, board, next_id: Cell::new(0) })?;
        // A rank that ended now would take away memory that its peers may still read.
        board.barrier(rank)
    };
    // cudarc panics where a driver lacks a function.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned().or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Stop::Failed(format!("panicked: {}", text.unwrap_or_default())))
    });
    match outcome {
        Ok(()) => board.finish(rank),
        Err(Stop::Failed(text)) => {
            board.record(rank, &text);
            board.set_failed();
        }
        Err(Stop::Skipped(reason)) => {
            board.skip(&reason);
            board.set_failed();
        }
        Err(Stop::PeerFailed) => {}
    }
}

/// The child's life: never returns.
fn live(place: &Place, job: &Job, board: Board, output: &File, ranks: &[usize]) -> ! {
    // SAFETY: plain system calls; this process has one thread. The child must not outlive the parent that watches it.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::dup2(output.as_raw_fd(), 1);
        libc::dup2(output.as_raw_fd(), 2);
    }
    // NCCL itself refuses several ranks on a GPU without this.
    let mut ours = vec![("NCCL_MULTI_RANK_GPU_ENABLE", "1".to_owned())];
    if place.hosts.count > 1 {
        let host = place.hosts.of(ranks[0], job.ranks);
        ours.push(("NCCL_HOSTID", format!("node{host}")));
        if let Err(error) = place.hosts.enter(host) {
            board.record(ranks[0], &error);
            board.set_failed();
        }
    }
    for (name, value) in ours.iter().chain(job.environment) {
        // SAFETY: this process has one thread.
        unsafe { std::env::set_var(name, value) };
    }
    if let [rank] = ranks {
        run_rank(place, job, board, *rank);
    } else {
        std::thread::scope(|scope| {
            for rank in ranks {
                scope.spawn(move || run_rank(place, job, board, *rank));
            }
        });
    }
    // SAFETY: ends the process without exit handlers that belong to the parent.
    unsafe { libc::_exit(0) }
}

/// A file in memory for what the ranks write.
fn output_file() -> Outcome<File> {
    // SAFETY: the name is a C string.
    let descriptor = unsafe { libc::memfd_create(c"conformance".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(Stop::Failed(format!("cannot make a file in memory: {}", std::io::Error::last_os_error())));
    }
    // SAFETY: the descriptor is fresh and nobody else's. Appending, so that ranks do not overwrite each other.
    unsafe {
        libc::fcntl(descriptor, libc::F_SETFL, libc::O_APPEND);
        Ok(File::from_raw_fd(descriptor))
    }
}

/// A forked process and the ranks that live in it.
struct Child {
    pid: libc::pid_t,
    ranks: Vec<usize>,
    /// Wait status, once it has ended.
    ended: Option<i32>,
}

impl Child {
    fn poll(&mut self) -> bool {
        let mut status = 0;
        // SAFETY: the child is ours and not yet reaped.
        if self.ended.is_none() && unsafe { libc::waitpid(self.pid, &mut status, libc::WNOHANG) } == self.pid {
            self.ended = Some(status);
        }
        self.ended.is_some()
    }

    fn kill(&mut self) {
        if self.ended.is_none() {
            let mut status = 0;
            // SAFETY: the child is ours and not yet reaped.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, &mut status, 0);
            }
        }
    }
}

/// Runs a job to its end.
pub fn run(place: &Place, job: &Job) -> Report {
    match attempt(place, job) {
        Ok(report) => report,
        Err(stop) => Report { failures: vec![Record { case: 0, rank: 0, text: stop.to_string() }], ..Report::default() },
    }
}

fn attempt(place: &Place, job: &Job) -> Outcome<Report> {
    let board = Board::new(job.ranks)?;
    let mut output = output_file()?;
    let groups: Vec<Vec<usize>> = match job.how {
        How::Processes => (0..job.ranks).map(|rank| vec![rank]).collect(),
        How::Threads => vec![(0..job.ranks).collect()],
    };
    let mut children = Vec::new();
    for ranks in groups {
        // SAFETY: this process has one thread, so the child may do anything that the parent may.
        match unsafe { libc::fork() } {
            -1 => {
                let error = std::io::Error::last_os_error();
                children.iter_mut().for_each(Child::kill);
                return Err(Stop::Failed(format!("cannot fork: {error}")));
            }
            0 => live(place, job, board, &output, &ranks),
            pid => children.push(Child { pid, ranks, ended: None }),
        }
    }
    let mut report = watch(place, job, &board, &mut children);
    let mut bytes = Vec::new();
    if output.seek(SeekFrom::Start(0)).is_ok() && output.read_to_end(&mut bytes).is_ok() {
        report.output = String::from_utf8_lossy(&bytes).into_owned();
    }
    report.words = board.words();
    // SAFETY: the children have ended, and this was the last use here.
    unsafe { board.release() };
    Ok(report)
}

/// Waits for the children to end, or to make no progress for too long.
fn watch(place: &Place, job: &Job, board: &Board, children: &mut [Child]) -> Report {
    /// How long ranks may go on after one has failed.
    const GRACE: Duration = Duration::from_secs(3);
    let limit = job.limit.mul_f64(place.patience);
    let progress = || (0..job.ranks).map(|rank| (board.steps(rank), board.finished(rank))).collect::<Vec<_>>();
    let (mut seen, mut since) = (progress(), Instant::now());
    let mut failed_since = None;
    let mut report = Report::default();
    let mut pause = Duration::from_micros(500);
    loop {
        // Not `all`, which would stop polling at the first child that runs.
        let running = children.iter_mut().filter_map(|child| (!child.poll()).then_some(())).count();
        for child in children.iter().filter(|child| child.ended.is_some_and(|status| status != 0)) {
            if !board.failed() {
                let doing: Vec<_> =
                    child.ranks.iter().filter(|rank| !board.finished(**rank)).map(|rank| board.what_it_does(*rank)).collect();
                board.record(
                    child.ranks[0],
                    &format!("its process {} ({})", describe_end(child.ended.unwrap_or_default()), doing.join("; ")),
                );
                board.set_failed();
            }
        }
        if running == 0 {
            break;
        }
        let now = progress();
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        if board.failed() && failed_since.get_or_insert_with(Instant::now).elapsed() > GRACE {
            break;
        }
        if since.elapsed() > limit {
            report.stuck = true;
            break;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
    if !report.stuck && !board.failed() && (0..job.ranks).any(|rank| !board.finished(rank)) {
        board.record(0, "a rank's process ended by itself in the middle of the check");
    }
    report.cut_short = (0..job.ranks).any(|rank| !board.finished(rank));
    report.last_case = (0..job.ranks).filter(|rank| !board.finished(*rank)).map(|rank| board.case(rank)).min().unwrap_or_default();
    report.failures = board.records();
    report.skipped = board.skipped();
    if report.stuck {
        for rank in (0..job.ranks).filter(|rank| !board.finished(*rank)) {
            let text = format!("no progress for {:.0} s, killed: it {}", limit.as_secs_f64(), board.what_it_does(rank));
            report.failures.push(Record { case: report.last_case, rank, text });
        }
    }
    children.iter_mut().for_each(Child::kill);
    report
}

fn describe_end(status: i32) -> String {
    if libc::WIFSIGNALED(status) {
        let name = match libc::WTERMSIG(status) {
            libc::SIGSEGV => " (segmentation fault)",
            libc::SIGABRT => " (abort)",
            libc::SIGBUS => " (bus error)",
            libc::SIGFPE => " (arithmetic)",
            _ => "",
        };
        format!("died of signal {}{name}", libc::WTERMSIG(status))
    } else {
        format!("exited with status {}", libc::WEXITSTATUS(status))
    }
}
