//! Which address the root tells ranks of other hosts, by NCCL's rules for `NCCL_SOCKET_IFNAME` and `NCCL_SOCKET_FAMILY`.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// What the caller's environment says about sockets.
#[derive(Debug, Clone)]
pub struct SocketSettings {
    /// `NCCL_SOCKET_IFNAME`: prefixes separated by commas; `^` in front excludes them, `=` asks for exact names.
    pub ifname: Option<String>,
    pub family: Option<Family>,
    /// `NCCL_COMM_ID`: a well-known `host:port`.
    pub comm_id: Option<String>,
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
pub fn local_address(settings: &SocketSettings) -> IpAddr {
    choose(&list(), settings).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// The first suitable address; `None`: this host has only loopback, which serves ranks on this host.
pub fn choose(all: &[Interface], settings: &SocketSettings) -> Option<IpAddr> {
    let fits_family = |i: &&Interface| match settings.family {
        Some(Family::V4) => i.address.is_ipv4(),
        Some(Family::V6) => i.address.is_ipv6(),
        None => true,
    };
    let mut candidates: Vec<_> = all.iter().filter(fits_family).filter(|i| usable(i.address)).collect();
    // IPv4 first, as NCCL does when both are there.
    candidates.sort_by_key(|i| i.address.is_ipv6());
    let pick = |want: &dyn Fn(&str) -> bool| candidates.iter().find(|i| want(&i.name)).map(|i| i.address);
    let Some(spec) = settings.ifname.as_deref().filter(|s| !s.is_empty()) else {
        // Virtual interfaces of container engines are the last resort.
        return pick(&|name| name != "lo" && !name.starts_with("docker") && !name.starts_with("veth"))
            .or_else(|| pick(&|name| name != "lo"));
    };
    let (exclude, spec) = spec.strip_prefix('^').map_or((false, spec), |s| (true, s));
    let (exact, spec) = spec.strip_prefix('=').map_or((false, spec), |s| (true, s));
    let listed = |name: &str| spec.split(',').any(|s| if exact { name == s } else { name.starts_with(s) });
    if exclude {
        pick(&|name| name != "lo" && !listed(name))
    } else {
        spec.split(',').find_map(|s| pick(&|name| if exact { name == s } else { name.starts_with(s) }))
    }
}

fn usable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_link_local(),
        // A link-local address means nothing without its interface.
        IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_unicast_link_local(),
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

    #[test]
    fn the_rules_of_ifname() {
        let all: Vec<_> = [
            ("lo", "127.0.0.1"),
            ("docker0", "172.17.0.1"),
            ("eth0", "fd00::1"),
            ("eth0", "10.0.0.1"),
            ("eth1", "10.0.1.1"),
            ("ib0", "10.9.0.1"),
        ]
        .map(|(n, a)| Interface { name: n.into(), address: a.parse().unwrap() })
        .into();
        let with = |ifname: &str, family| {
            let s = SocketSettings { ifname: (!ifname.is_empty()).then(|| ifname.into()), family, ..SocketSettings::default() };
            choose(&all, &s).map(|a| a.to_string())
        };
        for (spec, family, want) in [
            ("", None, Some("10.0.0.1")),
            ("", Some(Family::V6), Some("fd00::1")),
            ("ib", None, Some("10.9.0.1")),
            ("ib,eth", None, Some("10.9.0.1")),
            ("=eth", None, None),
            ("=eth1", None, Some("10.0.1.1")),
            ("^eth,docker", None, Some("10.9.0.1")),
            ("lo", None, Some("127.0.0.1")),
            ("nosuch", None, None),
        ] {
            assert_eq!(with(spec, family).as_deref(), want, "{spec:?}");
        }
        assert_eq!(choose(&all[..2], &SocketSettings::default()).map(|a| a.to_string()).as_deref(), Some("172.17.0.1"));
        assert_eq!(choose(&all[..1], &SocketSettings::default()), None);
    }
}
