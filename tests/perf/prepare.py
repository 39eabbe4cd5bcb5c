"""Write what the comparisons read, once: both systems get the same graph in the same parts with the same ids.

    python tests/perf/prepare.py DIR --graph S
    DGL_PYTHON=... python tests/perf/prepare.py DIR --graph products
    DGL_PYTHON=... python tests/perf/prepare.py DIR --graph mag

``DIR/<graph>`` holds ``data`` (generated), ``parts-2`` and for S ``parts-8`` (ours), ``flat-2`` (the arrays of
``parts-2``, all parts one after the other, and fixed seeds) and ``dgl-2`` (the same parts in DGL's files, also for
GraphBolt). ``DIR/mag`` holds the typed graph of ``mag.py``, ``parts-2`` with the reverse of every relation, ``nodes-2``
(the part of each node) and ``dgl-2`` (``dgl_side.py``). What exists is kept. S takes half a minute and 1 GB of disk,
products five minutes, 16 GiB of memory for METIS and 10 GB of disk (``--method multilevel``: 3 GiB), mag a minute and
1 GB of disk.
"""

import json
import subprocess
import sys
from functools import partial

import common
import mag
import numpy as np

from mpigraph.storage.part_config import PartConfig
from mpigraph.storage.shard import ShardReader

SIZES = {"S": (200_000, 5_000_000, 400), "products": (2_449_029, 123_718_280, 800)}  # nodes, edges, nodes of a block
PARTS = {"S": (2, 8), "products": (2,)}
RELATION = "relations/_N:_E:_N/"
BATCH, NUM_BATCHES = 1000, 16


def main():
    p = common.parser(__doc__, graphs=(*SIZES, "mag"))
    p.add_argument("--method", choices=("metis", "multilevel"), default="metis", help="of the cut (%(default)s)")
    args = p.parse_args()
    base = args.dir / args.graph
    base.mkdir(parents=True, exist_ok=True)
    if args.graph == "mag":
        prepare_mag(base)
        return
    once(base / "data", lambda out: generate(args.graph, out))
    for parts in PARTS[args.graph]:
        cut = partial(partition, base / "data", args.graph, parts, method=args.method)
        once(base / f"parts-{parts}", cut)
    once(base / "flat-2", lambda out: flatten(base / "parts-2" / f"{args.graph}.json", out))
    dgl = common.dgl_python()
    if dgl is not None:
        once(base / "dgl-2", lambda out: convert(dgl, base / "flat-2", out))


def prepare_mag(base, scale=1.0):
    """The typed graph, both systems' parts of it."""
    data, nodes = base / "mag.npz", base / "nodes-2.npz"
    once(data, lambda out: mag.write(out, scale))
    once(base / "parts-2", lambda out: partition(data, "mag", 2, out, "--add-reverse"))
    once(nodes, lambda out: mag.write_assignment(base / "parts-2" / "mag.json", out))
    dgl = common.dgl_python()
    if dgl is not None:
        command = [dgl, common.HERE / "dgl_side.py", "hetero", data, nodes, "mag"]
        once(base / "dgl-2", lambda out: run(*command, out, env=common.dgl_environment()))


def once(path, make):
    """Call ``make(temporary path)`` if ``path`` does not exist, then rename."""
    if path.exists():
        return
    common.say(f"making {path}")
    temporary = path.with_name(f"{path.name}.unfinished")
    make(temporary)
    temporary.rename(path)


def run(*command, env=None):
    subprocess.run(list(map(str, command)), env=env, stdout=sys.stderr, check=True)


def generate(name, out):
    nodes, edges, block = SIZES[name]
    sizes = ["--nodes", nodes, "--edges", edges, "--feat-dim", 100, "--classes", 47]
    mixing = ["--homophily", 0.85, "--block-share", 0.65, "--block-size", block, "--train-fraction", 0.08]
    run(sys.executable, "-m", "mpigraph", "generate", *sizes, *mixing, "-o", out)


def partition(data, name, parts, out, *options, method="metis"):
    command = [sys.executable, "-m", "mpigraph", "partition", data, "--parts", parts, "--method", method]
    run(*command, "--balance-train", "--name", name, "-o", out, *options)


def flatten(config_path, out):
    """Write the parts' arrays one after the other: ids and edge ids stay what they are."""
    config = PartConfig.read(config_path)
    nodes, edges = config.book.node_offsets[0], config.book.edge_offsets[0]
    out.mkdir(exist_ok=True)
    indptr = np.zeros(nodes[-1] + 1, np.int64)
    indices = created(out / "indices.npy", np.int64, (edges[-1],))
    features = {
        name: created(out / f"{name}.npy", info.dtype, (nodes[-1], *info.shape))
        for name, info in config.node_features["_N"].items()
    }
    for part in range(config.num_parts):
        own = slice(nodes[part], nodes[part + 1])
        shard = ShardReader(config.part_path(part, "part_graph"))
        indptr[nodes[part] : nodes[part + 1] + 1] = edges[part] + shard.read(RELATION + "indptr")
        indices[edges[part] : edges[part + 1]] = shard.read(RELATION + "indices")
        shard = ShardReader(config.part_path(part, "node_feats"))
        for name, rows in features.items():
            rows[own] = shard.read(f"_N/{name}")
    np.save(out / "indptr.npy", indptr)
    train = np.random.default_rng(0).permutation(np.flatnonzero(features["train_mask"]))
    np.save(out / "seeds.npy", train[: len(train) // BATCH * BATCH].reshape(-1, BATCH)[:NUM_BATCHES])
    meta = {"name": config.graph_name, "node_offsets": nodes.tolist(), "edge_offsets": edges.tolist()}
    (out / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def created(path, dtype, shape):
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=tuple(map(int, shape)))


def convert(dgl, flat, out):
    run(dgl, common.HERE / "dgl_side.py", "convert", flat, out, env=common.dgl_environment())


if __name__ == "__main__":
    main()
