"""Train a MeshGraphNet on a whole mesh, without sampling: it learns how a puff of heat travels along a flow.

    python examples/mesh.py
    mpiexec -n 4 python examples/mesh.py             # the same losses, to the last bit
    srun -N 2 --ntasks-per-node=4 --mpi=pmi2 python examples/mesh.py --cells 300

The mesh is a triangulated channel around a cylinder. A step of an upwind scheme for advection and diffusion gives the
fields before and after; the network learns the change of a step from them. With matplotlib, --plot FILE.png draws
field, change and error.
"""

import argparse
import math

import torch
from graphs import graph_files
from torch import nn

import mpigraph as mg

EDGES = ("_N", "_E", "_N")


def mesh(cells: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return points of a channel, [n, 2], and both directions of the edges of its triangles, [m] and [m]."""
    columns, rows = 3 * cells + 1, cells + 1
    number = torch.arange(rows * columns).reshape(rows, columns)
    y, x = torch.meshgrid(torch.linspace(0, 1, rows), torch.linspace(0, 3, columns), indexing="ij")
    points = torch.stack([x, y], 2).reshape(-1, 2)
    squares = number[:-1, :-1], number[:-1, 1:], number[1:, :-1], number[1:, 1:]
    ends = [(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)]  # the sides of its two triangles
    edges = torch.cat([torch.stack([squares[a].flatten(), squares[b].flatten()]) for a, b in ends], 1).unique(dim=1)
    outside = ((points - torch.tensor([0.8, 0.5])) ** 2).sum(1) > 0.15**2  # of the cylinder
    edges = edges[:, outside[edges].all(0)]
    place = outside.cumsum(0) - 1
    src, dst = place[torch.cat([edges, edges.flip(0)], 1)]
    return points[outside], src, dst


def advected(points: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the heat of each node, [n], and its change in a step of time."""
    x, y = points.T
    heat = torch.sin(2 * math.pi * x) * torch.cos(3 * math.pi * y) + torch.exp(-20 * ((x - 1.7) ** 2 + (y - 0.4) ** 2))
    along = (points[dst] - points[src]) / (points[dst] - points[src]).norm(dim=1, keepdim=True)
    flow = torch.stack([4 * y * (1 - y), 0.3 * torch.sin(2 * math.pi * x)], 1)
    rate = (flow[src] * along).sum(1).clamp(min=0) + 0.1  # what comes from upwind, and diffusion
    change = torch.zeros_like(heat).index_add(0, dst, rate * (heat[src] - heat[dst]))
    return heat, change


def write_mesh(folder: str, cells: int, parts: int) -> None:
    """From arrays of edges and fields of a mesh to a partitioned graph."""
    points, src, dst = mesh(cells)
    heat, change = advected(points, src, dst)
    g = mg.graph((src, dst), num_nodes=len(points))
    g.ndata["state"] = torch.cat([heat[:, None], points], 1)
    g.ndata["change"] = change / change.std()
    offset, difference = points[dst] - points[src], (heat[src] - heat[dst])[:, None]
    g.edata["offset"] = torch.cat([offset, offset.norm(dim=1, keepdim=True), difference], 1) * cells
    mg.distributed.partition_graph(g, "default", num_parts=parts, out_path=folder)


def mlp(inputs: int, width: int, outputs: int | None = None) -> nn.Module:
    layers = [nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width if outputs is None else outputs)]
    return nn.Sequential(*layers, *([nn.LayerNorm(width)] if outputs is None else []))


class Encoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.nodes, self.edges = mlp(3, width), mlp(4, width)

    def forward(self, block: mg.Block, h: dict) -> dict:
        return {"_N": self.nodes(h["_N"][: block.num_dst_nodes()]), EDGES: self.edges(h[EDGES])}


class Processor(nn.Module):
    """Learned rows of edges are those of the in-edges of a block's destinations, and never travel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.nodes, self.edges = mlp(2 * width, width), mlp(3 * width, width)

    def forward(self, block: mg.Block, h: dict) -> dict:
        src, dst = block.edges()
        nodes = h["_N"][: block.num_dst_nodes()]
        edges = h[EDGES] + self.edges(torch.cat([h[EDGES], h["_N"][src], nodes[dst]], 1))
        total = torch.zeros_like(nodes).index_add(0, dst, edges)
        return {"_N": nodes + self.nodes(torch.cat([nodes, total], 1)), EDGES: edges}


class MeshGraphNet(nn.Module):
    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Encoder(width), *(Processor(width) for _ in range(steps))])
        self.decoder = mlp(width, width, 1)

    def forward_layer(self, i: int, block: mg.Block, h: dict) -> dict:
        h = self.layers[i](block, h)
        return h if i < len(self.layers) - 1 else {"_N": self.decoder(h["_N"])}


def plot(path: str, points: torch.Tensor, fields: dict[str, torch.Tensor]) -> None:
    """Draw fields over the mesh. Needs matplotlib."""
    from matplotlib import pyplot as plt

    _, axes = plt.subplots(len(fields), 1, figsize=(9, 3 * len(fields)), constrained_layout=True)
    for axis, (name, values) in zip(axes, fields.items(), strict=True):
        picture = axis.scatter(*points.T, c=values, s=4)
        axis.set(title=name, aspect="equal")
        plt.colorbar(picture, ax=axis)
    plt.savefig(path)


parser = argparse.ArgumentParser(description="Train a MeshGraphNet on a whole mesh, without sampling.")
parser.add_argument("--cells", type=int, default=16, help="squares across the channel, each two triangles")
parser.add_argument("--pieces", type=int, default=4, help="a multiple of the number of ranks")
parser.add_argument("--width", type=int, default=32, help="of hidden rows")
parser.add_argument("--message_steps", type=int, default=3)
parser.add_argument("--num_epochs", type=int, default=100)
parser.add_argument("--recompute", action="store_true", help="less memory, more time, the same bits")
parser.add_argument("--plot", help="file for a picture; needs matplotlib")
args = parser.parse_args()

mg.distributed.initialize(num_servers=0)  # every rank trains
torch.distributed.init_process_group("gloo")
with graph_files(lambda folder: write_mesh(folder, args.cells, args.pieces)) as part_config:
    g = mg.distributed.DistGraph("default", part_config=part_config)

fg = mg.FullGraph(g, recompute=args.recompute)
x = {"_N": fg.ndata("state"), EDGES: fg.edata("offset")}
change = fg.ndata("change")
torch.manual_seed(0)
model = MeshGraphNet(args.width, args.message_steps)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
if g.rank() == 0:
    print(fg, flush=True)
for epoch in range(args.num_epochs):
    loss = fg.mean((fg(model, x)["_N"][:, 0] - change) ** 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if g.rank() == 0 and (epoch % 10 == 9 or epoch == 0):
        print(f"epoch {epoch:3}  loss {loss.item():.9f}", flush=True)
with torch.no_grad():
    predicted = fg(model, x)["_N"][:, 0]
    error, size = fg.mean((predicted - change) ** 2), fg.mean(change**2)
if g.rank() == 0:
    print(f"relative error of a step: {(error / size).sqrt().item():.9f}", flush=True)
if args.plot:
    rows = mg.distributed.DistTensor((g.num_nodes(),), torch.float32, part_policy=g.get_node_partition_policy())
    rows[fg.nodes()] = predicted
    g.barrier()
    if g.rank() == 0:
        state, wanted, result = g.ndata["state"][:], g.ndata["change"][:], rows[:]
        plot(args.plot, state[:, 1:], {"heat": state[:, 0], "learned change": result, "error": result - wanted})
torch.distributed.destroy_process_group()
