"""Real graphs, layer by layer, against the whole graph in plain torch and float64; the same bits on every layout."""

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from layouts import SharedJob, everywhere, on_all
from torch import nn
from torch.nn import functional as F

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph.inference import layerwise
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource

DATA = os.environ.get("MPIGRAPH_TEST_DATA", "")
PLAIN = ["cora", "amazon_computers", "coauthor_cs", "tolokers", "oewn"]
TYPED = ["hgb_dblp", "oewn_hetero"]
WIDTHS = (16, 16, 16, 16)  # of fewer columns torch's products may round a row by how many rows there are
PARTS = 12  # whole ones on 1, 2, 3 and 4 hosts
BATCHES = (1000, 257, 100_000)
Ends = tuple[torch.Tensor, torch.Tensor]

pytestmark = [
    pytest.mark.study,
    pytest.mark.skipif(not DATA, reason="set MPIGRAPH_TEST_DATA to a directory with the graphs as .npz files"),
]


def total(ends: Ends, rows: torch.Tensor, num_dst: int) -> torch.Tensor:
    """The sum of the rows of the sources of each destination."""
    return rows.new_zeros(num_dst, *rows.shape[1:]).index_add_(0, ends[1], rows[ends[0]])


def by_attention(ends: Ends, scores: torch.Tensor, messages: torch.Tensor, num_dst: int) -> torch.Tensor:
    """Messages of edges [E, heads, d], weighted by the softmax of their scores [E, heads] for each destination."""
    index = ends[1][:, None].expand_as(scores)
    best = scores.new_full((num_dst, scores.shape[1]), -torch.inf).scatter_reduce_(0, index, scores, "amax")
    weights = torch.exp(scores - best[ends[1]])
    weights = weights / torch.zeros_like(best).index_add_(0, ends[1], weights)[ends[1]]
    sums = messages.new_zeros(num_dst, *messages.shape[1:])
    return sums.index_add_(0, ends[1], weights[..., None] * messages)


def degrees(ends: torch.Tensor, num_nodes: int) -> torch.Tensor:
    return torch.bincount(ends, minlength=num_nodes).clamp(min=1)[:, None].double()


def sage(p: dict[str, torch.Tensor], ends: Ends, h: torch.Tensor) -> torch.Tensor:
    mean = total(ends, h, len(h)) / degrees(ends[1], len(h))
    return torch.relu(h @ p["fc_self.weight"].T + p["fc_self.bias"] + mean @ p["fc_neigh.weight"].T)


def gcn(norm: str) -> Callable[..., torch.Tensor]:
    def layer(p: dict[str, torch.Tensor], ends: Ends, h: torch.Tensor) -> torch.Tensor:
        power = {"both": (-0.5, -0.5), "left": (-1, 0), "right": (0, -1), "none": (0, 0)}[norm]
        sums = total(ends, h * degrees(ends[0], len(h)) ** power[0], len(h)) * degrees(ends[1], len(h)) ** power[1]
        return torch.relu(sums @ p["weight"] + p["bias"])

    return layer


