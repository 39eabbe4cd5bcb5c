"""Full-graph training beside a bare block with one Ialltoallv a layer: bytes, messages, memory, CPU time.

    mpiexec -n 2 python tests/perf/full_graph.py --graph mesh --nodes 60000
    mpiexec -n 2 python tests/perf/full_graph.py --graph random --nodes 20000
    mpiexec -n 2 python tests/perf/full_graph.py --config DATA/products/parts-2/products.json
    MPIGRAPH_RANKS_PER_NODE=1 mpiexec -n 16 python tests/perf/full_graph.py --nodes 20000 --rounds 0    # only counts

The model is SAGE of some layers of one width, or MeshGraphNet, whose edges have rows, float32. The bare block has this
rank's nodes and the rows that they read; a layer sends rows by one Ialltoallv, its backward their gradients by another,
and gradients of weights are added up by one Allreduce. It checks nothing, and its bits depend on the number of ranks.
The same block with the exchange of ECMWF's anemoi, over gloo, is a side where it can be imported: pip install --no-deps
--target FOLDER anemoi-models, and PYTHONPATH=FOLDER. The sides take turns, A B B A. CPU seconds are those of all ranks;
memory is the most that a rank has in an epoch beyond what it had before.
"""

import argparse
import ctypes
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from mpi4py import MPI
from torch import nn

import mpigraph as mg
from mpigraph import trace

comm = MPI.COMM_WORLD
NODES, EDGES = "_N", ("_N", "_E", "_N")
M_MMAP_THRESHOLD = -3  # of malloc.h


def mesh(nodes):
    """Return a triangulated square, both directions of each side; its nodes are numbered by row."""
    side = int(nodes**0.5)
    number = torch.arange(side * side).reshape(side, side)
    pairs = (number[:, :-1], number[:, 1:]), (number[:-1], number[1:]), (number[:-1, :-1], number[1:, 1:])
    src, dst = (torch.cat([pair[i].flatten() for pair in pairs]) for i in (0, 1))
    g = mg.graph((torch.cat([src, dst]), torch.cat([dst, src])), num_nodes=side * side)
    g.ndata["feat"] = torch.sin(torch.arange(side * side)[:, None] * torch.arange(1, 33))
    g.edata["offset"] = torch.sin(torch.arange(g.num_edges())[:, None] * torch.arange(1, 5))
    return g


GRAPHS = {"mesh": mesh, "random": lambda nodes: mg.data.generate(nodes, 25 * nodes, feat_dim=32, num_classes=8)}


class SAGE(nn.Module):
    def __init__(self, inputs, width, layers):
        super().__init__()
        sizes = [inputs, *[width] * layers]
        self.layers = nn.ModuleList(mg.nn.SAGEConv(a, b, "mean") for a, b in pairwise(sizes))

    def forward_layer(self, i, block, h):
        h = {NODES: self.layers[i](block, h[NODES])}
        return {NODES: F.elu(h[NODES])} if i < len(self.layers) - 1 else h


def mlp(inputs, width):
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.LayerNorm(width))


class MeshGraphNet(nn.Module):
    """An encoder, and steps in which edges and nodes change their rows (``examples/mesh.py``)."""

    def __init__(self, inputs, width, layers):
        super().__init__()
        self.encoder = nn.ModuleList([mlp(inputs, width), mlp(4, width)])
        steps = [nn.ModuleList([mlp(2 * width, width), mlp(3 * width, width)]) for _ in range(layers - 1)]
        self.layers = nn.ModuleList([self.encoder, *steps])

    def forward_layer(self, i, block, h):
        of_nodes, of_edges = self.layers[i]
        nodes = h[NODES][: block.num_dst_nodes()]
        if i == 0:
            return {NODES: of_nodes(nodes), EDGES: of_edges(h[EDGES])}
        src, dst = block.edges()
        edges = h[EDGES] + of_edges(torch.cat([h[EDGES], h[NODES][src], nodes[dst]], 1))
        total = torch.zeros_like(nodes).index_add(0, dst, edges)
        return {NODES: nodes + of_nodes(torch.cat([nodes, total], 1)), EDGES: edges}


MODELS = {"sage": SAGE, "meshgraphnet": MeshGraphNet}


