//! The emulated GPU: a `libcuda.so.1` that runs the library's own kernels, compiled for the host, on threads.
//!
//! It answers to the driver functions that the library, `mkernel perf` and the conformance program call, and to their close neighbours, with
//! the semantics that they rely on: streams, events, captures and graphs in order, memory and IPC handles between processes, every block of a
//! kernel running at the same time. It is a test bed: its times mean nothing, and it loads no kernels but the library's own.
//!
//! `MKERNEL_EMULATED_GPUS` (1) and `MKERNEL_EMULATED_SMS` (8) say how many GPUs a process sees and how large they are.

mod capture;
mod event;
pub mod exports;
mod graph;
mod ipc;
mod launch;
mod memory;
mod result;
mod state;
mod stream;
