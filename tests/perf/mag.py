"""A generated graph of the shape of ogbn-mag at one tenth, and which part each of its nodes is in.

Four node types and four relations with ogbn-mag's counts divided by ten. Every relation joins a share :data:`INSIDE` of
its edges inside one of :data:`BLOCKS` communities, which all types are cut into, so that parts have something to keep
together; ends are drawn with power-law weights like those of ``python -m mpigraph generate``, and no edge twice. Papers
have 128 float32 features around the centroid of their community, their label; 85.5 % of them train, as in ogbn-mag.
"""

import numpy as np

from mpigraph.storage.part_config import PartConfig
from mpigraph.storage.shard import ShardReader

NODES = {"author": 113_464, "field_of_study": 5_996, "institution": 874, "paper": 73_638}
EDGES = {
    ("author", "affiliated_with", "institution"): 104_399,
    ("author", "writes", "paper"): 714_566,
    ("paper", "cites", "paper"): 541_627,
    ("paper", "has_topic", "field_of_study"): 750_507,
}
BLOCKS, INSIDE = 40, 0.8
WIDTH = 128
SPLIT = (0.855, 0.945)  # where the training and the validation papers end


def write(path, scale=1.0):
    """Write the graph as an npz file that ``python -m mpigraph partition`` reads."""
    rng = np.random.default_rng(0)
    nodes = {ntype: max(BLOCKS, round(count * scale)) for ntype, count in NODES.items()}
    names = {ntype: rng.permutation(count).astype(np.int32) for ntype, count in nodes.items()}
    arrays = {f"{ntype}__num_nodes": count for ntype, count in nodes.items()}
    for relation, count in EDGES.items():
        src, dst = draw(rng, nodes[relation[0]], nodes[relation[2]], round(count * scale))
        arrays["__".join([*relation, "src"])] = names[relation[0]][src]
        arrays["__".join([*relation, "dst"])] = names[relation[2]][dst]
    papers = nodes["paper"]
    label = np.empty(papers, np.int64)
    label[names["paper"]] = block_of(np.arange(papers), papers)
    centroids = rng.standard_normal((BLOCKS, WIDTH), dtype=np.float32) * np.float32(2 / np.sqrt(WIDTH))
    arrays |= {"paper__label": label, "paper__feat": rng.standard_normal((papers, WIDTH), dtype=np.float32)}
    arrays["paper__feat"] += centroids[label]
    place = rng.permutation(papers) / papers
    for name, low, high in zip(("train", "val", "test"), (0, *SPLIT), (*SPLIT, 1), strict=True):
        arrays[f"paper__{name}_mask"] = (place >= low) & (place < high)
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def block_of(ids, count):
    """The community of each node of a type that has so many."""
    return ids * BLOCKS // count


def draw(rng, num_src, num_dst, count):
    """``count`` distinct edges: int64[count] twice."""
    stubs = [Stubs(rng, num, count) for num in (num_src, num_dst)]
    keys = np.empty(0, np.int64)
    while len(keys) < count:
        src = stubs[0].anywhere(rng, round((count - len(keys)) * 1.2) + 16)
        inside = rng.random(len(src)) < INSIDE
        dst = stubs[1].anywhere(rng, len(src))
        dst[inside] = stubs[1].inside(rng, block_of(src[inside], num_src))
        keys = np.unique(np.concatenate([keys, src * num_dst + dst]))
    return np.divmod(rng.permutation(keys)[:count], num_dst)


class Stubs:
    """The ends of edges that the nodes of a type offer, more for nodes of larger weight."""

    def __init__(self, rng, num, count):
        degree = count / num
        weights = 1.0 + rng.pareto(2.5, num) * max(degree - 1.0, 0.0) * 1.5
        offers = np.maximum(np.floor(weights * count / weights.sum() + rng.random(num)).astype(np.int64), 1)
        self._stubs = np.repeat(np.arange(num), offers)
        self._begins = np.searchsorted(block_of(self._stubs, num), np.arange(BLOCKS + 1))

    def anywhere(self, rng, size):
        return self._stubs[rng.integers(0, len(self._stubs), size)]

    def inside(self, rng, blocks):
        return self._stubs[rng.integers(self._begins[blocks], self._begins[blocks + 1])]


def write_assignment(config_path, out):
    """Write the part of each node, by type in the order of the original ids."""
    config = PartConfig.read(config_path)
    parts = {ntype: np.empty(config.book.num_nodes(t), np.int64) for t, ntype in enumerate(config.schema.ntypes)}
    for part in range(config.num_parts):
        shard = ShardReader(config.part_path(part, "part_graph"))
        for ntype, found in parts.items():
            found[shard.read(f"nodes/{ntype}/orig_ids")] = part
    with open(out, "wb") as file:
        np.savez(file, **parts)