class Exchange(torch.autograd.Function):
    """Own rows -> own rows and the halo, as the plan of ``halo`` says."""

    @staticmethod
    def forward(ctx, rows, halo):
        ctx.halo = halo
        table = torch.cat([rows, rows.new_empty(len(halo.ids), rows.shape[1])])
        alltoall(rows[halo.send], halo.going, table[len(rows) :], halo.coming)
        return table

    @staticmethod
    def backward(ctx, grad):
        halo, own = ctx.halo, len(ctx.halo.own)
        came = grad.new_empty(len(halo.send), grad.shape[1])
        alltoall(grad[own:].contiguous(), halo.coming, came, halo.going)
        return grad[:own].clone().index_add_(0, halo.send, came), None


def alltoall(rows, going, out, coming):
    width = rows.shape[1]
    comm.Ialltoallv([rows.numpy(), going * width], [out.numpy(), coming * width]).Wait()


def exchanges(halo):
    """Return by name: rows -> rows with the halo, and how gradients of weights are added up."""
    found = {"bare": (lambda rows: Exchange.apply(rows, halo), lambda flat: comm.Allreduce(MPI.IN_PLACE, flat.numpy()))}
    try:
        from anemoi.models.distributed.graph import halo_exchange
    except ImportError:
        return found
    torch.distributed.init_process_group("gloo")
    sends = torch.split(halo.send, halo.going.tolist())
    info = SimpleNamespace(send_indices=sends, recv_counts=halo.coming.tolist(), num_local_nodes=len(halo.own))
    group = torch.distributed.group.WORLD
    return found | {"anemoi": (lambda rows: halo_exchange(rows, info, group), torch.distributed.all_reduce)}


def bare_step(exchange, add_up, block, model, first, y, total):
    """Return the loss; gradients of weights are those of all ranks. ``first``: the rows of the first layer."""
    h = first
    for i in range(len(model.layers)):
        h = model.forward_layer(i, block, h if i == 0 else h | {NODES: exchange(h[NODES])})
    loss = F.cross_entropy(h[NODES], y, reduction="sum") / total
    loss.backward()
    add_up(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return loss


def full_step(fg, again, model, x, y):
    fg.recompute = again
    loss = fg.mean(F.cross_entropy(fg(model, x)[NODES], y, reduction="none"))
    loss.backward()
    return loss


def counted(kind):
    """Return what this rank has sent to others, by key, and their number."""
    counts = trace.process.snapshot().counts
    return sum(n for key, n in counts.items() if isinstance(key, tuple) and key[0] == kind)


def seconds(step, model):
    """Return wall and CPU seconds of an epoch of this rank."""
    model.zero_grad()
    comm.Barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - wall, time.process_time() - cpu


def peak(step, model):
    """Return the MiB that an epoch of this rank takes beyond what was there before."""
    model.zero_grad()
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 16)  # arrays go back to the system at once
    libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    step()
    return memory("VmHWM") - before


def memory(key):
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) / 1024


def traffic(fg, model, x, y, halo, width):
    """Print what a layer and an epoch send, beside the unique halo rows and a ring's sum of gradients."""
    size, layers = comm.size, len(model.layers)
    rows = {NODES: torch.zeros(len(x[NODES]), width).requires_grad_()}
    frozen = SAGE(width, width, 1).requires_grad_(False)
    comm.Barrier()  # and its rows were sent to all who read them
    marks = [sent()]
    out = fg(frozen, rows)
    marks.append(sent())
    out[NODES].sum().backward()
    marks.append(sent())
    out = fg(model, x)[NODES]  # the halo of its first rows came with them
    between = sent()
    F.cross_entropy(out, y, reduction="sum").backward()
    counts = [*np.diff(np.array(marks), axis=0), sent() - between]
    counts = np.array(comm.allgather(counts))
    unique = comm.allreduce(len(halo.ids)) * width * 4
    ring = sum(p.numel() for p in model.parameters()) * 4 * 2 * (size - 1)
    (forward, _), (backward, _), (epoch, _) = counts.sum(0).tolist()
    messages, most = counts[:, :, 1].max(0).tolist(), counts[:, :, 0].max(0).tolist()
    if comm.rank == 0 and unique:
        print(
            f"a layer's unique halo rows: {unique / 1e6:.3f} MB, {unique / (4 * width) / fg._g.num_nodes():.3f} of own"
        )
        print(f"forward sends {forward / unique:.3f} of them, backward {backward / unique:.3f}")
        print(f"weights: {(epoch - (layers - 1) * backward) / ring:.3f} of 2(R-1)/R x their bytes a rank")
        print(f"most of a rank, forward, backward, an epoch's backward: {messages} messages, {most} bytes", flush=True)


