//! Reads an `ncclConfig_t` of any release.
//!
//! The struct only ever grows, and the caller states its own size and release. Neither is enough alone: 2.18 and 2.26 both have 48 bytes
//! and 2.30.3 and 2.30.7 both have 96, because later members moved into padding. So the copy is clamped by size, and then members
//! that are newer than the caller's release are put back to "not set".

use super::types::{API_MAGIC, NCCL_CTA_POLICY_EFFICIENCY, NCCL_CTA_POLICY_ZERO, UNDEF_INT, ncclConfig_t, version_code};
use crate::comm::CommConfig;
use crate::error::{Error, Result};
use std::ffi::{CStr, c_char, c_int};
use std::mem::{offset_of, size_of};
use std::ops::RangeInclusive;

/// The most CTAs, and channels per peer, that NCCL takes.
const MAX_CHANNELS: c_int = 64;
/// Size of the first release's struct (2.14): size, magic, version, one member.
const SMALLEST: usize = offset_of!(ncclConfig_t, blocking);

const UNSET: ncclConfig_t = ncclConfig_t {
    size: size_of::<ncclConfig_t>(),
    magic: API_MAGIC,
    version: version_code(2, 30, 7) as u32,
    blocking: UNDEF_INT,
    cgaClusterSize: UNDEF_INT,
    minCTAs: UNDEF_INT,
    maxCTAs: UNDEF_INT,
    netName: std::ptr::null(),
    splitShare: UNDEF_INT,
    trafficClass: UNDEF_INT,
    commName: std::ptr::null(),
    collnetEnable: UNDEF_INT,
    CTAPolicy: UNDEF_INT,
    shrinkShare: UNDEF_INT,
    nvlsCTAs: UNDEF_INT,
    nChannelsPerNetPeer: UNDEF_INT,
    nvlinkCentricSched: UNDEF_INT,
    graphUsageMode: UNDEF_INT,
    numRmaCtx: UNDEF_INT,
    maxP2pPeers: UNDEF_INT,
    graphStreamOrdering: UNDEF_INT,
};

/// What the caller set, in our terms. NULL means that nothing is.
///
/// # Safety
/// `config` is NULL or points to a config struct of some release: its first word is its size in bytes, all of them readable, and its string
/// members are NULL or C strings.
pub unsafe fn read(call: &str, config: *const ncclConfig_t) -> Result<CommConfig> {
    if config.is_null() {
        return Ok(CommConfig::default());
    }
    // SAFETY: the caller vouches for the first word and for as many bytes as it says.
    let clamped = unsafe { clamp(call, config) }?;
    check(call, &clamped)?;
    // SAFETY: the caller vouches for the strings.
    let (net_name, comm_name) = unsafe { (text(clamped.netName), text(clamped.commName)) };
    let flag = |value: c_int| (value != UNDEF_INT).then_some(value != 0);
    let number = |value: c_int| u32::try_from(value).ok();
    Ok(CommConfig {
        blocking: flag(clamped.blocking),
        min_ctas: number(clamped.minCTAs),
        max_ctas: number(clamped.maxCTAs),
        split_share: flag(clamped.splitShare),
        shrink_share: flag(clamped.shrinkShare),
        comm_name,
        net_name,
        traffic_class: (clamped.trafficClass != UNDEF_INT).then_some(clamped.trafficClass),
    })
}

