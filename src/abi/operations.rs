//! The calls that move data: form checks in NCCL's order, then one [`Operation`] for the core.

use super::guard::required;
use super::handle;
use super::types::{RawDataType, RawRedOp, RawResidence, RawStream, ncclComm_t};
use crate::comm::{Operation, Status};
use crate::error::{Error, Result};
use crate::types::{DataType, OpKind};
use std::ffi::{c_int, c_void};

/// Built-in operators are 0 to 4; from here on they are made by `ncclRedOpCreatePreMulSum`.
const BUILT_IN_OPERATORS: c_int = 5;

/// A call's arguments as they came, with what the kind of operation leaves out at its neutral value.
#[derive(Clone, Copy)]
struct Request {
    call: &'static str,
    kind: OpKind,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: RawDataType,
    redop: RawRedOp,
    root: c_int,
    stream: RawStream,
}

/// Checks the form of `request` on `rank` of `nranks`, and states it in the core's terms.
fn describe(request: &Request, nranks: c_int, rank: c_int) -> Result<Operation> {
    let Request { call, kind, count, root, stream, .. } = *request;
    let refuse = |text: String| Err(Error::argument(format!("{call}: {text} (rank {rank} of {nranks})")));
    let (root_name, rooted) = match kind {
        OpKind::Send | OpKind::Recv => ("peer", true),
        OpKind::Broadcast | OpKind::Reduce | OpKind::Gather | OpKind::Scatter => ("root", true),
        OpKind::AllReduce | OpKind::AllGather | OpKind::ReduceScatter | OpKind::AllToAll => ("root", false),
    };
    if rooted && !(0..nranks).contains(&root) {
        return refuse(format!("{root_name} is {root}; allowed: 0 to {}", nranks - 1));
    }
    let Some(dtype) = DataType::from_raw(request.dtype.0) else {
        return refuse(format!("datatype is {}; allowed: 0 (ncclInt8) to 11 (ncclFloat8e5m2)", request.dtype.0));
    };
    let redop = request.redop.0;
    if redop < 0 {
        return refuse(format!("op is {redop}; allowed: 0 (ncclSum) to 4 (ncclAvg), or one made by ncclRedOpCreatePreMulSum"));
    }
    // The larger of the two buffers holds one block of `count` elements for each rank, or one block.
    let blocks = match kind {
        OpKind::AllGather | OpKind::ReduceScatter | OpKind::AllToAll | OpKind::Gather | OpKind::Scatter => nranks as usize,
        OpKind::AllReduce | OpKind::Broadcast | OpKind::Reduce | OpKind::Send | OpKind::Recv => 1,
    };
    let bytes = count.checked_mul(dtype.size()).and_then(|bytes| bytes.checked_mul(blocks));
    if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
        return refuse(format!("count is {count} elements of {}, more than an address space holds; is it negative?", dtype.name()));
    }
    let at_root = root == rank;
    let (reads, writes) = match kind {
        OpKind::Broadcast | OpKind::Scatter => (at_root, true),
        OpKind::Reduce | OpKind::Gather => (true, at_root),
        OpKind::Send => (true, false),
        OpKind::Recv => (false, true),
        OpKind::AllReduce | OpKind::AllGather | OpKind::ReduceScatter | OpKind::AllToAll => (true, true),
    };
    let (send, recv) = (request.send.addr() as u64, request.recv.addr() as u64);
    for (name, needed, address) in [("sendbuff", reads, send), ("recvbuff", writes, recv)] {
        if needed && address == 0 && count > 0 {
            return refuse(format!("{name} is NULL but count is {count}"));
        }
    }
    Ok(Operation {
        kind,
        send: if reads { send } else { 0 },
        recv: if writes { recv } else { 0 },
        count,
        dtype,
        redop,
        root,
        stream: stream.0.addr(),
    })
}

