"""A partitioned graph by its original ids, written as a folder of .npy files."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.formats.shards import read_partition
from mpigraph.metadata.schema import escape, relation_key
from mpigraph.partition.exchange import Progress, silent
from mpigraph.partition.output_folder import refusal
from mpigraph.partition.row_arrays import RowArray
from mpigraph.partition.source import EDGES_PER_CHUNK, Feature, GraphSource
from mpigraph.partition.spill import Scratch
from mpigraph.storage.files import read_text, storage_errors
from mpigraph.storage.narrow import widened


@dataclass(eq=False)
class Original:
    """A partitioned graph by its original ids."""

    source: GraphSource  # the graph as an input; rows are numbered as in the parts
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
        return cls(source, ids, scratch)

    def edge_ids(self, relation_id: int) -> I64:
        """Return int64[m], the original ids of a relation's edges, as they lie in the parts.

        Raises GraphDataError: they are not 0 to m - 1, each once.
        """
        assert self.source.edge_ids is not None
        relation = self.source.schema.relations[relation_id]
        return _permutation(f"edges of {relation_key(relation)!r}", self.source.edge_ids[relation_id])

    def ends_in_order(self, relation_id: int, side: int) -> I64:
        """Return int64[m], the original ids of the sources (side 0) or destinations (1), in the edges' order."""
        ids = self.edge_ids(relation_id)
        of_type = self.node_ids[self.source.schema.ends(relation_id)[side]]
        ends = self.source.edges[relation_id][side]
        result = self.scratch.empty(len(ids), np.int64)
        for begin, end in _chunks(len(ids)):
            result[ids[begin:end]] = of_type[np.asarray(ends[begin:end], np.int64)]
        return result

    def in_order(self, values: RowArray, ids: I64) -> Array:
        """Return the rows of an array that has the row of ``ids[i]`` at i."""
        result = self.scratch.empty(int(np.prod(values.shape)), values.dtype).reshape(values.shape)
        for begin, end in _chunks(len(ids)):
            result[ids[begin:end]] = values[begin:end]
        return result


def write_npy(
    part_config: str | os.PathLike[str],
    out: str | os.PathLike[str],
    scratch: Scratch | None = None,
    progress: Progress = silent,
    overwrite: bool = False,
) -> Path:
    """Write a partitioned graph as a folder of .npy files in its original order, which ``partition`` reads.

    Names are those of ``formats/named_arrays.py``: ``edge_src``, ``edge_dst``, ``num_nodes``, ``node_<name>`` and
    ``edge_<name>``; with types ``<type>__num_nodes``, ``<src>__<rel>__<dst>__src`` and so on. What a file name cannot
    have is written as "%" and two hexadecimal digits. numpy has no bfloat16: such features are written as float32.

    Args:
        part_config: the configuration of the partitioned graph.
        out: folder to write to.
        scratch: for arrays that do not fit into memory; in ``out`` by default.
        progress: what to report to.
        overwrite: write over another graph that was exported to the folder.

    Returns:
        The folder. ``meta.json``, which lists the files, is written last.

    Raises:
        InvalidArgumentError: files are there already, or two arrays would get one name.
        PartitionError, ShardFormatError: the partitioned graph is damaged.
        GraphDataError: original ids are not 0 to n - 1, each once.
        StorageError: a file cannot be written.
    """
    folder = Path(out)
    meta = folder / "meta.json"
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        graph = Original.open(part_config, scratch or Scratch(folder))
        arrays = _arrays(graph)
        old = {*_files_named(meta), meta.name} if overwrite else set()
        there = sorted(path.name for path in (*folder.glob("*.npy"), *folder.glob(meta.name)) if path.name not in old)
        if there:
            raise refusal(f"{folder / there[0]} is there already, and")
        for name in sorted(old):
            (folder / name).unlink(missing_ok=True)
        for number, (name, make) in enumerate(arrays.items()):
            progress("write arrays", number, len(arrays))
            np.save(folder / name, make())
        progress("write arrays", len(arrays), len(arrays))
        meta.write_text(json.dumps({"files": list(arrays)}))
    return folder


def _arrays(graph: Original) -> dict[str, Callable[[], Array]]:
    """Return what makes the content of each file."""
    source = graph.source
    plain = source.schema.is_homogeneous
    arrays: dict[str, Callable[[], Array]] = {}

    def add(name: str, make: Callable[[], Array]) -> None:
        file = f"{escape(name, '/', '%')}.npy"
        if file in arrays:
            raise InvalidArgumentError(f"a feature has a name of the structure: {name!r} would be there twice")
        arrays[file] = make

    def rows_of(feature: Feature, ids: Callable[[], I64]) -> Array:
        return as_numpy(feature, graph.in_order(feature.values, ids()))

    def add_features(prefix: str, features: Mapping[str, Feature], ids: Callable[[], I64]) -> None:
        for name, feature in features.items():
            add(f"{prefix}{name}", partial(rows_of, feature, ids))

    for t, ntype in enumerate(source.schema.ntypes):
        add("num_nodes" if plain else f"{ntype}__num_nodes", partial(np.array, source.num_nodes[t]))
        add_features(
            "node_" if plain else f"{ntype}__", source.node_feats.get(ntype, {}), partial(graph.node_ids.__getitem__, t)
        )
    for r, relation in enumerate(source.schema.relations):
        prefix = "edge_" if plain else "__".join(relation) + "__"
        for side, end in enumerate(("src", "dst")):
            add(f"{prefix}{end}", partial(graph.ends_in_order, r, side))
        add_features(prefix, source.edge_feats.get(relation_key(relation), {}), partial(graph.edge_ids, r))
    return arrays


def _files_named(meta: Path) -> list[str]:
    """Return the files that an earlier export has written; an empty list without one."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        return [name for name in json.loads(read_text(meta))["files"] if name == Path(name).name]
    return []


def _permutation(what: str, ids: RowArray) -> I64:
    originals: I64 = np.asarray(ids[:], np.int64)
    if not np.array_equal(np.sort(originals), np.arange(len(originals))):
        raise GraphDataError(f"original ids of {what} must be 0 to {len(originals) - 1}, each once, to be exported")
    return originals


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, count, EDGES_PER_CHUNK):
        yield begin, min(begin + EDGES_PER_CHUNK, count)


def as_numpy(feature: Feature, rows: Array) -> Array:
    """Return rows of a feature as they were before they were stored; bfloat16 becomes float32."""
    rows = widened(rows, feature.stored, feature.dtype)
    if feature.dtype == "bool":
        return rows.astype(np.bool_)
    return (rows.astype(np.uint32) << np.uint32(16)).view(np.float32) if feature.dtype == "bfloat16" else rows


def as_tensor_rows(feature: Feature, rows: Array) -> torch.Tensor:
    """Return rows of a feature as a tensor, a copy of them, as they were before they were stored."""
    if feature.dtype != "bfloat16":
        return torch.from_numpy(as_numpy(feature, np.array(rows)))
    return torch.from_numpy(np.array(rows).view(np.int16)).view(torch.bfloat16)