/// Copies as much as caller and library both know, and unsets what the caller's release did not have.
///
/// # Safety
/// `config` points to at least one readable word, which holds the number of bytes readable there.
unsafe fn clamp(call: &str, config: *const ncclConfig_t) -> Result<ncclConfig_t> {
    // SAFETY: the first word is readable; it may be unaligned in a caller that packs its structs by hand (ctypes).
    let size = unsafe { config.cast::<usize>().read_unaligned() };
    if size < SMALLEST {
        return Err(Error::argument(format!(
            "{call}: config->size is {size}, less than the {SMALLEST} bytes of its header; initialise the struct with NCCL_CONFIG_INITIALIZER"
        )));
    }
    let mut raw = UNSET;
    // SAFETY: `size` bytes are readable at `config`, `raw` has room for the smaller of both sizes, and any bytes are valid for its integer
    // and raw-pointer members.
    unsafe { std::ptr::copy_nonoverlapping(config.cast::<u8>(), (&raw mut raw).cast(), size.min(size_of::<ncclConfig_t>())) };
    if raw.magic != API_MAGIC {
        return Err(Error::argument(format!(
            "{call}: config->magic is {:#x}, not {API_MAGIC:#x}; initialise the struct with NCCL_CONFIG_INITIALIZER",
            raw.magic
        )));
    }
    let since = |minor, patch| raw.version >= version_code(2, minor, patch) as u32;
    Ok(ncclConfig_t {
        size: raw.size,
        magic: raw.magic,
        version: raw.version,
        blocking: if since(14, 0) { raw.blocking } else { UNDEF_INT },
        cgaClusterSize: if since(17, 0) { raw.cgaClusterSize } else { UNDEF_INT },
        minCTAs: if since(17, 0) { raw.minCTAs } else { UNDEF_INT },
        maxCTAs: if since(17, 0) { raw.maxCTAs } else { UNDEF_INT },
        netName: if since(17, 0) { raw.netName } else { std::ptr::null() },
        splitShare: if since(18, 0) { raw.splitShare } else { UNDEF_INT },
        trafficClass: if since(25, 0) { raw.trafficClass } else { UNDEF_INT },
        commName: if since(27, 0) { raw.commName } else { std::ptr::null() },
        collnetEnable: if since(27, 0) { raw.collnetEnable } else { UNDEF_INT },
        CTAPolicy: if since(27, 0) { raw.CTAPolicy } else { UNDEF_INT },
        shrinkShare: if since(27, 0) { raw.shrinkShare } else { UNDEF_INT },
        nvlsCTAs: if since(27, 0) { raw.nvlsCTAs } else { UNDEF_INT },
        nChannelsPerNetPeer: if since(28, 0) { raw.nChannelsPerNetPeer } else { UNDEF_INT },
        nvlinkCentricSched: if since(28, 0) { raw.nvlinkCentricSched } else { UNDEF_INT },
        graphUsageMode: if since(29, 0) { raw.graphUsageMode } else { UNDEF_INT },
        numRmaCtx: if since(29, 0) { raw.numRmaCtx } else { UNDEF_INT },
        maxP2pPeers: if since(30, 0) { raw.maxP2pPeers } else { UNDEF_INT },
        graphStreamOrdering: if since(30, 5) { raw.graphStreamOrdering } else { UNDEF_INT },
    })
}

/// Refuses what NCCL refuses, also in members that mean nothing here, so that a mistake is found with either library.
fn check(call: &str, config: &ncclConfig_t) -> Result<()> {
    let any_policy = NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO;
    let members: [(&str, c_int, RangeInclusive<c_int>); 14] = [
        ("blocking", config.blocking, 0..=1),
        ("cgaClusterSize", config.cgaClusterSize, 0..=c_int::MAX),
        ("minCTAs", config.minCTAs, 1..=c_int::MAX),
        ("maxCTAs", config.maxCTAs, 1..=c_int::MAX),
        ("splitShare", config.splitShare, 0..=1),
        ("collnetEnable", config.collnetEnable, 0..=1),
        ("CTAPolicy", config.CTAPolicy, 0..=any_policy),
        ("shrinkShare", config.shrinkShare, 0..=1),
        ("nvlsCTAs", config.nvlsCTAs, 1..=c_int::MAX),
        ("nChannelsPerNetPeer", config.nChannelsPerNetPeer, 1..=MAX_CHANNELS),
        ("nvlinkCentricSched", config.nvlinkCentricSched, 0..=1),
        ("graphUsageMode", config.graphUsageMode, 0..=2),
        ("numRmaCtx", config.numRmaCtx, 0..=c_int::MAX),
        ("graphStreamOrdering", config.graphStreamOrdering, 0..=1),
    ];
    for (name, value, allowed) in members.into_iter().chain([("maxP2pPeers", config.maxP2pPeers, 1..=c_int::MAX)]) {
        if value != UNDEF_INT && !allowed.contains(&value) {
            let (low, high) = allowed.into_inner();
            let allowed = if high == c_int::MAX { format!("{low} or more") } else { format!("{low} to {high}") };
            return Err(Error::argument(format!("{call}: config->{name} is {value}; allowed: {allowed}, or NCCL_CONFIG_UNDEF_INT")));
        }
    }
    if config.minCTAs != UNDEF_INT && config.maxCTAs != UNDEF_INT && config.minCTAs > config.maxCTAs {
        let (min, max) = (config.minCTAs, config.maxCTAs);
        return Err(Error::argument(format!("{call}: config->minCTAs ({min}) is greater than config->maxCTAs ({max})")));
    }
    Ok(())
}

