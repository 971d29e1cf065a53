//! `nccl.conf`: lines of NAME=VALUE, and comments.

use crate::error::{Error, Result};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The variable that names a file to be read instead of the one in the home folder.
pub const NAMED_BY: &str = "NCCL_CONF_FILE";

pub type Values = HashMap<String, String>;

/// What the configuration files say.
#[derive(Debug, Default)]
pub struct Files {
    /// In order of precedence.
    pub values: Vec<Values>,
    /// Mistakes in files that nobody asked for by name.
    pub complaints: Vec<String>,
    /// Why the file that was asked for by name is of no use.
    pub error: Option<Error>,
}

impl Files {
    pub fn load() -> Self {
        let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self::from(path(NAMED_BY), path("HOME"), &|path| std::fs::read_to_string(path))
    }

    fn from(named: Option<PathBuf>, home: Option<PathBuf>, read: &dyn Fn(&Path) -> std::io::Result<String>) -> Self {
        let mut files = Self::default();
        match named {
            Some(path) => match use_file(&path, read) {
                Ok(values) => files.values.push(values),
                Err(e) => files.error = Some(Error::new(e.code, format!("{NAMED_BY}: {e}; correct the file or unset {NAMED_BY}"))),
            },
            None => files.add_if_there(home.map(|home| home.join(".nccl.conf")), read),
        }
        files.add_if_there(Some(PathBuf::from("/etc/nccl.conf")), read);
        files
    }

    fn add_if_there(&mut self, path: Option<PathBuf>, read: &dyn Fn(&Path) -> std::io::Result<String>) {
        let Some(path) = path else { return };
        let absent = |kind| matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory);
        if read(&path).is_err_and(|e| absent(e.kind())) {
            return;
        }
        match use_file(&path, read) {
            Ok(values) => self.values.push(values),
            Err(e) => self.complaints.push(format!("{e}; the file is not used")),
        }
    }
}

fn use_file(path: &Path, read: &dyn Fn(&Path) -> std::io::Result<String>) -> Result<Values> {
    let text = read(path).map_err(|e| Error::system(format!("cannot read {}: {e}", path.display())))?;
    parse(&text).map_err(|line| Error::argument(format!("line {line} of {} is not NAME=VALUE", path.display())))
}

/// The values, or the number of the first line that is none. Where a name stands twice, the first counts.
fn parse(text: &str) -> std::result::Result<Values, usize> {
    let mut values = Values::new();
    for (number, line) in text.lines().enumerate() {
        let line = without_comment(line).trim();
        if line.is_empty() {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or(number + 1)?;
        let name = name.trim();
        if name.is_empty() || name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            return Err(number + 1);
        }
        values.entry(name.to_owned()).or_insert_with(|| value.trim().to_owned());
    }
    Ok(values)
}

/// `#` starts a comment at the line's beginning and after a space; elsewhere it belongs to the value.
fn without_comment(line: &str) -> &str {
    let starts = |at: usize| line[..at].chars().next_back().is_none_or(char::is_whitespace);
    line.match_indices('#').find(|(at, _)| starts(*at)).map_or(line, |(at, _)| &line[..at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use proptest::prelude::*;

    #[test]
    fn lines_comments_and_mistakes() {
        let v = parse("# a comment\n\n NCCL_DEBUG = INFO # more\r\nA=b=c\nA=later\nB=x#y\nC=\n").unwrap();
        assert_eq!((v["NCCL_DEBUG"].as_str(), v["A"].as_str(), v["B"].as_str(), v["C"].as_str()), ("INFO", "b=c", "x#y", ""));
        assert_eq!(parse("A=1\nwhat\n"), Err(2));
        assert_eq!(parse("two words=1"), Err(1));
        assert_eq!(parse("\n=1"), Err(2));
    }

    /// The files that `load` finds when these exist.
    fn from(named: Option<&str>, there: &[(&str, &str)]) -> Files {
        let read = |path: &Path| match there.iter().find(|(p, _)| Path::new(p) == path) {
            Some((_, "?")) => Err(std::io::Error::from(ErrorKind::PermissionDenied)),
            Some((_, text)) => Ok((*text).to_owned()),
            None => Err(std::io::Error::from(ErrorKind::NotFound)),
        };
        Files::from(named.map(PathBuf::from), Some(PathBuf::from("/root")), &read)
    }

    #[test]
    fn a_file_asked_for_by_name_replaces_the_one_at_home() {
        let there = [("/root/.nccl.conf", "A=home"), ("/etc/nccl.conf", "A=etc"), ("/mine", "A=mine")];
        let found = |named| from(named, &there).values.iter().map(|v| v["A"].clone()).collect::<Vec<_>>();
        assert_eq!(found(None), ["home", "etc"]);
        assert_eq!(found(Some("/mine")), ["mine", "etc"]);
        let none = from(None, &[]);
        assert!(none.values.is_empty() && none.complaints.is_empty() && none.error.is_none());
    }

    #[test]
    fn mistakes_in_a_file_asked_for_by_name_are_an_error_others_a_complaint() {
        let error = from(Some("/gone"), &[]).error.unwrap();
        assert_eq!(error.code, Code::SystemError);
        assert!(error.message.starts_with("NCCL_CONF_FILE: cannot read /gone: "), "{error}");
        let error = from(Some("/mine"), &[("/mine", "A=1\nB")]).error.unwrap();
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.message.starts_with("NCCL_CONF_FILE: line 2 of /mine is not NAME=VALUE"), "{error}");
        let files = from(None, &[("/root/.nccl.conf", "oops"), ("/etc/nccl.conf", "?")]);
        assert!(files.error.is_none() && files.values.is_empty());
        assert_eq!(files.complaints.len(), 2, "{:?}", files.complaints);
    }

    proptest! {
        #[test]
        fn any_text_parses_or_names_one_of_its_lines(text in "[A-Z#= \\t\\r\\né]*") {
            match parse(&text) {
                Ok(values) => prop_assert!(values.keys().all(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase()))),
                Err(line) => prop_assert!(line >= 1 && line <= text.lines().count()),
            }
        }

        #[test]
        fn what_is_written_is_read(pairs in proptest::collection::hash_map("[A-Z_0-9]{1,9}", "[!-~]([ -~]{0,9}[!-~])?", 0..9)) {
            let pairs: HashMap<_, _> = pairs.into_iter().filter(|(_, value)| !value.starts_with('#') && !value.contains(" #")).collect();
            let text: String = pairs.iter().map(|(n, v)| format!(" {n} = {v} # why\n")).collect();
            prop_assert_eq!(parse(&text), Ok(pairs));
        }
    }
}
