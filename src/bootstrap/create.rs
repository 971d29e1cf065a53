//! Making an id: opens the sockets at which ranks will meet, and writes down where they are.

use super::comm_id;
use super::handshake;
use super::host::{host_token, process_token};
use super::id::{Contents, UniqueId};
use super::interface::{self, Family, SocketSettings};
use super::retry::Retry;
use super::root;
use super::socket::{address_of, listen};
use crate::error::{Error, Result};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::atomic::AtomicBool;

/// Makes an id and starts the thread in this process at which ranks meet. With `NCCL_COMM_ID` the id only names that address, and rank 0 of the
/// communicator listens there when it joins.
pub fn create_id(settings: &SocketSettings) -> Result<UniqueId> {
    if let Some(name) = &settings.comm_id {
        return well_known_id(name, settings.family);
    }
    let key = handshake::random().map_err(|e| Error::system(format!("no random bytes for a unique id: {e}")))?;
    let chosen = interface::choose(&interface::list(), settings)?;
    let loopback = listen_on_loopback(settings.family)?;
    let loopback_address = address_of(&loopback)?;
    let mut listeners = vec![loopback];
    let mut routable = None;
    if let Some(ip) = chosen {
        // Not being able to listen there matters only to ranks of other hosts, which will say so.
        match listen(SocketAddr::new(ip, 0)) {
            Ok(listener) => {
                routable = Some(address_of(&listener)?);
                listeners.push(listener);
            }
            Err(e) => tracing::warn!(target: "BOOTSTRAP", "cannot listen on {ip}, so ranks of other hosts cannot join: {e}"),
        }
    }
    root::start(listeners, key)?;
    let contents =
        Contents { key, host: host_token(None), maker: process_token(), loopback: Some(loopback_address), routable, well_known: false };
    Ok(UniqueId::new(&contents))
}

/// IPv4 unless asked otherwise; the other one where the host lacks it.
fn listen_on_loopback(family: Option<Family>) -> Result<TcpListener> {
    let (v4, v6) = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST));
    let (first, second) = if family == Some(Family::V6) { (v6, v4) } else { (v4, v6) };
    listen(SocketAddr::new(first, 0)).or_else(|e| {
        listen(SocketAddr::new(second, 0))
            .map_err(|_| Error::system(format!("cannot listen on {first} for the ranks of a communicator: {e}")))
    })
}

fn well_known_id(name: &str, family: Option<Family>) -> Result<UniqueId> {
    let address = comm_id::resolve(name, family)?;
    // Every process makes the same id, so the key can only be the name: it keeps strangers out, not enemies.
    let key = *blake3::hash(name.as_bytes()).as_bytes();
    Ok(UniqueId::new(&Contents { key, host: 0, maker: 0, loopback: None, routable: Some(address), well_known: true }))
}

/// Rank 0 of a communicator with a well-known id. The port may still belong to the communicator before, whose ranks have not all come yet.
pub fn serve_well_known(contents: &Contents, settings: &SocketSettings, abort: &AtomicBool) -> Result<()> {
    let Some(address) = contents.routable else { return Err(Error::internal("a well-known id without an address")) };
    let mut retry = Retry::new(settings);
    loop {
        match listen(address) {
            Ok(listener) => return root::start(vec![listener], contents.key),
            Err(e) if e.kind() == ErrorKind::AddrInUse && retry.pause(abort)? => {}
            Err(e) => {
                return Err(Error::system(format!(
                    "rank 0 cannot listen on {address}, which NCCL_COMM_ID names: {e}. It must be a free port on an address of rank 0's host."
                )));
            }
        }
    }
}
