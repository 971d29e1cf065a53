"""Every c10d collective on one GPU, against a reference computed on the CPU from inputs that every rank can make.

    torchrun --nproc-per-node N c10d.py [--eager]

--eager binds the process group to the device at once (torch then uses one communicator for point-to-point and can
split it); without it communicators come into being at first use, as in most programs.
"""

import ctypes
import random
import sys

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from harness import DEVICE, FLOAT8, Skip, Suite, data, reduced, same

EAGER = "--eager" in sys.argv
suite = Suite(eager=EAGER)
RANK, WORLD = suite.rank, suite.world
NEXT, PREVIOUS = (RANK + 1) % WORLD, (RANK - 1) % WORLD
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
COUNTS = (1, 3, 1000, (1 << 20) + 1)


def mine(count, dtype=torch.float32, salt=0):
    return data(RANK, count, dtype, salt).to(DEVICE)


def everyone(count, dtype=torch.float32, salt=0):
    return [data(rank, count, dtype, salt) for rank in range(WORLD)]


def empty(count, dtype=torch.float32):
    """An output whose old content would be noticed."""
    return torch.full((count,), 77, device=DEVICE).to(dtype)


def short(dtype):
    return str(dtype).removeprefix("torch.")


def communicator_is_ours():
    """Asks the preloaded library, not torch, about the communicator that torch holds."""
    dist.all_reduce(mine(1))
    pointer = ctypes.c_void_p(dist.group.WORLD._get_backend(DEVICE)._comm_ptr())
    library, count, rank = ctypes.CDLL(None), ctypes.c_int(-1), ctypes.c_int(-1)
    assert library.ncclCommCount(pointer, ctypes.byref(count)) == 0, "the library does not know torch's communicator"
    assert library.ncclCommUserRank(pointer, ctypes.byref(rank)) == 0
    assert (rank.value, count.value) == (RANK, WORLD), (rank.value, count.value)


# Reductions.


def all_reduce(dtype, op, counts=COUNTS):
    for count in counts:
        tensor = mine(count, dtype)
        dist.all_reduce(tensor, op)
        expected = reduced(op, everyone(count, dtype))
        if op == ReduceOp.AVG and WORLD & (WORLD - 1):
            # Dividing and multiplying by the inverse are both allowed, and differ in the last bit unless exact.
            torch.testing.assert_close(tensor.cpu(), expected)
        else:
            same(tensor, expected, f"{count} elements")


def all_reduce_float8(dtype):
    tensor = mine(1000, dtype)
    try:
        dist.all_reduce(tensor)
    except (RuntimeError, ValueError) as error:
        if "loat8" in str(error) or "FP8" in str(error):
            raise Skip("this torch refuses it") from error
        raise
    same(tensor, reduced(ReduceOp.SUM, everyone(1000, dtype)))


def all_reduce_premul_sum(dtype, on_device):
    """Each rank's input times its own factor, then the sum.

    PyTorch up to 2.12 hands NCCL the address of a float32 for a bfloat16 factor, of which NCCL reads the first two bytes
    (pytorch#190745). So the factor is a float32 whose lower half is another bfloat16, and the result tells which was meant:
    that of the upper half from a PyTorch that is mended, that of the lower half from one that is not; nothing else is right.
    """
    upper = [0.5 + rank for rank in range(WORLD)]
    lower = [1.5 + 2 * rank for rank in range(WORLD)]
    halves = torch.tensor([lower[RANK], upper[RANK]], dtype=torch.bfloat16)
    factor = halves.view(torch.float32).to(DEVICE) if dtype == torch.bfloat16 else torch.tensor([upper[RANK]], dtype=dtype, device=DEVICE)
    tensor = mine(1000, dtype)
    if not on_device:
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor.item()))
    else:
        try:
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor.to(dtype)))
        except RuntimeError:
            if dtype != torch.bfloat16:
                raise
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
    parts = everyone(1000, dtype)
    mended = reduced(ReduceOp.SUM, parts, upper)
    if dtype == torch.bfloat16 and not torch.equal(tensor.cpu(), mended):
        same(tensor, reduced(ReduceOp.SUM, parts, lower))
    else:
        same(tensor, mended)