fn submit(comm: ncclComm_t, request: &Request) -> Result<Status> {
    let communicator = handle::get(request.call, comm)?;
    let (nranks, rank) = (communicator.count()?, communicator.rank()?);
    let op = describe(request, nranks, rank)?;
    tracing::info!(
        target: "COLL",
        "{}: sendbuff {:#x} recvbuff {:#x} count {} datatype {} op {} root {} comm {comm:p} [nranks={nranks}] stream {:#x}",
        op.kind.name(), op.send, op.recv, op.count, op.dtype as u8, op.redop, op.root, op.stream,
    );
    communicator.enqueue(op)
}

/// A request with neutral values, to be completed by each call.
fn request(call: &'static str, kind: OpKind, count: usize, dtype: RawDataType, stream: RawStream) -> Request {
    Request { call, kind, send: std::ptr::null(), recv: std::ptr::null_mut(), count, dtype, redop: RawRedOp(0), root: 0, stream }
}

pub fn all_reduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: RawDataType,
    redop: RawRedOp,
    comm: ncclComm_t,
    stream: RawStream,
) -> Result<Status> {
    submit(comm, &Request { send, recv, redop, ..request("ncclAllReduce", OpKind::AllReduce, count, dtype, stream) })
}

#[expect(clippy::too_many_arguments, reason = "the C signature")]
pub fn reduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: RawDataType,
    redop: RawRedOp,
    root: c_int,
    comm: ncclComm_t,
    stream: RawStream,
) -> Result<Status> {
    submit(comm, &Request { send, recv, redop, root, ..request("ncclReduce", OpKind::Reduce, count, dtype, stream) })
}

/// The old form of [`broadcast`]: in place on every rank.
pub fn bcast(buffer: *mut c_void, count: usize, dtype: RawDataType, root: c_int, comm: ncclComm_t, stream: RawStream) -> Result<Status> {
    submit(comm, &Request { send: buffer, recv: buffer, root, ..request("ncclBcast", OpKind::Broadcast, count, dtype, stream) })
}

pub fn broadcast(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: RawDataType,
    root: c_int,
    comm: ncclComm_t,
    stream: RawStream,
) -> Result<Status> {
    submit(comm, &Request { send, recv, root, ..request("ncclBroadcast", OpKind::Broadcast, count, dtype, stream) })
}

pub fn all_gather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: RawDataType,
    comm: ncclComm_t,
    stream: RawStream,
) -> Result<Status> {
    submit(comm, &Request { send, recv, ..request("ncclAllGather", OpKind::AllGather, count, dtype, stream) })
}

pub fn reduce_scatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: RawDataType,
    redop: RawRedOp,
    comm: ncclComm_t,
    stream: RawStream,
) -> Result<Status> {
    submit(comm, &Request { send, recv, redop, ..request("ncclReduceScatter", OpKind::ReduceScatter, count, dtype, stream) })
}

pub fn all_to_all(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: RawDataType,
    comm: ncclComm_t,
    stream: RawStream,
) -> Result<Status> {
    submit(comm, &Request { send, recv, ..request("ncclAlltoAll", OpKind::AllToAll, count, dtype, stream) })
}

pub fn gather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: RawDataType,
    root: c_int,
    comm: ncclComm_t,
    stream: RawStream,
) -> Result<Status> {
    submit(comm, &Request { send, recv, root, ..request("ncclGather", OpKind::Gather, count, dtype, stream) })
}

pub fn scatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: RawDataType,
    root: c_int,
    comm: ncclComm_t,
    stream: RawStream,
) -> Result<Status> {
    submit(comm, &Request { send, recv, root, ..request("ncclScatter", OpKind::Scatter, count, dtype, stream) })
}

pub fn send(send: *const c_void, count: usize, dtype: RawDataType, root: c_int, comm: ncclComm_t, stream: RawStream) -> Result<Status> {
    submit(comm, &Request { send, root, ..request("ncclSend", OpKind::Send, count, dtype, stream) })
}

