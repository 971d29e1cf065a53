//! How much anybody may send. Whoever has not proved the key gets a fixed buffer and a fixed number of places ([`super::door`]); whoever has is
//! trusted not to be hostile, but may be wrong, so every length is checked before memory is spent on it.

/// Most ranks of a communicator. It bounds what a first claim can make the root believe; the root's memory follows the ranks that came.
pub const MAX_RANKS: usize = 1 << 16;
/// All pieces of one all-gather together, each with its length word: 16 KiB a rank with 1,024 ranks, 252 bytes with [`MAX_RANKS`].
pub const MAX_GATHER: usize = 16 << 20;
/// One notice. Longer ones are cut.
pub const MAX_NOTICE: usize = 4096;
/// The root's words when it gives up. Longer ones are cut.
pub const MAX_TEXT: usize = 4096;
/// Notices that a member has not fetched. The oldest tell the cause, so later ones are dropped.
pub const MAX_NOTICES: usize = 64;
/// Bytes that wait for a member before notices to it are dropped; answers to all-gathers are never dropped.
pub const MAX_WAITING: usize = 256 << 10;

/// The longest piece a rank may bring to an all-gather.
pub const fn piece(nranks: usize) -> usize {
    MAX_GATHER / if nranks == 0 { 1 } else { nranks } - 4
}
