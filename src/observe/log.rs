//! `NCCL_DEBUG`: turns `tracing` events into the lines that NCCL writes, which people and tools already read.
//!
//! The ABI layer calls [`start`] at each call; the first one installs the log, so a process that never calls NCCL is left alone. An event's
//! target is its subsystem as in `NCCL_DEBUG_SUBSYS`; its level is NCCL's (`debug!` counts as TRACE). Three targets are special:
//!
//! - `VERSION`: the bare text, from `NCCL_DEBUG=VERSION` up.
//! - `CALL`: a traced call, without place or device.
//! - `WATCHDOG`: a rank that never arrives, calls that do not match. Goes to standard error whatever `NCCL_DEBUG` says, unless that is NONE.
//!
//! A warning also becomes the text of `ncclGetLastError`, written or not. What is not written costs a caller one comparison or two: `tracing`
//! keeps the highest level and each place's interest in atomics.

pub use crate::abi::last_error::{last_error, last_error_cstr, set_last_error};

use crate::env::{self, DebugLevel, Settings};
use std::fmt::{Debug, Write as _};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::{Once, OnceLock};
use std::time::Instant;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

const VERSION: &str = "VERSION";
const CALL: &str = "CALL";
const WATCHDOG: &str = "WATCHDOG";
/// What NCCL logs at INFO if `NCCL_DEBUG_SUBSYS` is not set.
const USUAL_SUBSYSTEMS: &str = "INIT,BOOTSTRAP,ENV";
/// For a thread whose device is not known, as NCCL has it.
const NO_DEVICE: i32 = -1;

static DEVICE: OnceLock<fn() -> Option<i32>> = OnceLock::new();

/// Installs the log, at the first call; then writes what there is to say about the settings.
pub fn start() {
    static STARTED: Once = Once::new();
    // Unit tests share a process, and each brings its own log.
    if cfg!(test) || STARTED.is_completed() {
        return;
    }
    STARTED.call_once(|| {
        let (log, complaint) = Log::from_settings(env::settings());
        // A Rust program that links the rlib may have a subscriber of its own; that one stays.
        let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(log));
        for complaint in env::complaints().iter().chain(&complaint) {
            tracing::warn!(target: "ENV", "{complaint}");
        }
        let ignored = env::ignored_nccl_names();
        if !ignored.is_empty() {
            tracing::info!(target: "ENV", "set, but without meaning for this library: {}", ignored.join(", "));
        }
    });
}

/// How to ask for the calling thread's CUDA device. To be set once the driver is loaded: writing a line must not load it. The watchdog's
/// lines do not ask, because its thread makes no CUDA calls.
pub fn set_device_probe(probe: fn() -> Option<i32>) {
    // Whoever was first asked the same driver.
    let _ = DEVICE.set(probe);
}

/// Which subsystems `NCCL_DEBUG_SUBSYS` lets through.
#[derive(Debug)]
struct Subsystems {
    names: Vec<String>,
    excluded: bool,
}

impl Subsystems {
    fn parse(text: &str) -> Self {
        let (excluded, list) = text.trim().strip_prefix('^').map_or((false, text), |list| (true, list));
        Self { names: list.split(',').map(|name| name.trim().to_ascii_uppercase()).collect(), excluded }
    }

    fn contain(&self, target: &str) -> bool {
        self.names.iter().any(|name| name == target || name == "ALL") != self.excluded
    }
}

/// Where an event goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ways {
    log: bool,
    stderr: bool,
    last_error: bool,
}

#[derive(Debug)]
struct Rules {
    level: Option<DebugLevel>,
    subsystems: Subsystems,
    /// The log is a file, so what goes to standard error is not seen twice in one place.
    to_file: bool,
}

impl Rules {
    fn logs(&self, target: &str, level: Level) -> bool {
        let Some(set) = self.level else { return false };
        let is_watchdog = target == WATCHDOG;
        match level {
            _ if target == VERSION => set >= DebugLevel::Version,
            Level::ERROR | Level::WARN => set >= DebugLevel::Warn,
            Level::INFO => set >= DebugLevel::Info && (is_watchdog || self.subsystems.contain(target)),
            _ => set >= DebugLevel::Trace && (is_watchdog || self.subsystems.contain(target)),
        }
    }

    fn ways(&self, target: &str, level: Level) -> Ways {
        let is_watchdog = target == WATCHDOG;
        Ways {
            log: self.logs(target, level) && (self.to_file || !is_watchdog),
            stderr: is_watchdog && level <= Level::INFO && self.level != Some(DebugLevel::None),
            last_error: level <= Level::WARN,
        }
    }

