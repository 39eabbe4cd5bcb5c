"""RGCN on a whole typed graph in plain torch on one process: the yardstick for the example of typed graphs.

Nothing of mpigraph takes part. Keys of a file: ``<type>__num_nodes``; ``<src>__<rel>__<dst>__src`` and ``__dst``;
``<type>__feat`` or ``<type>__feat_{data,indices,indptr,shape}``; of one type also ``__label`` and
``__{train,val,test}_mask``. Where ``meta`` (JSON) says ``both_directions: false``, reverse relations are added.

    python tests/accuracy/reference_rgcn.py hgb_dblp.npz --epochs 60

Types without features have an embedding that learns. Every step is on the whole graph. It prints the accuracy on the
test nodes (one label a node: also the micro-averaged F1) after the last epoch, for every seed.
"""

import argparse
import json
import time
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Csr:
    """Features as a sparse matrix."""

    indptr: torch.Tensor
    indices: torch.Tensor
    data: torch.Tensor
    width: int

    def normalised(self, norm):
        """Each row divided by its norm."""
        row = torch.repeat_interleave(self.indptr.diff())
        total = torch.zeros(len(self.indptr) - 1).index_add(0, row, self.data.abs() ** norm) ** (1 / norm)
        return Csr(self.indptr, self.indices, self.data / total.clamp(min=1e-12)[row], self.width)

    def dense(self):
        result = torch.zeros(len(self.indptr) - 1, self.width)
        result[torch.repeat_interleave(self.indptr.diff()), self.indices] = self.data
        return result


@dataclass
class Problem:
    """A typed graph with features of some types, and labels of one."""

    nodes: dict[str, int]
    edges: dict[tuple[str, str, str], tuple[torch.Tensor, torch.Tensor]]
    feat: dict[str, Csr]
    target: str
    label: torch.Tensor
    masks: dict[str, torch.Tensor]


@dataclass
class Settings:
    """Hyperparameters of the loop here; ``sparse_lr`` is that of the embeddings."""

    hidden: int = 64
    layers: int = 2
    norm: int = 2
    dropout: float = 0.5
    lr: float = 0.01
    weight_decay: float = 0.0
    sparse_lr: float = 0.01
    epochs: int = 50


def load(path):
    """Read an npz file."""
    with np.load(path, allow_pickle=False) as z:
        data = {key: z[key] for key in z.files}
    nodes = {key[: -len("__num_nodes")]: int(data[key]) for key in data if key.endswith("__num_nodes")}
    edges = {}
    for key in data:
        if key.endswith("__src"):
            columns = (torch.from_numpy(data[key[:-3] + end].astype(np.int64)) for end in ("src", "dst"))
            edges[tuple(key[: -len("__src")].split("__"))] = tuple(columns)
    if not json.loads(str(data.get("meta", "{}"))).get("both_directions", True):
        edges |= {(dst, f"rev_{rel}", src): (v, u) for (src, rel, dst), (u, v) in edges.items()}
    feat = {t: csr(data, t) for t in nodes if f"{t}__feat" in data or f"{t}__feat_data" in data}
    (target,) = (t for t in nodes if f"{t}__label" in data)
    masks = {f"{p}_mask": torch.from_numpy(data[f"{target}__{p}_mask"].astype(bool)) for p in ("train", "val", "test")}
    return Problem(nodes, edges, feat, target, torch.from_numpy(data[f"{target}__label"].astype(np.int64)), masks)


def csr(data, ntype):
    """Features of a type, sparse whatever they were."""
    if f"{ntype}__feat" in data:
        dense = data[f"{ntype}__feat"].astype(np.float32)
        row, indices = np.nonzero(dense)
        indptr = np.concatenate([[0], np.bincount(row, minlength=len(dense)).cumsum()])
        arrays = indptr, indices, dense[row, indices], dense.shape
    else:
        arrays = (data[f"{ntype}__feat_{part}"] for part in ("indptr", "indices", "data", "shape"))
    indptr, indices, values, shape = arrays
    as_ids = (torch.from_numpy(np.asarray(ids).astype(np.int64)) for ids in (indptr, indices))
    return Csr(*as_ids, torch.from_numpy(values.astype(np.float32)), int(shape[1]))


class Layer(nn.Module):
    """The mean by each relation times its matrix, plus a linear map of the node."""

    def __init__(self, num_relations, width, out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_relations, width, out).uniform_(-(width**-0.5), width**-0.5))
        self.own = nn.Linear(width, out)
        nn.init.xavier_uniform_(self.own.weight, nn.init.calculate_gain("relu"))
        nn.init.zeros_(self.own.bias)

    def forward(self, edges, h):
        result = {t: self.own(rows) for t, rows in h.items()}
        for weight, ((src, _, dst), (u, v)) in zip(self.weight, edges.items(), strict=True):
            at, place, degree = torch.unique(v, return_inverse=True, return_counts=True)
            total = h[src].new_zeros(len(at), h[src].shape[1]).index_add(0, place, h[src][u])
            result[dst].index_add_(0, at, total / degree.unsqueeze(1) @ weight)
        return result


class Model(nn.Module):
    """Linear maps and embeddings, then the layers."""

    def __init__(self, problem, s):
        super().__init__()
        self.feat = {t: x.normalised(s.norm) if s.norm else x for t, x in problem.feat.items()}
        self.maps = nn.ModuleDict({t: nn.Linear(x.width, s.hidden) for t, x in self.feat.items()})
        rows = {t: torch.empty(n, s.hidden).uniform_(-1, 1) for t, n in problem.nodes.items() if t not in self.feat}
        self.rows = nn.ParameterDict(rows)
        sizes = [s.hidden] * s.layers + [int(problem.label.max()) + 1]
        self.layers = nn.ModuleList(Layer(len(problem.edges), a, b) for a, b in pairwise(sizes))
        self.edges, self.target, self.settings = problem.edges, problem.target, s

    def forward(self):
        h = dict(self.rows)
        for t, x in self.feat.items():
            options = {"mode": "sum", "per_sample_weights": x.data, "include_last_offset": True}
            h[t] = self.maps[t].bias + F.embedding_bag(x.indices, self.maps[t].weight.T, x.indptr, **options)
        for layer in self.layers:
            if layer is not self.layers[0]:
                h = {t: F.dropout(F.relu(rows), self.settings.dropout, self.training) for t, rows in h.items()}
            h = layer(self.edges, h)
        return h[self.target]


def train(problem, s, seed):
    """Train from one seed; return the accuracy."""
    torch.manual_seed(seed)
    model = Model(problem, s)
    embeddings = {"params": list(model.rows.values()), "lr": s.sparse_lr}
    rest = [*model.maps.parameters(), *model.layers.parameters()]
    optimizer = torch.optim.Adam([{"params": rest, "weight_decay": s.weight_decay}, embeddings], lr=s.lr)
    chosen = problem.masks["train_mask"]
    for _ in range(s.epochs):
        optimizer.zero_grad()
        F.cross_entropy(model()[chosen], problem.label[chosen]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = model().argmax(1) == problem.label
    return {what: float(right[problem.masks[f"{what}_mask"]].float().mean()) for what in ("test", "val")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--seeds", type=int, default=3)
    for field in fields(Settings):
        parser.add_argument("--" + field.name.replace("_", "-"), type=field.type, default=field.default)
    args = vars(parser.parse_args())
    problem, seeds = load(args.pop("path")), args.pop("seeds")
    for seed in range(seeds):
        start = time.perf_counter()
        result = ", ".join(f"{what} {value:.4f}" for what, value in train(problem, Settings(**args), seed).items())
        print(f"seed {seed}: {result}, {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
