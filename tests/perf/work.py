"""What the trainers of ``job.py`` do, in either system: train, make minibatches, compute all nodes."""

import inspect
import itertools
import os
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CLASSES = 47


def relu_dropout(h, p, training):
    """What a script writes with torch alone."""
    return F.dropout(F.relu(h), p, training)


class SAGE(nn.Module):
    """GraphSAGE with means and dropout, of the given system's layers; DGL has none for dropout, torch's are used."""

    def __init__(self, lib, width, hidden, num_layers):
        super().__init__()
        sizes = [width] + [hidden] * (num_layers - 1) + [CLASSES]
        self.between = getattr(lib.nn, "relu_dropout", relu_dropout)
        self.layers = nn.ModuleList(lib.nn.SAGEConv(a, b, "mean") for a, b in pairwise(sizes))

    def forward(self, blocks, h):
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            h = layer(block, h)
            if i < len(self.layers) - 1:
                h = self.between(h, 0.5, self.training)
        return h


def fanouts_of(args):
    """Outermost hop first."""
    return [int(fanout) for fanout in args.fanouts.split(",")]


def make_loader(lib, g, args):
    """The loader, and whether gathered rows come with its blocks."""
    draw = lib.dataloading.NeighborSampler if args.labor is None else lib.dataloading.LaborSampler
    sampler = draw(fanouts_of(args), **(args.labor or {}))
    seeds = lib.distributed.node_split(g.ndata["train_mask"], g.get_partition_book(), force_even=True)
    make = (lib.dataloading if args.system == "dgl" else lib.distributed).DistNodeDataLoader
    parameters = inspect.signature(make.__init__).parameters
    gathers = "features" in parameters
    rows = {"features": ["feat"], "labels": "label"} if gathers else {}
    if "cache" in parameters and args.cache != "default":
        rows["cache"] = None if args.cache == "none" else args.cache
    loader = make(g, seeds, sampler, batch_size=args.batch_size, shuffle=True, drop_last=True, **rows)
    if len(seeds) < args.batch_size:
        raise ValueError(f"{len(seeds)} seeds make no minibatch of {args.batch_size}")
    return loader, gathers


