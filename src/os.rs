//! What the library's own threads need of the operating system.

use std::io;

/// Starts a thread on which the application's signal handlers do not run: it begins with all signals blocked.
pub fn quiet_thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: both sets are plain data on this stack, filled in before they are read; the mask of this thread is put back right after.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let started = std::thread::Builder::new().name(name.into()).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        started.map(|_| ())
    }
}

/// Lets this thread's short waits end on time; by default Linux may add 50 µs.
pub fn precise_timers() {
    // SAFETY: takes a number; a kernel that does not know the option says so, and nothing depends on it.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

/// Calls `handler` when the process exits, before the handlers that were registered earlier.
pub fn at_exit(handler: extern "C" fn()) {
    // SAFETY: a plain function of this library, which is never unloaded (linked with -z nodelete).
    unsafe { libc::atexit(handler) };
}