/// # Safety
/// `pointer` is NULL or a C string.
unsafe fn text(pointer: *const c_char) -> Option<String> {
    // SAFETY: not NULL, and the caller vouches for the terminator.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every member holds garbage that a check refuses, except where the test says otherwise.
    const GARBAGE: ncclConfig_t = ncclConfig_t {
        blocking: -7,
        cgaClusterSize: -7,
        minCTAs: -7,
        maxCTAs: -7,
        splitShare: -7,
        trafficClass: 9,
        collnetEnable: -7,
        CTAPolicy: -7,
        shrinkShare: -7,
        nvlsCTAs: -7,
        nChannelsPerNetPeer: -7,
        nvlinkCentricSched: -7,
        graphUsageMode: -7,
        numRmaCtx: -7,
        maxP2pPeers: -7,
        graphStreamOrdering: -7,
        ..UNSET
    };

    fn clamped(config: &ncclConfig_t) -> ncclConfig_t {
        // SAFETY: a whole struct, and no test states a greater size without backing it.
        unsafe { clamp("test", config) }.unwrap()
    }

    fn reads(config: &ncclConfig_t) -> Result<CommConfig> {
        // SAFETY: as above, and the strings of all tests are NULL or literals.
        unsafe { read("ncclCommInitRankConfig", config) }
    }

    /// A config that sets nothing, with one change.
    fn with(change: impl FnOnce(&mut ncclConfig_t)) -> ncclConfig_t {
        let mut config = UNSET;
        change(&mut config);
        config
    }

    #[test]
    fn every_release_sees_its_own_members_and_no_more() {
        // (size, version, last member that must come through, first that must not)
        type Member = fn(&ncclConfig_t) -> c_int;
        let releases: [(usize, c_int, Member, Option<Member>); 9] = [
            (24, version_code(2, 14, 3), |c| c.blocking, Some(|c| c.cgaClusterSize)),
            (40, version_code(2, 17, 1), |c| c.maxCTAs, Some(|c| c.splitShare)),
            (48, version_code(2, 18, 1), |c| c.splitShare, Some(|c| c.trafficClass)),
            (48, version_code(2, 26, 2), |c| c.trafficClass, Some(|c| c.collnetEnable)),
            (72, version_code(2, 27, 7), |c| c.nvlsCTAs, Some(|c| c.nChannelsPerNetPeer)),
            (80, version_code(2, 28, 9), |c| c.nvlinkCentricSched, Some(|c| c.graphUsageMode)),
            (88, version_code(2, 29, 2), |c| c.numRmaCtx, Some(|c| c.maxP2pPeers)),
            (96, version_code(2, 30, 3), |c| c.maxP2pPeers, Some(|c| c.graphStreamOrdering)),
            (96, version_code(2, 30, 7), |c| c.graphStreamOrdering, None),
        ];
        for (size, version, last, beyond) in releases {
            let config = clamped(&ncclConfig_t { size, version: version as u32, ..GARBAGE });
            assert_eq!(last(&config), last(&GARBAGE), "last member of {version}");
            if let Some(beyond) = beyond {
                assert_eq!(beyond(&config), UNDEF_INT, "first member after {version}");
            }
        }
    }

    #[test]
    fn size_wins_over_a_version_that_promises_more() {
        let config = clamped(&ncclConfig_t { size: 24, ..GARBAGE });
        // 24 bytes end after the padding of 2.14, where later releases put cgaClusterSize.
        assert_eq!((config.cgaClusterSize, config.minCTAs, config.graphStreamOrdering), (-7, UNDEF_INT, UNDEF_INT));
    }

    #[test]
    fn a_newer_caller_is_read_as_far_as_we_know() {
        #[repr(C)]
        struct Newer {
            known: ncclConfig_t,
            added: [c_int; 5],
        }
        let newer = Newer { known: with(|c| (c.size, c.version, c.maxCTAs) = (size_of::<Newer>(), 23203, 12)), added: [1; 5] };
        // SAFETY: `newer` is as large as it says, and starts with the known members.
        let config = unsafe { read("test", (&raw const newer).cast()) }.unwrap();
        assert_eq!((config.max_ctas, newer.added), (Some(12), [1; 5]));
    }

    #[test]
    fn nothing_set_and_null_are_the_same() {
        assert_eq!(reads(&UNSET), Ok(CommConfig::default()));
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { read("test", std::ptr::null()) }, Ok(CommConfig::default()));
    }

    #[test]
    fn set_members_come_through() {
        let config = with(|c| {
            (c.blocking, c.minCTAs, c.maxCTAs, c.splitShare, c.shrinkShare, c.trafficClass) = (0, 2, 8, 1, 0, 106);
            (c.netName, c.commName) = (c"Socket".as_ptr(), c"tp group 3".as_ptr());
        });
        let expected = CommConfig {
            blocking: Some(false),
            min_ctas: Some(2),
            max_ctas: Some(8),
            split_share: Some(true),
            shrink_share: Some(false),
            comm_name: Some("tp group 3".into()),
            net_name: Some("Socket".into()),
            traffic_class: Some(106),
        };
        assert_eq!(reads(&config), Ok(expected));
    }

    #[test]
    fn each_bad_member_is_named() {
        type Change = fn(&mut ncclConfig_t);
        let bad: [(&str, Change); 20] = [
            ("config->size is 8", |c| c.size = 8),
            ("config->magic is 0x0", |c| c.magic = 0),
            ("config->blocking is 2; allowed: 0 to 1", |c| c.blocking = 2),
            ("config->cgaClusterSize is -1", |c| c.cgaClusterSize = -1),
            ("config->minCTAs is 0; allowed: 1 or more", |c| c.minCTAs = 0),
            ("config->maxCTAs is -3", |c| c.maxCTAs = -3),
            ("config->minCTAs (9) is greater than config->maxCTAs (8)", |c| (c.minCTAs, c.maxCTAs) = (9, 8)),
            ("config->splitShare is 5", |c| c.splitShare = 5),
            ("config->collnetEnable is -1", |c| c.collnetEnable = -1),
            ("config->CTAPolicy is 4; allowed: 0 to 3", |c| c.CTAPolicy = 4),
            ("config->shrinkShare is 2", |c| c.shrinkShare = 2),
            ("config->nvlsCTAs is 0", |c| c.nvlsCTAs = 0),
            ("config->nChannelsPerNetPeer is 65; allowed: 1 to 64", |c| c.nChannelsPerNetPeer = 65),
            ("config->nChannelsPerNetPeer is 0", |c| c.nChannelsPerNetPeer = 0),
            ("config->nvlinkCentricSched is 2", |c| c.nvlinkCentricSched = 2),
            ("config->graphUsageMode is 3; allowed: 0 to 2", |c| c.graphUsageMode = 3),
            ("config->numRmaCtx is -1", |c| c.numRmaCtx = -1),
            ("config->maxP2pPeers is 0", |c| c.maxP2pPeers = 0),
            ("config->graphStreamOrdering is 2", |c| c.graphStreamOrdering = 2),
            ("config->size is 15, less than the 16 bytes", |c| c.size = 15),
        ];
        for (text, change) in bad {
            let error = reads(&with(change)).unwrap_err();
            assert_eq!(error.code, crate::error::Code::InvalidArgument, "{text}");
            assert!(error.message.starts_with("ncclCommInitRankConfig: ") && error.message.contains(text), "{error} lacks {text}");
        }
    }
}
