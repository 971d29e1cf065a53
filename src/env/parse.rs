//! From text to values: integers by C's base-0 rules, booleans as integers, words without regard to case.

use super::SettingInfo;
use crate::bootstrap::Family;
use crate::executor::policy::Mode;

/// A type of setting.
pub trait Parse: Sized {
    /// Which values there are, in words.
    const KIND: &'static str;
    /// `None`: the text is no such value.
    fn parse(text: &str) -> Option<Self>;
    /// The value for comparison with a smallest one, if it is a number.
    fn number(&self) -> Option<i64> {
        None
    }
}

/// How much `NCCL_DEBUG` asks for; the order is NCCL's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DebugLevel {
    None,
    Version,
    Warn,
    Info,
    Abort,
    Trace,
}

/// Decimal, 0x hexadecimal or 0 octal, with a sign.
fn integer(text: &str) -> Option<i64> {
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        (16, hex)
    } else if digits.len() > 1 && digits.starts_with('0') {
        (8, &digits[1..])
    } else {
        (10, digits)
    };
    // The standard parser would take a second sign.
    let magnitude = digits.starts_with(|c: char| c.is_ascii_hexdigit()).then(|| i64::from_str_radix(digits, radix).ok())??;
    Some(if negative { -magnitude } else { magnitude })
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Parse for $type {
            const KIND: &'static str = "integer";
            fn parse(text: &str) -> Option<Self> {
                integer(text)?.try_into().ok()
            }
            fn number(&self) -> Option<i64> {
                i64::try_from(*self).ok()
            }
        }
    )*};
}
integers!(u32, u64, i32);

impl Parse for bool {
    const KIND: &'static str = "0 or 1";
    fn parse(text: &str) -> Option<Self> {
        integer(text).map(|v| v != 0)
    }
}

impl Parse for String {
    const KIND: &'static str = "text";
    fn parse(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl Parse for Mode {
    const KIND: &'static str = "auto, always or never";
    fn parse(text: &str) -> Option<Self> {
        text.trim().to_ascii_lowercase().parse().ok()
    }
}

macro_rules! words {
    ($type:ty, $kind:literal: $($word:literal = $value:expr),*) => {
        impl Parse for $type {
            const KIND: &'static str = $kind;
            fn parse(text: &str) -> Option<Self> {
                let text = text.trim();
                $(if text.eq_ignore_ascii_case($word) { return Some($value); })*
                None
            }
        }
    };
}
words!(Family, "AF_INET or AF_INET6": "AF_INET" = Family::V4, "AF_INET6" = Family::V6);
words!(
    DebugLevel,
    "NONE, VERSION, WARN, INFO, ABORT or TRACE":
    "NONE" = DebugLevel::None,
    "VERSION" = DebugLevel::Version,
    "WARN" = DebugLevel::Warn,
    "INFO" = DebugLevel::Info,
    "ABORT" = DebugLevel::Abort,
    "TRACE" = DebugLevel::Trace
);

/// Empty text is "not set".
impl<T: Parse> Parse for Option<T> {
    const KIND: &'static str = T::KIND;
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() { Some(None) } else { T::parse(text).map(Some) }
    }
    fn number(&self) -> Option<i64> {
        self.as_ref().and_then(T::number)
    }
}

/// Reads one setting by its name or, where that is not set, by an older one.
pub fn read<T: Parse>(info: &SettingInfo, lookup: &dyn Fn(&str) -> Option<String>, complaints: &mut Vec<String>) -> T {
    for name in std::iter::once(info.name).chain(info.older) {
        // A variable that is set to nothing is NCCL's "not set".
        let Some(text) = lookup(name).filter(|text| !text.is_empty()) else { continue };
        let value = T::parse(&text);
        let fits = |v: &T| v.number().zip(info.at_least).is_none_or(|(number, least)| number >= least);
        if let Some(value) = value.filter(fits) {
            return value;
        }
        let instead =
            if info.default.is_empty() { "it counts as not set".to_owned() } else { format!("the default {} is used", info.default) };
        complaints.push(format!("{name} is \"{text}\", which is not one of its values ({}); {instead}", info.allowed()));
        break;
    }
    match T::parse(info.default) {
        Some(value) => value,
        None => unreachable!("the default of {} is no value: a mistake in the table, which its tests find", info.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_zero() {
        let cases = [
            ("12", Some(12)),
            (" 12 ", Some(12)),
            ("+12", Some(12)),
            ("0x1f", Some(31)),
            ("0X1F", Some(31)),
            ("-0x10", Some(-16)),
            ("017", Some(15)),
            ("0", Some(0)),
            ("-3", Some(-3)),
            ("", None),
            ("-", None),
            ("0x", None),
            ("08", None),
            ("x", None),
            ("1 2", None),
            ("1k", None),
            ("--1", None),
            ("0x-1", None),
            ("99999999999999999999", None),
        ];
        for (text, want) in cases {
            assert_eq!(integer(text), want, "{text:?}");
        }
        assert_eq!(u32::parse("-1"), None);
        assert_eq!(u32::parse("4294967296"), None);
        assert_eq!((bool::parse("2"), bool::parse("0"), bool::parse("on")), (Some(true), Some(false), None));
        assert_eq!(Option::<u32>::parse(""), Some(None));
    }
}
