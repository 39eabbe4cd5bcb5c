"""Write a partitioned graph as PyG's ``Partitioner`` does, by its original ids; ``pyg_parts.py`` reads it again.

The parts stay as they are. Edges lie with their destination and are sorted by it, then by time where edges or sources
have the feature "time", as PyG's temporal sampling needs it. PyG's loaders call features ``x`` and ``edge_attr``:
rename those that they are to find. PyG is not needed. Types that cannot be names of files are changed, and noted in
``META.json`` (``formats/foreign_names.py``).
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpigraph.arrays import I64, Array
from mpigraph.errors import StorageError
from mpigraph.formats.foreign_names import ForeignNames
from mpigraph.formats.original import Original, as_tensor_rows, exporting, renamed
from mpigraph.formats.pyg_parts import METADATA
from mpigraph.metadata.schema import Schema, relation_key
from mpigraph.partition.progress import Progress, silent
from mpigraph.partition.source import Feature
from mpigraph.partition.spill import Scratch
from mpigraph.storage.files import NewFile

_TIME = "time"
_FILES = ("graph", "node_feats", "edge_feats")  # of a part

Features = Mapping[str, Feature]


def write_pyg_parts(
    part_config: str | os.PathLike[str],
    out: str | os.PathLike[str],
    names: Mapping[str, str] | None = None,
    scratch: Scratch | None = None,
    progress: Progress = silent,
    overwrite: bool = False,
) -> Path:
    """Write a partitioned graph in the layout of PyG's ``Partitioner``; return the path of ``META.json``, written last.

    Arguments and errors are those of :func:`.write_chunked`.
    """
    folder = Path(out)
    path = folder / METADATA
    with exporting(part_config, path, scratch, _files_of, overwrite) as graph:
        writer = _Writer(graph, folder, names or {})
        number = graph.config.num_parts
        for part in range(number):
            progress("write parts", part, number)
            writer.part(part)
        writer.maps()
        progress("write parts", number, number)
        with NewFile(path) as file:
            file.write(json.dumps(writer.meta()).encode())
    return path


def _files_of(meta: Mapping[str, Any]) -> list[str]:
    """Return the files of a graph: those of each part, and the maps of each type."""
    files = [f"part_{part}/{name}.pt" for part in range(meta["num_parts"]) for name in _FILES]
    if not meta["is_hetero"]:
        return [*files, "node_map.pt", "edge_map.pt"]
    files += [f"node_map/{ntype}.pt" for ntype in meta["node_types"]]
    return files + [f"edge_map/{'__'.join(relation)}.pt" for relation in meta["edge_types"]]


class _Writer:
    """Writes the files of a graph. Without types, a file has one table instead of a dict of tables."""

    def __init__(self, graph: Original, folder: Path, names: Mapping[str, str]) -> None:
        source = graph.source
        self.graph = graph
        self.folder = folder
        self.schema = source.schema
        self.typed = source.schema != Schema.homogeneous()
        self.keys = [relation_key(relation) for relation in self.schema.relations]
        self.node_feats = {t: renamed(names, source.node_feats.get(t, {})) for t in self.schema.ntypes}
        self.edge_feats = {key: renamed(names, source.edge_feats.get(key, {})) for key in self.keys}
        self.node_bases = np.concatenate([[0], np.cumsum(source.num_nodes)]).tolist()
        self.edge_bases = np.concatenate([[0], np.cumsum(source.edge_counts)]).tolist()
        self.edge_ids = [graph.edge_ids(r) for r in range(len(self.keys))]
        self.foreign = ForeignNames(source.schema, "pyg")

    def meta(self) -> dict[str, Any]:
        return {
            "num_parts": self.graph.config.num_parts,
            "node_types": list(self.foreign.ntypes.values()) if self.typed else None,
            "edge_types": list(map(list, self.foreign.relations.values())) if self.typed else None,
            "node_offset": self.node_bases[:-1] if self.typed else None,
            "is_hetero": self.typed,
            "is_sorted": True,
            **(self.foreign.note(self.folder / METADATA) if self.typed else {}),
        }

    def part(self, part: int) -> None:
        graphs = {}
        edge_feats = {}
        for r, relation in enumerate(self.foreign.relations.values()):
            graphs[relation], edge_feats[relation] = self._edges(part, r)
        node_feats = {ntype: self._nodes(part, t) for t, ntype in enumerate(self.foreign.ntypes.values())}
        folder = self.folder / f"part_{part}"
        folder.mkdir(exist_ok=True)
        contents: tuple[dict[Any, Any], ...] = (graphs, node_feats, edge_feats)
        for name, tables in zip(_FILES, contents, strict=True):
            _save(tables if self.typed else next(iter(tables.values())), folder / f"{name}.pt")

    def _nodes(self, part: int, ntype_id: int) -> dict[str, Any]:
        begin, end = self.graph.book.node_range(part, ntype_id)
        ntype = self.schema.ntypes[ntype_id]
        ids = self.graph.node_ids[ntype_id]
        features = self.node_feats[ntype]
        own = torch.from_numpy(ids[begin:end].copy())
        table: dict[str, Any] = {"global_id": own + self.node_bases[ntype_id], "id": own}
        table["feats"] = {n: as_tensor_rows(f, f.values[begin:end]) for n, f in features.items() if n != _TIME}
        if _TIME in features:  # PyG wants the times of all nodes in each part
            table[_TIME] = as_tensor_rows(features[_TIME], self._times(ntype_id, features))
        return table

    def _times(self, ntype_id: int, features: Features) -> Array:
        return self.graph.in_order(features[_TIME].values, self.graph.node_ids[ntype_id])

    def _edges(self, part: int, relation_id: int) -> tuple[dict[str, Any], dict[str, Any]]:
        graph = self.graph
        begin, end = graph.book.edge_range(part, relation_id)
        src_type, dst_type = self.schema.ends(relation_id)
        features = self.edge_feats[self.keys[relation_id]]
        src, dst = graph.ends(relation_id, begin, end)
        order = np.lexsort((*self._edge_times(features, src_type, src, begin, end), dst))
        ids = torch.from_numpy(self.edge_ids[relation_id][begin:end][order])
        sizes = graph.source.num_nodes
        table = {
            "edge_id": ids + self.edge_bases[relation_id],
            "row": torch.from_numpy(src[order]),
            "col": torch.from_numpy(dst[order]),
            "size": (sizes[src_type], sizes[dst_type]),
        }
        rows = {name: as_tensor_rows(f, np.asarray(f.values[begin:end])[order]) for name, f in features.items()}
        times = rows.pop(_TIME, None)
        told: dict[str, Any] = {"feats": rows} if rows else {}
        if rows and len(ids):  # PyG asks for the largest
            told["global_id"] = ids
        return table, told if times is None else told | {"edge_time": times}

    def _edge_times(self, features: Features, src_type: int, src: I64, begin: int, end: int) -> tuple[Array, ...]:
        """Return what edges of one destination are sorted by: their times, else those of their sources."""
        of_nodes = self.node_feats[self.schema.ntypes[src_type]]
        if _TIME in features:
            times = np.asarray(features[_TIME].values[begin:end])
        elif _TIME in of_nodes:
            times = self._times(src_type, of_nodes)[src]
        else:
            return ()
        return (times if times.ndim == 1 else times[:, 0],)

    def maps(self) -> None:
        for what, names, parts_of in (
            ("node_map", list(self.foreign.ntypes.values()), self.graph.node_parts),
            ("edge_map", list(map("__".join, self.foreign.relations.values())), self.graph.edge_parts),
        ):
            if self.typed:
                (self.folder / what).mkdir(exist_ok=True)
            for number, name in enumerate(names):
                path = self.folder / what / f"{name}.pt" if self.typed else self.folder / f"{what}.pt"
                _save(torch.from_numpy(parts_of(number).astype(np.int64)), path)


def _save(content: object, path: Path) -> None:
    try:
        torch.save(content, path)
    except RuntimeError as error:  # what torch makes of a full disk
        raise StorageError(f"{path}: cannot write: {error}") from error