def sent():
    """Return bytes and messages that this rank has sent to others."""
    return np.array([counted("sent_bytes"), counted("sent_messages")])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--graph", choices=GRAPHS, default="mesh")
    p.add_argument("--nodes", type=int, default=60_000)
    p.add_argument("--config", type=Path, help="a partitioned graph with a feature feat, in place of these")
    p.add_argument("--model", choices=MODELS, default="sage", help="meshgraphnet: of the mesh (%(default)s)")
    p.add_argument("--pieces", type=int, help="by default as many as ranks")
    p.add_argument("--layers", type=int, default=3)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--rounds", type=int, default=8)
    args = p.parse_args()
    mg.distributed.initialize(num_servers=0)
    torch.set_num_threads(1)
    config = args.config
    if config is None:
        config = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)) / "g.json"
        if comm.rank == 0:
            mg.distributed.partition_graph(GRAPHS[args.graph](args.nodes), "g", comm.size, str(config.parent))
    comm.Barrier()
    g = mg.distributed.DistGraph(config.stem, part_config=str(config))
    pieces = args.pieces or comm.size
    fg = mg.FullGraph(g, pieces)
    plain = fg if pieces == comm.size else mg.FullGraph(g, comm.size)  # for its plan: one block a rank
    (piece,), halo = plain._pieces, plain._halos[NODES]
    edges = {EDGES: plain.edata("offset")} if args.model == "meshgraphnet" else {}
    x, y = {NODES: plain.ndata("feat")} | edges, plain.nodes() % 8
    torch.manual_seed(0)
    model = MODELS[args.model](x[NODES].shape[1], args.width, args.layers)
    if comm.rank == 0:
        print(
            f"{args.model}, {g.num_nodes()} nodes, {g.num_edges()} edges, {comm.size} ranks, {pieces} pieces",
            flush=True,
        )
    rows = {NODES: fg.ndata("feat")} | edges  # pieces lie in one order
    traffic(fg, model, rows, y, halo, args.width)
    first = {NODES: x[NODES]._table[0]} | edges
    steps = {}
    for name, way in exchanges(halo).items():
        steps[name] = partial(bare_step, *way, piece.block, model, first, y, g.num_nodes())
    for name, again in (("full graph", False), ("recompute", True)):
        steps[name] = partial(full_step, fg, again, model, rows, y)
    found = {name: [] for name in steps}
    for number in range(args.rounds + 1 if args.rounds else 0):
        for name in list(steps)[:: -1 if number % 2 else 1]:
            each = np.array(comm.allgather(seconds(steps[name], model)))
            if number:  # the first is to warm up
                found[name].append((each[:, 0].max(), each[:, 1].sum()))
    most = {name: max(comm.allgather(peak(step, model))) for name, step in steps.items()}
    if comm.rank == 0 and args.rounds:
        for name, rounds in found.items():
            wall, cpu = 1e3 * np.median(np.array(rounds), 0)
            ratio = np.median(np.array(rounds) / np.array(found["bare"]), 0)
            print(
                f"{name:10}: wall {wall:.1f} ms ({ratio[0]:.2f}), CPU {cpu:.1f} ms ({ratio[1]:.2f}), "
                f"memory {most[name]:.1f} MiB ({most[name] / most['bare']:.2f})"
            )
        own, table = len(halo.own) * args.width * 4 / 2**20, (len(halo.own) + len(halo.ids)) * args.width * 4 / 2**20
        print(f"rank 0: a layer's own rows {own:.1f} MiB, its table {table:.1f} MiB")
    comm.Barrier()


if __name__ == "__main__":
    main()
