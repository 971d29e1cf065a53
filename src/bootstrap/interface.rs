//! Which address the root tells ranks of other hosts, by NCCL's rules for `NCCL_SOCKET_IFNAME` and `NCCL_SOCKET_FAMILY`.
//!
//! Said: the first interface of the system that matches, or an error. Not said: one that starts with `ib`, else any but loopback and docker,
//! else docker. Two things differ from NCCL: an exclusion excludes `lo` too, since its address is of no use elsewhere, and a host that has only
//! `lo` gives no address, since loopback is served anyway.

use crate::error::{Error, Result};
use std::ffi::{CStr, CString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn has(self, ip: IpAddr) -> bool {
        match self {
            Self::V4 => ip.is_ipv4(),
            Self::V6 => ip.is_ipv6(),
        }
    }
}

/// What the caller's environment says about sockets.
#[derive(Debug, Clone)]
pub struct SocketSettings {
    /// `NCCL_SOCKET_IFNAME`: prefixes separated by commas; `^` in front excludes them, `=` asks for exact names.
    pub ifname: Option<String>,
    pub family: Option<Family>,
    /// `NCCL_COMM_ID`: a well-known `host:port`.
    pub comm_id: Option<String>,
    /// `NCCL_SOCKET_RETRY_CNT` and `NCCL_SOCKET_RETRY_SLEEP_MSEC`: further attempts, and by how much the pause before each grows.
    pub retry_count: u32,
    pub retry_sleep: Duration,
}

impl Default for SocketSettings {
    fn default() -> Self {
        Self { ifname: None, family: None, comm_id: None, retry_count: 34, retry_sleep: Duration::from_millis(100) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub address: IpAddr,
}

/// The address at which ranks of other hosts reach this one: loopback when there is no other.
pub fn local_address(settings: &SocketSettings) -> Result<IpAddr> {
    Ok(choose(&list(), settings)?.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)))
}

