"""One rank of a distributed job, the same script for both systems; started by ``host_jobs.py``.

    job.py train|loader|hetero|inference --system mpigraph|dgl --graph NAME --config FILE.json --out DIR

Every trainer does what ``work.py`` says, and writes ``DIR/trainer<rank>.json``. Times are lists over the steps, in
seconds.
"""

import argparse
import importlib
import json
import os
from pathlib import Path


def main():
    p = argparse.ArgumentParser()
    p.add_argument("what", choices=("train", "loader", "hetero", "inference"))
    p.add_argument("--system", choices=("mpigraph", "dgl"), required=True)
    p.add_argument("--graph", required=True)
    p.add_argument("--config", required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--num_servers", type=int, default=1, help="on each node; mpigraph only")
    p.add_argument("--graphbolt", action="store_true", help="DGL only")
    p.add_argument("--fanouts", default="10,25")
    p.add_argument("--layers", type=int, default=3, help="of inference")
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--batch_size", type=int, default=1000)
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--warm", type=int, default=4, help="steps that are not timed")
    p.add_argument("--cache", default="default", help="of remote rows: none, default or a size; mpigraph only")
    p.add_argument("--labor", type=json.loads, help="options of LaborSampler, which then samples; mpigraph only")
    p.add_argument("--trainers", type=int, default=1, help="on each host; mpigraph only")
    args = p.parse_args()
    lib = importlib.import_module(args.system)
    if args.system == "mpigraph":
        lib.distributed.initialize(num_servers=args.num_servers)  # before torch, which a server then never imports
    else:
        importlib.import_module("dgl.distributed")
        lib.distributed.initialize(os.environ["DGL_IP_CONFIG"], use_graphbolt=args.graphbolt)
    import torch
    from work import WORK

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.distributed.init_process_group("gloo")
    g = lib.distributed.DistGraph(args.graph, part_config=args.config)
    found = WORK[args.what](lib, g, args)
    path = args.out / f"trainer{torch.distributed.get_rank()}.json"
    path.write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