class Heads(nn.Module):
    """GAT, its heads averaged."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.conv = mg.nn.GATConv(width, out, 2, allow_zero_in_degree=True)

    def forward(self, graph: Any, h: Any) -> torch.Tensor:
        return torch.as_tensor(self.conv(graph, h).mean(1))


def gat(p: dict[str, torch.Tensor], ends: Ends, h: torch.Tensor) -> torch.Tensor:
    z = (h @ p["conv.fc.weight"].T).reshape(len(h), 2, -1)
    left, right = ((z * p[f"conv.attn_{side}"]).sum(-1) for side in "lr")
    scores = F.leaky_relu(left[ends[0]] + right[ends[1]], 0.2)
    return (by_attention(ends, scores, z[ends[0]], len(h)) + p["conv.bias"].reshape(1, 2, -1)).mean(1)


Rows = dict[str, torch.Tensor]


class Normalised(nn.Module):
    """RGCN with means by relation: sums of thousands of neighbours are beyond what float32 can tell after a tanh."""

    def __init__(self, width: int, out: int, num_rels: int) -> None:
        super().__init__()
        self.conv = mg.nn.RelGraphConv(width, out, num_rels, activation=torch.tanh)

    def forward(self, graph: Any, h: Any) -> Any:
        norm = {r: 1 / graph.in_degrees(etype=r)[graph.edges(etype=r)[1]] for r in graph.canonical_etypes}
        return self.conv(graph, h, norm=norm)


def rgcn(p: dict[str, torch.Tensor], graph: dict[Relation, Ends], h: Rows) -> Rows:
    out = {t: rows @ p["conv.loop_weight"] + p["conv.h_bias"] for t, rows in h.items()}
    for number, ((src, _, dst), ends) in enumerate(graph.items()):
        mean = total(ends, h[src], len(h[dst])) / degrees(ends[1], len(h[dst]))
        out[dst] = out[dst] + mean @ p["conv.linear_r.W"][number]
    return {t: torch.tanh(rows) for t, rows in out.items()}


def hgt(p: dict[str, torch.Tensor], graph: dict[Relation, Ends], h: Rows) -> Rows:
    types, heads = list(h), 2
    k, q, v = (
        {t: (h[t] @ p[f"linear_{name}.W"][i]).reshape(len(h[t]), heads, -1) for i, t in enumerate(types)}
        for name in "kqv"
    )
    out = {}
    for i, t in enumerate(types):
        scores, messages, into = [], [], []
        for r, ((src, _, dst), (u, w)) in enumerate(graph.items()):
            if dst == t:
                att, msg = (torch.stack([p[f"relation_{n}.{a}.W"][r] for a in range(heads)]) for n in ("att", "msg"))
                pri = torch.stack([p[f"relation_pri.{a}"][r] for a in range(heads)])
                keys = torch.einsum("nad,ade->nae", k[src], att)
                scores.append((keys[u] * q[t][w]).sum(-1) * pri / k[src].shape[-1] ** 0.5)
                messages.append(torch.einsum("nad,ade->nae", v[src], msg)[u])
                into.append(w)
        sums = torch.zeros_like(q[t])
        if into:
            sums = by_attention((into[0], torch.cat(into)), torch.cat(scores), torch.cat(messages), len(h[t]))
        made, gate = sums.flatten(1) @ p["linear_a.W"][i], torch.sigmoid(p["skip"][i])
        own = h[t] @ p["residual_w"] if "residual_w" in p else h[t]
        out[t] = made * gate + own * (1 - gate)
    return out


def conv(norm: str) -> Callable[..., nn.Module]:
    return lambda a, b, _: mg.nn.GraphConv(a, b, norm, activation=torch.relu, allow_zero_in_degree=True)


Kind = tuple[Callable[..., nn.Module], Callable[..., Any]]
KINDS: dict[str, Kind] = {
    "SAGE": (lambda a, b, _: mg.nn.SAGEConv(a, b, "mean", activation=torch.relu), sage),
    **{f"GCN {norm}": (conv(norm), gcn(norm)) for norm in ("both", "left", "right", "none")},
    "GAT": (lambda a, b, _: Heads(a, b), gat),
}
TYPED_KINDS: dict[str, Kind] = {
    "RGCN": (lambda a, b, g: Normalised(a, b, len(g.canonical_etypes)), rgcn),
    "HGT": (lambda a, b, g: mg.nn.HGTConv(a, 8, 2, len(g.ntypes), len(g.canonical_etypes), use_norm=False), hgt),
}


def features(z: Any, prefix: str, num_nodes: int) -> Feature:
    """What nodes have, by a fixed map to few columns; random where they have nothing."""
    rng = np.random.default_rng(7)
    if f"{prefix}feat_shape" in z:
        ptr, columns, values = (z[f"{prefix}feat_{name}"].astype(np.int64) for name in ("indptr", "indices", "data"))
        columns_to = rng.normal(size=(int(z[f"{prefix}feat_shape"][1]), WIDTHS[0]))
        rows = np.zeros((num_nodes, WIDTHS[0]))
        np.add.at(rows, np.repeat(np.arange(num_nodes), np.diff(ptr)), values[:, None] * columns_to[columns])
    elif f"{prefix}feat" in z:
        given = z[f"{prefix}feat"].astype(np.float64)
        rows = given @ rng.normal(size=(given.shape[1], WIDTHS[0]))
    else:
        rows = rng.normal(size=(num_nodes, WIDTHS[0]))
    return Feature.of((rows / np.maximum(np.abs(rows).max(1, keepdims=True), 1e-9)).astype(np.float32))


def write(directory: Path, name: str) -> str:
    """A graph in parts; edges go both ways, in typed graphs as relations of their own."""
    with np.load(Path(DATA, f"{name}.npz")) as z:
        if name in TYPED:
            ntypes = sorted(key.removesuffix("__num_nodes") for key in z.files if key.endswith("__num_nodes"))
            relations = [tuple(key.split("__")[:3]) for key in z.files if key.endswith("__src")]
            edges = [(z["__".join([*r, "src"])], z["__".join([*r, "dst"])]) for r in relations]
            there = set(relations)
            for (src, kind, dst), (u, v) in zip(list(relations), list(edges), strict=True):
                if not any((a, b) == (dst, src) for a, _, b in there):
                    relations.append((dst, f"rev-{kind}", src))
                    edges.append((v, u))
            counts = tuple(int(z[f"{t}__num_nodes"]) for t in ntypes)
            feats = {t: {"feat": features(z, f"{t}__", n)} for t, n in zip(ntypes, counts, strict=True)}
            schema = Schema(tuple(ntypes), tuple(relations))
            edges = [(u.astype(np.int64), v.astype(np.int64)) for u, v in edges]
        else:
            u, v = (z[f"edge_{end}"].astype(np.int64) for end in ("src", "dst"))
            counts, schema, edges = (len(z["label"]),), Schema.homogeneous(), [(u, v)]
            feats = {"_N": {"feat": features(z, "", counts[0])}}
    source = GraphSource(schema, counts, tuple(edges), feats)
    return str(partition_source(source, name, PARTS, directory).config_path)


def evaluate(g: dist.DistGraph, with_wanted: bool) -> dict[str, Any]:
    """The results of each kind of layers and batch size; and in plain torch."""
    typed, found = len(g.ntypes) > 1, dict[str, Any]()
    x: Any = {t: g.nodes[t].data["feat"] for t in g.ntypes} if typed else g.ndata["feat"]
    for kind, (make, by_hand) in (TYPED_KINDS if typed else KINDS).items():
        torch.manual_seed(1)
        widths = WIDTHS if kind != "HGT" else WIDTHS[:3]
        layers = [make(a, b, g) for a, b in pairwise(widths)]
        for batch_size in BATCHES:
            made = layerwise(g, layers, x, batch_size=batch_size)
            found[f"{kind} {batch_size}"] = {t: rows[:] for t, rows in (made if typed else {"": made}).items()}
        if with_wanted:
            edges = {r: g.find_edges(torch.arange(g.num_edges(r)), r) for r in g.canonical_etypes}
            h: Any = {t: rows[:].double() for t, rows in x.items()} if typed else x[:].double()
            with torch.no_grad():
                for layer in layers:
                    values = {name: value.double() for name, value in layer.named_parameters()}
                    h = by_hand(values, edges if typed else next(iter(edges.values())), h)
            found[f"{kind} wanted"] = h if typed else {"": h}
    return found


@everywhere
@pytest.mark.parametrize("name", PLAIN + TYPED)
def test_real_graphs(job: SharedJob, name: str) -> None:
    path = job.write(write, name)

    def by_one() -> dict[str, Any]:
        return evaluate(dist.DistGraph(name, part_config=path), True)

    alone = job.one_has(lambda: job.alone(by_one))
    here = evaluate(job.open(path), False)
    for case, made in here.items():
        kind = case.rpartition(" ")[0]
        first, wanted = here[f"{kind} {BATCHES[0]}"], alone[f"{kind} wanted"]
        error = max(float((rows - wanted[t]).abs().max() / wanted[t].abs().max()) for t, rows in made.items())
        same = [all(torch.equal(rows, other[t]) for t, rows in made.items()) for other in (alone[case], first)]
        if job.rank == 0:
            print(f"{name} {job.layout.name} {case}: {error:.1e} from float64, same bits in other blocks: {same[1]}")
        ok = made.keys() == wanted.keys() and error <= 1e-5 and all(same)
        on_all(job.trainers, ok, f"{case}: {error:.1e} from float64; same bits as alone, in other blocks: {same}")
