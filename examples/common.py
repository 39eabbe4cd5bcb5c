"""Shared code of the examples: settings, progress, means, and a model. ``graphs.py`` has the generated graphs."""

import argparse
import os
import sys
import time
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

import mpigraph as mg

SETTINGS = {  # of every example, beside its own: name -> (default, meaning)
    "graph_name": ("default", "name of the partitioned graph"),
    "part_config": (os.environ.get("MPIGRAPH_PART_CONFIG", ""), "its <name>.json (default: generate a graph)"),
    "num_servers": (None, "servers on each node; 0: the trainers host the graph (default: MPIGRAPH_NUM_SERVERS, or 1)"),
    "backend": ("gloo", "transport of gradients; nccl: train on GPUs; mpi4py: by MPI, without opening a port"),
    "seed": (0, "of draws, orders and first parameters"),
}
CHECKPOINTS = {  # of the examples that can be stopped and resumed
    "checkpoint_dir": ("", "folder of checkpoints; SIGUSR1 has the job saved there, ended, and requeued by Slurm"),
    "checkpoint_every": (0, "save every so many steps, or epochs, in the background; 0: never"),
    "resume": (False, "resume from the newest checkpoint, if there is one"),
}
QUIET_SECONDS = 10.0  # between two lines of a long epoch, where no bar can be drawn


def parse_arguments(doc, settings):
    """Read the command line: a flag for each setting, of the type of its default (int if that is None).

    A setting that is False becomes true by the flag alone.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, (default, meaning) in (SETTINGS | settings).items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true", help=meaning)
            continue
        kind = int if default is None else type(default)
        text = meaning if default in (None, "") else f"{meaning} (default: {default})"
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)
    args = parser.parse_args()
    if getattr(args, "resume", False) or getattr(args, "checkpoint_every", 0):
        args.checkpoint_dir or parser.error("--resume and --checkpoint_every need --checkpoint_dir")
    if getattr(args, "checkpoint_dir", ""):
        args.preempted = mg.checkpoint.preemption()  # before initialize(): servers get the signal, too
    return args


def numbers(text):
    """Return the fanouts of a setting such as "10,10"."""
    return [int(number) for number in text.split(",")]


def start_torch(backend):
    """Connect the trainers for torch.distributed; return the device that this one computes on."""
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method="mpi4py://" if backend == "mpi4py" else None)
    return device


def per_trainer(batch_size):
    """The batch size of each trainer, where all of them together should have this one."""
    return -(-batch_size // dist.get_world_size())


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def resume(args, state, folder):
    """Resume from the newest checkpoint in a folder, on any number of ranks, if the user asks and there is one."""
    newest = mg.checkpoint.latest(folder) if args.resume else None
    if newest is not None:
        mg.checkpoint.load(state, checkpoint_id=newest)


def save(args, state, folder, number):
    """Save in the background every so many steps or epochs; if the job is asked to stop, save and stop."""
    if args.checkpoint_dir and args.preempted():
        mg.checkpoint.save(state, checkpoint_id=f"{folder}/{number}", keep=2)
        mg.checkpoint.requeue()
    if args.checkpoint_every and number % args.checkpoint_every == 0:
        mg.checkpoint.async_save(state, checkpoint_id=f"{folder}/{number}", keep=2)


# ---- what trainer 0 prints -------------------------------------------------------------------------------------------


def print_once(text):
    """Print a line on trainer 0 alone."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def shown(batches, what):
    """Iterate over minibatches and show progress: a bar in a terminal, else a line every ten seconds."""
    if dist.get_rank() > 0:
        yield from batches
        return
    if sys.stderr.isatty():
        yield from tqdm(batches, what, leave=False, unit="batch")
        return
    begin = time.monotonic()
    last = begin
    for done, batch in enumerate(batches):
        now = time.monotonic()
        if done and now - last > QUIET_SECONDS:
            left = (now - begin) / done * (len(batches) - done)
            print(f"{what}: {done} of {len(batches)} minibatches, {left:.0f} s left", file=sys.stderr, flush=True)
            last = now
        yield batch


class Progress:
    """Progress of training: a line for each epoch, and :func:`shown` within it."""

    def __init__(self, num_epochs, name="", first=0):
        self.name = f"{name} epoch" if name else "epoch"
        self.num_epochs = num_epochs
        self.epoch = self.first = first
        self.begin = time.monotonic()
        self._start_epoch()

    def _start_epoch(self):
        self.losses = []
        self.notes = []
        self.times = None

    def batches(self, loader):
        """Iterate over an epoch's minibatches; note the times of waiting and of computing."""
        before = loader.stats()
        yield from shown(loader, f"{self.name} {self.epoch:2d}")
        self.times = loader.stats().since(before)

    def add(self, loss):
        """Note the loss of a minibatch."""
        self.losses.append(loss.detach())

    def note(self, measure):
        """Add a text to the line of this epoch."""
        self.notes.append(measure)

    def report(self):
        """End an epoch: print its mean loss, its notes and the remaining time, on trainer 0."""
        done = self.epoch + 1
        left = (time.monotonic() - self.begin) / (done - self.first) * (self.num_epochs - done)
        loss = f"loss {torch.stack(self.losses).mean():.4f}" if self.losses else "no minibatch"
        seconds = self.times.seconds
        times = f"(wait {seconds['wait']:.2f} s, compute {seconds['step']:.2f} s; {left:.0f} s left)"
        print_once("  ".join([f"{self.name} {self.epoch:2d}", loss, *self.notes, times]))
        self.epoch = done
        self._start_epoch()


