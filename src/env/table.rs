//! The table of settings, and the struct of their values that is made from it.
//!
//! A row: field, type, default as one would write it (empty: not set), smallest value, name, older name, meaning. A setting stands here
//! when something reads it, and not before.

use super::SettingInfo;
use super::parse::{self, DebugLevel, Parse};
use crate::bootstrap::Family;
use crate::executor::policy::Mode;

macro_rules! settings {
    ($($field:ident: $type:ty = $default:literal $(from $least:literal)?, $name:literal $(or $older:literal)?, $doc:literal;)*) => {
        /// The settings' values.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Settings {
            $(#[doc = $doc] pub $field: $type,)*
        }

        /// The table.
        pub const TABLE: &[SettingInfo] = &[$(settings!(@row $type, $default, ($($least)?), $name, ($($older)?), $doc),)*];

        impl Settings {
            /// Reads all settings through `lookup`. Values that make no sense are replaced by the default and complained of.
            pub(super) fn read(lookup: &dyn Fn(&str) -> Option<String>, complaints: &mut Vec<String>) -> Self {
                Self {
                    $($field: parse::read(&settings!(@row $type, $default, ($($least)?), $name, ($($older)?), $doc), lookup, complaints),)*
                }
            }
        }
    };
    (@row $type:ty, $default:literal, $least:tt, $name:literal, $older:tt, $doc:literal) => {
        SettingInfo {
            name: $name,
            older: settings!(@option $older),
            kind: <$type as Parse>::KIND,
            at_least: settings!(@option $least),
            default: $default,
            doc: $doc,
        }
    };
    (@option ()) => { None };
    (@option ($value:literal)) => { Some($value) };
}

settings! {
    debug: Option<DebugLevel> = "", "NCCL_DEBUG", "How much is logged.";
    debug_subsys: Option<String> = "", "NCCL_DEBUG_SUBSYS", "Parts that log at INFO and TRACE, separated by commas: INIT, COLL, P2P, GRAPH, TUNING, ENV, BOOTSTRAP, ALLOC, REG, CALL, ALL; ^ in front: all but these. Not set: INIT,BOOTSTRAP,ENV.";
    debug_file: Option<String> = "", "NCCL_DEBUG_FILE", "File for the log instead of standard output; %h becomes the host's name, %p the process's number.";
    socket_ifname: Option<String> = "", "NCCL_SOCKET_IFNAME", "Interfaces for the bootstrap: prefixes separated by commas; ^ in front excludes them, = asks for exact names.";
    socket_family: Option<Family> = "", "NCCL_SOCKET_FAMILY", "Addresses for the bootstrap.";
    socket_retry_count: u32 = "34", "NCCL_SOCKET_RETRY_CNT", "Further attempts to reach the process that made the unique id.";
    socket_retry_sleep_ms: u64 = "100", "NCCL_SOCKET_RETRY_SLEEP_MSEC", "Pause between such attempts, in milliseconds.";
    comm_id: Option<String> = "", "NCCL_COMM_ID", "host:port where rank 0 listens, so that no unique id has to be passed on.";
    host_id: Option<String> = "", "NCCL_HOSTID", "Ranks with the same text count as being on one host.";
    comm_blocking: Option<bool> = "", "NCCL_COMM_BLOCKING", "Overrides the blocking field of every communicator's configuration.";
    min_ctas: Option<u32> = "" from 1, "NCCL_MIN_CTAS" or "NCCL_MIN_NCHANNELS", "Fewest thread blocks (channels) of a large operation.";
    max_ctas: Option<u32> = "" from 1, "NCCL_MAX_CTAS" or "NCCL_MAX_NCHANNELS", "Most thread blocks (channels) of an operation.";
    check_pointers: bool = "0", "NCCL_CHECK_POINTERS", "Check that buffers are memory of the communicator's device (costs time on every call).";
    residency: Mode = "never", "MKERNEL_RESIDENCY", "When operations are handed to the resident executor, which is right but slower than a launch of its own on a quiet GPU.";
    linger_us: Option<u64> = "", "MKERNEL_LINGER_US", "How long the executor stays after its last operation, in microseconds, instead of what the policy finds.";
    max_blocks: Option<u32> = "" from 1, "MKERNEL_MAX_BLOCKS", "Most thread blocks of an operation, for all communicators.";
    warn_s: u64 = "30", "MKERNEL_WARN_S", "Seconds that an operation waits for a rank before standard error says for which; 0: never.";
    timeout_s: u64 = "1800", "MKERNEL_TIMEOUT_S", "Seconds after which a waiting operation is given up; 0: never.";
    socket_threads: Option<u32> = "" from 1, "NCCL_SOCKET_NTHREADS", "Network threads of a process, each with a connection to every rank of another node. Not set: a quarter of the cores, 4 at most.";
    net_timeout_s: u64 = "4", "MKERNEL_NET_TIMEOUT_S", "Seconds that a rank of another node may be silent during an operation before it counts as lost; 0: any time.";
    zero_copy: bool = "1", "MKERNEL_ZERO_COPY", "Address the buffers of ranks of the same process where they are.";
    report_version: i32 = "22809" from 20900, "MKERNEL_REPORT_VERSION", "What ncclGetVersion answers.";
}