def all_reduce_rank_order(dtype):
    """Random numbers: float32 sums in rank order, rounded once, and so the same bits on every rank."""
    for count in (1000, 1 << 16, 1 << 22):
        parts = [torch.randn(count, generator=torch.Generator().manual_seed(rank + count)).to(dtype) for rank in range(WORLD)]
        expected = parts[0].to(torch.float32)
        for part in parts[1:]:
            expected = expected + part.to(torch.float32)
        tensor = parts[RANK].to(DEVICE, copy=True)
        dist.all_reduce(tensor)
        same(tensor, expected.to(dtype), f"{count} elements")


def all_reduce_complex():
    parts = [torch.complex(data(rank, 1000, torch.float32), data(rank, 1000, torch.float32, 3)) for rank in range(WORLD)]
    tensor = parts[RANK].to(DEVICE, copy=True)
    dist.all_reduce(tensor)
    same(tensor, reduced(ReduceOp.SUM, parts))


def all_reduce_large():
    count = 64 << 20
    tensor = torch.full((count,), float(RANK + 1), device=DEVICE)
    dist.all_reduce(tensor)
    assert bool((tensor == WORLD * (WORLD + 1) / 2).all()), "a 256 MB sum is wrong"


def all_reduce_empty():
    dist.all_reduce(torch.empty(0, device=DEVICE))


def reduce(op):
    for root in range(WORLD):
        tensor = mine(1000, salt=root)
        dist.reduce(tensor, root, op)
        if RANK == root:
            same(tensor, reduced(op, everyone(1000, salt=root)), f"root {root}")


def reduce_scatter(dtype, op):
    inputs = list(mine(WORLD * 1000, dtype).chunk(WORLD))
    output = empty(1000, dtype)
    dist.reduce_scatter(output, inputs, op)
    same(output, reduced(op, everyone(WORLD * 1000, dtype)).chunk(WORLD)[RANK])


def reduce_scatter_uneven():
    sizes = [100 * (rank + 1) for rank in range(WORLD)]
    output = empty(sizes[RANK])
    dist.reduce_scatter(output, list(mine(sum(sizes)).split(sizes)))
    same(output, reduced(ReduceOp.SUM, everyone(sum(sizes))).split(sizes)[RANK])


def reduce_scatter_tensor(dtype, op):
    for count in (1, 3, 1000, 1 << 18):
        output = empty(count, dtype)
        dist.reduce_scatter_tensor(output, mine(WORLD * count, dtype), op)
        same(output, reduced(op, everyone(WORLD * count, dtype)).chunk(WORLD)[RANK], f"{count} elements")


# Movement.


def broadcast(dtype):
    for root in range(WORLD):
        for count in COUNTS:
            tensor = mine(count, dtype, root)
            dist.broadcast(tensor, root)
            same(tensor, data(root, count, dtype, root), f"root {root}, {count} elements")


def all_gather(dtype):
    outputs = [empty(1000, dtype) for _ in range(WORLD)]
    dist.all_gather(outputs, mine(1000, dtype))
    for rank, output in enumerate(outputs):
        same(output, data(rank, 1000, dtype), f"part {rank}")


def all_gather_uneven():
    outputs = [empty(100 * (rank + 1)) for rank in range(WORLD)]
    dist.all_gather(outputs, mine(100 * (RANK + 1)))
    for rank, output in enumerate(outputs):
        same(output, data(rank, 100 * (rank + 1), torch.float32), f"part {rank}")


def all_gather_into_tensor(dtype):
    for count in COUNTS:
        output = empty(WORLD * count, dtype)
        dist.all_gather_into_tensor(output, mine(count, dtype))
        same(output, torch.cat(everyone(count, dtype)), f"{count} elements")


