"""Embeddings that learn, in plain torch on one process: the yardstick for the examples of links and embeddings.

Nothing of mpigraph takes part. Three loops, one for each kind of file:

    python tests/accuracy/reference_links.py gowalla.npz    matrix factorisation; recall@20 of the held-out interactions
    python tests/accuracy/reference_links.py fb15k237.npz   DistMult; filtered MRR and hits@10 of the test triples
    python tests/accuracy/reference_links.py cora.npz       GraphSAGE on embeddings instead of features; test accuracy

Each prints its results for every seed. Keys of the files: ``user__<rel>__item__src`` and ``__dst``, the same behind
``test__``, ``user__num_nodes``, ``item__num_nodes``; ``{train,valid,test}_{src,rel,dst}``, ``num_entities``,
``num_relations``; and those of ``reference_sage.py``.
"""

import argparse
import time
from collections import defaultdict
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import reference_sage
import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Settings:
    """Hyperparameters of one loop. ``lr`` is that of embeddings (Adagrad), ``dense_lr`` of all else (Adam)."""

    dim: int
    lr: float
    dense_lr: float
    batch_size: int
    epochs: int
    num_negatives: int = 0  # shared by a batch, drawn from all nodes
    fanouts: tuple[int, ...] = ()  # outermost hop first


GOWALLA = Settings(dim=64, lr=0.1, dense_lr=0.0, batch_size=2048, epochs=6, num_negatives=512)
FB15K237 = Settings(dim=100, lr=0.03, dense_lr=0.003, batch_size=1000, epochs=6, num_negatives=500)
CORA = Settings(dim=256, lr=1.0, dense_lr=0.002, batch_size=140, epochs=50, fanouts=(25, 25, 25))


def embedding(num, dim, std):
    """Normal rows, with gradients of the rows in use only."""
    table = nn.Embedding(num, dim, sparse=True)
    nn.init.normal_(table.weight, std=std)
    return table


def batches(num, size, rng):
    """Yield the positions 0 to num - 1 in a random order, in batches."""
    order = torch.from_numpy(rng.permutation(num))
    yield from order.split(size)


def softmax_loss(queries, answers, negatives):
    """Cross entropy of the answer's dot product among those of the negatives."""
    logits = torch.cat([(queries * answers).sum(1, keepdim=True), queries @ negatives.T], 1)
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64))


# Matrix factorisation of interactions


@dataclass
class Interactions:
    """Users and items in one space of ids, users first."""

    num_users: int
    num_nodes: int
    train: torch.Tensor  # int64[n, 2]
    test: torch.Tensor


def load_interactions(path):
    with np.load(path, allow_pickle=False) as z:
        data = {key: z[key] for key in z.files}
    num_users, num_items = int(data["user__num_nodes"]), int(data["item__num_nodes"])
    pairs = {}
    for prefix in ("user__", "test__user__"):
        (src,) = (key for key in data if key.startswith(prefix) and key.endswith("__item__src"))
        ends = data[src].astype(np.int64), data[src[: -len("src")] + "dst"].astype(np.int64) + num_users
        pairs[prefix] = torch.from_numpy(np.stack(ends, 1))
    return Interactions(num_users, num_users + num_items, pairs["user__"], pairs["test__user__"])


def train_interactions(problem, s, seed):
    """Train from one seed; return the recall."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    table = embedding(problem.num_nodes, s.dim, 0.01)
    optimizer = torch.optim.Adagrad(table.parameters(), lr=s.lr)
    for _ in range(s.epochs):
        for chosen in batches(len(problem.train), s.batch_size, rng):
            users, items = problem.train[chosen].T
            negatives = torch.from_numpy(rng.integers(problem.num_nodes, size=s.num_negatives))
            loss = softmax_loss(table(users), table(items), table(negatives))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {"recall@20": recall(problem, table.weight.detach(), 20)}


def recall(problem, rows, k):
    """Mean over users of the share of held-out items among the k best items that the user did not train on."""
    users, items = rows[: problem.num_users], rows[problem.num_users :]
    seen, held_out = by_user(problem, problem.train), by_user(problem, problem.test)
    result = []
    for user, expected in held_out.items():
        scores = items @ users[user]
        scores[seen[user]] = -torch.inf
        result.append(len(set(scores.topk(k).indices.tolist()) & set(expected)) / len(expected))
    return float(np.mean(result))


def by_user(problem, pairs):
    lists = defaultdict(list)
    for user, item in pairs.tolist():
        lists[user].append(item - problem.num_users)
    return lists


# DistMult with reciprocal relations


@dataclass
class Triples:
    """A knowledge graph: (head, relation, tail), int64[n, 3] each."""

    num_entities: int
    num_relations: int
    train: torch.Tensor
    valid: torch.Tensor
    test: torch.Tensor


def load_triples(path):
    with np.load(path, allow_pickle=False) as z:
        parts = [
            torch.from_numpy(np.stack([z[f"{part}_{column}"].astype(np.int64) for column in ("src", "rel", "dst")], 1))
            for part in ("train", "valid", "test")
        ]
        return Triples(int(z["num_entities"]), int(z["num_relations"]), *parts)


def both_ways(problem, triples):
    """The triples (h, r, t), then (t, r + num_relations, h): heads are asked for as tails of the reverse relation."""
    head, relation, tail = triples.T
    return torch.cat([triples, torch.stack([tail, relation + problem.num_relations, head], 1)])


def train_triples(problem, s, seed):
    """Train from one seed; return the filtered mean reciprocal rank and hits@10."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    entities = embedding(problem.num_entities, s.dim, 0.01)
    relations = nn.Embedding(2 * problem.num_relations, s.dim)
    nn.init.normal_(relations.weight, std=0.1)
    sparse = torch.optim.Adagrad(entities.parameters(), lr=s.lr)
    dense = torch.optim.Adam(relations.parameters(), lr=s.dense_lr)
    train = both_ways(problem, problem.train)
    for _ in range(s.epochs):
        for chosen in batches(len(train), s.batch_size, rng):
            head, relation, tail = train[chosen].T
            negatives = torch.from_numpy(rng.integers(problem.num_entities, size=s.num_negatives))
            loss = softmax_loss(entities(head) * relations(relation), entities(tail), entities(negatives))
            sparse.zero_grad()
            dense.zero_grad()
            loss.backward()
            sparse.step()
            dense.step()
    result = ranks(problem, entities.weight.detach(), relations.weight.detach())
    return {"filtered MRR": float((1 / result).mean()), "hits@10": float((result <= 10).double().mean())}


