//! From text to values: integers by C's base-0 rules, booleans as integers.

/// A type of setting.
pub trait Parse: Sized {
    const KIND: &'static str;
    /// `None`: the text is no such value.
    fn parse(text: &str) -> Option<Self>;
}

/// Decimal, 0x hexadecimal or 0 octal, with a sign.
fn integer(text: &str) -> Option<i64> {
    let text = text.trim();
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |d| (true, d));
    let magnitude = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        i64::from_str_radix(hex, 16)
    } else if digits.len() > 1 && digits.starts_with('0') {
        i64::from_str_radix(&digits[1..], 8)
    } else {
        digits.parse()
    };
    magnitude.ok().filter(|m| *m >= 0).map(|m| if negative { -m } else { m })
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Parse for $type {
            const KIND: &'static str = "integer";
            fn parse(text: &str) -> Option<Self> {
                integer(text)?.try_into().ok()
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

/// Empty text is "not set".
impl<T: Parse> Parse for Option<T> {
    const KIND: &'static str = T::KIND;
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() { Some(None) } else { T::parse(text).map(Some) }
    }
}

/// Reads one setting by its name or, failing that, an older one.
pub fn read<T: Parse>(
    name: &str,
    aliases: &[&str],
    default: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
    complaints: &mut Vec<String>,
) -> T {
    for name in std::iter::once(&name).chain(aliases) {
        if let Some(text) = lookup(name) {
            if let Some(value) = T::parse(&text) {
                return value;
            }
            complaints.push(format!("{name} is \"{text}\", which is no value for it ({}): the default is used", T::KIND));
        }
    }
    match T::parse(default) {
        Some(value) => value,
        None => unreachable!("the table's default for {name} is checked by the tests"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_zero() {
        let cases = [("12", Some(12)), ("0x1f", Some(31)), ("017", Some(15)), ("0", Some(0)), ("-3", Some(-3)), ("", None), ("x", None), ("1 2", None), ("--1", None)];
        for (text, want) in cases {
            assert_eq!(integer(text), want, "{text}");
        }
        assert_eq!(u32::parse("-1"), None);
        assert_eq!(Option::<u32>::parse(""), Some(None));
    }
}
