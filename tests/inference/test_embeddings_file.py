"""What all nodes become goes to files in the original order, whatever the ranks and the parts."""

import h5py
import numpy as np
import torch
from jobs import load_example
from layouts import SharedJob, on_all, shared_folder
from oracle import NUM_NODES, oracle_source

import mpigraph.function as fn
from mpigraph.inference import layerwise


def sums(block, h) -> torch.Tensor:
    """Small integers: the same bits in any order."""
    with block.local_scope():
        block.srcdata["h"] = h[0]
        block.update_all(fn.copy_u("h", "m"), fn.sum("m", "out"))
        return block.dstdata["out"] - 2 * h[1]


def test_embeddings_are_in_the_original_order(job: SharedJob, oracle) -> None:
    g = job.open(oracle(7))
    found = layerwise(g, [sums] * 2, g.ndata["feat"], batch_size=20)
    ((src, dst),) = oracle_source().edges
    matrix = -2 * np.eye(NUM_NODES, dtype=np.int64)
    np.add.at(matrix, (dst, src), 1)
    wanted = matrix @ matrix @ np.arange(NUM_NODES)
    with shared_folder(job.trainers) as folder:
        load_example("common").write_hdf5(g, found, f"{folder}/e.h5", "embedding")
        assert [path.name for path in folder.iterdir()] == ["e.h5"]
        with h5py.File(folder / "e.h5") as file:
            values = file["embedding"][:]
    on_all(job.trainers, values.dtype == np.float32 and np.array_equal(values, np.repeat(wanted[:, None], 3, axis=1)))
