"""DGL's partition files of the graph of ``mag.py`` in given parts; run with DGL_PYTHON by ``prepare.py``.

    $DGL_PYTHON dgl_hetero.py DATA.npz PARTS.npz NAME OUT

``dgl.distributed.partition_graph`` does the work, with METIS's answer replaced by the parts that mpigraph has made; so
both systems have the same nodes in each part, under the same ids. Every relation gets its reverse ``rev_<name>``. The
parts are also written for GraphBolt, which in DGL 2.1 samples typed graphs, too.
"""

import sys

import dgl
import numpy as np
import torch

TARGET = "paper"
FEATURES = ("feat", "label", "train_mask", "val_mask", "test_mask")


def main():
    data, parts, name, out = sys.argv[1:]
    g = read(np.load(data))
    given = np.load(parts)
    answer = torch.from_numpy(np.concatenate([given[ntype] for ntype in g.ntypes]))
    module = sys.modules[dgl.distributed.partition_graph.__module__]
    module.metis_partition_assignment = lambda *arguments, **options: answer
    dgl.distributed.partition_graph(g, name, int(answer.max()) + 1, out, part_method="metis")
    dgl.distributed.dgl_partition_to_graphbolt(f"{out}/{name}.json")


def read(arrays):
    """The heterograph of an npz file, with the reverse of every relation."""
    edges = {}
    for key in arrays.files:
        src, *rel, dst, end = key.split("__") if key.count("__") == 3 else [""] * 4
        if end == "src":
            ends = [torch.from_numpy(arrays[f"{key[:-3]}{end}"].astype(np.int64)) for end in ("src", "dst")]
            edges[src, rel[0], dst] = tuple(ends)
            edges[dst, f"rev_{rel[0]}", src] = tuple(reversed(ends))
    counts = {key[: -len("__num_nodes")]: int(arrays[key]) for key in arrays.files if key.endswith("__num_nodes")}
    g = dgl.heterograph(edges, num_nodes_dict=counts)
    for name in FEATURES:
        g.nodes[TARGET].data[name] = torch.from_numpy(arrays[f"{TARGET}__{name}"])
    return g


if __name__ == "__main__":
    main()
