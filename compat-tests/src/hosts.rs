//! The hosts that ranks are on: this one, or several that it plays, by names in `NCCL_HOSTID` and network namespaces.

use std::fs::File;
use std::os::fd::AsRawFd;

#[derive(Debug, Clone)]
pub struct Hosts {
    pub count: usize,
    /// All ranks but the last are on the first host.
    pub uneven: bool,
    /// Each host is the network namespace of this name and its number.
    pub netns: Option<String>,
}

impl Hosts {
    /// The host of a rank; the first ranks are on the first host.
    pub fn of(&self, rank: usize, ranks: usize) -> usize {
        if self.uneven { usize::from(rank + 1 == ranks && rank > 0) } else { rank / ranks.div_ceil(self.count) }
    }

    /// Puts this process, which has one thread, on a host.
    pub fn enter(&self, host: usize) -> Result<(), String> {
        let Some(name) = &self.netns else { return Ok(()) };
        let path = format!("/run/netns/{name}{host}");
        let file = File::open(&path).map_err(|error| format!("cannot open the network namespace {path}: {error}"))?;
        // SAFETY: a plain system call on a descriptor that is open.
        let entered = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
        if entered == 0 { Ok(()) } else { Err(format!("cannot enter the network namespace {path}: {}", std::io::Error::last_os_error())) }
    }

    /// Takes the host that this process is on off its network, as a pulled cable does.
    pub fn cut(&self) -> Result<(), String> {
        ip(&["link", "set", "eth0", "down"])
    }

    /// Undoes `cut`: the way to the other hosts has to be told again.
    pub fn mend(&self, host: usize) -> Result<(), String> {
        ip(&["link", "set", "eth0", "up"])?;
        ip(&["route", "add", "default", "via", &format!("10.77.{host}.1")])
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    match std::process::Command::new("ip").args(words).status() {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("ip {}: {other:?}", words.join(" "))),
    }
}

#[cfg(test)]
mod tests {
    use super::Hosts;

    #[test]
    fn ranks_fill_hosts_from_the_first_on() {
        let layout = |count, uneven, ranks| (0..ranks).map(|rank| Hosts { count, uneven, netns: None }.of(rank, ranks)).collect::<Vec<_>>();
        assert_eq!(layout(2, false, 8), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(layout(2, false, 5), [0, 0, 0, 1, 1]);
        assert_eq!(layout(8, false, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(layout(2, true, 4), [0, 0, 0, 1]);
        assert_eq!(layout(2, true, 1), [0]);
    }
}
