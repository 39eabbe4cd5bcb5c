"""The accuracy on parts of DGL, of PyG and of this library, with the same assignment; not collected by pytest.

    DGL_PYTHON=PYTHON python tests/accuracy/accuracy_parts.py [--seeds 0 1 2] [--starts python two-nodes]

PYTHON has DGL. DGL cuts a generated graph in two by METIS and says where each node went; PyG's ``Partitioner`` and
``mpigraph partition --assignment`` are given that. ``parts_sage.py`` trains on each, in each start. The table goes to
stdout. The exit status is 1 if the blocks differ, or means by more than :data:`LIMIT` points.
"""

import argparse
import os
import re
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch looks

import numpy as np
import torch
from accuracy import STARTS, cell, launcher, line, output, repeat

import mpigraph as mg

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data
    from torch_geometric.distributed import Partitioner
    from torch_geometric.loader import ClusterData

NODES, EDGES, CLASSES, HOMOPHILY = 4000, 40_000, 8, 0.6
LIMIT = 1.5  # points between the mean on our own parts and on those of another
SCRIPT = Path(__file__).resolve().parent / "parts_sage.py"
BY_DGL = """
import sys, dgl, numpy as np, torch
told = np.load(sys.argv[1])
g = dgl.graph((torch.from_numpy(told["src"]), torch.from_numpy(told["dst"])), num_nodes=len(told["x"]))
g.ndata["x"] = torch.from_numpy(told["x"])
nodes, _ = dgl.distributed.partition_graph(g, "g", 2, sys.argv[2], part_method="metis", return_mapping=True)
book = dgl.distributed.load_partition(sys.argv[2] + "/g.json", 0)[3]
parts = np.empty(len(nodes), np.int64)
parts[nodes.numpy()] = book.nid2partid(torch.arange(len(nodes))).numpy()
np.save(sys.argv[3], parts)
print("cut by DGL", dgl.__version__)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=["python", "two-nodes"])
    args = parser.parse_args()
    starts = {name: STARTS[name] for name in args.starts}
    failures, rows = [], []
    with tempfile.TemporaryDirectory() as folder:
        configs = cut(Path(folder))
        digests = set()
        means = {}
        for by, config in configs.items():
            cells = []
            for name, start in starts.items():
                found = repeat(f"{by}, {name}", args.seeds, partial(train, config, start, digests))["test"]
                means[by, name] = np.mean(found)
                cells.append(cell(found))
            rows.append([by, *cells])
    if len(digests) > 1:
        failures.append(f"the blocks differ: {digests}")
    for (by, name), mean in means.items():
        if abs(mean - means["mpigraph", name]) > LIMIT:
            failures.append(f"{by}, {name}: {mean:.2f} (on our own parts {means['mpigraph', name]:.2f})")
    titles = ["parts of", *(start.title for start in starts.values())]
    print(line(titles), "|---" * len(titles) + "|", *map(line, rows), sep="\n")
    print("\n".join(failures), file=sys.stderr)
    sys.exit(1 if failures else 0)


def cut(folder):
    """Have DGL cut the graph, PyG and this library cut it alike; return the configurations by who cut."""
    g = mg.data.generate(NODES, EDGES, num_classes=CLASSES, homophily=HOMOPHILY)
    src, dst = (end.numpy() for end in g.edges(order="eid"))
    split = torch.where(g.ndata["train_mask"], 0, torch.where(g.ndata["val_mask"], 1, 2))
    told = [g.ndata["feat"], g.ndata["label"][:, None], split[:, None], torch.arange(NODES)[:, None]]
    x = torch.cat([column.float() for column in told], 1)
    np.savez(folder / "graph.npz", src=src, dst=dst, x=x.numpy())
    paths = [str(folder / name) for name in ("graph.npz", "dgl", "parts.npy")]
    print(output([os.environ["DGL_PYTHON"], "-c", BY_DGL, *paths], {}), file=sys.stderr)
    parts = torch.from_numpy(np.load(folder / "parts.npy"))
    ClusterData._metis = lambda self, edges, count: parts  # PyG's METIS needs pyg-lib, and has DGL's assignment here
    edges = torch.from_numpy(np.stack([src, dst]))
    Partitioner(Data(x=x, edge_index=edges, num_nodes=NODES), 2, str(folder / "pyg")).generate_partition()
    ours = mg.graph((src, dst), num_nodes=NODES)
    ours.ndata["x"] = x
    mg.distributed.partition_graph(ours, "g", 2, folder / "ours", part_method="random")
    again = folder / "ours" / "g.json"
    given = {
        "DGL": [folder / "dgl" / "g.json"],
        "PyG": [folder / "pyg"],
        "mpigraph": [again, "--assignment", folder / "parts.npy"],
    }
    configs = {}
    for by, what in given.items():
        command = [sys.executable, "-m", "mpigraph", "partition", *what, "--name", "g", "-o", folder / f"from {by}"]
        output([str(word) for word in command], {})
        configs[by] = folder / f"from {by}" / "g.json"
    return configs


def train(config, start, digests, seed):
    """Train once; return the test accuracy, and add the digest of the blocks."""
    command, env = launcher(start), {"MPIGRAPH_NUM_SERVERS": str(start.num_servers)}
    if start.ranks_per_node:
        env["MPIGRAPH_RANKS_PER_NODE"] = str(start.ranks_per_node)
    printed = output([*command, sys.executable, str(SCRIPT), str(config), str(seed)], env)
    digests.add(re.search(r"^blocks (\w+)", printed, re.MULTILINE)[1])
    return {"test": float(re.search(r"^test accuracy ([0-9.]+)", printed, re.MULTILINE)[1])}


if __name__ == "__main__":
    main()
