"""Rows of features that stay on disk: the same as those in memory, wherever they are read."""

from typing import Any

import numpy as np
import pytest
import torch
from batches import digest
from layouts import LAYOUTS, Job, own_on_layouts
from oracle import NAME, NUM_NODES

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.errors import InvalidArgumentError


@own_on_layouts(LAYOUTS)
@pytest.mark.parametrize("parts", [1, 3])
def test_minibatches(layout: Job, oracle, parts: int) -> None:
    """Bit-equal to those of memory, with and without a cache and look-ahead, and in any order."""
    path = oracle(parts)
    digests: dict[str | None, list[str]] = {}

    def body(storage: str | None) -> None:
        g = dist.DistGraph(NAME, part_config=path, storage=storage)
        feat = g.ndata["feat"]
        options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "features": ["feat"]}
        seeds = dist.node_split(np.ones(NUM_NODES))
        digests[storage] = []
        for ahead in ({"cache": "1MiB", "lookahead": 3}, {"cache": 0, "lookahead": 0}):
            loader = dist.DistNodeDataLoader(g, seeds, NeighborSampler([3, 4]), **ahead, **options)
            digests[storage] += [digest(batch) for _ in range(2) for batch in loader]
            loader.close()
        ids = torch.arange(NUM_NODES).flip(0).repeat(2)
        assert torch.equal(feat[ids], g.ndata["orig"][ids][:, None].expand(-1, 3).float())
        if storage:
            with pytest.raises(InvalidArgumentError, match="do not lie in memory"):
                feat[0] = 0

    layout.run(lambda: body(None))
    layout.run(lambda: body("disk"))
    if digests:
        assert digests[None] == digests["disk"]