pub fn recv(recv: *mut c_void, count: usize, dtype: RawDataType, root: c_int, comm: ncclComm_t, stream: RawStream) -> Result<Status> {
    submit(comm, &Request { recv, root, ..request("ncclRecv", OpKind::Recv, count, dtype, stream) })
}

/// # Safety
/// `op` is NULL or writable; with host residence `scalar` is NULL or points to one element of `dtype`.
pub unsafe fn create_premul_sum(
    op: *mut RawRedOp,
    scalar: *mut c_void,
    dtype: RawDataType,
    residence: RawResidence,
    comm: ncclComm_t,
) -> Result<()> {
    const CALL: &str = "ncclRedOpCreatePreMulSum";
    let communicator = handle::get(CALL, comm)?;
    let op = required(CALL, "op", op)?;
    if scalar.is_null() {
        return Err(Error::argument(format!("{CALL}: scalar is NULL; it must point to one element, in host or device memory")));
    }
    let Some(dtype) = DataType::from_raw(dtype.0) else {
        return Err(Error::argument(format!("{CALL}: datatype is {}; allowed: 0 (ncclInt8) to 11 (ncclFloat8e5m2)", dtype.0)));
    };
    let immediate = match residence.0 {
        0 => false,
        1 => true,
        other => {
            return Err(Error::argument(format!(
                "{CALL}: residence is {other}; allowed: 0 (ncclScalarDevice) and 1 (ncclScalarHostImmediate)"
            )));
        }
    };
    // SAFETY: with `immediate` the caller vouches for one readable element; otherwise the core only keeps the address.
    let made = unsafe { communicator.create_premul(scalar.cast_const().cast(), dtype, immediate) }?;
    // SAFETY: not NULL, so writable by the caller's promise.
    unsafe { op.write(RawRedOp(made)) };
    Ok(())
}

