"""Names of categories, as trainers read them."""

import numpy as np
import torch
from layouts import SharedJob, everywhere
from oracle import partitioned

import mpigraph.distributed as dist
from mpigraph.metadata.schema import Schema
from mpigraph.partition.source import Feature, GraphSource


def write(folder):
    names = Feature.of(np.array([1, -1, 0, 1]))._replace(categories=("art", "bio"))
    ends = np.arange(4)
    schema = Schema(("a", "b"), (("a", "r", "a"), ("a", "s", "b")))
    source = GraphSource(
        schema,
        (4, 4),
        ((ends, ends), (ends, ends)),
        {"a": {"label": names, "x": Feature.of(ends)}},
        {"a:s:b": {"how": names._replace(categories=("w", "x"))}},
    )
    return partitioned(source, "g", 3, folder, "random")


@everywhere
def test_features_have_the_names_of_their_numbers(job: SharedJob) -> None:
    g = job.open(job.write(write))
    assert g.nodes["a"].data["label"].categories == ("art", "bio")
    assert g.edges["s"].data["how"].categories == ("w", "x")
    assert g.nodes["a"].data["x"].categories == ()
    assert dist.DistTensor((4,), torch.int64, "label", part_policy=g.get_node_partition_policy("a")).categories == ()
