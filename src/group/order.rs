//! The order of a group's operations on one communicator: collectives as issued, then sends and receives by rounds, so that in round k every
//! rank sends to rank + k and receives from rank - k. Pure.

use crate::error::{Error, Result};
use crate::executor::layout::OpDesc;
use crate::types::OpKind;
use std::collections::VecDeque;

pub fn is_point_to_point(desc: &OpDesc) -> bool {
    desc.kind == OpKind::Send as u8 || desc.kind == OpKind::Recv as u8
}

/// A transfer between a rank and itself that lacks its other half.
pub fn unpaired(rank: i32, sends: usize, receives: usize) -> Error {
    Error::usage(format!(
        "rank {rank} talks to itself, with {sends} send(s) and {receives} receive(s) in this group: each needs its counterpart in the same group"
    ))
}

/// Puts descriptors into launch order. A send to oneself and its receive become one copy; without its counterpart it would never end, which
/// is an error.
pub fn arrange(descs: &mut Vec<OpDesc>, rank: i32, nranks: i32) -> Result<()> {
    if !descs.iter().any(is_point_to_point) {
        return Ok(());
    }
    let (transfers, mut ordered): (Vec<_>, Vec<_>) = descs.drain(..).partition(is_point_to_point);
    let (own, mut others): (Vec<_>, Vec<_>) = transfers.into_iter().partition(|d| d.root == rank);
    let (sends, receives): (VecDeque<_>, VecDeque<_>) = {
        let (s, r): (Vec<_>, Vec<_>) = own.into_iter().partition(|d| d.kind == OpKind::Send as u8);
        (s.into(), r.into())
    };
    if sends.len() != receives.len() {
        return Err(unpaired(rank, sends.len(), receives.len()));
    }
    for (send, receive) in sends.into_iter().zip(receives) {
        let (sent, received) = (send.count * u64::from(send.elem_size), receive.count * u64::from(receive.elem_size));
        if sent != received {
            return Err(Error::argument(format!("rank {rank} sends {sent} bytes to itself but receives {received}")));
        }
        if send.send != receive.recv && sent > 0 {
            ordered.push(OpDesc { recv: receive.recv, ..send });
        }
    }
    let round = |d: &OpDesc| {
        let away = if d.kind == OpKind::Send as u8 { d.root - rank } else { rank - d.root };
        away.rem_euclid(nranks)
    };
    // Stable, so transfers with one peer keep their order.
    others.sort_by_key(round);
    ordered.append(&mut others);
    *descs = ordered;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(kind: OpKind, peer: i32, count: u64) -> OpDesc {
        OpDesc { kind: kind as u8, root: peer, count, elem_size: 4, send: 0x100, recv: 0x200, ..OpDesc::default() }
    }

    #[test]
    fn rounds_and_stability() {
        let mut d = vec![
            transfer(OpKind::Send, 0, 1),
            transfer(OpKind::Send, 2, 2),
            transfer(OpKind::AllReduce, 0, 3),
            transfer(OpKind::Recv, 0, 4),
            transfer(OpKind::Send, 2, 5),
        ];
        arrange(&mut d, 1, 3).unwrap();
        let shape: Vec<_> = d.iter().map(|d| (d.kind, d.root, d.count)).collect();
        let (a, s, r) = (OpKind::AllReduce as u8, OpKind::Send as u8, OpKind::Recv as u8);
        assert_eq!(shape, [(a, 0, 3), (s, 2, 2), (r, 0, 4), (s, 2, 5), (s, 0, 1)]);
    }

    #[test]
    fn self_transfers_pair_up_or_fail() {
        let mut d = vec![transfer(OpKind::Recv, 1, 8), OpDesc { recv: 0, ..transfer(OpKind::Send, 1, 8) }];
        arrange(&mut d, 1, 2).unwrap();
        assert_eq!(d.len(), 1);
        assert_eq!((d[0].send, d[0].recv), (0x100, 0x200));
        assert!(arrange(&mut vec![transfer(OpKind::Send, 1, 8)], 1, 2).unwrap_err().message.contains("itself"));
        assert!(arrange(&mut vec![transfer(OpKind::Send, 1, 8), transfer(OpKind::Recv, 1, 4)], 1, 2).is_err());
    }
}
