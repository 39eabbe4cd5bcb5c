"""What tests of inputs check: that parts hold what a source says."""

import numpy as np
from typed_parts import check_round_trip

from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.row_arrays import mapping_of, numpy_under
from mpigraph.partition.source import edge_chunks


def rows(values):
    """Whole content of an array that need not be numpy's."""
    return np.asarray(values[:])


def values_of(features):
    """Name -> rows, as lists."""
    return {name: rows(feature.values).tolist() for name, feature in features.items()}


def typed_values_of(features):
    """Name -> dtype and rows, as lists."""
    return {name: (feature.dtype, rows(feature.values).tolist()) for name, feature in features.items()}


def texts_of(feature):
    """The strings that a feature of bytes holds."""
    return [bytes(row).rstrip(b"\0").decode() for row in rows(feature.values)]


def bytes_in_memory(source):
    """The size of the arrays that are not memory maps."""
    arrays = [*(end for ends in source.edges for end in ends), *source.arrays()]
    held = {id(under): under for array in arrays for under in numpy_under(array)}
    return sum(under.nbytes for under in held.values() if mapping_of(under) is None)


def check_all(source):
    """What one rank checks of a whole graph before it is cut."""
    for chunk in edge_chunks(source):
        source.check_edges(chunk)
    source.check_values()


def check_parts(source, folder, method="random"):
    """The parts of a source hold its edges and features."""
    check_round_trip(source, partition_source(source, "g", 2, folder, method), 2)
