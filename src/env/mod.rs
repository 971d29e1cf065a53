//! Every setting of the library, in one table: name, type, default, meaning. Read once, at the first call that needs one.
//!
//! A name is looked up in the process's environment, then in the file that `NCCL_CONF_FILE` names (else `~/.nccl.conf`), then in
//! `/etc/nccl.conf`. `docs/settings.md` is made from the table.

mod file;
mod parse;

use crate::bootstrap::{Family, SocketSettings};
use crate::error::Error;
use parse::Parse;
use std::sync::OnceLock;
use std::time::Duration;

/// One row of the table, for documentation.
#[derive(Debug, Clone, Copy)]
pub struct SettingInfo {
    pub name: &'static str,
    pub kind: &'static str,
    pub default: &'static str,
    pub doc: &'static str,
}

macro_rules! settings {
    ($($field:ident: $type:ty = $default:literal, $name:literal $(or $alias:literal)?, $doc:literal;)*) => {
        /// The settings' values.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Settings {
            $(#[doc = $doc] pub $field: $type,)*
        }

        /// The table.
        pub const TABLE: &[SettingInfo] = &[
            $(SettingInfo { name: $name, kind: <$type as Parse>::KIND, default: $default, doc: $doc },)*
        ];

        impl Settings {
            /// Reads all settings through `lookup`. Values that make no sense are replaced by the default and reported.
            fn read(lookup: &dyn Fn(&str) -> Option<String>, complaints: &mut Vec<String>) -> Self {
                Self {
                    $($field: parse::read($name, &[$($alias)?], $default, lookup, complaints),)*
                }
            }
        }
    };
}

settings! {
    debug: Option<String> = "", "NCCL_DEBUG", "How much is logged: NONE, VERSION, WARN, INFO, TRACE.";
    debug_subsys: Option<String> = "", "NCCL_DEBUG_SUBSYS", "Parts that log at INFO, separated by commas; ^ in front excludes.";
    debug_file: Option<String> = "", "NCCL_DEBUG_FILE", "File for the log instead of standard output; %h is the host's name, %p the process's number.";
    socket_ifname: Option<String> = "", "NCCL_SOCKET_IFNAME", "Interfaces for the bootstrap: prefixes separated by commas; ^ excludes, = asks for exact names.";
    socket_family: Option<String> = "", "NCCL_SOCKET_FAMILY", "AF_INET or AF_INET6.";
    socket_retry_count: u32 = "34", "NCCL_SOCKET_RETRY_CNT", "Further attempts to reach the process that made the unique id.";
    socket_retry_sleep_ms: u64 = "100", "NCCL_SOCKET_RETRY_SLEEP_MSEC", "Pause between such attempts, in milliseconds.";
    comm_id: Option<String> = "", "NCCL_COMM_ID", "host:port where rank 0 listens, so that no unique id has to be passed on.";
    host_id: Option<String> = "", "NCCL_HOSTID", "Which ranks count as being on the same host.";
    comm_blocking: Option<bool> = "", "NCCL_COMM_BLOCKING", "Overrides the blocking field of every communicator's configuration.";
    min_ctas: Option<u32> = "", "NCCL_MIN_CTAS" or "NCCL_MIN_NCHANNELS", "Fewest thread blocks (channels) of a large operation.";
    max_ctas: Option<u32> = "", "NCCL_MAX_CTAS" or "NCCL_MAX_NCHANNELS", "Most thread blocks (channels) of an operation.";
    check_pointers: bool = "0", "NCCL_CHECK_POINTERS", "Check that buffers are memory of the communicator's device (costs time on every call).";
    residency: Option<String> = "auto", "MKERNEL_RESIDENCY", "When operations are handed to the resident executor: auto, always or never.";
    linger_us: Option<u64> = "", "MKERNEL_LINGER_US", "How long the executor stays after its last operation, in microseconds, instead of what the policy finds.";
    max_blocks: Option<u32> = "", "MKERNEL_MAX_BLOCKS", "Most thread blocks of an operation, for all communicators.";
    warn_s: u64 = "30", "MKERNEL_WARN_S", "Seconds that an operation waits for a rank before the log says for which; 0: never.";
    timeout_s: u64 = "1800", "MKERNEL_TIMEOUT_S", "Seconds after which a waiting operation is given up; 0: never.";
    zero_copy: bool = "1", "MKERNEL_ZERO_COPY", "Address the buffers of ranks of the same process where they are.";
    report_version: i32 = "22809", "MKERNEL_REPORT_VERSION", "What ncclGetVersion answers.";
}