/// The first suitable address; `None`: this host has only loopback, which serves ranks on this host. An error: the settings ask for what is
/// not there.
pub fn choose(all: &[Interface], settings: &SocketSettings) -> Result<Option<IpAddr>> {
    let mut candidates: Vec<_> = all.iter().filter(|i| settings.family.is_none_or(|f| f.has(i.address)) && usable(i.address)).collect();
    // IPv4 first where both are there; otherwise the system's order, which is NCCL's.
    candidates.sort_by_key(|i| i.address.is_ipv6());
    let first = |want: &dyn Fn(&str) -> bool| candidates.iter().find(|i| want(&i.name)).map(|i| i.address);
    let Some(text) = settings.ifname.as_deref().filter(|s| !s.is_empty()) else {
        // Virtual interfaces of container engines are the last resort.
        let is_virtual = |name: &str| ["docker", "veth", "virbr"].iter().any(|p| name.starts_with(p));
        return Ok(first(&|name| name.starts_with("ib"))
            .or_else(|| first(&|name| name != "lo" && !is_virtual(name)))
            .or_else(|| first(&|name| name != "lo")));
    };
    let wanted = Pattern::parse(text);
    match first(&|name| wanted.fits(name)) {
        Some(address) => Ok(Some(address)),
        // Everything but loopback was excluded: then ranks are on this host only.
        None if wanted.exclude => Ok(None),
        None => Err(Error::usage(format!(
            "NCCL_SOCKET_IFNAME is \"{text}\"{}, but no interface with such an address is up; there are: {}",
            match settings.family {
                Some(Family::V4) => " and NCCL_SOCKET_FAMILY is AF_INET",
                Some(Family::V6) => " and NCCL_SOCKET_FAMILY is AF_INET6",
                None => "",
            },
            all.iter().map(|i| format!("{} ({})", i.name, i.address)).collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// The value of `NCCL_SOCKET_IFNAME`.
struct Pattern<'a> {
    exclude: bool,
    exact: bool,
    names: Vec<&'a str>,
}

impl<'a> Pattern<'a> {
    fn parse(text: &'a str) -> Self {
        let (exclude, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        // An empty prefix would match everything; it comes from a comma too many.
        Self { exclude, exact, names: text.split(',').filter(|n| !n.is_empty()).collect() }
    }

    fn fits(&self, name: &str) -> bool {
        let listed = self.names.iter().any(|n| if self.exact { name == *n } else { name.starts_with(n) });
        if self.exclude { name != "lo" && !listed } else { listed }
    }
}

fn usable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_link_local(),
        // A link-local address means nothing without its interface, and ::1 nothing elsewhere.
        IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_unicast_link_local() && !ip.is_loopback(),
    }
}

/// The number of an interface, given by name or number.
pub fn index(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let name = CString::new(name).ok()?;
    // SAFETY: a NUL-terminated string that is only read.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => None,
        number => Some(number),
    }
}

/// The addresses of this host's interfaces that are up.
pub fn list() -> Vec<Interface> {
    let mut head = std::ptr::null_mut();
    // SAFETY: writes a list that we free below.
    if unsafe { libc::getifaddrs(&mut head) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut at = head;
    while !at.is_null() {
        // SAFETY: an entry of the list, alive until freeifaddrs.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        if entry.ifa_addr.is_null() || entry.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: the name is a NUL-terminated string of the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        // SAFETY: every address starts with its family.
        let address = match i32::from(unsafe { (*entry.ifa_addr).sa_family }) {
            libc::AF_INET => {
                // SAFETY: the family says that it is a sockaddr_in.
                let v4 = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in>() };
                IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)))
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that it is a sockaddr_in6.
                let v6 = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in6>() };
                IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr))
            }
            _ => continue,
        };
        found.push(Interface { name, address });
    }
    // SAFETY: the list came from getifaddrs and is not used any more.
    unsafe { libc::freeifaddrs(head) };
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces(list: &[(&str, &str)]) -> Vec<Interface> {
        list.iter().map(|(n, a)| Interface { name: (*n).into(), address: a.parse().unwrap() }).collect()
    }

    /// In the system's order: by number of the interface, IPv4 first.
    fn a_host() -> Vec<Interface> {
        interfaces(&[
            ("lo", "127.0.0.1"),
            ("docker0", "172.17.0.1"),
            ("eth0", "10.0.0.1"),
            ("eth1", "10.0.1.1"),
            ("ib0", "10.9.0.1"),
            ("lo", "::1"),
            ("eth0", "fd00::1"),
            ("eth0", "fe80::1"),
        ])
    }

    fn chosen(all: &[Interface], ifname: &str, family: Option<Family>) -> Result<Option<String>> {
        let s = SocketSettings { ifname: (!ifname.is_empty()).then(|| ifname.into()), family, ..SocketSettings::default() };
        choose(all, &s).map(|a| a.map(|a| a.to_string()))
    }

    #[test]
    fn what_is_asked_for() {
        for (text, family, want) in [
            ("ib", None, Some("10.9.0.1")),
            ("eth", None, Some("10.0.0.1")),
            // The list is a filter; the system's order decides.
            ("ib,eth", None, Some("10.0.0.1")),
            ("=eth1", None, Some("10.0.1.1")),
            ("=ib0,eth1", None, Some("10.0.1.1")),
            ("docker", None, Some("172.17.0.1")),
            ("lo", None, Some("127.0.0.1")),
            (",eth1,", None, Some("10.0.1.1")),
            ("eth", Some(Family::V6), Some("fd00::1")),
            ("^eth,docker", None, Some("10.9.0.1")),
            ("^=eth0,docker0", None, Some("10.0.1.1")),
            ("^=eth", None, Some("172.17.0.1")),
            ("^lo,docker", Some(Family::V6), Some("fd00::1")),
            ("^eth,docker,ib", None, None),
        ] {
            assert_eq!(chosen(&a_host(), text, family).unwrap().as_deref(), want, "{text:?} {family:?}");
        }
    }

    #[test]
    fn what_is_asked_for_and_not_there() {
        for (text, family) in [("nosuch", None), ("=eth", None), ("=", None), ("ib", Some(Family::V6)), ("lo", Some(Family::V6))] {
            let message = chosen(&a_host(), text, family).unwrap_err().message;
            assert!(message.contains(&format!("\"{text}\"")) && message.contains("eth1 (10.0.1.1)"), "{message}");
        }
        let message = chosen(&a_host(), "ib", Some(Family::V6)).unwrap_err().message;
        assert!(message.contains("NCCL_SOCKET_FAMILY is AF_INET6"), "{message}");
    }

    #[test]
    fn what_nobody_asks_for() {
        let all = a_host();
        let without = |names: &[&str]| all.iter().filter(|i| !names.contains(&i.name.as_str())).cloned().collect::<Vec<_>>();
        for (gone, family, want) in [
            (&[][..], None, Some("10.9.0.1")),
            (&[], Some(Family::V6), Some("fd00::1")),
            (&["ib0"], None, Some("10.0.0.1")),
            (&["ib0", "eth0", "eth1"], None, Some("172.17.0.1")),
            (&["ib0", "eth0", "eth1", "docker0"], None, None),
            (&["eth0"], Some(Family::V6), None),
        ] {
            assert_eq!(chosen(&without(gone), "", family).unwrap().as_deref(), want, "without {gone:?} {family:?}");
        }
    }

    #[test]
    fn this_host_has_loopback() {
        assert!(list().iter().any(|i| i.name == "lo" && i.address.is_loopback()));
        assert!(index("lo").is_some_and(|n| n != 0));
        assert_eq!((index("3"), index("nosuch0")), (Some(3), None));
    }
}
