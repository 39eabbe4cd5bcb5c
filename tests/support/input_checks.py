"""What tests of inputs check: that parts hold what a source says."""

import numpy as np

from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.row_arrays import mapping_of, numpy_under
from mpigraph.partition.source import all_edges
from mpigraph.storage.part_config import PartConfig
from mpigraph.storage.shard import ShardReader


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
    arrays = [*(end for ends in source.edges for end in ends), *(array for _, array in source.tables())]
    held = {id(under): under for array in arrays for under in numpy_under(array)}
    return sum(under.nbytes for under in held.values() if mapping_of(under) is None)


def check_all(source):
    """What one rank checks of a whole graph before it is cut."""
    for first, src, dst in all_edges(source):
        source.check_edges(first, src, dst)
    source.check_nodes()


def check_parts(source, folder, method="random"):
    """The parts of a source hold its edges and node features."""
    config = PartConfig.read(partition_source(source, "g", 2, folder, method).config_path)
    schema = source.schema
    orig = [[], []]
    for part in range(2):
        with ShardReader(config.part_path(part, "part_graph")) as graph:
            orig[part] = [graph.read(f"nodes/{ntype}/orig_ids") for ntype in schema.ntypes]
        with ShardReader(config.part_path(part, "node_feats")) as feats:
            for t, ntype in enumerate(schema.ntypes):
                for name, feature in source.node_feats.get(ntype, {}).items():
                    stored = feats.read(f"{ntype}/{name}")
                    assert np.array_equal(stored, rows(feature.values)[orig[part][t]], equal_nan=True)
    new_to_old = [np.concatenate([orig[part][t] for part in range(2)]) for t in range(len(schema.ntypes))]
    for r, relation in enumerate(schema.relations):
        src_type, dst_type = schema.ends(r)
        found = []
        for part in range(2):
            with ShardReader(config.part_path(part, "part_graph")) as graph:
                fields = [graph.read(f"relations/{':'.join(relation)}/{name}") for name in ("indptr", "indices")]
                ids = graph.read(f"relations/{':'.join(relation)}/orig_ids")
            dst = np.repeat(orig[part][dst_type], np.diff(fields[0]))
            found.append(np.stack([ids, new_to_old[src_type][fields[1]], dst]))
            with ShardReader(config.part_path(part, "edge_feats")) as feats:
                for name, feature in source.edge_feats.get(":".join(relation), {}).items():
                    stored = feats.read(f"{':'.join(relation)}/{name}")
                    assert np.array_equal(stored, rows(feature.values)[ids])
        edges = np.concatenate(found, axis=1)
        edges = edges[1:, np.argsort(edges[0])]
        assert np.array_equal(edges, [rows(end) for end in source.edges[r]])
