"""``dgl.distributed.partition_graph`` of a generated graph into two parts; run with DGL_PYTHON by ``partition.py``.

$DGL_PYTHON dgl_partition.py DATA OUT
"""

import sys
import time
from pathlib import Path

import dgl
import numpy as np
import torch


def main():
    data = Path(sys.argv[1])
    src, dst = (torch.from_numpy(np.load(data / f"edge_{end}.npy").astype(np.int64)) for end in ("src", "dst"))
    g = dgl.graph((src, dst), num_nodes=len(np.load(data / "label.npy", mmap_mode="r")))
    del src, dst
    for name in ("label", "train_mask", "val_mask", "test_mask"):
        g.ndata[name] = torch.from_numpy(np.load(data / f"{name}.npy"))
    g.ndata["feat"] = torch.from_numpy(np.load(data / "feat.npy", mmap_mode="c"))  # not copied
    dgl.seed(0)
    begin = time.perf_counter()
    balance = {"balance_ntypes": g.ndata["train_mask"].long(), "balance_edges": True}
    dgl.distributed.partition_graph(g, "g", 2, sys.argv[2], part_method="metis", **balance)
    print(f"seconds of the call: {time.perf_counter() - begin}")


if __name__ == "__main__":
    main()
