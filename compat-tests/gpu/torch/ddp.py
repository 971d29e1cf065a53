"""Three training steps with DistributedDataParallel; the parameters must equal those of one process on the same data.

    torchrun --nproc-per-node N ddp.py

The reference trains a plain copy of rank 0's model on every rank's share in turn and averages the gradients in rank
order, so it differs from DDP in nothing but who adds. Gradients travel in several buckets; the replicas start from
different parameters, so the broadcast at construction counts too.
"""

import copy
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch.nn.parallel import DistributedDataParallel

from harness import DEVICE, Suite, same

STEPS = 3
suite = Suite()
RANK, WORLD = suite.rank, suite.world
torch.use_deterministic_algorithms(True)
torch.backends.cuda.matmul.allow_tf32 = False


def make_model(seed):
    torch.manual_seed(seed)
    layers = []
    for _ in range(4):
        layers += [torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.LayerNorm(512)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(512, 10)).to(DEVICE)


def share(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(64, 512, generator=generator)
    targets = torch.randint(0, 10, (64,), generator=generator)
    return inputs.to(DEVICE), targets.to(DEVICE)


def loss_of(model, rank, step):
    inputs, targets = share(rank, step)
    return torch.nn.functional.cross_entropy(model(inputs), targets)


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)


def train_reference(model):
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        totals = None
        for rank in range(WORLD):
            optimizer.zero_grad(set_to_none=True)
            loss_of(model, rank, step).backward()
            # DDP scales by 1/world before it adds.
            scaled = [parameter.grad * (1.0 / WORLD) for parameter in model.parameters()]
            totals = scaled if totals is None else [total + part for total, part in zip(totals, scaled)]
        for parameter, total in zip(model.parameters(), totals):
            parameter.grad = total
        optimizer.step()
    return model


def train(model, **options):
    replica = DistributedDataParallel(model, device_ids=[0] if DEVICE.type == "cuda" else None, bucket_cap_mb=1, **options)
    optimizer = optimizer_of(replica)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss_of(replica, RANK, step).backward()
        optimizer.step()
    return replica.module


reference = train_reference(make_model(0))


def close(model):
    for (name, actual), expected in zip(model.named_parameters(), reference.parameters()):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}")


def bits(model):
    for (name, actual), expected in zip(model.named_parameters(), reference.parameters()):
        same(actual, expected, name)


def main():
    start = make_model(0)
    for label, options in (("", {}), (", buckets as gradients", {"gradient_as_bucket_view": True}), (", static graph", {"static_graph": True})):
        model = train(make_model(RANK) if not options else copy.deepcopy(start), **options)
        suite.case(f"parameters after {STEPS} steps equal the reference{label}", close, model)
        suite.case(f"the same bits as the reference{label}", bits, model)
    return suite.finish()


sys.exit(main())
