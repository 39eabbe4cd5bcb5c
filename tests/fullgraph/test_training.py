"""Full-graph training: the same bits on all layouts, the numbers of plain torch, the fewest bytes, errors on all ranks.

The oracle graphs are directed and have isolated nodes; in 12 parts a type of the typed one has empty pieces, another no
node at all.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jobs import SOON, run_script
from layouts import (
    ALONE,
    Job,
    Layout,
    SharedJob,
    alone,
    everywhere,
    on_all,
    on_layouts,
    own_on_layouts,
    refuses,
    rotated,
    several,
    shared_folder,
)
from oracle import partitioned, whole, write_oracle
from torch import nn
from torch.utils.checkpoint import checkpoint
from typed_oracle import write_typed_oracle
from worlds import counted

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph.errors import CollectiveError, FieldNameError, InvalidArgumentError, MPIGraphError, TensorMismatchError
from mpigraph.metadata.schema import Schema
from mpigraph.partition.source import GraphSource

WIDTH, STEPS = 6, 4
EDGES = ("_N", "_E", "_N")
sent = partial(counted, "sent_bytes")


class Stack(nn.Module):
    """Layers with an activation and dropout between them, on a block or a whole graph."""

    def __init__(self, layers: list[nn.Module], drop: float) -> None:
        super().__init__()
        self.layers, self.drop = nn.ModuleList(layers), drop

    def forward_layer(self, i: int, block: Any, h: Any) -> Any:
        h = self.layers[i](block, h)
        act = (lambda x: F.dropout(F.elu(x.flatten(1)), self.drop, self.training)) if i == 0 else lambda x: x.flatten(1)
        return {t: act(x) for t, x in h.items()} if isinstance(h, dict) else act(h)


class Weighted(nn.Module):
    """A GINE layer whose edges have the feature "weight"."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.of_edges, self.conv = nn.Linear(1, width), mg.nn.GINEConv(nn.Linear(width, out))

    def forward(self, block: Any, h: Any) -> torch.Tensor:
        return self.conv(block, h, self.of_edges(block.edata["weight"][:, None].to(h.dtype)))