def all_gather_in_place():
    output = empty(WORLD * 1000)
    part = output[RANK * 1000 : (RANK + 1) * 1000]
    part.copy_(mine(1000))
    dist.all_gather_into_tensor(output, part)
    same(output, torch.cat(everyone(1000)))


def all_to_all():
    outputs = [empty(100) for _ in range(WORLD)]
    dist.all_to_all(outputs, list(mine(WORLD * 100).chunk(WORLD)))
    for rank, output in enumerate(outputs):
        same(output, data(rank, WORLD * 100, torch.float32).chunk(WORLD)[RANK], f"from {rank}")


def splits(rank):
    """How many elements `rank` sends to each peer: different for each pair, some of them none."""
    return [((rank + 2 * peer) % 3) * 50 for peer in range(WORLD)]


def all_to_all_uneven():
    outputs = [empty(splits(rank)[RANK]) for rank in range(WORLD)]
    dist.all_to_all(outputs, list(mine(sum(splits(RANK))).split(splits(RANK))))
    for rank, output in enumerate(outputs):
        same(output, data(rank, sum(splits(rank)), torch.float32).split(splits(rank))[RANK], f"from {rank}")


def all_to_all_single(dtype):
    for count in (1, 1000, 1 << 18):
        output = empty(WORLD * count, dtype)
        dist.all_to_all_single(output, mine(WORLD * count, dtype))
        expected = [part.chunk(WORLD)[RANK] for part in everyone(WORLD * count, dtype)]
        same(output, torch.cat(expected), f"{count} elements")


def all_to_all_single_uneven():
    receive = [splits(rank)[RANK] for rank in range(WORLD)]
    output = empty(sum(receive))
    dist.all_to_all_single(output, mine(sum(splits(RANK))), receive, splits(RANK))
    expected = [data(rank, sum(splits(rank)), torch.float32).split(splits(rank))[RANK] for rank in range(WORLD)]
    same(output, torch.cat(expected))


def gather():
    for root in range(WORLD):
        outputs = [empty(1000) for _ in range(WORLD)] if RANK == root else None
        dist.gather(mine(1000, salt=root), outputs, dst=root)
        for rank, output in enumerate(outputs or []):
            same(output, data(rank, 1000, torch.float32, root), f"root {root}, part {rank}")


def scatter():
    for root in range(WORLD):
        inputs = list(mine(WORLD * 1000, salt=root).chunk(WORLD)) if RANK == root else None
        output = empty(1000)
        dist.scatter(output, inputs, src=root)
        same(output, data(root, WORLD * 1000, torch.float32, root).chunk(WORLD)[RANK], f"root {root}")


def send_recv():
    for count in (1, 1000, 1 << 22):
        output = empty(count)
        if RANK % 2 == 0:
            dist.send(mine(count), NEXT)
            dist.recv(output, PREVIOUS)
        else:
            dist.recv(output, PREVIOUS)
            dist.send(mine(count), NEXT)
        same(output, data(PREVIOUS, count, torch.float32), f"{count} elements")


def isend_irecv():
    output, source = empty(1000), mine(1000)
    calls = [lambda: dist.isend(source, NEXT), lambda: dist.irecv(output, PREVIOUS)]
    for work in [call() for call in (calls if RANK % 2 == 0 else reversed(calls))]:
        work.wait()
    same(output, data(PREVIOUS, 1000, torch.float32))


def batch_ring(count):
    output = empty(count)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine(count), NEXT), dist.P2POp(dist.irecv, output, PREVIOUS)]
    )
    for work in works:
        work.wait()
    same(output, data(PREVIOUS, count, torch.float32))


def batch_all_pairs():
    """All peers at once, receives and sends in an order that differs from rank to rank."""
    peers = [peer for peer in range(WORLD) if peer != RANK]
    outputs = {peer: empty(500) for peer in peers}
    operations = [dist.P2POp(dist.irecv, outputs[peer], peer) for peer in peers]
    operations += [dist.P2POp(dist.isend, mine(500, salt=peer), peer) for peer in peers]
    random.Random(RANK).shuffle(operations)
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for peer, output in outputs.items():
        same(output, data(peer, 500, torch.float32, RANK), f"from {peer}")


