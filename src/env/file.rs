//! `nccl.conf`: lines of NAME=VALUE, `#` starts a comment.

use crate::error::{Error, Result};
use std::collections::HashMap;
use std::path::PathBuf;

pub type Values = HashMap<String, String>;

/// The configuration files in order of precedence, and why the one that was asked for by name could not be read.
pub fn load() -> (Vec<Values>, Option<Error>) {
    let mut files = Vec::new();
    let mut error = None;
    match std::env::var_os("NCCL_CONF_FILE") {
        Some(path) => match read(&PathBuf::from(&path)) {
            Ok(values) => files.push(values),
            Err(e) => error = Some(e),
        },
        None => files.extend(std::env::var_os("HOME").and_then(|home| read(&PathBuf::from(home).join(".nccl.conf")).ok())),
    }
    files.extend(read(&PathBuf::from("/etc/nccl.conf")).ok());
    (files, error)
}

fn read(path: &PathBuf) -> Result<Values> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::system(format!("NCCL_CONF_FILE names {}, which cannot be read: {e}", path.display())))?;
    parse(&text).map_err(|line| Error::argument(format!("NCCL_CONF_FILE names {}, whose line {line} is not NAME=VALUE", path.display())))
}

/// The values, or the number of the first line that is none.
fn parse(text: &str) -> std::result::Result<Values, usize> {
    let mut values = Values::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or(number + 1)?;
        let name = name.trim();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(number + 1);
        }
        values.entry(name.to_owned()).or_insert_with(|| value.trim().to_owned());
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_comments_and_mistakes() {
        let v = parse("# a comment\n\n NCCL_DEBUG = INFO # more\nA=b=c\nA=later\n").unwrap();
        assert_eq!((v["NCCL_DEBUG"].as_str(), v["A"].as_str()), ("INFO", "b=c"));
        assert_eq!(parse("A=1\nwhat\n"), Err(2));
        assert_eq!(parse("two words=1"), Err(1));
    }

    proptest! {
        #[test]
        fn any_text_parses_or_fails(text: String) {
            let _ = parse(&text);
        }
    }
}
