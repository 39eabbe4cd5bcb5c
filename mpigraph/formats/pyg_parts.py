"""Read a graph that PyG's ``Partitioner`` has partitioned.

A folder with ``META.json``, ``node_map.pt`` (with types ``node_map/<type>.pt``), and for each part ``graph.pt``,
``node_feats.pt`` and ``edge_feats.pt``. They are read by ``torch.load(weights_only=True)``, so no code in them runs,
and mapped. Nodes and edges have their original order, so the source is the graph before partitioning, with the parts
that ``node_map`` tells. Features keep their names; times of nodes and edges are called "time". PyG's partitioner keeps
``x``, ``edge_attr`` and times alone: no labels and no masks.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpigraph.arrays import I32, I64, Array
from mpigraph.errors import GraphDataError
from mpigraph.formats.id_maps import typewise
from mpigraph.formats.input_files import FolderFiles, checked_parts, graph_of, read_json, reading
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation
from mpigraph.partition.row_arrays import RowArray, concatenated, reordered
from mpigraph.partition.source import Feature, GraphSource, Parts
from mpigraph.storage.files import open_regular

METADATA = "META.json"


class Table(dict[str, Any]):
    """The content of a file for one type."""

    def __init__(self, path: Path, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self._path = path

    def __missing__(self, name: str) -> Any:
        raise GraphDataError(f"{self._path}: there is no {name!r}")


def read_pyg_partition(folder: Path) -> GraphSource:
    """Read a graph that PyG has partitioned; the source has these parts.

    Args:
        folder: where ``META.json`` lies.

    Raises:
        GraphDataError: a file is missing or damaged, holds objects other than tensors, or was written by a PyG that
            numbered nodes inside the parts; names it.
    """
    path = folder / METADATA
    with reading(path, folder):
        return _Parts(folder, read_json(path)).source()


class _Parts:
    def __init__(self, folder: Path, meta: Mapping[str, Any]) -> None:
        self.num_parts = int(meta["num_parts"])
        self.typed = typed = bool(meta["is_hetero"])
        self.ntypes = [str(name) for name in meta["node_types"]] if typed else [DEFAULT_NTYPE]
        self.relations: list[Relation] = [(s, r, d) for s, r, d in meta["edge_types"]] if typed else [DEFAULT_ETYPE]
        if not meta.get("is_sorted"):
            raise GraphDataError("is_sorted is not set: an older PyG wrote these parts, which number nodes themselves")
        self.folder = folder
        self.files = FolderFiles(folder)
        for path in (folder / METADATA, folder / "edge_map.pt", *(folder / "edge_map").glob("*.pt")):
            self.files.read(path)  # an edge is in the part of its destination, so its map is not needed

    def source(self) -> GraphSource:
        maps = {ntype: self._node_map(ntype) for ntype in self.ntypes}
        counts = {ntype: len(parts) for ntype, parts in maps.items()}
        graphs, edges = (self._tables(name, self.relations) for name in ("graph.pt", "edge_feats.pt"))
        nodes = self._tables("node_feats.pt", self.ntypes)
        order = self._order("edge_id", graphs) | self._order("global_id", nodes, counts)
        feats = {key: self._features(tables, order[key]) for key, tables in (nodes | edges).items()}
        for ntype, (table, *_) in nodes.items():
            if "time" in table:  # of all nodes, in every part
                feats[ntype]["time"] = _feature([table["time"]])

        def ends(relation: Relation, name: str) -> RowArray:
            return _reordered(_joined(graphs[relation], name), order[relation])

        return graph_of(
            counts,
            {relation: (ends(relation, "row"), ends(relation, "col")) for relation in self.relations},
            {ntype: feats[ntype] for ntype in self.ntypes},
            {relation: feats[relation] for relation in self.relations},
            path=str(self.folder),
            parts=Parts(np.concatenate([maps[ntype] for ntype in sorted(self.ntypes)]), self.num_parts),
            left_out=self.files.left_out(),
        )

    def _node_map(self, ntype: str) -> I32:
        path = self.folder / "node_map" / f"{ntype}.pt" if self.typed else self.folder / "node_map.pt"
        parts = _load(self.files.read(path))
        return checked_parts(path, parts.numpy(), len(parts), self.num_parts)

    def _tables(self, name: str, types: Sequence[Any]) -> dict[Any, list[Table]]:
        """Return the tables of each type, a part each."""
        tables: dict[Any, list[Table]] = {key: [] for key in types}
        for part in range(self.num_parts):
            path = self.files.read(self.folder / f"part_{part}" / name)
            content = _load(path)
            for key in types:
                tables[key].append(Table(path, content.get(key, {}) if self.typed else content))
        return tables

    def _order(
        self, name: str, tables: Mapping[Any, Sequence[Table]], counts: Mapping[Any, int] | None = None
    ) -> dict[Any, I64]:
        """Return for each type where its rows stand, in their original order, in the parts one after another."""
        ids = [np.asarray(_joined(of_type, name)[:], np.int64) for key, of_type in tables.items()]
        sizes = [len(its) for its in ids] if counts is None else [counts[key] for key in tables]
        typed = typewise(ids, sizes)
        if typed is None:
            raise GraphDataError(f"{name}: the parts do not have every id of 0 to n - 1 once (n is {sizes})")
        return dict(zip(tables, map(np.argsort, typed), strict=True))

    def _features(self, tables: Sequence[Table], order: I64) -> dict[str, Feature]:
        by_part = [{**table.get("feats", {}), "time": table.get("edge_time")} for table in tables]
        names = sorted({name for feats in by_part for name, values in feats.items() if values is not None})
        found = {name: _feature([feats[name] for feats in by_part]) for name in names}
        return {name: its._replace(values=_reordered(its.values, order)) for name, its in found.items()}


def _joined(tables: Sequence[Table], name: str) -> RowArray:
    """Return integers of all parts one after another."""
    return concatenated([table[name].numpy() for table in tables])


def _reordered(values: RowArray, order: I64) -> RowArray:
    if len(values) != len(order):  # other rows would be taken for these, in silence
        raise GraphDataError(f"a tensor has {len(values)} rows in all parts, but there are {len(order)} ids")
    return reordered(values, order)


def _load(path: Path) -> Any:
    try:
        os.close(open_regular(path))
        with _few_globals():
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises whatever its unpickler does
        # not all of what torch says, which advises to run the code in the file
        told = re.search(r"WeightsUnpickler error:\s*([^\n]+?)(\. |\n|$)", str(error))
        reason = told[1] if told else str(error).partition("\n")[0] or type(error).__name__
        raise GraphDataError(f"{path}: cannot be read as tensors alone: {reason}") from error


@contextmanager
def _few_globals() -> Iterator[None]:
    """Let files name nothing besides tensors and dicts, whatever other packages have declared safe.

    PyG puts features into a defaultdict, which torch fills in no file: it is read as a dict. torch 2.5 and older cannot
    be told so, and refuse such files.
    """
    known = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals([(lambda *_: {}, "collections.defaultdict"), dict])
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(known)


def _feature(chunks: Sequence[torch.Tensor]) -> Feature:
    name = str(chunks[0].dtype).removeprefix("torch.")
    return Feature(concatenated([_stored(chunk, name) for chunk in chunks]), name)


def _stored(chunk: torch.Tensor, name: str) -> Array:
    if name == "bfloat16":
        return chunk.contiguous().view(torch.int16).numpy().view(np.uint16)
    rows: Array = chunk.detach().numpy()
    return rows.view(np.uint8) if name == "bool" else rows
