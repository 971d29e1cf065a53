//! Work that makes communicators: run at once outside a group, by the outermost end inside one, on a thread of its own for each parent (or
//! new communicator) so that ranks driven by one thread can meet; in the background for non-blocking communicators.

use super::GROUP;
use crate::comm::{Communicator, Ready, Status};
use crate::error::{Error, Result};
use std::sync::Arc;

type Work = Box<dyn FnOnce(&Communicator) -> Result<Option<Ready>> + Send>;

/// One communicator to be.
pub struct Job {
    comm: Arc<Communicator>,
    /// Jobs of one parent run one after the other, in issue order, since they talk through it.
    parent: Option<Arc<Communicator>>,
    work: Work,
}

impl Job {
    fn run(self) -> Result<()> {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (self.work)(&self.comm)))
            .unwrap_or_else(|_| Err(Error::internal("initialising a communicator panicked")));
        match result {
            Ok(Some(ready)) => self.comm.finish_init(Ok(ready)),
            Ok(None) => Ok(()),
            Err(e) => self.comm.finish_init(Err(e)),
        }
    }
}

/// Initialises `comm` by `work`.
pub fn run_job(
    comm: &Arc<Communicator>,
    parent: Option<&Arc<Communicator>>,
    work: impl FnOnce(&Communicator) -> Result<Ready> + Send + 'static,
) -> Result<Status> {
    submit(Job { comm: comm.clone(), parent: parent.cloned(), work: Box::new(move |c| work(c).map(Some)) })
}

/// Takes part in what others initialise; `comm` gets nothing.
pub fn run_bystander(
    comm: &Arc<Communicator>,
    parent: &Arc<Communicator>,
    work: impl FnOnce(&Communicator) -> Result<()> + Send + 'static,
) -> Result<Status> {
    submit(Job { comm: comm.clone(), parent: Some(parent.clone()), work: Box::new(move |c| work(c).map(|()| None)) })
}

fn submit(job: Job) -> Result<Status> {
    let alone = GROUP.with_borrow_mut(|g| {
        if g.depth == 0 {
            return Some(job);
        }
        g.jobs.push(job);
        None
    });
    match alone {
        // The thread's group is not borrowed while the job runs.
        Some(job) => run_all(vec![job]),
        None => Ok(Status::Done),
    }
}

pub fn run_all(jobs: Vec<Job>) -> Result<Status> {
    let Some(first) = jobs.first() else { return Ok(Status::Done) };
    let blocking = first.comm.is_blocking();
    if jobs.iter().any(|j| j.comm.is_blocking() != blocking) {
        let error = Error::argument("a group holds blocking and non-blocking communicators: use one kind in a group");
        cancel(jobs, &error);
        return Err(error);
    }
    let mut families: Vec<Vec<Job>> = Vec::new();
    for job in jobs {
        let family = families.iter_mut().find(|f| matches!((&f[0].parent, &job.parent), (Some(a), Some(b)) if Arc::ptr_eq(a, b)));
        match family {
            Some(family) => family.push(job),
            None => families.push(vec![job]),
        }
    }
    let run = |family: Vec<Job>| family.into_iter().map(Job::run).fold(Ok(()), Result::and);
    if !blocking {
        for family in families {
            std::thread::Builder::new()
                .name("mkernel-init".into())
                .spawn(move || run(family))
                .map_err(|e| Error::system(format!("cannot start a thread for a non-blocking init: {e}")))?;
        }
        return Ok(Status::InProgress);
    }
    if families.len() == 1 {
        return families.into_iter().map(run).fold(Ok(()), Result::and).map(|()| Status::Done);
    }
    let results = std::thread::scope(|scope| {
        let running: Vec<_> = families.into_iter().map(|family| scope.spawn(move || run(family))).collect();
        running.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(Error::internal("an init thread panicked")))).collect::<Vec<_>>()
    });
    results.into_iter().fold(Ok(()), Result::and).map(|()| Status::Done)
}

/// Fails jobs that will not be run.
pub fn cancel(jobs: Vec<Job>, why: &Error) {
    for job in jobs {
        let _ = job.comm.finish_init(Err(why.clone()));
    }
}
