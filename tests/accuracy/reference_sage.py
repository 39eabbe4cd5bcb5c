"""A two-layer mean GraphSAGE in plain torch and numpy on one process: the yardstick for accuracy.

Nothing of mpigraph takes part. A file has the keys edge_src, edge_dst, label, train_mask, test_mask and either feat or
feat_{data,indices,indptr,shape}. Evaluation uses all neighbours, after the last epoch.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Problem:
    """A graph by destination, features and labels."""

    indptr: np.ndarray
    indices: np.ndarray
    feat: torch.Tensor
    label: torch.Tensor
    train: np.ndarray
    test: np.ndarray


@dataclass
class Settings:
    """Hyperparameters, with those that suit Cora."""

    fanouts: tuple[int, ...] = (10, 10)  # outermost hop first
    hidden: int = 64
    feat_drop: float = 0.5
    dropout: float = 0.5
    lr: float = 0.01
    weight_decay: float = 5e-4
    epochs: int = 50
    batch_size: int = 64


def load(path, norm=1):
    """Read an npz file; edges stored once are reversed, features densified, each row divided by its norm (0: not)."""
    with np.load(path, allow_pickle=False) as z:
        data = {key: z[key] for key in z.files}
    src, dst = data["edge_src"].astype(np.int64), data["edge_dst"].astype(np.int64)
    if not json.loads(str(data.get("meta", "{}"))).get("both_directions", True):
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
    feat = dense(data)
    if norm:
        feat /= np.maximum(np.linalg.norm(feat, norm, axis=1, keepdims=True), 1e-12)
    indptr = np.concatenate([[0], np.bincount(dst, minlength=len(feat)).cumsum()])
    label = torch.from_numpy(data["label"].astype(np.int64))
    train, test = np.flatnonzero(data["train_mask"]), np.flatnonzero(data["test_mask"])
    return Problem(indptr, src[np.argsort(dst, kind="stable")], torch.from_numpy(feat), label, train, test)


def dense(data):
    if "feat" in data:
        return data["feat"].astype(np.float32)
    feat = np.zeros(tuple(data["feat_shape"]), np.float32)
    feat[np.repeat(np.arange(len(feat)), np.diff(data["feat_indptr"])), data["feat_indices"]] = data["feat_data"]
    return feat


def with_dense_rows(path, folder):
    """Write a file whose features are dense, as ``partition`` reads them, into a folder; return its path."""
    with np.load(path, allow_pickle=False) as z:
        data = {key: z[key] for key in z.files}
    kept = {key: rows for key, rows in data.items() if not key.startswith("feat")}
    out = Path(folder) / Path(path).name
    np.savez(out, **kept, feat=dense(data))
    return out


def sample(problem, seeds, fanout, rng):
    """Draw up to ``fanout`` in-edges of each seed without replacement; return (source, position of the seed)."""
    begin, degree = problem.indptr[seeds], np.diff(problem.indptr)[seeds]
    owner = np.repeat(np.arange(len(seeds)), degree)
    offset = np.arange(len(owner)) - np.repeat(degree.cumsum() - degree, degree)
    order = np.lexsort((rng.random(len(owner)), owner))  # shuffle within each seed; owners stay sorted
    keep = order[offset < fanout]
    return problem.indices[begin[owner[keep]] + offset[keep]], owner[keep]


def sample_blocks(problem, seeds, fanouts, rng):
    """Return the input nodes and, outermost hop first, (source positions, destination positions, num_dst)."""
    blocks, nodes = [], seeds
    for fanout in reversed(fanouts):
        src, dst = sample(problem, nodes, fanout, rng)
        frontier = np.concatenate([nodes, np.setdiff1d(src, nodes)])
        order = np.argsort(frontier)
        local = order[np.searchsorted(frontier, src, sorter=order)]
        blocks.insert(0, (torch.from_numpy(local), torch.from_numpy(dst), len(nodes)))
        nodes = frontier
    return nodes, blocks


class MeanSage(nn.Module):
    """``own(h_dst) + other(mean of h_src)``; the linear map goes first where it narrows."""

    def __init__(self, width, out):
        super().__init__()
        self.own, self.other = nn.Linear(width, out), nn.Linear(width, out, bias=False)
        for linear in (self.own, self.other):
            nn.init.xavier_uniform_(linear.weight, gain=nn.init.calculate_gain("relu"))
        self.narrows = width > out

    def forward(self, h, src, dst, num_dst):
        rows = self.other(h) if self.narrows else h
        total = rows.new_zeros(num_dst, rows.shape[1]).index_add(0, dst, rows[src])
        mean = total / torch.bincount(dst, minlength=num_dst).clamp(min=1).unsqueeze(1)
        return self.own(h[:num_dst]) + (mean if self.narrows else self.other(mean))


def train(problem, settings, seed):
    """Train from one seed; return the test accuracy."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    width, classes = problem.feat.shape[1], int(problem.label.max()) + 1
    layers = nn.ModuleList([MeanSage(width, settings.hidden), MeanSage(settings.hidden, classes)])
    optimizer = torch.optim.Adam(layers.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    for _ in range(settings.epochs):
        order = rng.permutation(problem.train)
        for start in range(0, len(order), settings.batch_size):
            seeds = order[start : start + settings.batch_size]
            nodes, blocks = sample_blocks(problem, seeds, settings.fanouts, rng)
            hidden = F.relu(layers[0](F.dropout(problem.feat[nodes], settings.feat_drop), *blocks[0]))
            logits = layers[1](F.dropout(hidden, settings.dropout), *blocks[1])
            optimizer.zero_grad()
            F.cross_entropy(logits, problem.label[seeds]).backward()
            optimizer.step()
    return evaluate(problem, layers)


@torch.no_grad()
def evaluate(problem, layers):
    num = len(problem.feat)
    everything = torch.from_numpy(problem.indices), torch.from_numpy(np.repeat(np.arange(num), np.diff(problem.indptr)))
    logits = layers[1](F.relu(layers[0](problem.feat, *everything, num)), *everything, num)
    return float((logits.argmax(1) == problem.label)[problem.test].float().mean())
