//! Byte counts on the command line, and the sequence of message sizes that a run goes through.

/// Reads a byte count such as `8`, `64K`, `256M` or `1G` (powers of 1024).
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| format!("'{text}' is not a byte count: write digits and at most one of K, M, G"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' does not fit 64 bits"))
}

/// How one size leads to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Times(u64),
    Plus(u64),
}

/// Sizes from `first` up to and including at most `last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    pub first: u64,
    pub last: u64,
    pub step: Step,
}

impl Sizes {
    pub fn iter(self) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(self.first), move |size| {
            let next = match self.step {
                // Zero would stay zero for ever.
                Step::Times(factor) => size.checked_mul(factor)?.max(1),
                Step::Plus(bytes) => size.checked_add(bytes)?,
            };
            (next > *size).then_some(next)
        })
        .take_while(move |size| *size <= self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes() {
        assert_eq!(parse_bytes("8"), Ok(8));
        assert_eq!(parse_bytes("64k"), Ok(65536));
        assert_eq!(parse_bytes("3M"), Ok(3 << 20));
        assert_eq!(parse_bytes("2G"), Ok(2 << 30));
        for wrong in ["", "K", "-1", "1.5M", "1KB", "99999999999999G", "8 M"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    fn list(first: u64, last: u64, step: Step) -> Vec<u64> {
        Sizes { first, last, step }.iter().collect()
    }

    #[test]
    fn factor_and_increment() {
        assert_eq!(list(8, 64, Step::Times(2)), [8, 16, 32, 64]);
        assert_eq!(list(8, 63, Step::Times(2)), [8, 16, 32]);
        assert_eq!(list(10, 40, Step::Plus(15)), [10, 25, 40]);
        assert_eq!(list(0, 4, Step::Times(2)), [0, 1, 2, 4]);
    }

    #[test]
    fn a_step_that_leads_nowhere_ends() {
        assert_eq!(list(8, 64, Step::Times(1)), [8]);
        assert_eq!(list(8, 64, Step::Plus(0)), [8]);
        assert_eq!(list(u64::MAX - 1, u64::MAX, Step::Times(2)), [u64::MAX - 1]);
    }
}