def barrier():
    for _ in range(3):
        dist.barrier(device_ids=[0])


def objects():
    gathered = [None] * WORLD
    dist.all_gather_object(gathered, {"rank": RANK, "text": "x" * (100 * RANK)})
    assert [entry["rank"] for entry in gathered] == list(range(WORLD)), gathered
    box = [f"from {WORLD - 1}" if RANK == WORLD - 1 else None]
    dist.broadcast_object_list(box, src=WORLD - 1, device=DEVICE)
    assert box == [f"from {WORLD - 1}"], box


# Ways of issuing.


def asynchronous():
    """Work handles, and inputs that are overwritten as soon as wait() allows it."""
    for salt in range(20):
        tensor, output = mine(100_000, salt=salt), empty(WORLD * 1000)
        part = mine(1000, salt=salt)
        works = [dist.all_reduce(tensor, async_op=True), dist.all_gather_into_tensor(output, part, async_op=True)]
        for work in works:
            work.wait()
        part.fill_(-1)
        kept = tensor.clone()
        tensor.fill_(-1)
        same(kept, reduced(ReduceOp.SUM, everyone(100_000, salt=salt)), f"all_reduce, round {salt}")
        same(output, torch.cat(everyone(1000, salt=salt)), f"all_gather, round {salt}")


def back_to_back():
    """A few hundred operations of mixed sizes with no synchronisation between them."""
    tensors = [torch.ones(1 << (index % 18), device=DEVICE) for index in range(300)]
    for tensor in tensors:
        dist.all_reduce(tensor)
    for index, tensor in enumerate(tensors):
        assert bool((tensor == WORLD).all()), f"operation {index}"


def side_stream():
    stream = torch.cuda.Stream()
    tensor = mine(1000)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        dist.all_reduce(tensor)
        tensor.mul_(2)
    torch.cuda.current_stream().wait_stream(stream)
    same(tensor, reduced(ReduceOp.SUM, everyone(1000)) * 2)


