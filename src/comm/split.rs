//! `ncclCommSplit`: the parent's ranks tell each other colour and key; each colour becomes a communicator of its own.

use super::communicator::Communicator;
use super::{CommConfig, Status, init};
use crate::bootstrap::{self, SocketSettings, UniqueId};
use crate::error::{Error, Result};
use crate::group;
use std::sync::Arc;

pub fn split(parent: &Arc<Communicator>, color: i32, key: i32, config: Option<CommConfig>) -> Result<(Option<Arc<Communicator>>, Status)> {
    parent.parts()?;
    let config = config.unwrap_or_else(|| parent.config.clone());
    let child = Communicator::starting(parent.device, config);
    let of = parent.clone();
    if color < 0 {
        // Takes part, and gets nothing. The handle only carries the work.
        let status = group::run_bystander(&child, parent, move |comm| meet(&of, comm, color, key).map(|_| ()))?;
        return Ok((None, status));
    }
    let status = group::run_job(&child, Some(parent), move |comm| {
        let Some((id, rank, nranks)) = meet(&of, comm, color, key)? else {
            return Err(Error::internal("a split without a colour has no communicator"));
        };
        init::connect(comm, &id, rank, nranks)
    })?;
    Ok((Some(child), status))
}

/// Tells all ranks of the parent this rank's colour and key. Returns the child's id, this rank's number in it and its size.
fn meet(parent: &Communicator, child: &Communicator, color: i32, key: i32) -> Result<Option<(UniqueId, usize, usize)>> {
    let ready = parent.parts()?;
    let mine = [color.to_le_bytes(), key.to_le_bytes()].concat();
    let all = ready
        .bootstrap
        .all_gather(&mine, &child.stop)?
        .iter()
        .map(|b| match b.as_slice() {
            [c0, c1, c2, c3, k0, k1, k2, k3] => Ok((i32::from_le_bytes([*c0, *c1, *c2, *c3]), i32::from_le_bytes([*k0, *k1, *k2, *k3]))),
            other => Err(Error::remote(format!(
                "a rank of the parent sent {} bytes instead of its colour and key: it is in another call",
                other.len()
            ))),
        })
        .collect::<Result<Vec<_>>>()?;
    let members = members(&all, color);
    let leads = color >= 0 && members.first() == Some(&ready.rank);
    // The well-known address is the parent's.
    let settings = SocketSettings { comm_id: None, ..crate::env::socket_settings() };
    let id = if leads { Some(bootstrap::create_id(&settings)?) } else { None };
    let ids = ready.bootstrap.all_gather(id.as_ref().map_or(&[][..], |id| &id.0[..]), &child.stop)?;
    if color < 0 {
        return Ok(None);
    }
    let Some(rank) = members.iter().position(|m| *m == ready.rank) else {
        return Err(Error::internal("a rank is not among its own colour"));
    };
    let bytes: [u8; 128] = ids[members[0]]
        .as_slice()
        .try_into()
        .map_err(|_| Error::remote(format!("rank {} of the parent sent no id for colour {color}", members[0])))?;
    Ok(Some((UniqueId::from_bytes(bytes)?, rank, members.len())))
}

/// Parent ranks of one colour in the order of their new ranks: by key, then by old rank.
fn members(all: &[(i32, i32)], color: i32) -> Vec<usize> {
    let mut members: Vec<usize> = (0..all.len()).filter(|r| all[*r].0 == color).collect();
    members.sort_by_key(|r| (all[*r].1, *r));
    members
}

#[cfg(test)]
mod tests {
    use super::members;

    #[test]
    fn order_is_by_key_then_rank() {
        let all = [(0, 5), (1, 0), (0, 5), (0, -1), (-1, 0)];
        assert_eq!(members(&all, 0), [3, 0, 2]);
        assert_eq!(members(&all, 1), [1]);
        assert!(members(&all, 7).is_empty());
    }
}