    fn max_level(&self) -> LevelFilter {
        match self.level {
            Some(DebugLevel::None) => LevelFilter::WARN,
            Some(DebugLevel::Trace) => LevelFilter::TRACE,
            _ => LevelFilter::INFO,
        }
    }
}

/// Who writes a line, and when.
#[derive(Debug)]
struct Header<'a> {
    host: &'a str,
    process: u32,
    thread: i32,
    device: i32,
    /// Local time, for warnings.
    time: &'a str,
    /// Milliseconds since the log was started, for traces.
    uptime_ms: f64,
}

/// A line as NCCL writes it, with its end.
fn line(header: &Header, target: &str, level: Level, place: &Metadata, text: &str) -> String {
    let Header { host, process, thread, device, time, uptime_ms } = header;
    let who = format!("{host}:{process}:{thread}");
    let (file, number) = (place.file().unwrap_or("?"), place.line().unwrap_or(0));
    let module = place.module_path().unwrap_or("?");
    match level {
        _ if target == VERSION => format!("{text}\n"),
        Level::ERROR | Level::WARN => format!("\n[{time}] {who} [{device}] {file}:{number} ({module}) NCCL WARN {text}\n"),
        Level::INFO => format!("{who} [{device}] NCCL INFO {text}\n"),
        _ if target == CALL => format!("{who} NCCL CALL {text}\n"),
        _ => format!("{who} [{device}] {uptime_ms:.6} {module}:{number} NCCL TRACE {text}\n"),
    }
}

/// Takes a whole line; what cannot be written is lost, since nobody could be told.
type Sink = Box<dyn Fn(&str) + Send + Sync>;

/// The `tracing` layer that writes the log.
struct Log {
    rules: Rules,
    host: String,
    started: Instant,
    log: Sink,
    stderr: Sink,
    last_error: fn(&str),
}

impl Log {
    /// The log that the settings ask for, and what stood in its way.
    fn from_settings(settings: &Settings) -> (Self, Option<String>) {
        let host = host_name();
        let mut complaint = None;
        let mut log: Sink = Box::new(|line| {
            let _ = std::io::stdout().write_all(line.as_bytes());
        });
        let mut to_file = false;
        // As in NCCL, a file is made only if more than the version can go there.
        if let Some(pattern) = settings.debug_file.as_deref().filter(|_| settings.debug > Some(DebugLevel::Version)) {
            let path = expand(pattern, &host, std::process::id());
            // Appending keeps the lines of processes that share a file whole.
            match OpenOptions::new().create(true).append(true).open(&path) {
                Ok(file) => {
                    to_file = true;
                    log = Box::new(move |line| {
                        let _ = (&file).write_all(line.as_bytes());
                    });
                }
                Err(e) => complaint = Some(format!("NCCL_DEBUG_FILE: cannot write to {path} ({e}); the log goes to standard output")),
            }
        }
        let stderr: Sink = Box::new(|line| {
            let _ = std::io::stderr().write_all(line.as_bytes());
        });
        let subsystems = Subsystems::parse(settings.debug_subsys.as_deref().unwrap_or(USUAL_SUBSYSTEMS));
        let rules = Rules { level: settings.debug, subsystems, to_file };
        (Self { rules, host, started: Instant::now(), log, stderr, last_error: set_last_error }, complaint)
    }
}

impl<S: Subscriber> Layer<S> for Log {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let Ways { log, stderr, last_error } = self.rules.ways(metadata.target(), *metadata.level());
        metadata.is_event() && (log || stderr || last_error)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.rules.max_level())
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let (target, level) = (event.metadata().target(), *event.metadata().level());
        let ways = self.rules.ways(target, level);
        let mut text = Text::default();
        event.record(&mut text);
        if ways.last_error {
            (self.last_error)(&text.0);
        }
        if !(ways.log || ways.stderr) {
            return;
        }
        let ask = |probe: &fn() -> Option<i32>| probe();
        let header = Header {
            host: &self.host,
            // Asked each time: the process may have forked.
            process: std::process::id(),
            thread: thread_number(),
            device: DEVICE.get().filter(|_| target != WATCHDOG && target != CALL).and_then(ask).unwrap_or(NO_DEVICE),
            time: &if level <= Level::WARN { local_time() } else { String::new() },
            uptime_ms: self.started.elapsed().as_secs_f64() * 1e3,
        };
        let line = line(&header, target, level, event.metadata(), &text.0);
        if ways.log {
            (self.log)(&line);
        }
        if ways.stderr {
            (self.stderr)(&line);
        }
    }
}

/// The event's message; further fields follow as `name=value`.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

