"""GraphBolt's side of ``disk.py``: minibatches of one process with features in memory or mapped from their file."""

import argparse
import json
import time
from pathlib import Path

import dgl
import dgl.graphbolt as gb
import numpy as np
import torch
from memory_group import own_group_totals


def main():
    p = argparse.ArgumentParser()
    p.add_argument("flat", type=Path)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--storage", choices=("memory", "disk"), required=True)
    p.add_argument("--fanouts", required=True)
    p.add_argument("--minibatches", type=int, required=True)
    p.add_argument("--epochs", type=int, required=True)
    p.add_argument("--batch_size", type=int, default=1000)
    args = p.parse_args()
    torch.set_num_threads(1)
    dgl.seed(0)
    indptr, indices = (torch.from_numpy(np.load(args.flat / f"{name}.npy")) for name in ("indptr", "indices"))
    graph = gb.fused_csc_sampling_graph(indptr, indices)
    mode = None if args.storage == "memory" else "r"
    rows = {name: torch.from_numpy(np.load(args.flat / f"{name}.npy", mmap_mode=mode)) for name in ("feat",)}
    rows["label"] = torch.from_numpy(np.load(args.flat / "label.npy"))[:, None]
    store = {("node", None, name): gb.TorchBasedFeature(tensor) for name, tensor in rows.items()}
    seeds = torch.from_numpy(np.flatnonzero(np.load(args.flat / "train_mask.npy")))
    seeds = seeds[torch.randperm(len(seeds), generator=torch.Generator().manual_seed(0))]
    items = gb.ItemSet(seeds[: args.minibatches * args.batch_size], names="seed_nodes")
    pipe = gb.ItemSampler(items, batch_size=args.batch_size, shuffle=True, drop_last=True)
    pipe = pipe.sample_neighbor(graph, [int(fanout) for fanout in args.fanouts.split(",")])
    pipe = pipe.fetch_feature(gb.BasicFeatureStore(store), node_feature_keys=["feat"])
    loader = gb.DataLoader(pipe, num_workers=0)
    found = {"first": epoch(loader), "epochs": [epoch(loader) for _ in range(args.epochs)]}
    (args.out / "trainer0.json").write_text(json.dumps(found), encoding="utf-8")


def epoch(loader):
    before, begin, nbytes = own_group_totals(), time.perf_counter(), 0
    for minibatch in loader:
        feats = minibatch.node_features["feat"]
        nbytes += feats.numel() * feats.element_size()
    now = own_group_totals()
    totals = {name: now[name] - before[name] for name in now}
    return totals | {"seconds": time.perf_counter() - begin, "bytes": nbytes}


if __name__ == "__main__":
    main()