/// Names of NCCL's that users often set, and why they have no effect here. For the documentation.
pub const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("NCCL_MULTI_RANK_GPU_ENABLE", "several ranks may always share a GPU"),
    ("NCCL_ALGO, NCCL_PROTO, NCCL_NTHREADS, NCCL_BUFFSIZE", "the planner decides, and results do not depend on it"),
    ("NCCL_SHM_DISABLE", "nothing is put into /dev/shm"),
    ("NCCL_P2P_LEVEL, NCCL_CUMEM_ENABLE, NCCL_CROSS_NIC", "what can be reached is found by trying"),
    ("NCCL_NVLS_ENABLE, NCCL_COLLNET_ENABLE, NCCL_MNNVL_ENABLE", "there is no multicast and no reduction in switches yet"),
    (
        "NCCL_IB_*, NCCL_NET, NCCL_NET_*, NCCL_NSOCKS_PERTHREAD",
        "ranks of different hosts are joined by TCP, with one connection for each network thread",
    ),
    ("NCCL_LAUNCH_MODE, NCCL_GRAPH_MIXING_SUPPORT, NCCL_LAUNCH_ORDER_IMPLICIT", "one kernel per operation, graphs and streams alike"),
    ("NCCL_RAS_ENABLE, NCCL_*_PLUGIN", "not built yet"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    fn rows(text: &mut String, ours: bool) {
        *text += "| name | value | default | meaning |\n| --- | --- | --- | --- |\n";
        for s in TABLE.iter().filter(|s| s.is_nccl() != ours) {
            let older = s.older.map_or(String::new(), |o| format!(" (older: `{o}`)"));
            let default = if s.default.is_empty() { "not set" } else { s.default };
            writeln!(text, "| `{}`{older} | {} | {default} | {} |", s.name, s.allowed(), s.doc).unwrap();
        }
    }

    fn document() -> String {
        let mut text = String::from(
            "# Settings\n\nMade from `src/env/table.rs` by `UPDATE_DOCS=1 cargo test -p mkernel settings_document`; do not edit.\n\n\
             A name is looked up in the environment, then in the file that `NCCL_CONF_FILE` names (else `~/.nccl.conf`), then in\n\
             `/etc/nccl.conf`. Files hold lines of `NAME=VALUE`; a line that starts with `#`, and what follows ` #`, is a comment. A file never\n\
             overrides the environment. Integers may be decimal, `0x` hexadecimal or `0` octal. Settings are read once, at the first NCCL call.\n\n\
             A value that makes no sense is named in a warning, and the default is used. If `NCCL_CONF_FILE` names a file that cannot be read,\n\
             or whose lines are not of that form, communicators are refused with `ncclSystemError` or `ncclInvalidArgument`.\n\n## Ours\n\n",
        );
        rows(&mut text, true);
        text += "\n## NCCL's\n\n";
        rows(&mut text, false);
        text += "\n## NCCL's without effect\n\nAll other names of NCCL's are ignored. `NCCL_DEBUG=INFO` lists those that are set.\n\n| name | why |\n| --- | --- |\n";
        for (names, why) in WITHOUT_EFFECT {
            let names: Vec<_> = names.split(", ").map(|n| format!("`{n}`")).collect();
            writeln!(text, "| {} | {why} |", names.join(", ")).unwrap();
        }
        text
    }

    /// `text` with what is between the two marks replaced by the table of our own settings.
    fn readme(text: &str) -> String {
        let (before, rest) = text.split_once("<!-- settings -->\n").expect("README.md has the mark <!-- settings -->");
        let (_, after) = rest.split_once("<!-- end of settings -->").expect("README.md has the mark <!-- end of settings -->");
        let mut table = String::new();
        rows(&mut table, true);
        format!("{before}<!-- settings -->\n{table}<!-- end of settings -->{after}")
    }

    /// `UPDATE_DOCS=1 cargo test -p mkernel settings_document` writes both files anew.
    #[test]
    fn settings_document_is_current() {
        let path = |name: &str| format!("{}/{name}", env!("CARGO_MANIFEST_DIR"));
        let read = |name: &str| std::fs::read_to_string(path(name)).unwrap_or_default();
        for (name, text) in [("docs/settings.md", document()), ("README.md", readme(&read("README.md")))] {
            if std::env::var_os("UPDATE_DOCS").is_some() {
                std::fs::write(path(name), &text).unwrap();
            }
            assert_eq!(read(name), text, "{name}: run UPDATE_DOCS=1 cargo test -p mkernel settings_document");
        }
    }

    #[test]
    fn every_default_is_a_value() {
        let mut complaints = Vec::new();
        // A default that does not parse would panic here.
        Settings::read(&|_| None, &mut complaints);
        assert!(complaints.is_empty());
        let mut names: Vec<_> = TABLE.iter().flat_map(|s| std::iter::once(s.name).chain(s.older)).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|w| w[0] != w[1]), "a name stands twice");
    }
}