pub fn destroy_redop(op: RawRedOp, comm: ncclComm_t) -> Result<()> {
    const CALL: &str = "ncclRedOpDestroy";
    if op.0 < BUILT_IN_OPERATORS {
        return Err(Error::argument(format!(
            "{CALL}: op is {}, which was not made by ncclRedOpCreatePreMulSum; built-in operators cannot be destroyed",
            op.0
        )));
    }
    handle::get(CALL, comm)?.destroy_redop(op.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    const STREAM: RawStream = RawStream(0x70 as *mut c_void);

    fn on_two_buffers(kind: OpKind) -> Request {
        Request {
            send: 0x1000 as *const c_void,
            recv: 0x2000 as *mut c_void,
            root: 1,
            ..request("ncclX", kind, 10, RawDataType(7), STREAM)
        }
    }

    #[test]
    fn operations_keep_only_the_buffers_that_their_rank_uses() {
        // (kind, buffers at the root, buffers elsewhere); the root is rank 1.
        let table = [
            (OpKind::AllReduce, (0x1000, 0x2000), (0x1000, 0x2000)),
            (OpKind::AllGather, (0x1000, 0x2000), (0x1000, 0x2000)),
            (OpKind::ReduceScatter, (0x1000, 0x2000), (0x1000, 0x2000)),
            (OpKind::AllToAll, (0x1000, 0x2000), (0x1000, 0x2000)),
            (OpKind::Broadcast, (0x1000, 0x2000), (0, 0x2000)),
            (OpKind::Scatter, (0x1000, 0x2000), (0, 0x2000)),
            (OpKind::Reduce, (0x1000, 0x2000), (0x1000, 0)),
            (OpKind::Gather, (0x1000, 0x2000), (0x1000, 0)),
            (OpKind::Send, (0x1000, 0), (0x1000, 0)),
            (OpKind::Recv, (0, 0x2000), (0, 0x2000)),
        ];
        assert_eq!(table.map(|row| row.0).len(), OpKind::ALL.len());
        for (kind, at_root, elsewhere) in table {
            for (rank, buffers) in [(1, at_root), (3, elsewhere)] {
                let op = describe(&on_two_buffers(kind), 4, rank).unwrap();
                assert_eq!((op.kind, (op.send, op.recv)), (kind, buffers), "{kind:?} on rank {rank}");
                assert_eq!((op.count, op.dtype, op.root, op.stream), (10, DataType::Float32, 1, 0x70));
            }
        }
    }

    #[test]
    fn bad_arguments_are_named_with_rank_and_range() {
        let all_reduce = on_two_buffers(OpKind::AllReduce);
        let bad = [
            (Request { root: 4, ..on_two_buffers(OpKind::Reduce) }, "ncclX: root is 4; allowed: 0 to 3 (rank 2 of 4)"),
            (Request { root: -1, ..on_two_buffers(OpKind::Send) }, "ncclX: peer is -1; allowed: 0 to 3 (rank 2 of 4)"),
            (Request { dtype: RawDataType(12), ..all_reduce }, "datatype is 12"),
            (Request { dtype: RawDataType(-1), ..all_reduce }, "datatype is -1"),
            (Request { redop: RawRedOp(-2), ..all_reduce }, "op is -2"),
            (Request { count: usize::MAX / 4 + 1, ..all_reduce }, "more than an address space"),
            (Request { count: -1i64 as usize, dtype: RawDataType(0), ..all_reduce }, "is it negative?"),
            // One block fits, four do not.
            (Request { count: usize::MAX / 12, ..on_two_buffers(OpKind::AllGather) }, "more than an address space"),
            (Request { send: std::ptr::null(), ..all_reduce }, "sendbuff is NULL but count is 10 (rank 2 of 4)"),
            (Request { recv: std::ptr::null_mut(), ..on_two_buffers(OpKind::Recv) }, "recvbuff is NULL"),
        ];
        for (request, text) in bad {
            let error = describe(&request, 4, 2).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument);
            assert!(error.message.contains(text), "{error} lacks {text}");
        }
    }

    #[test]
    fn the_first_mistake_in_nccls_order_is_the_one_reported() {
        let all_wrong = Request {
            root: 9,
            dtype: RawDataType(99),
            redop: RawRedOp(-1),
            count: usize::MAX,
            send: std::ptr::null(),
            ..on_two_buffers(OpKind::Reduce)
        };
        let text = |request: &Request| describe(request, 4, 0).unwrap_err().message;
        assert!(text(&all_wrong).contains("root"));
        assert!(text(&Request { root: 0, ..all_wrong }).contains("datatype"));
        assert!(text(&Request { root: 0, dtype: RawDataType(7), ..all_wrong }).contains("op is"));
    }

    #[test]
    fn zero_counts_and_unneeded_null_buffers_pass() {
        let nothing = Request { send: std::ptr::null(), recv: std::ptr::null_mut(), count: 0, ..on_two_buffers(OpKind::AllReduce) };
        assert_eq!(describe(&nothing, 4, 0).unwrap().count, 0);
        let off_root = Request { recv: std::ptr::null_mut(), ..on_two_buffers(OpKind::Reduce) };
        assert!(describe(&off_root, 4, 0).is_ok());
        assert!(describe(&off_root, 4, 1).is_err());
    }

    #[test]
    fn unordered_operations_ignore_the_root() {
        assert!(describe(&Request { root: 77, ..on_two_buffers(OpKind::AllReduce) }, 4, 0).is_ok());
    }

    #[test]
    fn made_operators_pass_and_built_in_ones_cannot_be_destroyed() {
        let premul = Request { redop: RawRedOp(0x1005), ..on_two_buffers(OpKind::AllReduce) };
        assert_eq!(describe(&premul, 4, 0).unwrap().redop, 0x1005);
        let text = destroy_redop(RawRedOp(4), std::ptr::null_mut()).unwrap_err().message;
        assert!(text.contains("built-in"), "{text}");
        assert!(destroy_redop(RawRedOp(5), std::ptr::null_mut()).unwrap_err().message.contains("comm is NULL"));
    }
}
