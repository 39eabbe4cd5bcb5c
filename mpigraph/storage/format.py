"""The contents of a shard file: names, version, dtypes, checksum rule.

A partitioned graph is a directory::

    <name>.json              the partition configuration (part_config.py)
    part<k>/graph.h5         nodes/<ntype>/orig_ids, relations/<src:rel:dst>/{indptr, indices, out_degrees, orig_ids}
                             shared_relations/{destinations, indices, orig_ids}
    part<k>/node_feat.h5     <ntype>/<name>
    part<k>/edge_feat.h5     <src:rel:dst>/<name>, shared_relations/<name>

Types, relations and features may have any names: a ``/`` inside one is written as ``~2F``, ``:`` in a relation's as
``~3A`` and ``~`` as ``~7E`` (:func:`~mpigraph.metadata.schema.escape`).
Where many relations have few edges, these share the tables ``shared_relations``, relation after relation, with the
destination of each edge, counted within its part, in place of ``indptr`` (:func:`shared_relations`). A feature that
several of these have with one dtype and shape is one dataset, too, in the same order. The configuration says which.

Datasets are contiguous, so that a reader can fill a buffer with any range of rows in one call. Each carries its
logical dtype (torch's name; bfloat16 is stored as uint16 and bool as uint8) and one CRC-32 for each segment
of ``segment_rows`` rows. For a feature stored in 16 bits (narrow.py) that is float16 or bfloat16; the configuration
also has the dtype of its readers.

The configuration has the *identity* of the partitioning, a hash of the topology and the assignment, and, as every
shard, its *content*, a hash of the identity and of the features' dtypes, shapes and a few of their rows: a shard of
another content is refused, so files of two partitionings are never mixed.

A file of another version is refused; there is no conversion. A graph is partitioned again, an optimizer saved again.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mpigraph.errors import InvalidArgumentError
from mpigraph.metadata.schema import Schema, escape

FORMAT_NAME = "mpigraph-shard"
FORMAT_VERSION = 3

_FEW = 8  # relations that can share; fewer are not worth the searches

_SEGMENT_BYTES = 4 << 20  # a read at a random row verifies a whole segment, so they must not be large
_MAX_SEGMENTS = 8192  # their checksums are an HDF5 attribute, which holds 64 KiB

_PLAIN = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
_STORAGE = {"bool": "uint8", "bfloat16": "uint16", **{name: name for name in _PLAIN.split()}}


def storage_dtype(logical: str) -> np.dtype[np.generic]:
    """Return the numpy dtype in which a logical dtype is stored.

    Raises:
        InvalidArgumentError: there is no such dtype, or it cannot be stored.
    """
    if logical not in _STORAGE:
        raise InvalidArgumentError(f"dtype {logical!r} cannot be stored (known: {', '.join(sorted(_STORAGE))})")
    return np.dtype(_STORAGE[logical])


def logical_dtype(dtype: npt.DTypeLike) -> str:
    """Return the logical name of a numpy dtype."""
    name: str = np.dtype(dtype).name
    storage_dtype(name)
    return name


def index_dtype(num_nodes: int) -> np.dtype[np.generic]:
    """Return the dtype of ``indices`` towards a type with ``num_nodes`` nodes."""
    return np.dtype(np.int32 if num_nodes < 2**31 else np.int64)


def segment_rows(num_rows: int, row_bytes: int) -> int:
    """Return the rows of a segment, which has one checksum: about 4 MiB, more in huge datasets."""
    return max(1, _SEGMENT_BYTES // max(row_bytes, 1), -(-num_rows // _MAX_SEGMENTS))


def relation_dataset_name(relation_key: str, field: str) -> str:
    """Return the dataset of a relation in ``graph.h5``.

    Args:
        relation_key: ``"src:rel:dst"``.
        field: ``"indptr"``, ``"indices"``, ``"out_degrees"`` or ``"orig_ids"``.
    """
    return f"relations/{_of_relation(relation_key)}/{field}"


def shared_relations(schema: Schema, num_nodes: Sequence[int], num_edges: Sequence[int]) -> tuple[int, ...]:
    """Return the ids of the relations that share tables: those of fewer edges than half their destinations.

    A table by destination would be larger than all their edges; in a knowledge graph many times as large.
    """
    few = [r for r, edges in enumerate(num_edges) if 2 * edges < num_nodes[schema.ends(r)[1]]]
    return tuple(few) if len(few) >= _FEW else ()


def own_relations(schema: Schema, shared: Sequence[int]) -> list[int]:
    """Return the ids of the relations that have tables of their own: all but ``shared``, ascending."""
    relations: list[int] = np.delete(np.arange(len(schema.relations)), shared).tolist()
    return relations


def shared_dataset_name(field: str) -> str:
    """Return the dataset in ``graph.h5`` that relations share: "destinations", "indices" or "orig_ids"."""
    return f"shared_relations/{field}"


def node_orig_ids_name(ntype: str) -> str:
    """Return the dataset of a node type's original ids in ``graph.h5``."""
    return f"nodes/{_step(ntype)}/orig_ids"


def node_feature_name(ntype: str, name: str) -> str:
    """Return the dataset of a feature in ``node_feat.h5``."""
    return f"{_step(ntype)}/{_step(name)}"


def edge_feature_name(relation_key: str, name: str) -> str:
    """Return the dataset of a feature in ``edge_feat.h5``."""
    return f"{_of_relation(relation_key)}/{_step(name)}"


def shared_feature_name(name: str) -> str:
    """Return the dataset in ``edge_feat.h5`` of a feature that relations share."""
    return f"shared_relations/{_step(name)}"


@lru_cache(1 << 14)
def _step(name: str) -> str:
    """Return a name as one step of an HDF5 path, where "." means the group itself."""
    return "~2E" if name == "." else escape(name, "/")


def _of_relation(key: str) -> str:
    """Return a relation's key as one step of an HDF5 path; what else had to be escaped is."""
    return key.replace("/", "~2F")
