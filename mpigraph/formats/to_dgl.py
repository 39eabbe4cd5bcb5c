"""Write a partitioned graph in DGL's chunked format, in its original order, for DGL's distributed partitioning.

What is written (``formats/dgl_chunked.py`` reads it again)::

    metadata.json                           names all files, relative to the folder
    edges/<src>__<rel>__<dst>-<chunk>.csv   a line "src dst" for each edge
    node_data/<type>/<name>-<chunk>.npy     rows of node data; edge_data/ likewise
    partition/<type>.txt                    the part of each node, a line each, and partition_meta.json

The last is what DGL's ``dispatch_data.py --partitions-dir`` takes, and ``partition --assignment``. numpy has no
bfloat16: such data are written as float32. Names that DGL cannot have are changed, and noted in ``metadata.json``
(``formats/foreign_names.py``).
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import I64
from mpigraph.errors import check_integer
from mpigraph.formats.dgl_chunked import METADATA
from mpigraph.formats.foreign_names import ForeignNames, unique
from mpigraph.formats.original import Original, as_numpy, exporting, renamed
from mpigraph.partition.progress import Progress, silent
from mpigraph.partition.source import Feature
from mpigraph.partition.spill import Scratch
from mpigraph.storage.files import NewFile

_MOST_BYTES = 200  # of a file's name, without the number of its chunk


def write_chunked(
    part_config: str | os.PathLike[str],
    out: str | os.PathLike[str],
    num_chunks: int | None = None,
    names: Mapping[str, str] | None = None,
    scratch: Scratch | None = None,
    progress: Progress = silent,
    overwrite: bool = False,
) -> Path:
    """Write a partitioned graph in DGL's chunked format.

    Args:
        part_config: the configuration of the partitioned graph.
        out: folder to write to.
        num_chunks: how many files each array is divided into; None: as many as parts.
        names: names that features get instead of theirs.
        scratch: for arrays that do not fit into memory; in ``out`` by default.
        progress: what to report to.
        overwrite: write over another graph in the folder.

    Returns:
        The path of ``metadata.json``, which is written last.

    Raises:
        InvalidArgumentError: an argument is not usable, or another graph lies in the folder.
        PartitionError, ShardFormatError: the partitioned graph is damaged.
        StorageError: a file cannot be written.
    """
    folder = Path(out)
    path = folder / METADATA
    with exporting(part_config, path, scratch, _files_of, overwrite) as graph:
        number = graph.config.num_parts if num_chunks is None else check_integer("num_chunks", num_chunks, 1)
        content = _Writer(graph, folder, number, names or {}, progress).write()
        with NewFile(path) as file:
            file.write((json.dumps(content, indent=2) + "\n").encode())
    return path


def _files_of(metadata: Mapping[str, Any]) -> list[str]:
    """Return the files of a graph that are named by the number of a chunk or by a type."""
    tables = [metadata["edges"], *metadata["node_data"].values(), *metadata["edge_data"].values()]
    files = [file for table in tables for array in table.values() for file in array["data"]]
    return [*files, *(f"partition/{ntype}.txt" for ntype in metadata["node_type"])]


class _Writer:
    def __init__(
        self, graph: Original, folder: Path, num_chunks: int, names: Mapping[str, str], progress: Progress
    ) -> None:
        self.graph = graph
        self.folder = folder
        self.num_chunks = num_chunks
        self.names = names
        self.progress = progress
        self.foreign = ForeignNames(graph.source.schema, "dgl")

    def write(self) -> dict[str, Any]:
        graph, source = self.graph, self.graph.source
        ntypes = list(self.foreign.ntypes.values())
        relations = list(self.foreign.relations.values())
        keys = [":".join(relation) for relation in relations]
        files: set[str] = set()
        stems = [unique("__".join(relation), files, _MOST_BYTES) for relation in relations]
        self._parts()
        edges = {}
        edge_data = {}
        for r, (key, stem) in enumerate(zip(keys, stems, strict=True)):
            self.progress("write edges", r, len(keys))
            edges[key] = self._edges(r, stem)
            features = source.edge_feats.get(source.schema.relation_key(r), {})
            edge_data[key] = self._data(f"edge_data/{stem}", features, graph.edge_ids(r))
        self.progress("write edges", len(keys), len(keys))
        node_data = {}
        for t, ntype in enumerate(ntypes):
            self.progress("write nodes", t, len(ntypes))
            features = source.node_feats.get(source.schema.ntypes[t], {})
            node_data[ntype] = self._data(f"node_data/{ntype}", features, graph.node_ids[t])
        self.progress("write nodes", len(ntypes), len(ntypes))
        return {
            "graph_name": graph.config.graph_name,
            "node_type": ntypes,
            "num_nodes_per_chunk": [np.diff(self._bounds(count)).tolist() for count in source.num_nodes],
            "num_nodes_per_type": list(source.num_nodes),  # which later versions read instead
            "edge_type": keys,
            "num_edges_per_chunk": [np.diff(self._bounds(count)).tolist() for count in source.edge_counts],
            "num_edges_per_type": source.edge_counts,
            "edges": edges,
            "node_data": {ntype: tables for ntype, tables in node_data.items() if tables},
            "edge_data": {key: tables for key, tables in edge_data.items() if tables},
            **self.foreign.note(self.folder / METADATA),
        }

    def _bounds(self, count: int) -> I64:
        return np.arange(self.num_chunks + 1, dtype=np.int64) * count // self.num_chunks

    def _parts(self) -> None:
        folder = self.folder / "partition"
        folder.mkdir(exist_ok=True)
        for t, ntype in enumerate(self.foreign.ntypes.values()):
            np.savetxt(folder / f"{ntype}.txt", self.graph.node_parts(t), "%d")
        config = self.graph.config
        method = config.part_method if config.part_method == "random" else "metis"  # DGL knows no others
        meta = {"algo_name": method, "num_parts": config.num_parts, "version": "1.0.0"}
        (folder / "partition_meta.json").write_text(json.dumps(meta, indent=4))

    def _edges(self, relation_id: int, name: str) -> dict[str, Any]:
        (self.folder / "edges").mkdir(exist_ok=True)
        ends = self.graph.edges(relation_id)
        bounds = self._bounds(len(ends))
        files = [f"edges/{name}-{chunk}.csv" for chunk in range(self.num_chunks)]
        for chunk, file in enumerate(files):
            np.savetxt(self.folder / file, ends[bounds[chunk] : bounds[chunk + 1]], "%d", delimiter=" ")
        return {"format": {"name": "csv", "delimiter": " "}, "data": files}

    def _data(self, folder: str, features: Mapping[str, Feature], ids: I64) -> dict[str, Any]:
        arrays = {}
        files_of: set[str] = set()
        for name, feature in renamed(self.names, features).items():
            foreign = self.foreign.feature(name)
            stem = unique(foreign, files_of, _MOST_BYTES)
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
            rows = self.graph.in_order(feature.values, ids)
            bounds = self._bounds(len(rows))
            files = [f"{folder}/{stem}-{chunk}.npy" for chunk in range(self.num_chunks)]
            for chunk, file in enumerate(files):
                np.save(self.folder / file, as_numpy(feature, rows[bounds[chunk] : bounds[chunk + 1]]))
            arrays[foreign] = {"format": {"name": "numpy"}, "data": files}
        return arrays
