//! Every setting of the library: name, type, default, meaning. Read once, at the first call that needs one.
//!
//! A name is looked up in the process's environment, then in the file that `NCCL_CONF_FILE` names (else `~/.nccl.conf`), then in
//! `/etc/nccl.conf` ([`file`]). The first that has the name decides; an empty value means "not set". A value that makes no sense is
//! complained of and replaced by the default ([`parse`]). `table` holds the settings, and `docs/settings.md` is made from it.

mod file;
mod parse;
mod table;

pub use parse::DebugLevel;
pub use table::{Settings, TABLE, WITHOUT_EFFECT};

use crate::bootstrap::SocketSettings;
use crate::error::Error;
use file::Files;
use std::sync::OnceLock;
use std::time::Duration;

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct SettingInfo {
    pub name: &'static str,
    /// A name that NCCL used earlier and still takes.
    pub older: Option<&'static str>,
    /// Which values there are, in words.
    pub kind: &'static str,
    /// The smallest value, where it is not that of the type.
    pub at_least: Option<i64>,
    /// As one would write it; empty: not set.
    pub default: &'static str,
    pub doc: &'static str,
}

impl SettingInfo {
    /// Whether the name is one of NCCL's; else it is ours.
    pub fn is_nccl(&self) -> bool {
        self.name.starts_with("NCCL_")
    }

    /// What a value may be, in words.
    pub fn allowed(&self) -> String {
        self.at_least.map_or_else(|| self.kind.to_owned(), |least| format!("{} from {least}", self.kind))
    }
}

struct Loaded {
    settings: Settings,
    complaints: Vec<String>,
    ignored: Vec<String>,
    error: Option<Error>,
}

impl Loaded {
    /// `environment`: the names and values of the process.
    fn new(environment: &[(String, String)], files: Files) -> Self {
        let in_environment = |name: &str| environment.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone());
        let lookup = |name: &str| in_environment(name).or_else(|| files.values.iter().find_map(|f| f.get(name).cloned()));
        let mut complaints = files.complaints;
        let settings = Settings::read(&lookup, &mut complaints);
        let names = environment.iter().map(|(name, _)| name).chain(files.values.iter().flat_map(|f| f.keys()));
        Self { settings, complaints, ignored: ignored(names), error: files.error }
    }
}

fn ignored<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let known = |name: &str| name == file::NAMED_BY || TABLE.iter().any(|s| s.name == name || s.older == Some(name));
    let ours_or_nccl = |name: &str| name.starts_with("NCCL_") || name.starts_with("MKERNEL_");
    let mut ignored: Vec<String> = names.filter(|name| ours_or_nccl(name) && !known(name)).cloned().collect();
    ignored.sort();
    ignored.dedup();
    ignored
}