def coalesced_all_reduce():
    tensors = [mine(100 + index, salt=index) for index in range(8)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for index, tensor in enumerate(tensors):
        same(tensor, reduced(ReduceOp.SUM, everyone(100 + index, salt=index)), f"tensor {index}")


def coalesced_gather_scatter():
    gathered = [empty(WORLD * 100) for _ in range(4)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for index, output in enumerate(gathered):
            dist.all_gather_into_tensor(output, mine(100, salt=index))
    manager.wait()
    scattered = [empty(100) for _ in range(4)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for index, output in enumerate(scattered):
            dist.reduce_scatter_tensor(output, mine(WORLD * 100, salt=index))
    manager.wait()
    for index in range(4):
        same(gathered[index], torch.cat(everyone(100, salt=index)), f"all_gather {index}")
        same(scattered[index], reduced(ReduceOp.SUM, everyone(WORLD * 100, salt=index)).chunk(WORLD)[RANK], f"reduce_scatter {index}")


def subgroups():
    halves = [list(range(WORLD // 2)), list(range(WORLD // 2, WORLD))]
    groups = [dist.new_group(half) for half in halves]
    whole = dist.new_group(list(range(WORLD)))
    half = 0 if RANK in halves[0] else 1
    for salt in range(5):
        inner, outer = mine(1000, salt=salt), mine(1000, salt=salt + 9)
        works = [dist.all_reduce(inner, group=groups[half], async_op=True), dist.all_reduce(outer, group=whole, async_op=True)]
        for work in works:
            work.wait()
        same(inner, reduced(ReduceOp.SUM, [data(rank, 1000, torch.float32, salt) for rank in halves[half]]), "half")
        same(outer, reduced(ReduceOp.SUM, everyone(1000, salt=salt + 9)), "whole")


def opposite_order():
    """Two communicators whose operations are issued in one order on even ranks and in the other on odd ones."""
    groups = [dist.new_group(list(range(WORLD))) for _ in range(2)]
    for group in groups:
        dist.all_reduce(mine(1), group=group)
    torch.cuda.synchronize()
    for count in (10, 100_000, 1 << 22):
        for salt in range(20):
            tensors = [mine(count, salt=salt), mine(count, salt=salt + 1)]
            order = (0, 1) if RANK % 2 == 0 else (1, 0)
            works = [dist.all_reduce(tensors[index], group=groups[index], async_op=True) for index in order]
            for work in works:
                work.wait()
            if salt % 10 == 0:
                for index in range(2):
                    same(tensors[index], reduced(ReduceOp.SUM, everyone(count, salt=salt + index)), f"communicator {index}")


def split_group():
    if not EAGER:
        raise Skip("needs a process group bound to its device (--eager)")
    halves = [list(range(WORLD // 2)), list(range(WORLD // 2, WORLD))]
    group = dist.split_group(split_ranks=halves)
    half = halves[0] if RANK in halves[0] else halves[1]
    tensor = mine(1000)
    dist.all_reduce(tensor, group=group)
    same(tensor, reduced(ReduceOp.SUM, [data(rank, 1000, torch.float32) for rank in half]), "half")
    # Ranks that are in no part take part in the split but get no communicator.
    group = dist.split_group(split_ranks=[[0, 1]] if WORLD > 2 else [[0]])
    if RANK < min(2, WORLD - 1):
        tensor = mine(1000)
        dist.all_reduce(tensor, group=group)
        same(tensor, reduced(ReduceOp.SUM, [data(rank, 1000, torch.float32) for rank in range(min(2, WORLD - 1))]), "part")


def graph():
    """Five collectives in one CUDA graph, replayed with new inputs, with eager operations between the replays."""
    source = mine(1000)
    wide = mine(WORLD * 100)
    summed, copied = empty(1000), empty(1000)
    gathered, scattered, exchanged = empty(WORLD * 1000), empty(100), empty(WORLD * 100)

    def work():
        summed.copy_(source)
        dist.all_reduce(summed)
        dist.all_gather_into_tensor(gathered, source)
        dist.reduce_scatter_tensor(scattered, wide)
        dist.all_to_all_single(exchanged, wide)
        copied.copy_(source)
        dist.broadcast(copied, WORLD - 1)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        work()
    for salt in range(25):
        source.copy_(mine(1000, salt=salt))
        wide.copy_(mine(WORLD * 100, salt=salt))
        captured.replay()
        if salt % 3 == 0:
            eager = mine(1000, salt=salt)
            dist.all_reduce(eager)
            same(eager, reduced(ReduceOp.SUM, everyone(1000, salt=salt)), f"eager after replay {salt}")
        parts = everyone(WORLD * 100, salt=salt)
        same(summed, reduced(ReduceOp.SUM, everyone(1000, salt=salt)), f"all_reduce, replay {salt}")
        same(gathered, torch.cat(everyone(1000, salt=salt)), f"all_gather, replay {salt}")
        same(scattered, reduced(ReduceOp.SUM, parts).chunk(WORLD)[RANK], f"reduce_scatter, replay {salt}")
        same(exchanged, torch.cat([part.chunk(WORLD)[RANK] for part in parts]), f"all_to_all, replay {salt}")
        same(copied, data(WORLD - 1, 1000, torch.float32, salt), f"broadcast, replay {salt}")


def graph_back_to_back():
    """Replays that follow each other with no host in between."""
    tensor = torch.ones(1000, device=DEVICE)
    dist.all_reduce(tensor.clone())
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(5):
            dist.all_reduce(tensor)
            tensor.div_(WORLD)
    tensor.fill_(float(RANK))
    for _ in range(100):
        captured.replay()
    same(tensor, torch.full((1000,), (WORLD - 1) / 2))


def main():
    ops = {"sum": ReduceOp.SUM, "prod": ReduceOp.PRODUCT, "min": ReduceOp.MIN, "max": ReduceOp.MAX}
    suite.case("the preloaded library knows torch's communicator", communicator_is_ours)
    for dtype in FLOATS + INTEGERS + (torch.bool,):
        for name, op in ops.items():
            suite.case(f"all_reduce {name} {short(dtype)}", all_reduce, dtype, op)
    for dtype in FLOATS:
        suite.case(f"all_reduce avg {short(dtype)}", all_reduce, dtype, ReduceOp.AVG)
        suite.case(f"all_reduce premul_sum {short(dtype)}, scalar on the host", all_reduce_premul_sum, dtype, False)
        suite.case(f"all_reduce premul_sum {short(dtype)}, scalar on the device", all_reduce_premul_sum, dtype, True)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        suite.case(f"all_reduce {short(dtype)}: rank order, one rounding", all_reduce_rank_order, dtype)
    for dtype in FLOAT8:
        suite.case(f"all_reduce sum {short(dtype)}", all_reduce_float8, dtype)
        suite.case(f"broadcast {short(dtype)}", broadcast, dtype)
        suite.case(f"all_gather_into_tensor {short(dtype)}", all_gather_into_tensor, dtype)
        suite.case(f"all_to_all_single {short(dtype)}", all_to_all_single, dtype)
    suite.case("all_reduce complex64", all_reduce_complex)
    suite.case("all_reduce 256 MB", all_reduce_large)
    suite.case("all_reduce of nothing", all_reduce_empty)
    for name, op in ops.items():
        suite.case(f"reduce {name}, every root", reduce, op)
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        suite.case(f"reduce_scatter {short(dtype)}", reduce_scatter, dtype, ReduceOp.SUM)
        suite.case(f"reduce_scatter_tensor sum {short(dtype)}", reduce_scatter_tensor, dtype, ReduceOp.SUM)
        suite.case(f"reduce_scatter_tensor max {short(dtype)}", reduce_scatter_tensor, dtype, ReduceOp.MAX)
    if WORLD & (WORLD - 1) == 0:
        suite.case("reduce_scatter_tensor avg float32", reduce_scatter_tensor, torch.float32, ReduceOp.AVG)
    suite.case("reduce_scatter, uneven list", reduce_scatter_uneven)
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64):
        suite.case(f"broadcast {short(dtype)}, every root", broadcast, dtype)
        suite.case(f"all_gather {short(dtype)}", all_gather, dtype)
        suite.case(f"all_gather_into_tensor {short(dtype)}", all_gather_into_tensor, dtype)
        suite.case(f"all_to_all_single {short(dtype)}", all_to_all_single, dtype)
    suite.case("all_gather, uneven list", all_gather_uneven)
    suite.case("all_gather_into_tensor, in place", all_gather_in_place)
    suite.case("all_to_all", all_to_all)
    suite.case("all_to_all, uneven with empty parts", all_to_all_uneven)
    suite.case("all_to_all_single, uneven with empty parts", all_to_all_single_uneven)
    suite.case("gather, every root", gather)
    suite.case("scatter, every root", scatter)
    suite.case("send and recv", send_recv)
    suite.case("isend and irecv", isend_irecv)
    for count in (1, 1000, 1 << 23):
        suite.case(f"batch_isend_irecv ring, {count} elements", batch_ring, count)
    suite.case("batch_isend_irecv, all pairs in different orders", batch_all_pairs)
    suite.case("barrier", barrier)
    suite.case("all_gather_object and broadcast_object_list", objects)
    suite.case("async_op with buffers reused after wait()", asynchronous)
    suite.case("300 operations back to back", back_to_back)
    suite.case("on a side stream", side_stream)
    suite.case("coalescing manager, all_reduce", coalesced_all_reduce)
    suite.case("coalescing manager, all_gather and reduce_scatter", coalesced_gather_scatter)
    suite.case("new_group: halves and the whole at once", subgroups)
    suite.case("two communicators in opposite order", opposite_order)
    suite.case("split_group", split_group)
    suite.case("CUDA graph of five collectives, 25 replays", graph)
    suite.case("CUDA graph, 100 replays back to back", graph_back_to_back)
    return suite.finish()


sys.exit(main())
