"""Whether the files of a part are whole and right: every dataset is read from end to end."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import U64
from mpigraph.errors import MPIGraphError, ShardFormatError
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.format import relation_dataset_name, storage_dtype
from mpigraph.storage.in_edges import check_in_edges
from mpigraph.storage.shard import DatasetInfo
from mpigraph.storage.verify import read_chunks

__all__ = ["Audit", "audit_part", "dataset_bytes"]

Advance = Callable[[int], None]


class Audit(NamedTuple):
    """What was found in the files of a part.

    Attributes:
        bad: a line for each bad file; names the file and the first bad dataset.
        sums: uint64[relations]; where no file is bad, the sums over all parts are 0 modulo 2**64, or some out-degrees
            are not those of the edges.
    """

    bad: list[str]
    sums: U64


def audit_part(files: PartFiles, part: int, advance: Advance) -> Audit:
    """Read all files of a part; check the checksums, the seals, the identity and the contents.

    Args:
        files: of the partitioned graph.
        part: 0 to num_parts - 1.
        advance: called with the bytes that have been read since the last call.
    """
    sums = np.zeros(len(files.config.schema.relations), np.uint64)
    bad = []
    for which in files.config.files[part]:
        errors = list(_errors(files, part, which, sums, advance))
        if errors:
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            bad.append(str(errors[0]).replace("\n", " ") + more)
    return Audit(bad, sums)


def dataset_bytes(info: DatasetInfo) -> int:
    """Return the size of a dataset."""
    return storage_dtype(info.dtype).itemsize * math.prod(info.shape)


def _errors(files: PartFiles, part: int, which: str, sums: U64, advance: Advance) -> Iterator[MPIGraphError]:
    """Yield an error for each bad dataset of a file, or one for the whole file."""
    schema = files.config.schema
    try:
        found = files.check_file(part, which)
    except MPIGraphError as error:
        yield error
        return
    rest = dict(found)
    for relation in range(len(schema.relations) if which == "part_graph" else 0):
        key = schema.relation_key(relation)
        names = [relation_dataset_name(key, field) for field in ("indptr", "indices", "out_degrees")]
        try:
            sums[relation] = check_in_edges(files, relation, part)
        except ShardFormatError as error:
            yield error
        advance(sum(dataset_bytes(rest.pop(name)[0]) for name in names))
    for name in rest:
        try:
            for _, rows in read_chunks(files.open(part, which), name):
                advance(rows.nbytes)
        except ShardFormatError as error:
            yield error
