"""RGCN on a whole typed graph in plain torch on one process: the yardstick for the example of typed graphs.

Nothing of mpigraph takes part. Keys of a file: ``<type>__num_nodes``; ``<src>__<rel>__<dst>__src`` and ``__dst``;
``<type>__feat`` or ``<type>__feat_{data,indices,indptr,shape}``; of one type also ``__label`` and
``__{train,val,test}_mask``. Where ``meta`` (JSON) says ``both_directions: false``, reverse relations are added. Types
without features have an embedding that learns.
"""

import json
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from reference_sage import dense
from torch import nn
from torch.nn import functional as F


@dataclass
class Problem:
    """A typed graph with features of some types, and labels of one."""

    nodes: dict[str, int]
    edges: dict[tuple[str, str, str], tuple[torch.Tensor, torch.Tensor]]
    feat: dict[str, torch.Tensor]  # dense
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
    kept = {t: {key.removeprefix(f"{t}__"): data[key] for key in data if key.startswith(f"{t}__feat")} for t in nodes}
    feat = {t: torch.from_numpy(dense(of_type)) for t, of_type in kept.items() if of_type}
    (target,) = (t for t in nodes if f"{t}__label" in data)
    masks = {f"{p}_mask": torch.from_numpy(data[f"{target}__{p}_mask"].astype(bool)) for p in ("train", "val", "test")}
    return Problem(nodes, edges, feat, target, torch.from_numpy(data[f"{target}__label"].astype(np.int64)), masks)


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
        self.feat = {t: F.normalize(x, s.norm) if s.norm else x for t, x in problem.feat.items()}
        self.maps = nn.ModuleDict({t: nn.Linear(x.shape[1], s.hidden) for t, x in self.feat.items()})
        rows = {t: torch.empty(n, s.hidden).uniform_(-1, 1) for t, n in problem.nodes.items() if t not in self.feat}
        self.rows = nn.ParameterDict(rows)
        sizes = [s.hidden] * s.layers + [int(problem.label.max()) + 1]
        self.layers = nn.ModuleList(Layer(len(problem.edges), a, b) for a, b in pairwise(sizes))
        self.edges, self.target, self.settings = problem.edges, problem.target, s

    def forward(self):
        h = dict(self.rows) | {t: self.maps[t](x) for t, x in self.feat.items()}
        for layer in self.layers:
            if layer is not self.layers[0]:
                h = {t: F.dropout(F.relu(rows), self.settings.dropout, self.training) for t, rows in h.items()}
            h = layer(self.edges, h)
        return h[self.target]


def train(problem, s, seed):
    """Train from one seed; return the test accuracy after the last epoch (one label a node: also the micro-F1)."""
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
    return float(right[problem.masks["test_mask"]].float().mean())