@torch.no_grad()
def ranks(problem, entities, relations):
    """The filtered rank of each test triple's tail, then of its head."""
    known = defaultdict(list)
    for triples in (problem.train, problem.valid, problem.test):
        for head, relation, tail in both_ways(problem, triples).tolist():
            known[head, relation].append(tail)
    result = []
    for head, relation, tail in both_ways(problem, problem.test).tolist():
        scores = entities @ (entities[head] * relations[relation])
        best = float(scores[tail])
        scores[known[head, relation]] = -torch.inf
        result.append(1 + int((scores > best).sum()))
    return torch.tensor(result, dtype=torch.float64)


# GraphSAGE without features


def train_nodes(problem, s, seed):
    """Train from one seed; return the test accuracy, and that of a linear model on the embeddings alone."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    table = embedding(len(problem.label), s.dim, 1.0)
    classes = int(problem.label.max()) + 1
    widths = [s.dim] * len(s.fanouts) + [classes]
    layers = nn.ModuleList(reference_sage.MeanSage(a, b) for a, b in pairwise(widths))
    sparse = torch.optim.Adagrad(table.parameters(), lr=s.lr)
    dense = torch.optim.Adam(layers.parameters(), lr=s.dense_lr)
    for _ in range(s.epochs):
        for chosen in batches(len(problem.train), s.batch_size, rng):
            seeds = problem.train[chosen.numpy()]
            nodes, blocks = reference_sage.sample_blocks(problem, seeds, s.fanouts, rng)
            logits = sage(layers, table(torch.from_numpy(nodes)), blocks, 0.5)
            sparse.zero_grad()
            dense.zero_grad()
            F.cross_entropy(logits, problem.label[seeds]).backward()
            sparse.step()
            dense.step()
    rows, num = table.weight.detach(), len(problem.label)
    edges = torch.from_numpy(problem.indices), torch.from_numpy(np.repeat(np.arange(num), np.diff(problem.indptr)))
    result = sage(layers, rows, [(*edges, num)] * len(layers), 0.0)
    return {"test accuracy": right(problem, result), "linear model": right(problem, linear(problem, rows, classes))}


def sage(layers, h, blocks, dropout):
    """Apply the layers, with relu and dropout between them."""
    for i, layer in enumerate(layers):
        h = layer(F.dropout(F.relu(h), dropout) if i else h, *blocks[i])
    return h


def linear(problem, rows, classes):
    """The scores of a linear model on the embeddings, of all nodes."""
    model = nn.Linear(rows.shape[1], classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(model(rows[problem.train]), problem.label[problem.train]).backward()
        optimizer.step()
    return model(rows)


def right(problem, scores):
    """The share of test nodes whose label has the highest score."""
    return float((scores.argmax(1) == problem.label)[problem.test].float().mean())


LOOPS = {
    "gowalla": (load_interactions, train_interactions, GOWALLA),
    "fb15k237": (load_triples, train_triples, FB15K237),
    "cora": (lambda path: reference_sage.load(path, 0), train_nodes, CORA),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--loop", choices=LOOPS, help="by the file's name unless given")
    parser.add_argument("--seeds", type=int, default=3)
    for field in fields(Settings):
        if field.name != "fanouts":
            parser.add_argument("--" + field.name.replace("_", "-"), type=field.type)
    args = parser.parse_args()
    load, train, settings = LOOPS[args.loop or args.path.split("/")[-1].removesuffix(".npz")]
    for field in fields(Settings):
        if getattr(args, field.name, None) is not None:
            setattr(settings, field.name, getattr(args, field.name))
    problem = load(args.path)
    for seed in range(args.seeds):
        start = time.perf_counter()
        result = ", ".join(f"{what} {value:.4f}" for what, value in train(problem, settings, seed).items())
        print(f"seed {seed}: {result}, {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
