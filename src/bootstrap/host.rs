//! Who we are, as numbers that mean nothing else: the host, and the process.

use super::handshake;
use std::sync::OnceLock;

/// A number that processes of this host (more exactly: of this boot) share, unless `NCCL_HOSTID`, passed in, makes them differ. Where the boot's
/// number cannot be read, in odd containers, every process is taken for the same host; whether memory can be mapped confirms or refutes it.
pub fn host_token(host_id: Option<&str>) -> u64 {
    let own = host_id.map_or_else(|| std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(), str::to_owned);
    let mut first = [0u8; 8];
    first.copy_from_slice(&blake3::hash(own.as_bytes()).as_bytes()[..8]);
    u64::from_le_bytes(first)
}

/// A number that no other process has. A forked child, which has the parent's random number, differs by its own.
pub fn process_token() -> u64 {
    static RANDOM: OnceLock<u64> = OnceLock::new();
    let random = RANDOM.get_or_init(|| handshake::random().map_or(0, u64::from_le_bytes));
    random ^ u64::from(std::process::id())
}
