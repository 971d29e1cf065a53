"""What the PyTorch tests share: start-up on GPU 0, the proof that libmkernel.so answers, and counting of cases.

Each script is started by torchrun with every rank on device 0. Every rank runs the same cases in the same order; a case
fails when it raises on any rank. Rank 0 prints one line a case and `N passed, N failed` at the end.
"""

import ctypes
import json
import os
import sys
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

DEVICE = torch.device("cuda", 0)


class Skip(Exception):
    """Raised by a case that does not apply here; its text says why."""


def say(text):
    """Prints a line in one write, so that the ranks' lines do not run into each other."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def answering_library():
    """The path of the file whose ncclGetLastError this process calls."""
    address = ctypes.cast(ctypes.CDLL(None).ncclGetLastError, ctypes.c_void_p).value
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            begin, end = (int(part, 16) for part in fields[0].split("-"))
            if begin <= address < end:
                return os.path.realpath(fields[5].strip())
    raise RuntimeError(f"no mapping holds ncclGetLastError at {address:#x}")


def check_library():
    """Ends the process unless the library under test answers, if $MKERNEL_LIB names one."""
    wanted = os.environ.get("MKERNEL_LIB")
    try:
        found = answering_library()
    except (AttributeError, OSError, RuntimeError) as error:
        found = f"none ({error})"
    if int(os.environ.get("RANK", "0")) == 0:
        say(f"# torch {torch.__version__}, NCCL calls answered by {found}")
    if wanted and found != os.path.realpath(wanted):
        say(f"the library under test is {wanted}, but {found} answers: is it in LD_PRELOAD?")
        sys.exit(3)


class Suite:
    """Runs cases, remembers which failed, and brings the ranks' verdicts together through the store."""

    def __init__(self, eager=False, timeout_s=60):
        check_library()
        torch.cuda.set_device(DEVICE)
        options = {"device_id": DEVICE} if eager else {}
        dist.init_process_group("nccl", timeout=timedelta(seconds=timeout_s), **options)
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.passed = 0
        self.failed = []
        self.skipped = []
        self.store = dist.distributed_c10d._get_default_store()

    def case(self, name, function, *arguments):
        begin = time.monotonic()
        try:
            function(*arguments)
            torch.cuda.synchronize()
        except Skip as reason:
            self.skipped.append(f"{name}: {reason}")
            self.say(f"skip  {name}: {reason}")
        except Exception as error:  # any failure is one case's, the next case still runs
            self.failed.append(f"{name}: {type(error).__name__}: {error}")
            say(f"FAIL  {name} (rank {self.rank}): {error}")
            if not isinstance(error, AssertionError):
                say(traceback.format_exc())
        else:
            self.passed += 1
            self.say(f"ok    {name} ({(time.monotonic() - begin) * 1e3:.0f} ms)")

    def say(self, text):
        if self.rank == 0:
            say(text)

    def finish(self):
        """Prints the verdict of all ranks and returns the exit status."""
        self.store.set(f"mkernel/verdict/{self.rank}", json.dumps(self.failed))
        status = 0
        if self.rank == 0:
            bad = set()
            for rank in range(self.world):
                for text in json.loads(self.store.get(f"mkernel/verdict/{rank}")):
                    bad.add(text.split(":")[0])
                    say(f"  rank {rank} failed {text}")
            passed = self.passed + len(self.failed) - len(bad)
            skipped = f", {len(self.skipped)} skipped ({'; '.join(self.skipped)})" if self.skipped else ""
            status = 1 if bad else 0
            # The others wait for this, so that nobody leaves while a store or a communicator is still in use.
            self.store.set("mkernel/done", str(status))
        else:
            status = int(self.store.get("mkernel/done"))
        begin = time.monotonic()
        dist.destroy_process_group()
        took = time.monotonic() - begin
        if self.rank == 0:
            say(f"# destroy_process_group took {took * 1e3:.0f} ms")
            say(f"{passed} passed, {len(bad)} failed{skipped}")
        return status


def data(rank, count, dtype, salt=0):
    """Rank's input on the CPU: small integers from 1 to 5, so that sums are exact in every type."""
    values = (torch.arange(count) * 7 + rank * 13 + salt) % 5 + 1
    return values > 3 if dtype == torch.bool else values.to(torch.float32).to(dtype)


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def reduced(op, parts, factors=None):
    """What a reduction of `parts` must give: wide arithmetic in rank order, then one rounding."""
    dtype = parts[0].dtype
    if dtype == torch.bool:
        stacked = torch.stack(parts)
        return stacked.all(0) if op in (dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT) else stacked.any(0)
    if dtype in FLOAT8:
        wide = torch.float32
    elif dtype.is_complex:
        wide = torch.complex128
    else:
        wide = torch.float64 if dtype.is_floating_point else dtype
    parts = [part.to(wide) for part in parts]
    if factors is not None:
        parts = [part * factor for part, factor in zip(parts, factors)]
    total = parts[0].clone()
    for part in parts[1:]:
        if op == dist.ReduceOp.PRODUCT:
            total = total * part
        elif op == dist.ReduceOp.MIN:
            total = torch.minimum(total, part)
        elif op == dist.ReduceOp.MAX:
            total = torch.maximum(total, part)
        else:
            total = total + part
    if op == dist.ReduceOp.AVG:
        total = total / len(parts)
    return total.to(dtype)


def same(actual, expected, what=""):
    """Asserts that all elements are equal and says where the first difference is."""
    actual = actual.detach().cpu().contiguous()
    expected = expected.cpu().contiguous()
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if actual.dtype in FLOAT8:
        actual, expected = actual.view(torch.uint8), expected.view(torch.uint8)
    if torch.equal(actual, expected):
        return
    wrong = (actual != expected).flatten()
    first = int(wrong.nonzero()[0])
    raise AssertionError(
        f"{what}: {int(wrong.sum())} of {wrong.numel()} elements are wrong, first at {first}: "
        f"{actual.flatten()[first].item()}, expected {expected.flatten()[first].item()}"
    )
