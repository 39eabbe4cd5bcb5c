"""``dgl.distributed.partition_graph`` of a generated graph into two parts; run with DGL_PYTHON by ``partition.py``.

$DGL_PYTHON dgl_partition.py DATA OUT
$DGL_PYTHON dgl_partition.py OUT/g.json           # print the edges that the parts cut
"""

import json
import sys
import time
from pathlib import Path

import dgl
import numpy as np
import torch


def main():
    if len(sys.argv) == 2:
        print(edges_cut(Path(sys.argv[1])))
    else:
        partition(Path(sys.argv[1]), sys.argv[2])


def partition(data, out):
    src, dst = (torch.from_numpy(np.load(data / f"edge_{end}.npy").astype(np.int64)) for end in ("src", "dst"))
    g = dgl.graph((src, dst), num_nodes=len(np.load(data / "label.npy", mmap_mode="r")))
    del src, dst
    for name in ("label", "train_mask", "val_mask", "test_mask"):
        g.ndata[name] = torch.from_numpy(np.load(data / f"{name}.npy"))
    g.ndata["feat"] = torch.from_numpy(np.load(data / "feat.npy", mmap_mode="c"))  # not copied
    dgl.seed(0)
    begin = time.perf_counter()
    balance = {"balance_ntypes": g.ndata["train_mask"].long(), "balance_edges": True}
    dgl.distributed.partition_graph(g, "g", 2, out, part_method="metis", **balance)
    print(f"seconds of the call: {time.perf_counter() - begin}")


def edges_cut(config):
    """How many edges come from another part than the one they are in, which is that of their destination."""
    content, cut = json.loads(config.read_text()), 0
    for part in range(content["num_parts"]):
        g = dgl.load_graphs(str(config.parent / content[f"part-{part}"]["part_graph"]))[0][0]
        src = g.edges()[0][g.edata["inner_edge"] != 0]
        cut += int((g.ndata["inner_node"][src] == 0).sum())
    return cut


if __name__ == "__main__":
    main()
