"""What copies to a GPU cost a training step, and how much of that the loader hides: one GPU for each rank, one node.

    python tests/perf/device.py DIR --graph S
    mpiexec -n 4 python tests/perf/device.py DIR --graph S          # four GPUs, gradients by NCCL

Four loops take turns, all with minibatches made ahead in a thread. They differ in how a minibatch gets to the device:
by the loader (``device=``), by hand, by hand from pinned memory (``pin_memory=True``, ``non_blocking=True``), or not at
all: the last one takes its minibatches like the others, and trains on some that were there before. Hidden is
1 - (step of the loader - step without copies) / (step by hand - step without copies). Without a GPU the loops run on
the CPU, where nothing is copied, and the shares are left out.
"""

import itertools
import os
import statistics
import time

import common
import torch
import torch.distributed as dist
import torch.nn.functional as F
import work

import mpigraph as mg

BY_LOADER, BY_HAND, PINNED, NOT_AT_ALL = "by the loader", "by hand", "by hand, pinned", "not at all"
WARM = 3
RESIDENT = 4  # minibatches that are on the device from the beginning


def main():
    p = common.parser(__doc__)
    p.add_argument("--fanouts", choices=common.FANOUTS, default=common.FANOUTS[0])
    p.add_argument("--steps", type=int, default=30, help="timed steps of a turn (%(default)s)")
    p.add_argument("--batch_size", type=int, default=1000)
    p.add_argument("--hidden", type=int, default=256)
    args = p.parse_args()
    mg.distributed.initialize(num_servers=0)  # one node: all rows are local
    device = connect()
    config = args.dir / args.graph / "parts-2" / f"{args.graph}.json"
    g = mg.distributed.DistGraph(args.graph, part_config=str(config))
    model = work.SAGE(mg, g.ndata["feat"].shape[1], args.hidden, len(args.fanouts.split(",")))
    model = torch.nn.parallel.DistributedDataParallel(model.to(device))
    ways = (BY_LOADER, BY_HAND, PINNED, NOT_AT_ALL)
    sides = {way: Turn(g, model, args, device, way) for way in ways if way != PINNED or device.type == "cuda"}
    found, loads = common.alternate(sides, args.rounds, args.quiet)
    if g.rank() == 0:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        if device.type == "cpu":
            common.say("torch has no GPU here: nothing is copied, so nothing can be hidden")
        more = {"device": name, "trainers": dist.get_world_size(), "gradients": dist.get_backend(), "others": loads}
        common.report(args, rows(found, args.fanouts, device), fanouts=args.fanouts, **more)
    dist.destroy_process_group()


def connect():
    """Connect the trainers, by NCCL where each has a GPU; return this one's device."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo")
    return device


class Turn:
    """A way to the device; calling it makes a loader, trains some steps, and returns the mean of their times."""

    def __init__(self, g, model, args, device, way):
        self._g, self._model, self._args, self._device, self._way = g, model, args, device, way
        self._optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    def __call__(self):
        there = self._loader(self._device)
        resident = itertools.cycle(list(itertools.islice(endless(there), RESIDENT)))
        there.close()
        loader = self._loader(self._device if self._way == BY_LOADER else None, pin_memory=self._way == PINNED)
        batches = endless(loader)
        for _ in range(WARM):
            self._train(self._moved(next(batches), resident))
        self._finish()
        begin = time.perf_counter()
        for _ in range(self._args.steps):
            self._train(self._moved(next(batches), resident))
        self._finish()
        step = (time.perf_counter() - begin) / self._args.steps
        batches.close()
        loader.close()
        return {"step": step}

    def _loader(self, device, pin_memory=False):
        sampler = mg.dataloading.NeighborSampler(list(map(int, self._args.fanouts.split(","))))
        seeds = mg.distributed.node_split(self._g.ndata["train_mask"])
        options = {"batch_size": self._args.batch_size, "shuffle": True, "drop_last": True, "pin_memory": pin_memory}
        rows = {"features": ["feat"], "labels": "label"}
        loader = mg.distributed.DistNodeDataLoader(self._g, seeds, sampler, device, **options, **rows)
        if len(loader) == 0:
            raise ValueError(f"{len(seeds)} seeds make no minibatch of {self._args.batch_size}")
        return loader

    def _moved(self, batch, resident):
        """Blocks on the device, the way of this turn."""
        blocks = batch[-1]
        if self._way in (BY_HAND, PINNED):
            return [block.to(self._device, non_blocking=self._way == PINNED) for block in blocks]
        return next(resident)[-1] if self._way == NOT_AT_ALL else blocks

    def _train(self, blocks):
        loss = F.cross_entropy(self._model(blocks, blocks[0].srcdata["feat"]), blocks[-1].dstdata["label"])
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def _finish(self):
        """Wait for the device, and for the other trainers."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        dist.barrier()


def endless(loader):
    """Its minibatches, over ends of epochs."""
    while True:
        yield from loader


def rows(found, fanouts, device):
    """The steps, and of the rounds what is hidden."""
    steps = common.pick(found, "step", 1e3)
    table = [common.alone(f"step, fanouts {fanouts}, minibatches brought to the device", "ms", steps)]
    if device.type == "cpu":
        return table
    copies = [hand - none for hand, none in zip(steps[BY_HAND], steps[NOT_AT_ALL], strict=True)]
    table.append(common.alone("copies by hand, of a step", "ms", {common.OURS: copies}))
    for way in (BY_LOADER, PINNED):
        hidden = [1 - (s - none) / copy for s, none, copy in zip(steps[way], steps[NOT_AT_ALL], copies, strict=True)]
        what, share = f"share of the copies that is hidden, {way}", statistics.median(hidden)
        spread = min(hidden), max(hidden)
        table.append(common.Row(what, "", {common.OURS: share}, share, spread, None, {common.OURS: hidden}))
    return table


if __name__ == "__main__":
    main()