fn loaded() -> &'static Loaded {
    static LOADED: OnceLock<Loaded> = OnceLock::new();
    LOADED.get_or_init(|| {
        let text = |t: std::ffi::OsString| t.to_string_lossy().into_owned();
        let environment: Vec<_> = std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect();
        Loaded::new(&environment, Files::load())
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

/// What was wrong with values and files, one sentence each. `observe::log` writes them once, as warnings.
pub fn complaints() -> &'static [String] {
    &loaded().complaints
}

/// Names of NCCL's (and of our kind) that are set and mean nothing here, sorted. `observe::log` writes them once.
pub fn ignored_nccl_names() -> Vec<String> {
    loaded().ignored.clone()
}

/// The part of the settings that the bootstrap takes.
pub fn socket_settings() -> SocketSettings {
    let s = settings();
    SocketSettings {
        ifname: s.socket_ifname.clone(),
        family: s.socket_family,
        comm_id: s.comm_id.clone(),
        retry_count: s.socket_retry_count,
        retry_sleep: Duration::from_millis(s.socket_retry_sleep_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::policy::Mode;

    fn loaded(environment: &[(&str, &str)], files: &[&[(&str, &str)]]) -> Loaded {
        let owned = |pairs: &[(&str, &str)]| pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect::<Vec<_>>();
        let values = files.iter().map(|f| owned(f).into_iter().collect()).collect();
        Loaded::new(&owned(environment), Files { values, ..Files::default() })
    }

    #[test]
    fn defaults() {
        let l = loaded(&[], &[]);
        assert_eq!((l.complaints.len(), l.ignored.len()), (0, 0));
        let s = l.settings;
        assert_eq!((s.warn_s, s.timeout_s, s.report_version, s.zero_copy), (30, 1800, 22809, true));
        assert_eq!((s.max_ctas, s.debug, s.residency, s.comm_id), (None, None, Mode::Never, None));
    }

    #[test]
    fn the_environment_comes_first_then_the_files_in_order() {
        let files: &[&[(&str, &str)]] =
            &[&[("MKERNEL_WARN_S", "2"), ("MKERNEL_TIMEOUT_S", "3")], &[("MKERNEL_TIMEOUT_S", "4"), ("NCCL_DEBUG", "info")]];
        let s = loaded(&[("MKERNEL_WARN_S", "1")], files).settings;
        assert_eq!((s.warn_s, s.timeout_s, s.debug), (1, 3, Some(DebugLevel::Info)));
        // Empty hides what a file says, as a variable that is set does.
        assert_eq!(loaded(&[("MKERNEL_WARN_S", "")], files).settings.warn_s, 30);
    }

    #[test]
    fn older_names_count_when_the_present_one_is_not_set() {
        assert_eq!(loaded(&[("NCCL_MAX_NCHANNELS", "0x10")], &[]).settings.max_ctas, Some(16));
        assert_eq!(loaded(&[("NCCL_MAX_NCHANNELS", "0x10"), ("NCCL_MAX_CTAS", "2")], &[]).settings.max_ctas, Some(2));
    }

    #[test]
    fn nonsense_is_complained_of_and_replaced_by_the_default() {
        let cases = [
            ("MKERNEL_WARN_S", "soon", "integer"),
            ("MKERNEL_WARN_S", "-1", "integer"),
            ("NCCL_MAX_CTAS", "0", "integer from 1"),
            ("NCCL_MAX_NCHANNELS", "many", "integer from 1"),
            ("MKERNEL_RESIDENCY", "perhaps", "auto, always or never"),
            ("NCCL_SOCKET_FAMILY", "IPX", "AF_INET or AF_INET6"),
            ("NCCL_DEBUG", "LOUD", "NONE, VERSION, WARN, INFO, ABORT or TRACE"),
            ("MKERNEL_ZERO_COPY", "yes", "0 or 1"),
        ];
        let defaults = loaded(&[], &[]).settings;
        for (name, value, allowed) in cases {
            let l = loaded(&[(name, value)], &[]);
            let [complaint] = l.complaints.as_slice() else { panic!("{name}={value}: {:?}", l.complaints) };
            for part in [name, &format!("\"{value}\""), allowed] {
                assert!(complaint.contains(part), "{complaint}");
            }
            assert_eq!(l.settings, defaults, "{name}={value}");
        }
    }

    #[test]
    fn names_without_meaning_are_listed_once() {
        let environment = [
            ("NCCL_NVLS_ENABLE", "0"),
            ("NCCL_DEBUG", "WARN"),
            ("NCCL_MIN_NCHANNELS", "2"),
            ("MKERNEL_LINGER", "5"),
            ("PATH", "/"),
            ("NCCL_CONF_FILE", "f"),
        ];
        let l = loaded(&environment, &[&[("NCCL_IB_HCA", "mlx5"), ("NCCL_NVLS_ENABLE", "1"), ("OTHER", "1")]]);
        assert_eq!(l.ignored, ["MKERNEL_LINGER", "NCCL_IB_HCA", "NCCL_NVLS_ENABLE"]);
    }
}
