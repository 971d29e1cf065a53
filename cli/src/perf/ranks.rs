//! Starts one thread or forked process a rank, and watches over them: a rank that fails or dies ends the run, and so does one that hangs.

use super::board::{Board, State};
use super::{Error, Result};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a rank does. It runs in its own thread or process.
pub type Body = dyn Fn(usize) -> Result<()> + Send + Sync;

/// How long the other ranks may take to notice a failure before they are ended by force.
const GRACE: Duration = Duration::from_secs(5);

/// How a run ended.
#[derive(Debug, Default)]
pub struct Verdict {
    /// What went wrong, the first failure first. Empty if every rank finished.
    pub messages: Vec<String>,
    /// Threads are still stuck: the process must end without their help.
    pub stuck: bool,
}

/// Runs every rank in a thread of this process.
pub fn run_threads(board: Board, limit: Option<Duration>, body: Arc<Body>) -> Verdict {
    let mut started = 0;
    for rank in 0..board.ranks() {
        let body = Arc::clone(&body);
        let thread = std::thread::Builder::new().name(format!("rank {rank}")).spawn(move || board.finish(rank, &guarded(rank, &*body)));
        match thread {
            // Not joined: a stuck rank could never be. The board tells when a rank is done.
            Ok(_) => started += 1,
            Err(error) => {
                board.finish(rank, &Err(Error::failed(format!("cannot start a thread: {error}"))));
                break;
            }
        }
    }
    let running = |board: Board| (0..started).filter(|rank| board.state(*rank) == State::Running).collect();
    let mut verdict = Verdict::default();
    let left = watch(board, limit, running, &mut verdict);
    verdict.stuck = !left.is_empty();
    verdict
}

/// Runs every rank in a forked process. This process must have one thread and not have used CUDA.
pub fn run_processes(board: Board, limit: Option<Duration>, body: &Body) -> Verdict {
    let parent = std::process::id();
    let _ = std::io::stdout().flush();
    let mut children: Vec<(usize, libc::pid_t)> = Vec::new();
    for rank in 0..board.ranks() {
        // SAFETY: this process has one thread, so the child may do anything that the parent may.
        match unsafe { libc::fork() } {
            -1 => {
                board.finish(rank, &Err(Error::failed(format!("cannot fork: {}", std::io::Error::last_os_error()))));
                break;
            }
            0 => child(rank, parent, board, body),
            pid => children.push((rank, pid)),
        }
    }
    let mut verdict = Verdict::default();
    let left = watch(
        board,
        limit,
        |board| {
            children.retain(|(rank, pid)| !reaped(board, *rank, *pid));
            children.iter().map(|(rank, _)| *rank).collect()
        },
        &mut verdict,
    );
    for (_, pid) in children.iter().filter(|(rank, _)| left.contains(rank)) {
        // SAFETY: the child is ours and not yet reaped, so the number cannot belong to another process.
        unsafe {
            libc::kill(*pid, libc::SIGKILL);
            libc::waitpid(*pid, std::ptr::null_mut(), 0);
        }
    }
    verdict
}

/// The life of a forked rank.
fn child(rank: usize, parent: u32, board: Board, body: &Body) -> ! {
    // SAFETY: asks to be killed when the parent dies, so that no rank is left behind.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if std::os::unix::process::parent_id() != parent {
        std::process::exit(1);
    }
    let result = guarded(rank, body);
    board.finish(rank, &result);
    let _ = std::io::stdout().flush();
    // With exit handlers, as a program of the user's would end.
    std::process::exit(if result.is_ok() { 0 } else { 1 })
}

/// Runs the body; a panic becomes an error.
fn guarded(rank: usize, body: &Body) -> Result<()> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(rank))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Error::failed(format!("panicked: {}", text.unwrap_or_default())))
    })
}

/// Whether a child has ended. One that ends without a word, or badly after its last one, has failed.
fn reaped(board: Board, rank: usize, pid: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: the child is ours and not yet reaped; the pointer is valid for the call.
    if unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } != pid {
        return false;
    }
    let how = if libc::WIFSIGNALED(status) {
        format!("was killed by signal {}", libc::WTERMSIG(status))
    } else {
        format!("exited with status {}", libc::WEXITSTATUS(status))
    };
    let (doing, _) = board.last_progress(rank);
    match board.state(rank) {
        State::Running => board.finish(rank, &Err(Error::failed(format!("its process {how}, during: {doing}")))),
        State::Done if status != 0 => board.finish(rank, &Err(Error::failed(format!("its process {how}, after it had finished")))),
        _ => {}
    }
    true
}

