"""Sample and gather given seeds in a job of any layout, and write fingerprints of what came.

    python blocks.py CONFIG OUT NUM_SERVERS

Every trainer takes its share of the minibatches of ``batches.py`` and writes ``OUT/<transport><rank>.json``;
``MPIGRAPH_TRANSPORT`` is how rows of other hosts are read. ``OUT/hosts`` says how many hosts the job found.
"""

import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from batches import NUM_BATCHES, SAMPLERS, batch, digest
from oracle import NAME

import mpigraph.distributed as dist
from mpigraph.session.context import current

TRANSPORTS = ("rma", "packed")
KINDS = tuple(SAMPLERS)


def main():
    config, out, num_servers = sys.argv[1:]
    dist.initialize(num_servers=int(num_servers))
    session = current()
    result = sample_all(dist.DistGraph(NAME, part_config=config), session.rank, session.num_trainers)
    Path(out, f"{os.environ['MPIGRAPH_TRANSPORT']}{session.rank}.json").write_text(json.dumps(result))
    Path(out, "hosts").write_text(str(session.world.num_nodes))


def sample_all(graph, rank, num_trainers):
    """This trainer's minibatches: blocks as the test of equal blocks has them, and the rows of their input nodes."""
    result = {}
    for name, sampler in SAMPLERS.items():
        for number in range(NUM_BATCHES):
            own = number % num_trainers == rank
            seeds = batch(number) if own else torch.empty(0, dtype=torch.int64)
            sample = graph.sample_blocks(seeds, dataclasses.replace(sampler.arguments, seed=7))
            if own:
                rows = graph.ndata["feat"][sample[0]], graph.ndata["label"][seeds]
                result[f"{name} {number}"] = digest(sample) + hash_of(rows)
    return result


def hash_of(tensors):
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()


if __name__ == "__main__":
    main()
