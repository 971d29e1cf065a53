//! Both ends of a connection prove that they hold the id's key before either believes anything else: each sends a nonce, and answers the
//! other's with a keyed hash. Fixed sizes, so an unproved connection costs a hundred bytes.

/// Root, on accept: magic and a nonce.
pub const HELLO: usize = 8 + 16;
/// Member: nonce, rank, nranks, proof.
pub const CLAIM: usize = 16 + 4 + 4 + 32;
/// Root: proof.
pub const WELCOME: usize = 32;

pub const MAGIC: [u8; 8] = *b"mkboot\x00\x02";

pub fn nonce() -> std::io::Result<[u8; 16]> {
    random()
}

/// Random bytes from the kernel.
pub fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0u8; N];
    // SAFETY: writes at most N bytes into an array of N.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if got == N as isize { Ok(bytes) } else { Err(std::io::Error::last_os_error()) }
}

pub fn hello(nonce: &[u8; 16]) -> [u8; HELLO] {
    let mut out = [0; HELLO];
    out[..8].copy_from_slice(&MAGIC);
    out[8..].copy_from_slice(nonce);
    out
}

/// The root's nonce, if this is a root of ours.
pub fn read_hello(bytes: &[u8; HELLO]) -> Option<[u8; 16]> {
    let (magic, nonce) = bytes.split_first_chunk::<8>()?;
    (*magic == MAGIC).then(|| nonce.try_into().ok())?
}

fn proof(key: &[u8; 32], role: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut h = blake3::Hasher::new_keyed(key);
    h.update(role);
    for part in parts {
        h.update(part);
    }
    *h.finalize().as_bytes()
}

/// Compares without telling by its time where two proofs differ.
fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    blake3::Hash::from(*a) == blake3::Hash::from(*b)
}

pub fn claim(key: &[u8; 32], root_nonce: &[u8; 16], my_nonce: &[u8; 16], rank: u32, nranks: u32) -> [u8; CLAIM] {
    let mut out = [0; CLAIM];
    out[..16].copy_from_slice(my_nonce);
    out[16..20].copy_from_slice(&rank.to_le_bytes());
    out[20..24].copy_from_slice(&nranks.to_le_bytes());
    let p = proof(key, b"member", &[root_nonce, &out[..24]]);
    out[24..].copy_from_slice(&p);
    out
}

/// What a proven member claims: its nonce, rank and number of ranks.
pub fn read_claim(key: &[u8; 32], root_nonce: &[u8; 16], bytes: &[u8; CLAIM]) -> Option<([u8; 16], u32, u32)> {
    let (head, theirs) = bytes.split_first_chunk::<24>()?;
    let ours = proof(key, b"member", &[root_nonce, head]);
    if !same(&ours, theirs.try_into().ok()?) {
        return None;
    }
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    Some((*head.first_chunk::<16>()?, word(16), word(20)))
}

pub fn welcome(key: &[u8; 32], root_nonce: &[u8; 16], member_nonce: &[u8; 16]) -> [u8; WELCOME] {
    proof(key, b"root", &[member_nonce, root_nonce])
}

pub fn is_welcome(key: &[u8; 32], root_nonce: &[u8; 16], member_nonce: &[u8; 16], bytes: &[u8; WELCOME]) -> bool {
    same(&welcome(key, root_nonce, member_nonce), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_opens() {
        let (key, other, n1, n2) = ([1; 32], [2; 32], [3; 16], [4; 16]);
        let c = claim(&key, &n1, &n2, 5, 8);
        assert_eq!(read_claim(&key, &n1, &c), Some((n2, 5, 8)));
        assert_eq!(read_claim(&other, &n1, &c), None);
        assert_eq!(read_claim(&key, &n2, &c), None);
        let mut forged = c;
        forged[16] ^= 1;
        assert_eq!(read_claim(&key, &n1, &forged), None);
        let w = welcome(&key, &n1, &n2);
        assert!(is_welcome(&key, &n1, &n2, &w) && !is_welcome(&other, &n1, &n2, &w));
        assert_eq!(read_hello(&hello(&n1)), Some(n1));
        assert_eq!(read_hello(b"GET / HTTP/1.1\r\nHost: xx"), None);
    }
}