/// `NCCL_DEBUG_FILE` with %h and %p filled in; %% is one %.
fn expand(pattern: &str, host: &str, process: u32) -> String {
    let mut path = String::new();
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        match (c, rest.clone().next()) {
            ('%', Some('h')) => path.push_str(host),
            ('%', Some('p')) => path.push_str(&process.to_string()),
            ('%', Some('%')) => path.push('%'),
            _ => {
                path.push(c);
                continue;
            }
        }
        rest.next();
    }
    path
}

/// Up to the first dot.
fn host_name() -> String {
    let mut buffer = [0u8; 256];
    // SAFETY: the length leaves the last byte alone, so the text ends with a zero even if it was cut.
    let failed = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) } != 0;
    let end = buffer.iter().position(|b| matches!(b, 0 | b'.')).unwrap_or(0);
    if failed || end == 0 { "unknown".into() } else { String::from_utf8_lossy(&buffer[..end]).into_owned() }
}

fn thread_number() -> i32 {
    // SAFETY: has no preconditions.
    unsafe { libc::gettid() }
}

fn local_time() -> String {
    // SAFETY: with NULL, time only returns; localtime_r fills the struct that it is given, and zeroes are valid if it cannot.
    let t = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        libc::localtime_r(&now, &mut parts);
        parts
    };
    format!("{:04}-{:02}-{:02} {:02}:{:02}:{:02}", t.tm_year + 1900, t.tm_mon + 1, t.tm_mday, t.tm_hour, t.tm_min, t.tm_sec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::sync::{Arc, Mutex};

    thread_local! {
        static REMEMBERED: RefCell<Vec<String>> = const { RefCell::new(vec![]) };
    }

    /// What one run of `body` writes: to the log, to standard error, and into the last error.
    struct Written {
        log: String,
        stderr: String,
        last_error: Vec<String>,
    }

    fn written(level: Option<DebugLevel>, subsystems: &str, to_file: bool, body: impl FnOnce()) -> Written {
        let (log, stderr) = (Arc::new(Mutex::new(String::new())), Arc::new(Mutex::new(String::new())));
        let memory = |text: &Arc<Mutex<String>>| -> Sink {
            let text = text.clone();
            Box::new(move |line| text.lock().unwrap().push_str(line))
        };
        let layer = Log {
            rules: Rules { level, subsystems: Subsystems::parse(subsystems), to_file },
            host: "node7".into(),
            started: Instant::now(),
            log: memory(&log),
            stderr: memory(&stderr),
            last_error: |text| REMEMBERED.with_borrow_mut(|all| all.push(text.into())),
        };
        REMEMBERED.with_borrow_mut(Vec::clear);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), body);
        let take = |text: Arc<Mutex<String>>| text.lock().unwrap().clone();
        Written { log: take(log), stderr: take(stderr), last_error: REMEMBERED.with_borrow(Clone::clone) }
    }

    /// One event of each sort.
    fn one_of_each() {
        tracing::info!(target: "VERSION", "NCCL version {}+cuda13.0", "2.28.9");
        tracing::warn!(target: "INIT", "warned");
        tracing::info!(target: "INIT", "init");
        tracing::info!(target: "COLL", "coll");
        tracing::trace!(target: "CALL", "ncclSend(1)");
        tracing::trace!(target: "INIT", "traced");
        tracing::warn!(target: "WATCHDOG", "rank 3 is late");
        tracing::info!(target: "WATCHDOG", "goes on");
    }

    /// The texts of the lines, without what stands before them.
    fn texts(lines: &str) -> Vec<&str> {
        let text = |line| {
            ["WARN ", "INFO ", "CALL ", "TRACE "].iter().find_map(|k| Some(str::split_once(line, &format!(" NCCL {k}"))?.1)).unwrap_or(line)
        };
        lines.lines().filter(|line| !line.is_empty()).map(text).collect()
    }

    #[test]
    fn lines_have_the_shape_that_tools_parse() {
        struct Here;
        // Any place will do: the shape takes file, line and module from it.
        let place = {
            static CALLSITE: std::sync::OnceLock<&'static Metadata<'static>> = std::sync::OnceLock::new();
            impl<S: Subscriber> Layer<S> for Here {
                fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
                    let _ = CALLSITE.set(event.metadata());
                }
            }
            tracing::subscriber::with_default(tracing_subscriber::registry().with(Here), || tracing::error!("here"));
            *CALLSITE.get().unwrap()
        };
        let header = Header { host: "node7", process: 12, thread: 34, device: 5, time: "2026-12-01 05:11:00", uptime_ms: 1.5 };
        let at = place.line().unwrap();
        let shape = |target, level| line(&header, target, level, place, "text");
        assert_eq!(shape("VERSION", Level::INFO), "text\n");
        assert_eq!(shape("INIT", Level::INFO), "node7:12:34 [5] NCCL INFO text\n");
        let warned =
            format!("\n[2026-12-01 05:11:00] node7:12:34 [5] src/observe/log.rs:{at} (mkernel::observe::log::tests) NCCL WARN text\n");
        assert_eq!(shape("INIT", Level::WARN), warned);
        assert_eq!(shape("CALL", Level::TRACE), "node7:12:34 NCCL CALL text\n");
        assert_eq!(shape("INIT", Level::TRACE), format!("node7:12:34 [5] 1.500000 mkernel::observe::log::tests:{at} NCCL TRACE text\n"));
    }

    #[test]
    fn levels_and_subsystems_choose_what_is_written() {
        use DebugLevel::{Abort, Info, None as Silent, Trace, Version, Warn};
        let version = "NCCL version 2.28.9+cuda13.0";
        let cases: [(Option<DebugLevel>, &str, &[&str]); 11] = [
            (None, "ALL", &[]),
            (Some(Silent), "ALL", &[]),
            (Some(Version), "ALL", &[version]),
            (Some(Warn), "ALL", &[version, "warned"]),
            (Some(Info), USUAL_SUBSYSTEMS, &[version, "warned", "init"]),
            (Some(Info), "coll", &[version, "warned", "coll"]),
            (Some(Info), "^INIT", &[version, "warned", "coll"]),
            (Some(Info), "^ALL", &[version, "warned"]),
            (Some(Abort), "ALL", &[version, "warned", "init", "coll"]),
            (Some(Trace), "CALL", &[version, "warned", "ncclSend(1)"]),
            (Some(Trace), "ALL", &[version, "warned", "init", "coll", "ncclSend(1)", "traced"]),
        ];
        for (level, subsystems, want) in cases {
            let w = written(level, subsystems, false, one_of_each);
            assert_eq!(texts(&w.log), want, "NCCL_DEBUG={level:?} NCCL_DEBUG_SUBSYS={subsystems}");
            let stderr: &[&str] = if level == Some(Silent) { &[] } else { &["rank 3 is late", "goes on"] };
            assert_eq!(texts(&w.stderr), stderr, "NCCL_DEBUG={level:?}");
            assert_eq!(w.last_error, ["warned", "rank 3 is late"], "warnings are remembered at any level");
        }
    }

    #[test]
    fn the_watchdog_is_also_in_the_log_if_that_is_a_file() {
        let w = written(Some(DebugLevel::Warn), "", true, one_of_each);
        assert_eq!(texts(&w.log), ["NCCL version 2.28.9+cuda13.0", "warned", "rank 3 is late"]);
        assert_eq!(texts(&w.stderr), ["rank 3 is late", "goes on"]);
    }

    #[test]
    fn fields_follow_the_message_and_the_header_is_this_process() {
        let w = written(Some(DebugLevel::Info), "ALL", false, || tracing::info!(target: "INIT", rank = 3, "Init {}", "START"));
        let who = format!("node7:{}:{} [", std::process::id(), thread_number());
        assert!(w.log.starts_with(&who) && w.log.ends_with("] NCCL INFO Init START rank=3\n"), "{}", w.log);
    }

    #[test]
    fn file_names() {
        let cases = [("/tmp/%h.%p", "/tmp/node7.12"), ("100%%", "100%"), ("%x%", "%x%"), ("%%p", "%p"), ("plain", "plain")];
        for (pattern, path) in cases {
            assert_eq!(expand(pattern, "node7", 12), path);
        }
    }

    #[test]
    fn a_file_gets_the_lines_and_one_that_cannot_be_made_is_named() {
        let path = std::env::temp_dir().join(format!("mkernel-log-{}", std::process::id()));
        let settings = |file: String| Settings { debug: Some(DebugLevel::Warn), debug_file: Some(file), ..env::settings().clone() };
        let (log, complaint) = Log::from_settings(&settings(path.display().to_string()));
        assert_eq!((complaint, log.rules.to_file), (None, true));
        (log.log)("a line\n");
        (log.log)("another\n");
        let text = std::fs::read_to_string(&path);
        let _ = std::fs::remove_file(&path);
        assert_eq!(text.unwrap(), "a line\nanother\n");
        let (log, complaint) = Log::from_settings(&settings("/nowhere/at all".into()));
        assert!(!log.rules.to_file && complaint.is_some_and(|c| c.contains("/nowhere/at all")));
    }
}
