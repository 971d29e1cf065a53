//! `NCCL_COMM_ID`: `host:port` with a name or an IPv4 address, or `[address]:port` with IPv6, with or without a `%scope`.

use super::interface::{self, Family};
use crate::error::{Error, Result};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host<'a> {
    Name(&'a str),
    Address(IpAddr),
    /// Link-local addresses are of an interface, given by its name or number.
    Scoped(Ipv6Addr, &'a str),
}

/// Takes the text apart; asks nobody.
pub fn parse(text: &str) -> Result<(Host<'_>, u16)> {
    let wrong = || {
        Error::argument(format!(
            "NCCL_COMM_ID is \"{text}\"; it must be host:port, 192.0.2.1:port or [2001:db8::1]:port, with a port from 1 to 65535"
        ))
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    if !port.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    let port = port.parse().ok().filter(|p| *p != 0).ok_or_else(wrong)?;
    let host = match host.strip_prefix('[') {
        Some(inner) => {
            let inner = inner.strip_suffix(']').ok_or_else(wrong)?;
            match inner.split_once('%') {
                Some((ip, scope)) if !scope.is_empty() => Host::Scoped(ip.parse().map_err(|_| wrong())?, scope),
                Some(_) => return Err(wrong()),
                None => Host::Address(IpAddr::V6(inner.parse().map_err(|_| wrong())?)),
            }
        }
        // A name has no colon, so this is IPv6 without its brackets: where its port begins is a guess.
        None if host.contains(':') || host.is_empty() || host.contains(char::is_whitespace) => return Err(wrong()),
        None => host.parse().map_or(Host::Name(host), |ip| Host::Address(IpAddr::V4(ip))),
    };
    Ok((host, port))
}

/// The address; names are asked of the system. `NCCL_SOCKET_FAMILY` chooses where a name has both kinds.
pub fn resolve(text: &str, family: Option<Family>) -> Result<SocketAddr> {
    match parse(text)? {
        (Host::Address(ip), port) => Ok(SocketAddr::new(ip, port)),
        (Host::Scoped(ip, scope), port) => {
            let scope = interface::index(scope)
                .ok_or_else(|| Error::argument(format!("NCCL_COMM_ID is \"{text}\", but this host has no interface {scope}")))?;
            Ok(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)))
        }
        (Host::Name(name), port) => {
            let found = (name, port)
                .to_socket_addrs()
                .map_err(|e| Error::argument(format!("NCCL_COMM_ID is \"{text}\", but this host does not know {name}: {e}")))?;
            let found: Vec<_> = found.collect();
            choose(&found, family).ok_or_else(|| {
                Error::argument(format!("NCCL_COMM_ID is \"{text}\", but {name} has no address of the family in NCCL_SOCKET_FAMILY"))
            })
        }
    }
}

fn choose(found: &[SocketAddr], family: Option<Family>) -> Option<SocketAddr> {
    found.iter().find(|a| family.is_none_or(|f| f.has(a.ip()))).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms() {
        let ip = |text: &str| Host::Address(text.parse().unwrap());
        for (text, want, port) in [
            ("node-1.example:29500", Host::Name("node-1.example"), 29500),
            ("localhost:1", Host::Name("localhost"), 1),
            ("10.1.2.3:65535", ip("10.1.2.3"), 65535),
            ("[2001:db8::7]:80", ip("2001:db8::7"), 80),
            ("[::1]:80", ip("::1"), 80),
            ("[fe80::1%eth0]:80", Host::Scoped("fe80::1".parse().unwrap(), "eth0"), 80),
            ("[fe80::1%3]:80", Host::Scoped("fe80::1".parse().unwrap(), "3"), 80),
        ] {
            assert_eq!(parse(text).unwrap(), (want, port), "{text}");
        }
    }

    #[test]
    fn anything_else_is_explained() {
        for text in [
            "",
            ":",
            "host",
            "host:",
            ":80",
            "host:0",
            "host:65536",
            "host:-1",
            "host:+1",
            "host: 80",
            "2001:db8::7:80",
            "[::1]",
            "[::1:80",
            "[::1%]:80",
            "[10.0.0.1]:80",
        ] {
            let message = parse(text).unwrap_err().message;
            assert!(message.contains(&format!("\"{text}\"")) && message.contains("must be"), "{message}");
        }
    }

    #[test]
    fn addresses_need_no_resolver() {
        assert_eq!(resolve("127.0.0.1:7", None).unwrap(), "127.0.0.1:7".parse().unwrap());
        // An address says its family itself.
        assert_eq!(resolve("[::1]:7", Some(Family::V4)).unwrap(), "[::1]:7".parse().unwrap());
        let SocketAddr::V6(scoped) = resolve("[fe80::1%lo]:7", None).unwrap() else { panic!("not IPv6") };
        assert_ne!(scoped.scope_id(), 0);
        assert!(resolve("[fe80::1%nosuch0]:7", None).unwrap_err().message.contains("no interface nosuch0"));
        assert!(resolve("no.such.host.invalid:7", None).unwrap_err().message.contains("does not know"));
    }

    #[test]
    fn the_family_chooses_among_the_addresses_of_a_name() {
        let both: Vec<SocketAddr> = ["[2001:db8::1]:7", "10.0.0.1:7"].map(|a| a.parse().unwrap()).into();
        assert_eq!(choose(&both, None), Some(both[0]));
        assert_eq!(choose(&both, Some(Family::V4)), Some(both[1]));
        assert_eq!(choose(&both[..1], Some(Family::V4)), None);
    }
}
