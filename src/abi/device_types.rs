//! The C types that the host half of the device API (`nccl_device.h`) passes, with the layout of NCCL 2.30.7.
#![allow(non_camel_case_types, non_snake_case)]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};

/// `ncclGinType_t`, the kind of GPU-initiated network; 0 is none.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawGinType(pub c_int);

/// A set of ranks; returned by value.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ncclTeam {
    pub nRanks: c_int,
    pub rank: c_int,
    pub stride: c_int,
}
pub type ncclTeam_t = ncclTeam;

/// Multicast memory of a team; passed by value.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ncclMultimemHandle {
    pub mcBasePtr: *mut c_void,
}
pub type ncclMultimemHandle_t = ncclMultimemHandle;

/// Answer of ncclCommQueryProperties. Start from NCCL_COMM_PROPERTIES_INITIALIZER.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ncclCommProperties {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub rank: c_int,
    pub nRanks: c_int,
    pub cudaDev: c_int,
    pub nvmlDev: c_int,
    pub deviceApiSupport: bool,
    pub multimemSupport: bool,
    pub ginType: RawGinType,
    pub nLsaTeams: c_int,
    pub hostRmaSupport: bool,
    pub railedGinType: RawGinType,
}
pub type ncclCommProperties_t = ncclCommProperties;

// Structs that only refused calls mention, never looked into.

pub enum ncclDevComm {}
pub type ncclDevComm_t = ncclDevComm;
pub enum ncclDevCommRequirements {}
pub type ncclDevCommRequirements_t = ncclDevCommRequirements;
pub enum ncclDevResourceRequirements {}
pub type ncclDevResourceRequirements_t = ncclDevResourceRequirements;
pub enum ncclLsaBarrierHandle {}
pub type ncclLsaBarrierHandle_t = ncclLsaBarrierHandle;
pub enum ncclGinBarrierHandle {}
pub type ncclGinBarrierHandle_t = ncclGinBarrierHandle;
pub enum ncclLLA2AHandle {}
pub type ncclLLA2AHandle_t = ncclLLA2AHandle;
pub enum ncclGinOutboxHandle {}
pub enum ncclGinInboxA2AHandle {}

const _: () = {
    assert!(size_of::<ncclTeam>() == 12 && size_of::<ncclMultimemHandle>() == 8);
    assert!(size_of::<ncclCommProperties>() == 56 && offset_of!(ncclCommProperties, deviceApiSupport) == 32);
    assert!(offset_of!(ncclCommProperties, ginType) == 36 && offset_of!(ncclCommProperties, railedGinType) == 48);
};