def train(lib, g, args):
    loader, gathers = make_loader(lib, g, args)
    torch.manual_seed(0)
    width, layers = g.ndata["feat"].shape[1], len(fanouts_of(args))
    model = DistributedDataParallel(SAGE(lib, width, args.hidden, layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    torch.manual_seed(1 + torch.distributed.get_rank())
    names = ("step", "sample", "gather", "compute", "cpu", "accuracy", "edges", "inputs")
    found = {name: [] for name in ("start", *names)}
    before = stats_of(loader)
    with model.join():
        start, cpu = time.perf_counter(), time.process_time()
        for step, (inputs, seeds, blocks) in enumerate(endless(loader, args.warm + args.steps)):
            sampled = time.perf_counter()
            if gathers:
                feats, labels = blocks[0].srcdata["feat"], blocks[-1].dstdata["label"]
            else:
                feats, labels = g.ndata["feat"][inputs], g.ndata["label"][seeds]
            gathered = time.perf_counter()
            found["start"] = found["start"] or [time.time()]
            scores = model(blocks, feats)
            loss = F.cross_entropy(scores, labels.long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            end, cpu_end = time.perf_counter(), time.process_time()
            accuracy = float((scores.argmax(1) == labels).float().mean())
            sizes = sum(block.num_edges() for block in blocks), len(inputs)
            row = end - start, sampled - start, gathered - sampled, end - gathered, cpu_end - cpu, accuracy, *sizes
            if step >= args.warm:
                for name, value in zip(names, row, strict=True):
                    found[name].append(value)
            if step == args.warm - 1:
                before = stats_of(loader)
            start, cpu = time.perf_counter(), time.process_time()
    found["accuracy"] = found["accuracy"][-5:]
    return found | remote_rows(loader, before)


def remote_rows(loader, before):
    """Rows of other hosts that a minibatch of ours read since, and those of them that were fetched; {} for DGL."""
    if before is None:
        return {}
    stats = loader.stats().since(before)
    minibatches = max(1, stats.minibatches)
    return {"remote": [stats.remote_rows / minibatches], "fetched": [stats.fetched_rows / minibatches]}


def stats_of(loader):
    """The counts of our loader so far."""
    return loader.stats() if hasattr(loader, "stats") else None


def endless(loader, steps):
    """So many batches, of as many epochs as that takes; every trainer has the same number in each."""
    return itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps)


def loader(lib, g, args):
    """Minibatches with their rows and labels; nothing is done with them."""
    made, gathers = make_loader(lib, g, args)
    found = {"edges": [], "inputs": []}
    for step, (inputs, seeds, blocks) in enumerate(endless(made, args.warm + args.steps)):
        if gathers:
            feats, labels = blocks[0].srcdata["feat"], blocks[-1].dstdata["label"]
        else:
            feats, labels = g.ndata["feat"][inputs], g.ndata["label"][seeds]
        if (len(feats), len(labels)) != (len(inputs), args.batch_size):
            raise ValueError(
                f"{len(feats)} rows of {len(inputs)} nodes, {len(labels)} labels of {args.batch_size} seeds"
            )
        if step >= args.warm:
            found["edges"].append(sum(block.num_edges() for block in blocks))
            found["inputs"].append(len(inputs))
        if step == args.warm - 1:
            before, stats = host_totals(), stats_of(made)
            begin = time.perf_counter()
    torch.distributed.barrier()  # what one trainer asks of the other's host counts until both are done
    found["batch"] = [(time.perf_counter() - begin) / args.steps]
    for name, now in host_totals().items():
        found[name] = [(now - before[name]) / args.steps]
    return found | remote_rows(made, stats)


def host_totals():
    """CPU seconds of all processes in this network namespace so far, and bytes that left it."""
    mine, seconds = os.readlink("/proc/self/ns/net"), 0.0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "ns/net") == mine:
                times = (entry / "stat").read_text().rpartition(")")[2].split()[11:13]
                seconds += sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
        except OSError:  # it has ended
            continue
    devices = (line.partition(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:])
    return {"cpu": seconds, "sent": sum(int(counts.split()[8]) for name, _, counts in devices if name.strip() != "lo")}


def timed(loader, args, names, look):
    """Time what it takes to make each minibatch; ``look`` turns one into the numbers that are called ``names``."""
    names = ("batch", "cpu", *names)
    found = {name: [] for name in names}
    start, cpu = time.perf_counter(), time.process_time()
    for step, minibatch in enumerate(endless(loader, args.warm + args.steps)):
        sizes = look(*minibatch)
        row = time.perf_counter() - start, time.process_time() - cpu, *sizes
        start, cpu = time.perf_counter(), time.process_time()
        if step >= args.warm:
            for name, value in zip(names, row, strict=True):
                found[name].append(value)
    return found


def hetero(lib, g, args):
    """Minibatches of papers of a typed graph; nothing is done with them."""
    sampler = lib.dataloading.NeighborSampler(fanouts_of(args))
    papers = g.nodes["paper"].data
    seeds = lib.distributed.node_split(papers["train_mask"], g.get_partition_book(), ntype="paper", force_even=True)
    make = (lib.dataloading if args.system == "dgl" else lib.distributed).DistNodeDataLoader
    loader = make(g, {"paper": seeds}, sampler, batch_size=args.batch_size, shuffle=True, drop_last=True)

    def look(inputs, outputs, blocks):
        if len(outputs["paper"]) != args.batch_size:
            raise ValueError(f"{len(outputs['paper'])} seeds in a minibatch of {args.batch_size}")
        return sum(block.num_edges() for block in blocks), sum(map(len, inputs.values())), len(inputs["paper"])

    return timed(loader, args, ("edges", "inputs", "papers"), look)


def inference(lib, g, args):
    """A model with parameters that both systems have alike, on all nodes; in DGL by the loop of its example."""
    feat, layers = g.ndata["feat"], args.layers
    model = SAGE(lib, feat.shape[1], args.hidden, layers).eval()
    rng = np.random.default_rng(11)
    with torch.no_grad():
        for _, values in sorted(model.named_parameters()):
            values.copy_(torch.from_numpy(rng.uniform(-0.1, 0.1, tuple(values.shape)).astype(np.float32)))
    found = {"seconds": [], "rows": []}
    for step in range(args.warm + args.steps):
        torch.distributed.barrier()
        before, begin = host_totals(), time.perf_counter()
        if args.system == "mpigraph":
            steps = [lambda block, h, i=i: one_layer(model, i, block, h) for i in range(layers)]
            scores = lib.inference.layerwise(g, steps, feat, batch_size=args.batch_size)
        else:
            scores = hand_written(lib, g, model, feat, args)
        torch.distributed.barrier()
        if step >= args.warm:
            found["seconds"].append(time.perf_counter() - begin)
            for name, now in host_totals().items():
                found.setdefault(name, []).append(now - before[name])
    some = torch.arange(0, g.num_nodes(), max(1, g.num_nodes() // 1000))
    found["rows"] = [float(scores[some].double().abs().mean())]
    return found


def one_layer(model, i, block, h):
    """A layer and what is behind it, as a script writes it."""
    h = model.layers[i](block, h)
    return h if i == len(model.layers) - 1 else F.relu(h)


def hand_written(lib, g, model, rows, args):
    """DGL's ``inference()`` (examples/distributed/graphsage): one layer at a time, a loader of all neighbours."""
    every = torch.ones(g.num_nodes(), dtype=torch.bool)
    nodes = lib.distributed.node_split(every, g.get_partition_book(), force_even=False)
    policy = g.get_node_partition_policy("_N")
    with torch.no_grad():
        for i, layer in enumerate(model.layers):
            width = layer._out_feats
            out = lib.distributed.DistTensor((g.num_nodes(), width), torch.float32, f"h{i}", part_policy=policy)
            loader = lib.dataloading.DistNodeDataLoader(
                g, nodes, lib.dataloading.NeighborSampler([-1]), batch_size=args.batch_size, drop_last=False
            )
            for inputs, seeds, (block,) in loader:
                h = rows[inputs]
                out[seeds] = one_layer(model, i, block, (h, h[: block.number_of_dst_nodes()]))
            g.barrier() if hasattr(g, "barrier") else g._client.barrier()
            rows = out
    return rows


WORK = {"train": train, "loader": loader, "hetero": hetero, "inference": inference}