class Mesh(nn.Module):
    """A step of a MeshGraphNet: new rows of edges of those and of both ends, new rows of nodes of their sums."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_edges, self.of_nodes = nn.Linear(3 * width, width), nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, block: Any, h: Any) -> Any:
        src, dst = block.edges()
        own = h["_N"][: block.num_dst_nodes()]
        e = h[EDGES] + torch.tanh(self.of_edges(torch.cat([h[EDGES], h["_N"][src], own[dst]], 1)))
        total = torch.zeros_like(own).index_add(0, dst, e)
        return {"_N": own + self.norm(self.of_nodes(torch.cat([own, total], 1))), EDGES: e}


def hetero(width: int, out: int, g: dist.DistGraph) -> nn.Module:
    return mg.nn.HeteroGraphConv({r[1]: mg.nn.SAGEConv((width, width), out, "mean") for r in g.canonical_etypes})


CONVS: dict[str, Callable[..., nn.Module]] = {
    "SAGE": lambda a, b, g: mg.nn.SAGEConv(a, b, "mean"),
    "GCN": lambda a, b, g: mg.nn.GraphConv(a, b, "both", allow_zero_in_degree=True),
    "GAT": lambda a, b, g: mg.nn.GATConv(a, b // 2, 2, feat_drop=0.2, allow_zero_in_degree=True),
    "GINE": lambda a, b, g: Weighted(a, b),
    "hetero": hetero,
    "mesh": lambda a, b, g: Mesh(a),
}


def model_of(kind: str, g: dist.DistGraph, dtype: torch.dtype, drop: float = 0.4) -> Stack:
    torch.manual_seed(3)
    layers = [CONVS["SAGE" if kind == "tied" else kind](WIDTH, WIDTH, g) for _ in range(2)]
    return Stack(layers[:1] * 2 if kind == "tied" else layers, drop).to(dtype)


def wave(ids: torch.Tensor, dtype: torch.dtype, width: int = WIDTH) -> torch.Tensor:
    """Rows that are a function of an id."""
    return torch.sin(ids[:, None].double() * torch.arange(1, width + 1)).to(dtype)


def inputs(kind: str, ids: Callable[[Any], torch.Tensor], ntypes: list[str], dtype: torch.dtype) -> Any:
    if kind == "mesh":
        return {"_N": wave(ids("_N"), dtype), EDGES: wave(ids(EDGES) + 7, dtype)}
    return {t: wave(ids(t), dtype) for t in ntypes} if kind == "hetero" else wave(ids("_N"), dtype)


def opened(fg: mg.FullGraph) -> Callable[[Any], torch.Tensor]:
    return lambda key: fg.eids(key) if isinstance(key, tuple) else fg.nodes(key)


def optimizer_of(model: nn.Module, dtype: torch.dtype) -> torch.optim.Optimizer:
    sgd = dtype == torch.float32
    return torch.optim.SGD(model.parameters(), 0.05, 0.9) if sgd else torch.optim.Adam(model.parameters(), 0.01)


def steps(
    fg: mg.FullGraph, model: nn.Module, optimizer: Any, x: Any, kind: str, number: int = STEPS
) -> list[torch.Tensor]:
    """Train on a third of the nodes of a type; return losses and weights."""
    ntype = "paper" if kind == "hetero" else "_N"
    ids, losses = fg.nodes(ntype), []
    y, mask = ids % WIDTH, ids % 3 == 0
    for _ in range(number):
        h = fg(model, x)
        h = h[ntype] if isinstance(h, dict) else h
        loss = fg.mean(F.cross_entropy(h, y, reduction="none"), mask, ntype)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach().clone() for p in model.parameters())]


def trained(g: dist.DistGraph, kind: str, dtype: torch.dtype, drop: float = 0.4, **options: Any) -> list[torch.Tensor]:
    fg = mg.FullGraph(g, edata=["weight"] if kind == "GINE" else (), **options)
    model = model_of(kind, g, dtype, drop).train(drop > 0)
    x = inputs(kind, opened(fg), g.ntypes, dtype)
    return steps(fg, model, optimizer_of(model, dtype), x, kind)


def graph_of(job: SharedJob, kind: str) -> str:
    return job.write(write_typed_oracle if kind == "hetero" else write_oracle, 12)


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(x.numpy().tobytes() == y.numpy().tobytes() for x, y in zip(a, b, strict=True))


@rotated(3)
@everywhere
@pytest.mark.parametrize("kind", CONVS)
def test_no_bit_depends_on_the_layout(job: SharedJob, kind: str) -> None:
    """Nor on recomputing; but on the number of pieces."""
    number, path = [*CONVS].index(kind), graph_of(job, kind)
    dtype = (torch.float64, torch.float32)[number % 2]
    pieces = (None, 5)[number % 3 == 0]  # 5 pieces: on some layouts a trainer has one, or a piece lies on two nodes

    def body(g: dist.DistGraph, **options: Any) -> list[torch.Tensor]:
        return trained(g, kind, dtype, pieces=pieces, **options)

    alone = job.alone(lambda: body(dist.DistGraph(Path(path).stem, part_config=path)))
    again = bool((number // 2 + job.trainers.size) % 2)
    here = body(job.open(path), recompute=again)
    on_all(job.trainers, equal(here, alone), f"recompute={again}: {here[:STEPS]}, alone {alone[:STEPS]}")


def in_torch(conv: Any, kind: str, src: torch.Tensor, dst: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A layer by dense matrices."""
    matrix = torch.zeros(len(x), len(x), dtype=x.dtype).index_put((dst, src), x.new_ones(()), accumulate=True)
    if kind == "SAGE":
        return conv.fc_self(x) + conv.fc_neigh(matrix @ x / matrix.sum(1, keepdim=True).clamp(min=1))
    scale = [matrix.sum(dim).clamp(min=1) ** -0.5 for dim in (0, 1)]
    return scale[1][:, None] * (matrix @ (scale[0][:, None] * x)) @ conv.weight + conv.bias


