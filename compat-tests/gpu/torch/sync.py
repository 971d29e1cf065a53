"""Right after each collective the GPU is free again: what waits for the whole device returns at once.

    torchrun --nproc-per-node N sync.py

A kernel that stayed resident would block torch.cuda.synchronize(), freeing memory, and the first launch of any kernel
that is not loaded yet, for good. Each is tried after each kind of collective; a hang is ended by torchrun's time limit,
and LIMIT_S is generous, since it need only tell "at once" from "after something timed out".
"""

import ctypes
import sys
import time

import torch
import torch.distributed as dist

from harness import DEVICE, Suite

LIMIT_S = 1.0
LATE_S = 0.3
suite = Suite()
RANK, WORLD = suite.rank, suite.world
ring = ((RANK + 1) % WORLD, (RANK - 1) % WORLD)

x = torch.ones(1 << 16, device=DEVICE)
wide = torch.ones(WORLD << 16, device=DEVICE)
big = torch.ones(16 << 20, device=DEVICE)
# Outputs are made once, so that no collective takes the block that empty_cache is to give back.
wide_output, ring_output = torch.empty_like(wide), torch.empty_like(x)


def exchange():
    send, receive = dist.P2POp(dist.isend, x, ring[0]), dist.P2POp(dist.irecv, ring_output, ring[1])
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()


COLLECTIVES = {
    "all_reduce": lambda: dist.all_reduce(x),
    "all_reduce 64 MB": lambda: dist.all_reduce(big),
    "reduce": lambda: dist.reduce(x, 0),
    "broadcast": lambda: dist.broadcast(x, 0),
    "all_gather": lambda: dist.all_gather_into_tensor(wide, x),
    "reduce_scatter": lambda: dist.reduce_scatter_tensor(x, wide),
    "all_to_all": lambda: dist.all_to_all_single(wide_output, wide),
    "gather": lambda: dist.gather(x, list(wide.chunk(WORLD)) if RANK == 0 else None, dst=0),
    "scatter": lambda: dist.scatter(x, list(wide.chunk(WORLD)) if RANK == 0 else None, src=0),
    "send and receive": exchange,
}


class Driver:
    """Loads a module of PTX through the driver and launches its kernel: a first launch with no compiler involved."""

    PTX = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry mark(.param .u64 where)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [where];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, NUMBER;
    st.global.u32 [%rd2], %r1;
    ret;
}
"""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.number = 0

    def check(self, status, what):
        assert status == 0, f"{what} returned {status}"

    def first_launch(self):
        """Every call brings code that this process has never seen, and checks that it ran."""
        self.number += 1
        number = self.number + 1000 * RANK
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        source = self.PTX.replace("NUMBER", str(number)).encode()
        where = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(module), source), "cuModuleLoadData")
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(function), module, b"mark"), "cuModuleGetFunction")
        pointer = ctypes.c_uint64(where.data_ptr())
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(self.cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, None), "cuLaunchKernel")
        assert where.item() == number, "the new kernel did not run"


# Functions that nothing else here uses in float64, and that torch ships compiled, so that each first call loads a kernel.
FRESH = iter(
    [
        torch.asinh, torch.acosh, torch.atanh, torch.cosh, torch.sinh, torch.expm1, torch.log1p, torch.erf, torch.erfc,
        torch.frac, torch.trunc, torch.sign, torch.log2, torch.log10,
    ]
)  # fmt: skip
worst = {}


def timed(what, action):
    begin = time.monotonic()
    action()
    took = time.monotonic() - begin
    worst[what] = max(worst.get(what, 0), took)
    assert took < LIMIT_S, f"{what} took {took:.2f} s"


def aligned():
    torch.cuda.synchronize()
    dist.barrier(device_ids=[0])


def device_sync(collective):
    aligned()
    collective()
    timed("torch.cuda.synchronize()", torch.cuda.synchronize)


def empty_cache(collective):
    aligned()
    block = torch.empty(64 << 20, device=DEVICE)
    del block
    before = torch.cuda.memory_reserved()
    collective()
    timed("torch.cuda.empty_cache()", torch.cuda.empty_cache)
    assert torch.cuda.memory_reserved() < before, "nothing was given back, so nothing was tried"


def pinned_memory(collective):
    block = torch.empty(8 << 20, pin_memory=True)
    aligned()
    collective()
    del block
    timed("freeing pinned memory", torch._C._host_emptyCache if hasattr(torch._C, "_host_emptyCache") else torch.cuda.synchronize)


driver = Driver()


def new_module(collective):
    aligned()
    collective()
    timed("first launch from a new module", driver.first_launch)


def fresh_function(collective):
    function = next(FRESH, None)
    aligned()
    collective()
    if function is not None:
        timed(f"first launch of torch's {function.__name__}", lambda: function(torch.full((8,), 0.5, device=DEVICE, dtype=torch.float64)).sum().item())


def late_peer(action):
    """Rank 0 has issued its part and then waits for the device while the last rank comes late."""
    aligned()
    if RANK == WORLD - 1:
        time.sleep(LATE_S)
    dist.all_reduce(x)
    timed("with a late peer", action)


def thousand(collective):
    begin = time.monotonic()
    for _ in range(1000):
        collective()
        torch.cuda.synchronize()
    took = time.monotonic() - begin
    worst["operation and device synchronisation, mean of 1000"] = took / 1000
    assert took < 20, f"1000 operations took {took:.1f} s"


def main():
    for name, collective in COLLECTIVES.items():
        collective()
        suite.case(f"device synchronisation after {name}", device_sync, collective)
        suite.case(f"empty_cache after {name}", empty_cache, collective)
        suite.case(f"pinned memory freed after {name}", pinned_memory, collective)
        suite.case(f"new module after {name}", new_module, collective)
        suite.case(f"new kernel of torch after {name}", fresh_function, collective)
    suite.case("device synchronisation with a late peer", late_peer, torch.cuda.synchronize)
    suite.case("new module with a late peer", late_peer, driver.first_launch)
    suite.case("device synchronisation after each of 1000 all_reduce", thousand, COLLECTIVES["all_reduce"])
    suite.case("device synchronisation after each of 1000 all_to_all", thousand, COLLECTIVES["all_to_all"])
    for what, took in sorted(worst.items(), key=lambda item: -item[1])[:8]:
        suite.say(f"# longest on rank 0: {what}: {took * 1e3:.1f} ms")
    return suite.finish()


sys.exit(main())