# ---- models and evaluation -------------------------------------------------------------------------------------------


def uniform(shape, dtype):
    """Return the initial rows of an embedding."""
    return torch.empty(shape, dtype=dtype).uniform_(-1, 1)


class SAGE(nn.Module):
    """GraphSAGE: a SAGEConv layer between each two sizes, with ReLU and dropout between layers."""

    def __init__(self, sizes, dropout=0.0):
        super().__init__()
        self.layers = nn.ModuleList(mg.nn.SAGEConv(a, b, "mean") for a, b in pairwise(sizes))
        self.sizes = sizes
        self.dropout = dropout

    def forward_layer(self, i, block, h):
        h = self.layers[i](block, h.float())  # features may be float16
        return h if i == len(self.layers) - 1 else mg.nn.relu_dropout(h, self.dropout, self.training)

    def forward(self, blocks, h):
        for i, block in enumerate(blocks):
            h = self.forward_layer(i, block, h)
        return h


def represent(g, model, rows, device):
    """Compute the representations of all nodes, layer by layer, as a DistTensor, spread over the trainers.

    Args:
        g: the graph.
        model: a :class:`SAGE`; without layers, ``rows`` are the result.
        rows: a DistTensor, the input of the first layer.
        device: the device of the computation.
    """
    if not model.layers:
        return rows
    return mg.inference.layerwise(g, model, rows, batch_size=1000, device=device)


def reverse_ids(g):
    """The reverse of each edge, as a DistTensor; in order of (src, dst) and of (dst, src) the two have one place."""
    reverse = mg.distributed.DistTensor((g.num_edges(),), torch.int64, part_policy=g.get_edge_partition_policy())
    if g.rank() == 0:
        src, dst = g.find_edges(torch.arange(g.num_edges()))
        one = torch.argsort(src * g.num_nodes() + dst, stable=True)
        other = torch.argsort(dst * g.num_nodes() + src, stable=True)
        if not (torch.equal(src[one], dst[other]) and torch.equal(dst[one], src[other])):
            raise ValueError("not every edge has a reverse: give --exclude self")
        reverse[one] = other
    g.barrier()
    return reverse


def linear_accuracy(g, rows, nodes, num_steps, lr, device):
    """Train a linear model on rows as they are; return its accuracy on the test nodes of all trainers together."""
    num_classes = int(g.ndata["label"][:].max()) + 1
    model = nn.parallel.DistributedDataParallel(nn.Linear(rows.shape[1], num_classes).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    x = rows[nodes["train"]].to(device).float()
    labels = g.ndata["label"][nodes["train"]].to(device)
    for _ in range(num_steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    accuracy = Mean(device)
    with torch.no_grad():
        predicted = model(rows[nodes["test"]].to(device).float()).argmax(1)
    accuracy.add(predicted.cpu() == g.ndata["label"][nodes["test"]])
    return float(accuracy.compute())


class Mean:
    """The mean of numbers [n], or of several measures [n, width], over the rows of all trainers."""

    def __init__(self, device, width=1):
        self.sums = torch.zeros(width + 1, dtype=torch.float64, device=device)  # and how many rows

    def add(self, rows):
        self.sums[:-1] += rows.double().sum(0).to(self.sums.device)
        self.sums[-1] += len(rows)

    def compute(self):
        """The means, float64[width]; collective on the trainers."""
        dist.all_reduce(self.sums)
        return self.sums[:-1] / self.sums[-1].clamp(min=1)


class Ranks:
    """Mean reciprocal rank, and the part of the ranks that are at most k, over those of all trainers."""

    def __init__(self, device, ks):
        self.ks = ks
        self.mean = Mean(device, 1 + len(ks))

    def add(self, ranks):
        self.mean.add(torch.stack([1 / ranks] + [(ranks <= k).double() for k in self.ks], 1))

    def compute(self):
        """The measures in words; collective on the trainers."""
        names = ["MRR", *(f"hits@{k}" for k in self.ks)]
        return "  ".join(f"{name} {value:.4f}" for name, value in zip(names, self.mean.compute().tolist(), strict=True))