@pytest.mark.slow
@on_layouts([ALONE])
@pytest.mark.parametrize("kind", [*CONVS, "tied"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_numbers_are_those_of_the_whole_graph(job: SharedJob, kind: str, dtype: torch.dtype) -> None:
    g = job.open(graph_of(job, kind))
    model = model_of(kind, g, dtype, 0.0).eval()
    optimizer, graph = optimizer_of(model, dtype), whole(g)
    ntype = "paper" if kind == "hetero" else "_N"
    src, dst = graph.edges(etype=g.canonical_etypes[0])
    mask = torch.arange(g.num_nodes(ntype)) % 3 == 0
    losses = []

    def every(key: Any) -> torch.Tensor:
        return torch.arange(graph.num_edges(key) if isinstance(key, tuple) else graph.num_nodes(key))

    for _ in range(STEPS):
        h = inputs(kind, every, g.ntypes, dtype)
        for i in (0, 1):
            if kind in ("SAGE", "GCN"):
                h = in_torch(model.layers[i], kind, src, dst, h)
                h = F.elu(h) if i == 0 else h
            else:
                h = model.forward_layer(i, graph, h)
        h = h[ntype] if isinstance(h, dict) else h
        loss = F.cross_entropy(h[mask], (torch.arange(len(h)) % WIDTH)[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    wanted = [*losses, *(p.detach() for p in model.parameters())]
    result = trained(g, kind, dtype, 0.0)
    most = max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in zip(result, wanted, strict=True))
    assert most <= (1e-11 if dtype == torch.float64 else 1e-6), most


@on_layouts([Layout(2, 0, 1), Layout(4, 0, 2), Layout(3, 0, 0)])
def test_a_row_travels_once_in_each_direction(job: SharedJob) -> None:
    """The first input sends nothing; gradients of weights what a ring would send."""
    g = job.open(job.write(write_oracle, 12))
    fg = mg.FullGraph(g)
    torch.manual_seed(1)
    conv = mg.nn.SAGEConv(WIDTH, WIDTH, "mean")
    x, size = wave(fg.nodes(), torch.float32), job.trainers.size
    moved = []
    for needs in (False, True):
        at = [sent()]
        out = fg([conv], x.requires_grad_(needs), [*conv.parameters()])
        at.append(sent())
        loss = fg.mean(out)
        middle = sent()
        loss.backward()
        at.append(sent())
        moved.append([at[1] - at[0], at[2] - middle])
    (forward, weights), (_, both) = np.array(job.trainers.allgather(moved)).sum(0).tolist()
    src, dst = (ends.numpy() for ends in g.find_edges(torch.arange(g.num_edges())))
    owner = np.empty(g.num_nodes(), np.int64)
    for trainer, ids in enumerate(job.trainers.allgather(fg.nodes().numpy())):
        owner[ids] = trainer
    pairs = np.stack([owner[dst], src], 1)[owner[src] != owner[dst]]
    halo = 4 * WIDTH * len(np.unique(pairs, axis=0))
    ring = 2 * (size - 1) * 4 * sum(p.numel() for p in conv.parameters())
    exact = size != 3
    assert forward == halo, (forward, halo)
    assert halo <= both - weights <= (1.01 if exact else 1.7) * halo, (both - weights, halo)
    assert ring <= weights <= (1.05 if exact else 2) * ring + 64 * size, (weights, ring)
    known = fg.ndata("feat")
    g.barrier()  # others read rows of this trainer until here
    before = sent()
    fg([lambda block, h: h[1] * 2], known)
    on_all(job.trainers, sent() == before, "a feature of the graph sends nothing")
    on_all(job.trainers, known.data_ptr() % 64 == 0, "and is copied by no layer")
    mg.FullGraph(g)([lambda block, h: h[1] * 2], known)
    on_all(job.trainers, sent() > before, "rows with the halo of another plan are sent")
    changed = fg.ndata("feat")
    changed += 1
    rows = fg([lambda block, h: mg_sum(block, h[0])], changed)
    on_all(job.trainers, torch.equal(rows, fg([lambda block, h: mg_sum(block, h[0])], fg.ndata("feat") + 1)))
    assert f"{fg!r}".count("\n") == size + 2


def mg_sum(block: Any, h: torch.Tensor) -> torch.Tensor:
    src, dst = block.edges()
    return h.new_zeros(block.num_dst_nodes(), h.shape[1]).index_add(0, dst, h[src])


@on_layouts([Layout(2, 0, 1), Layout(4, 1, 2)])
def test_what_is_wrong_is_one_error_on_every_trainer(job: SharedJob) -> None:
    """Also what is wrong on one of them; and the next step is right."""
    g = job.open(job.write(write_oracle, 12))
    last = job.rank == job.trainers.size - 1
    for options, kind, text in (
        ({"pieces": 0}, InvalidArgumentError, "pieces"),
        ({"edata": ["no"]}, FieldNameError, "'no'"),
        ({"threads": 1 + last}, TensorMismatchError, "differ"),
    ):
        on_all(job.trainers, refuses(kind, text, lambda o=options: mg.FullGraph(g, **o)), text)
    fg, again = mg.FullGraph(g), mg.FullGraph(g, recompute=True)
    x, y = wave(fg.nodes(), torch.float32), fg.nodes() % WIDTH
    model = model_of("SAGE", g, torch.float32)
    lone, known = nn.Parameter(torch.ones(WIDTH)), [model.layers[0].fc_self.weight]

    def fails(error: Exception) -> Callable[..., torch.Tensor]:
        def layer(block: Any, h: Any) -> torch.Tensor:
            if last:
                raise error
            return h[1]

        return layer

    other = model_of("SAGE", g, torch.float32)
    with torch.no_grad():
        other.layers[1].fc_self.weight += last
    hooked, both = model_of("SAGE", g, torch.float32), [lone, *known]
    hooked.layers[0].fc_self.weight.register_hook(lambda grad: 2 * grad)
    frozen = model_of("SAGE", g, torch.float32)
    frozen.layers[0].requires_grad_(not last)
    ddp = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(ddp)
    spectral = Stack([nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))], 0.0)
    spectral.forward_layer = lambda i, block, h: spectral.layers[i](h[: block.num_dst_nodes()])

    class Embedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(g.num_nodes(), WIDTH, sparse=True)

        def forward(self, block: Any, h: Any) -> torch.Tensor:
            return self.rows(block.dstdata[mg.NID])

    torch.manual_seed(4)
    embedding = Embedding()
    cases: list[tuple[str, type[MPIGraphError], str, Callable[[], Any]]] = [
        ("raises", CollectiveError, "trainer", lambda: fg([fails(KeyError("x"))], x)),
        ("model differs", TensorMismatchError, "0 layers.1.fc_self.weight", lambda: mg.FullGraph(g)(other, x)),
        ("a layer more", TensorMismatchError, "layers", lambda: mg.FullGraph(g)([nn.Identity()] * (2 + last), x)),
        ("DDP", InvalidArgumentError, "without DDP", lambda: fg(ddp, x)),
        ("BatchNorm", InvalidArgumentError, "LayerNorm", lambda: fg([nn.BatchNorm1d(3)], x)),
        ("rows", InvalidArgumentError, "rows", lambda: fg(model, x[: len(x) - last])),
        ("dtype", TensorMismatchError, "differ", lambda: fg(model, x.double() if last else x)),
        ("shape", TensorMismatchError, "differ", lambda: fg([lambda b, h: h[1][:, : 2 + last]], x)),
        ("no key", InvalidArgumentError, "x must be", lambda: fg(model, {"other": x})),
        ("no rows", InvalidArgumentError, "rows", lambda: fg([lambda b, h: h[0]], x)),
        ("not rows", InvalidArgumentError, "rows", lambda: fg([lambda b, h: "rows"], x)),
        ("writes", InvalidArgumentError, "write", lambda: fg([lambda b, h: h[0].mul_(2)[: len(h[1])]], x)),
        ("unknown", InvalidArgumentError, "parameter", lambda: fg([lambda b, h: h[1] * lone], x, known)),
        ("meets", CollectiveError, "not in step", lambda: fg([lambda b, h: g.barrier() or h[1]], x)),
        ("mask", InvalidArgumentError, "mask", lambda: fg.mean(x, y[1:] > 0)),
        ("calls", CollectiveError, "different calls", lambda: fg.mean(x) if last else fg(model, x)),
        ("graphs", CollectiveError, "different calls", lambda: (again if last else fg)(model, x)),
        ("order", TensorMismatchError, "differ", lambda: fg([lambda b, h: h[1]], x, both[:: -1 if last else 1])),
        ("hook", InvalidArgumentError, "register_hook", lambda: fg(hooked, x)),
        ("frozen", TensorMismatchError, "parameters", lambda: fg(frozen, x)),
        ("set", InvalidArgumentError, "a list", lambda: fg([lambda b, h: h[1] * lone], x, {lone})),
        ("tensor", InvalidArgumentError, "a list", lambda: fg([lambda b, h: h[1] * lone], x, lone)),
        ("device", InvalidArgumentError, "on the CPU", lambda: fg(model_of("SAGE", g, torch.float32).to("meta"), x)),
        ("sparse", InvalidArgumentError, "dense tensor", lambda: fg(model, x.to_sparse() if last else x)),
        ("sparse gradient", InvalidArgumentError, "sparse=False", lambda: fg.mean(fg([embedding], x)).backward()),
        ("spectral_norm", InvalidArgumentError, "buffers", lambda: fg(spectral, x)),
        ("inference_mode", InvalidArgumentError, "no_grad", lambda: torch.inference_mode()(fg)(model, x)),
        ("no grad", TensorMismatchError, "differ", lambda: fg(model, x.clone().requires_grad_(last))),
    ]
    for name, kind, text, call in cases:
        on_all(job.trainers, refuses(kind, text, call), name)
    fg, again = mg.FullGraph(g), mg.FullGraph(g, recompute=True)
    losses = [F.cross_entropy(each(model, x), y, reduction="none") for each in (fg, again)]
    means = [each.mean(loss) for each, loss in zip((fg, again), losses, strict=True)]
    for mean in means:  # two graphs at once
        model.zero_grad()
        mean.backward(retain_graph=True)
        on_all(job.trainers, all(p.grad is not None for p in model.parameters()))
    first = [p.grad.clone() for p in model.parameters()]
    on_all(job.trainers, refuses(InvalidArgumentError, "recompute=True", lambda: means[0].backward(retain_graph=True)))
    model.zero_grad()
    means[1].backward()
    on_all(job.trainers, equal(first, [p.grad for p in model.parameters()]))
    loss, _ = again.mean(again(model, x)), fg(model, x)  # as many calls of both: dropout depends on their number
    with torch.no_grad():
        model.layers[0].fc_self.weight += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # torch's, on every trainer
        loss.backward()
    for each in (fg, again):  # recomputed as it was computed
        with torch.autocast("cpu", torch.bfloat16):
            loss = each.mean(F.cross_entropy(each(model, x).float(), y, reduction="none"))
        model.zero_grad()
        model.eval()
        loss.backward()
        model.train()
        first = first if each is again else [p.grad.clone() for p in model.parameters()]
    on_all(job.trainers, equal(first, [p.grad for p in model.parameters()]))
    skipped = fg.mean(fg(model, x))
    on_all(
        job.trainers, refuses(CollectiveError, "different calls", lambda: fg(model, x) if last else skipped.backward())
    )


@pytest.mark.slow
@several
def test_odd_uses(job: SharedJob) -> None:
    """Inputs that need gradients, 16 bits, no gradients, some parameters; more pieces than nodes, infinite numbers."""
    g = job.open(job.write(write_oracle, 12))
    fg = mg.FullGraph(g, pieces=150)
    ids = torch.arange(g.num_nodes())
    own = fg.nodes()
    src, _ = g.find_edges(torch.arange(g.num_edges()))
    degrees = torch.bincount(src, minlength=len(ids)).double()
    x = wave(own, torch.float64).requires_grad_()
    fg.mean(fg([lambda b, h: mg_sum(b, h[0])], x)).backward()
    wanted = (degrees / (len(ids) * WIDTH))[own][:, None].expand_as(x)
    on_all(job.trainers, torch.allclose(x.grad, wanted, rtol=1e-12, atol=0), "the gradient of an input")
    with torch.no_grad():
        narrow = fg([lambda b, h: mg_sum(b, h[0])], wave(own, torch.bfloat16))
    on_all(job.trainers, narrow.dtype == torch.bfloat16 and len(narrow) == len(own))
    total = fg.mean(fg.nodes().double(), own % 2 == 0)
    on_all(job.trainers, total.item() == float(ids[::2].double().mean()), f"{total}")
    on_all(job.trainers, bool(torch.isnan(fg.mean(x.detach(), own < 0))), "no node counts")
    endless = torch.where(own == 1, torch.inf, 1.0).requires_grad_()
    (mean := fg.mean(endless)).backward()
    ok = mean.item() == torch.inf and torch.allclose(endless.grad * len(ids), torch.ones(len(own)))
    on_all(job.trainers, ok, f"{mean} {endless.grad}")
    one, two = nn.Parameter(torch.ones(WIDTH).double()), nn.Parameter(torch.ones(WIDTH).double())
    unused = nn.Parameter(torch.ones(3))

    def some(block: Any, h: Any) -> torch.Tensor:
        """A parameter that only pieces with node 0 use."""
        return h[1] * one * (two if 0 in block.dstdata[mg.NID] else 1)

    fg.mean(fg([some], x.detach(), [one, two, unused])).backward()
    rows = wave(ids, torch.float64) / (len(ids) * WIDTH)
    ok = torch.allclose(one.grad, rows.sum(0)) and torch.allclose(two.grad, rows[0]) and unused.grad is None
    on_all(job.trainers, ok, f"{two.grad} {rows[0]}")


class Checkpointed(nn.Module):
    """A layer that torch computes again in backward."""

    def __init__(self, layer: nn.Module, again: bool) -> None:
        super().__init__()
        self.layer, self.again = layer, again

    def forward(self, block: Any, h: Any) -> torch.Tensor:
        run = lambda src, dst: F.dropout(self.layer(block, (src, dst)), 0.5)  # noqa: E731
        return checkpoint(run, *h, use_reentrant=False) if self.again else run(*h)


@pytest.mark.slow
@several
def test_a_checkpoint_of_torch_inside_changes_no_bit(job: SharedJob) -> None:
    g = job.open(job.write(write_oracle, 12))
    results = []
    for again in (False, True):
        fg, convs = mg.FullGraph(g), model_of("SAGE", g, torch.float32).layers
        model = nn.ModuleList([Checkpointed(conv, again) for conv in convs])
        results.append(steps(fg, model, optimizer_of(model, torch.float32), wave(fg.nodes(), torch.float32), "SAGE"))
    on_all(job.trainers, equal(*results))


def write_bare(directory: Path, nodes: int) -> str:
    """A graph without edges."""
    none = np.empty(0, np.int64)
    return partitioned(GraphSource(Schema.homogeneous(), (nodes,), ((none, none),)), "bare", 2, directory)


@everywhere
@pytest.mark.parametrize("nodes", [1, 5])
def test_a_graph_without_edges(job: SharedJob, nodes: int) -> None:
    """And with trainers that have no node."""
    path = job.write(write_bare, nodes)
    body = lambda g: trained(g, "GCN", torch.float32)  # noqa: E731
    alone = job.alone(lambda: body(dist.DistGraph("bare", part_config=path)))
    on_all(job.trainers, equal(body(job.open(path)), alone))


class Learned(nn.Module):
    """Rows for a type without features; the others are passed on."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(count, WIDTH)

    def forward(self, block: Any, h: Any) -> dict[str, torch.Tensor]:
        return h[1] | {"venue": self.rows(block.dstnodes["venue"].data[mg.NID])}


@everywhere
def test_a_type_without_features_learns_rows(job: SharedJob) -> None:
    """Relations have reverses; one has no edge; types have no nodes at all, or in some parts none."""
    path = graph_of(job, "hetero")

    def body(g: dist.DistGraph, **options: Any) -> list[torch.Tensor]:
        fg = mg.FullGraph(g, **options)
        torch.manual_seed(5)
        model = nn.ModuleList([Learned(g.num_nodes("venue")), hetero(WIDTH, WIDTH, g), hetero(WIDTH, WIDTH, g)])
        x = {t: wave(fg.nodes(t), torch.float32) for t in g.ntypes if t not in ("venue", "nothing")}
        result = steps(fg, model, optimizer_of(model, torch.float32), x, "hetero")
        return [*result, model[0].rows.weight.grad]

    alone = job.alone(lambda: body(dist.DistGraph("typed_oracle", part_config=path)))
    here = body(job.open(path), recompute=True)
    on_all(job.trainers, equal(here, alone) and bool(alone[-1].any(1).all()), f"{here[-1]}, alone {alone[-1]}")


@pytest.mark.slow
@own_on_layouts([Layout(4, 0, 2)])
def test_a_checkpoint_goes_on_with_other_ranks(layout: Job) -> None:
    """Saved on two ranks, resumed on four: the bits of one rank that goes through."""
    with shared_folder(layout.comm) as folder:
        half = layout.comm.Split(layout.comm.rank // 2, layout.comm.rank)
        if layout.comm.rank == 0:
            write_oracle(folder / "graph", 12)
        layout.comm.Barrier()
        path = str(folder / "graph" / "oracle.json")

        def body(resume: bool, save: bool, pieces: int | None = None) -> list[torch.Tensor] | bool:
            g = dist.DistGraph("oracle", part_config=path)
            fg = mg.FullGraph(g, pieces)
            model = model_of("SAGE", g, torch.float64)
            optimizer = optimizer_of(model, torch.float64)
            state = {"fg": fg, "model": model, "optimizer": optimizer}
            if resume and pieces:
                load = lambda: mg.checkpoint.load(state, checkpoint_id=folder / "saved")  # noqa: E731
                return refuses(InvalidArgumentError, "pieces", load)
            if resume:
                mg.checkpoint.load(state, checkpoint_id=folder / "saved")
            for _ in range(1 if resume or save else 2):
                result = steps(fg, model, optimizer, wave(fg.nodes(), torch.float64), "SAGE", 2)
            if save:
                mg.checkpoint.save(state, checkpoint_id=folder / "saved")
            return result

        if layout.comm.rank < 2:
            Job(half, Layout(2, 0, 1)).run(lambda: body(False, True))
        layout.comm.Barrier()
        resumed = layout.run(lambda: body(True, False))
        refused = layout.run(lambda: body(True, False, 4))
        through = alone(lambda: body(False, False))
        half.Free()
        on_all(layout.comm, refused and equal(resumed, through))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("instead", "says"),
    [
        ("g.barrier()", "waiting in barrier"),
        ("mg.checkpoint.save({}, checkpoint_id='saved')", "waiting in saving a checkpoint"),
        ("raise RuntimeError('on purpose')", "on purpose"),
        ("sys.exit(3)", ""),
    ],
)
def test_a_rank_that_leaves_the_others_ends_the_job(
    tmp_path: Path, oracle: Callable[..., str], instead: str, says: str
) -> None:
    body = f"""
import mpigraph as mg
fg = mg.FullGraph(g)
loss = fg.mean(fg([lambda b, h: h[1] * 2], fg.ndata("feat").requires_grad_()))
if rank == 1:
    {instead}
loss.backward()
"""
    status, output, seconds = run_script(tmp_path, oracle(2), body, ranks=2, servers=0, MPIGRAPH_TIMEOUT="8")
    assert status != 0 and "trainer 1/2 (rank 1)" in output and says in output and seconds < SOON, output