/// Waits until no rank is running any more, a failure's grace is over, or nothing has moved for too long. Returns the ranks still running.
fn watch(board: Board, limit: Option<Duration>, mut running: impl FnMut(Board) -> Vec<usize>, verdict: &mut Verdict) -> Vec<usize> {
    let mut steps = board.steps();
    let mut moved = Instant::now();
    let mut failed_at = None;
    loop {
        let news = board.news();
        let left = running(board);
        if board.first_failure().is_some() && failed_at.is_none() {
            failed_at = Some(Instant::now());
        }
        if left.is_empty() || failed_at.is_some_and(|at| at.elapsed() > GRACE) {
            verdict.messages.extend(failures(board));
            return left;
        }
        if steps != board.steps() {
            steps = board.steps();
            moved = Instant::now();
        }
        if limit.is_some_and(|limit| moved.elapsed() > limit) {
            verdict.messages.extend(failures(board));
            verdict.messages.push(format!("no rank has made progress for {} s, so the run ends here", moved.elapsed().as_secs()));
            verdict.messages.extend(left.iter().map(|rank| unfinished(board, *rank)));
            return left;
        }
        board.await_news(news);
    }
}

/// The messages of the ranks that failed, the first failure first.
fn failures(board: Board) -> Vec<String> {
    let mut failed: Vec<usize> = (0..board.ranks()).filter(|rank| board.state(*rank) == State::Failed).collect();
    failed.sort_by_key(|rank| Some(*rank) != board.first_failure());
    failed.into_iter().map(|rank| format!("rank {rank}: {}", board.message(rank))).collect()
}

fn unfinished(board: Board, rank: usize) -> String {
    let (doing, at_barrier) = board.last_progress(rank);
    match board.state(rank) {
        State::Running if at_barrier => format!("rank {rank} waits for the other ranks after: {doing}"),
        State::Running => format!("rank {rank} has not finished: {doing}"),
        _ => format!("rank {rank} has finished, but its process does not end"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Only threads here: a test process has several threads and may not fork. tests/perf.rs runs processes.

    #[test]
    fn all_ranks_run_and_finish() {
        let board = Board::new(3).unwrap();
        let verdict = run_threads(board, None, Arc::new(move |rank| board.barrier(rank)));
        assert!(verdict.messages.is_empty() && !verdict.stuck, "{verdict:?}");
    }

    #[test]
    fn a_failure_is_told_and_the_others_stop() {
        let board = Board::new(3).unwrap();
        let body = move |rank| if rank == 1 { Err(Error::failed("no paper")) } else { board.barrier(rank) };
        let verdict = run_threads(board, None, Arc::new(body));
        assert_eq!(verdict.messages, ["rank 1: no paper"]);
        assert!(!verdict.stuck);
        assert_eq!(board.state(0), State::Stopped);
    }

    #[test]
    fn a_panic_is_a_failure() {
        let board = Board::new(2).unwrap();
        let verdict = run_threads(board, None, Arc::new(|rank| if rank == 0 { panic!("no {}", "ink") } else { Ok(()) }));
        assert_eq!(verdict.messages, ["rank 0: panicked: no ink"]);
    }

    #[test]
    fn a_hang_is_told_with_what_was_unfinished() {
        let board = Board::new(2).unwrap();
        let body = move |rank| {
            board.progress(rank, "all_reduce, 8 bytes");
            if rank == 0 {
                return board.barrier(rank);
            }
            loop {
                std::thread::park();
            }
        };
        let verdict = run_threads(board, Some(Duration::from_millis(200)), Arc::new(body));
        assert!(verdict.stuck);
        assert!(verdict.messages.contains(&"rank 0 waits for the other ranks after: all_reduce, 8 bytes".to_owned()), "{verdict:?}");
        assert!(verdict.messages.contains(&"rank 1 has not finished: all_reduce, 8 bytes".to_owned()), "{verdict:?}");
    }
}