/// Settings of NCCL that this library knows to mean nothing here, by prefix; they are listed once in the log when set.
const OURS: &str = "MKERNEL_";

struct Loaded {
    settings: Settings,
    complaints: Vec<String>,
    error: Option<Error>,
}

fn loaded() -> &'static Loaded {
    static LOADED: OnceLock<Loaded> = OnceLock::new();
    LOADED.get_or_init(|| {
        let (files, error) = file::load();
        let mut complaints = Vec::new();
        let lookup = |name: &str| std::env::var(name).ok().or_else(|| files.iter().find_map(|f| f.get(name).cloned()));
        Loaded { settings: Settings::read(&lookup, &mut complaints), complaints, error }
    })
}

/// The settings of this process.
pub fn settings() -> &'static Settings {
    &loaded().settings
}

/// Why the configuration file that `NCCL_CONF_FILE` names could not be used; a communicator's init fails with it.
pub fn settings_error() -> Option<Error> {
    loaded().error.clone()
}

/// What was wrong with values, one sentence each; and the NCCL names that are set but mean nothing here. For the log of the first init.
pub fn remarks() -> Vec<String> {
    let mut all = loaded().complaints.clone();
    let known = |name: &str| TABLE.iter().any(|s| s.name == name) || ["NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_CONF_FILE"].contains(&name);
    let mut ignored: Vec<String> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| (name.starts_with("NCCL_") || name.starts_with(OURS)) && !known(name))
        .collect();
    ignored.sort();
    if !ignored.is_empty() {
        all.push(format!("set, but without meaning for this library: {}", ignored.join(", ")));
    }
    all
}

/// The part of the settings that the bootstrap takes.
pub fn socket_settings() -> SocketSettings {
    let s = settings();
    SocketSettings {
        ifname: s.socket_ifname.clone(),
        family: match s.socket_family.as_deref() {
            Some("AF_INET") => Some(Family::V4),
            Some("AF_INET6") => Some(Family::V6),
            _ => None,
        },
        comm_id: s.comm_id.clone(),
        retry_count: s.socket_retry_count,
        retry_sleep: Duration::from_millis(s.socket_retry_sleep_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> (Settings, Vec<String>) {
        let mut complaints = Vec::new();
        let lookup = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        (Settings::read(&lookup, &mut complaints), complaints)
    }

    #[test]
    fn defaults_aliases_and_nonsense() {
        let (s, none) = read(&[]);
        assert!(none.is_empty());
        assert_eq!((s.warn_s, s.report_version, s.zero_copy, s.max_ctas, s.debug), (30, 22809, true, None, None));
        let (s, _) = read(&[("NCCL_MAX_NCHANNELS", "0x10"), ("MKERNEL_ZERO_COPY", "0"), ("NCCL_DEBUG", "INFO")]);
        assert_eq!((s.max_ctas, s.zero_copy, s.debug.as_deref()), (Some(16), false, Some("INFO")));
        let (s, complaints) = read(&[("MKERNEL_WARN_S", "soon")]);
        assert_eq!(s.warn_s, 30);
        assert!(complaints[0].contains("MKERNEL_WARN_S") && complaints[0].contains("soon"), "{complaints:?}");
    }

    /// `UPDATE_DOCS=1 cargo test -p mkernel settings_document` writes the file anew.
    #[test]
    fn settings_document_is_current() {
        let mut text = String::from("# Settings\n\nMade from the table in `src/env/mod.rs`.\n\n| name | type | default | meaning |\n| --- | --- | --- | --- |\n");
        for s in TABLE {
            text += &format!("| `{}` | {} | {} | {} |\n", s.name, s.kind, if s.default.is_empty() { "not set" } else { s.default }, s.doc);
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/settings.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), text, "run UPDATE_DOCS=1 cargo test -p mkernel settings_document");
    }
}
