"""One rank of a job with features in memory or on disk, started by ``disk.py`` in a memory group of its own.

The first epoch and the last are not timed: there each minibatch is hashed, which ``disk.py`` compares.
"""

import argparse
import json
import time
import zlib
from pathlib import Path

import job
import torch
from memory_group import own_group_totals


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--config", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--storage", default="memory")
    p.add_argument("--cache", default="none")
    p.add_argument("--lookahead", type=int)
    p.add_argument("--fanouts", default="10,25")
    p.add_argument("--batch_size", type=int, default=1000)
    p.add_argument("--minibatches", type=int, default=0)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--servers", type=int, default=0)
    p.add_argument("--train", action="store_true")
    args = p.parse_args()
    import mpigraph as mg

    torch.set_num_threads(1)
    mg.distributed.initialize(num_servers=args.servers)
    begin = time.perf_counter()
    storage = {} if args.storage == "memory" else {"storage": {"node": {"feat": args.storage}}}
    g = mg.distributed.DistGraph(args.config.stem, part_config=str(args.config), **storage)
    opened = time.perf_counter() - begin
    seeds = mg.distributed.node_split(g.ndata["train_mask"], g.get_partition_book(), force_even=True)
    seeds = seeds[torch.randperm(len(seeds), generator=torch.Generator().manual_seed(0))]
    if args.minibatches:
        seeds = seeds[: args.minibatches * args.batch_size]
    sampler = mg.dataloading.NeighborSampler([int(fanout) for fanout in args.fanouts.split(",")])
    options = {"batch_size": args.batch_size, "shuffle": True, "drop_last": True, "seed": 1}
    cache = {"none": None}.get(args.cache, args.cache)
    if args.lookahead is not None:
        options["lookahead"] = args.lookahead
    loader = mg.distributed.DistNodeDataLoader(
        g, seeds, sampler, features=["feat"], labels=["label"], cache=cache, **options
    )
    train = training(mg, g, args.fanouts.count(",") + 1) if args.train else None
    first = epoch(g, loader, hashes=True)
    epochs = [epoch(g, loader, train) for _ in range(args.epochs)]
    last = epoch(g, loader, hashes=True)
    found = {"opened": opened, "first": first, "epochs": epochs, "last": last, "servers": args.servers}
    (args.out / f"trainer{g.rank()}.json").write_text(json.dumps(found), encoding="utf-8")
    g.barrier()
    mg.distributed.exit_client()


def training(mg, g, layers):
    """Return a step of a model, alone on this trainer."""
    model = job.SAGE(mg, g.ndata["feat"].shape[1], 256, layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    def step(blocks, feats, labels):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(blocks, feats.float()), labels.long()).backward()
        optimizer.step()

    return step


def epoch(g, loader, train=None, hashes=False):
    """Run one; return seconds, bytes, counts of the loader, and the hash of all minibatches if asked."""
    g.barrier()
    before, stats, begin = own_group_totals(), loader.stats(), time.perf_counter()
    found, rows, nbytes = 0, 0, 0
    for inputs, outputs, blocks in loader:
        feats, labels = blocks[0].srcdata["feat"], blocks[-1].dstdata["label"]
        rows, nbytes = rows + len(inputs), nbytes + feats.numel() * feats.element_size()
        for tensor in (inputs, outputs, feats, labels) if hashes else ():
            found = zlib.crc32(tensor.numpy(), found)
        if train is not None:
            train(blocks, feats, labels)
    g.barrier()
    seconds, now = time.perf_counter() - begin, own_group_totals()
    since = loader.stats().since(stats)
    counts = {name: getattr(since, name) for name in ("minibatches", "remote_rows", "cached_rows", "fetched_rows")}
    counts |= {"fetched_bytes": since.fetched_bytes, "rows": rows, "bytes": nbytes, "text": str(since)}
    return counts | {"seconds": seconds, "hash": found} | {name: now[name] - before[name] for name in now}


if __name__ == "__main__":
    main()
