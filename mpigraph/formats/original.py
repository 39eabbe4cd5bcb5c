"""A partitioned graph by its original ids, part by part and as a whole, for export to other packages."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpigraph.arrays import I32, I64, Array
from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.formats.shards import read_partition
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import relation_key
from mpigraph.partition.output_folder import OVERWRITE
from mpigraph.partition.row_arrays import RowArray
from mpigraph.partition.source import EDGES_PER_CHUNK, Feature, GraphSource
from mpigraph.partition.spill import Scratch
from mpigraph.storage.files import read_text, storage_errors
from mpigraph.storage.part_config import PartConfig


@dataclass(eq=False)
class Original:
    """A partitioned graph by its original ids."""

    config: PartConfig  # the partitioned graph
    source: GraphSource  # the same as an input; rows are numbered as in the parts
    node_ids: Sequence[I64]  # for each node type int64[n], the original ids
    scratch: Scratch  # where large arrays lie

    @classmethod
    def open(cls, part_config: str | os.PathLike[str], scratch: Scratch) -> "Original":
        """Open a partitioned graph.

        Raises:
            PartitionError: the configuration is missing or damaged.
            ShardFormatError: a shard is missing or damaged.
            GraphDataError: original ids are not 0 to n - 1, each once.
        """
        source = read_partition(part_config)
        assert source.node_ids is not None
        by_type = zip(source.schema.ntypes, source.node_ids, strict=True)
        ids = [_permutation(f"nodes of {ntype!r}", of_type) for ntype, of_type in by_type]
        return cls(PartConfig.read(part_config), source, ids, scratch)

    @property
    def book(self) -> RangeBook:
        """The id ranges of all parts."""
        return self.config.book

    def edge_ids(self, relation_id: int) -> I64:
        """Return int64[m], the original ids of a relation's edges, as they lie in the parts.

        Raises GraphDataError: they are not 0 to m - 1, each once.
        """
        assert self.source.edge_ids is not None
        relation = self.source.schema.relations[relation_id]
        return _permutation(f"edges of {relation_key(relation)!r}", self.source.edge_ids[relation_id])

    def node_parts(self, ntype_id: int) -> I32:
        """Return int32[n], the part of each node, by original id."""
        return _parts(self.book.node_offsets[ntype_id], self.node_ids[ntype_id])

    def edge_parts(self, relation_id: int) -> I32:
        """Return int32[m], the part of each edge, by original id."""
        return _parts(self.book.edge_offsets[relation_id], self.edge_ids(relation_id))

    def ends(self, relation_id: int, begin: int, end: int) -> tuple[I64, I64]:
        """Return the original ids of the ends of edges ``begin`` to ``end - 1``, as they lie in the parts."""
        arrays = zip(self.source.edges[relation_id], self.source.schema.ends(relation_id), strict=True)
        src, dst = (self.node_ids[ntype_id][np.asarray(ids[begin:end], np.int64)] for ids, ntype_id in arrays)
        return src, dst

    def edges(self, relation_id: int) -> Array:
        """Return int64[m, 2], the edges of a relation in their original order, by original ids."""
        ids = self.edge_ids(relation_id)
        pairs = self.scratch.empty(2 * len(ids), np.int64).reshape(-1, 2)
        for begin, end in _chunks(len(ids)):
            pairs[ids[begin:end]] = np.stack(self.ends(relation_id, begin, end), 1)
        return pairs

    def in_order(self, values: RowArray, ids: I64) -> Array:
        """Return the rows of an array that has the row of ``ids[i]`` at i."""
        result = self.scratch.empty(int(np.prod(values.shape)), values.dtype).reshape(values.shape)
        for begin, end in _chunks(len(ids)):
            result[ids[begin:end]] = values[begin:end]
        return result


@contextmanager
def exporting(
    part_config: str | os.PathLike[str],
    path: Path,
    scratch: Scratch | None,
    files_of: Callable[[dict[str, Any]], Iterable[str]],
    overwrite: bool = False,
) -> Iterator[Original]:
    """Open a graph to be written to the folder of ``path``, a JSON file that is written last and names the others.

    ``files_of`` returns the files that the content of such a file names, relative to the folder. With ``overwrite``,
    those of another graph that the new one does not have are removed. ``scratch`` is in the folder by default.

    Raises:
        InvalidArgumentError: the file is there already.
        PartitionError, ShardFormatError, GraphDataError: as :meth:`Original.open`.
        StorageError: a file cannot be written.
    """
    folder = path.parent
    if os.path.lexists(path) and not overwrite:
        raise InvalidArgumentError(f"{path} is there already, and would be overwritten: {OVERWRITE}")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        graph = Original.open(part_config, scratch or Scratch(folder))
        old = _files_named(path, files_of)
        path.unlink(missing_ok=True)
        yield graph
        for name in old - _files_named(path, files_of):
            (folder / name).unlink(missing_ok=True)
            with suppress(OSError):
                (folder / name).parent.rmdir()  # if it is empty


def _files_named(path: Path, files_of: Callable[[dict[str, Any]], Iterable[str]]) -> set[str]:
    """Return the files in the folder of ``path`` that its content names; none if it is missing or something else."""
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        names = set(files_of(json.loads(read_text(path))))
        return {name for name in names if (path.parent / name).resolve().is_relative_to(path.parent.resolve())}
    return set()


def renamed(names: Mapping[str, str], features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return features by the names that they get. Raises InvalidArgumentError if two would get one name."""
    feats = {names.get(name, name): feature for name, feature in features.items()}
    if len(feats) < len(features):
        got = f"there are {sorted(features)}, renamed by {names}"
        raise InvalidArgumentError(f"two features would get one name ({got})")
    return feats


def _permutation(what: str, ids: RowArray) -> I64:
    originals: I64 = np.asarray(ids[:], np.int64)
    if not np.array_equal(np.sort(originals), np.arange(len(originals))):
        raise GraphDataError(f"original ids of {what} must be 0 to {len(originals) - 1}, each once, to be exported")
    return originals


def _parts(offsets: I64, ids: I64) -> I32:
    parts = np.empty(len(ids), np.int32)
    parts[ids] = np.repeat(np.arange(len(offsets) - 1, dtype=np.int32), np.diff(offsets))
    return parts


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, count, EDGES_PER_CHUNK):
        yield begin, min(begin + EDGES_PER_CHUNK, count)


def as_numpy(feature: Feature, rows: Array) -> Array:
    """Return rows of a feature as they were before they were stored; bfloat16 becomes float32."""
    rows = feature.form.widened(rows, feature.dtype) if feature.form else rows
    if feature.dtype == "bool":
        return rows.astype(np.bool_)
    return (rows.astype(np.uint32) << np.uint32(16)).view(np.float32) if feature.dtype == "bfloat16" else rows


def as_tensor_rows(feature: Feature, rows: Array) -> torch.Tensor:
    """Return rows of a feature as a tensor, a copy of them, as they were before they were stored."""
    if feature.dtype != "bfloat16":
        return torch.from_numpy(as_numpy(feature, np.array(rows)))
    rows = feature.form.widened(np.array(rows), feature.dtype) if feature.form else np.array(rows)
    return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
