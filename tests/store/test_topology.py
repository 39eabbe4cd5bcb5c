"""The structure of a graph in the hosts' windows: plain arrays on this node, one-sided reads anywhere."""

import numpy as np
import pytest
from layouts import SharedJob
from oracle import MAX_DEGREE, NUM_NODES

from mpigraph.errors import OutOfRangeError


def test_degrees_and_edges_are_those_of_the_graph(job: SharedJob, oracle) -> None:
    topology = job.open(oracle(3)).loaded.topology
    orig = job.open(oracle(3)).ndata["orig"][:].numpy()
    nodes = np.arange(NUM_NODES)
    degrees = topology.in_degrees(nodes, 0)
    assert np.array_equal(degrees, orig % (MAX_DEGREE + 1))
    src, dst = topology.find_edges(np.arange(degrees.sum()), 0)
    assert np.array_equal(np.bincount(dst, minlength=NUM_NODES), degrees)
    assert np.array_equal(topology.out_degrees(nodes, 0), np.bincount(src, minlength=NUM_NODES))
    step = (orig[src] - orig[dst]) % NUM_NODES
    assert ((step >= 1) & (step <= degrees[dst])).all()
    for host in np.flatnonzero(job.session.world.is_local).tolist():
        part = topology.adjacency(0, host)
        edges = slice(part.first_edge, part.first_edge + len(part.indices))
        assert np.array_equal(part.indices, src[edges])
        assert np.array_equal(np.diff(part.indptr), degrees[part.first_node :][: len(part.indptr) - 1])
    for wrong in (NUM_NODES, -1):
        with pytest.raises(OutOfRangeError):
            topology.out_degrees(np.array([wrong]), 0)
