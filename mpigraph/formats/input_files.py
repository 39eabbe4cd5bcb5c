"""Files of a user: opened if they are files, unpacked, mapped, in their natural order; files that a reader left.

Arrays of ``.npy`` and ``.npz`` are mapped into memory.
"""

import bz2
import gzip
import json
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np

from mpigraph.arrays import I32, Array
from mpigraph.errors import GraphDataError, StorageError, in_words
from mpigraph.metadata.schema import Relation, Schema, relation_key
from mpigraph.partition.row_arrays import RowArray
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.files import open_regular, read_text

K = TypeVar("K")
V = TypeVar("V")
_MARKERS = ("_SUCCESS", "_metadata", "_common_metadata")  # of Spark and of parquet
_PICKLES = (".pt", ".pth", ".pkl", ".pickle")
_PACKED = {".gz": gzip.open, ".bz2": bz2.open}
_NPY = b"\x93NUMPY"
_NUMBER = re.compile(r"([0-9]+)")


class FolderFiles:
    """Files of a folder that were read, so that a reader can name the others. Links are followed to compare names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._read: set[Path] = set()

    def read(self, path: Path) -> Path:
        """Note that a file is read, or that one without it is missing; return its path."""
        self._read.add(path.resolve())
        return path

    def left_out(self) -> tuple[str, ...]:
        """Name the files that were not read. A folder with no read file is one name; hidden files are not named."""
        with_read_files = {folder for path in self._read for folder in path.parents}
        unread = Counter[str]()
        for path in sorted(self._folder.rglob("*")):
            names = path.relative_to(self._folder).parts
            if path.is_dir() or path.resolve() in self._read or any(map(_is_hidden, names)):
                continue
            folders = (Path(*names[:depth]) for depth in range(1, len(names)))
            folder = next((folder for folder in folders if self._folder / folder not in with_read_files), None)
            why = " (a pickle, which can run code)" if path.suffix in _PICKLES else ""
            unread[f"{folder}/" if folder else f"{Path(*names)}{why}"] += 1
        return tuple(
            f"{name} ({count} file{'s' if count > 1 else ''})" if name.endswith("/") else name
            for name, count in unread.items()
        )


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _MARKERS


def in_natural_order(paths: Iterable[Path]) -> list[Path]:
    """Return files in the order of their names, with numbers inside names by value: ``part-2`` before ``part-10``."""

    def key(path: Path) -> tuple[list[tuple[int, str]], str]:
        pieces = _NUMBER.split(path.name)
        values = [(int(piece), "") if place % 2 else (0, piece) for place, piece in enumerate(pieces)]
        return values, str(path)  # which decides between 01 and 1

    return sorted(paths, key=key)


def opened(path: Path) -> IO[bytes]:
    """Open a file for reading; ``.gz`` and ``.bz2`` are unpacked on the way.

    Raises GraphDataError: it is missing or is no file.
    """
    with reading(path):
        os.close(open_regular(path))
        return cast(IO[bytes], _PACKED.get(path.suffix.lower(), open)(path, "rb"))  # type: ignore[operator]


@contextmanager
def reading(path: Path | str, within: Path | None = None) -> Iterator[None]:
    """Make every error in a block a GraphDataError that names the file, except one of temporary files.

    ``path`` is the file, or a name that begins with it. An error that names a file in the folder ``within``, by default
    ``path`` itself, stays as it is.
    """
    try:
        yield
    except StorageError:
        raise
    except Exception as error:  # readers of damaged files raise whatever they meet
        if not isinstance(error, GraphDataError):
            reason = in_words(error)
            if isinstance(error, OSError) and str(error.filename or path) == str(path):
                reason = error.strerror or reason
            raise GraphDataError(f"{path}: cannot be read: {reason}") from error
        if str(within or path) in str(error):
            raise
        raise GraphDataError(f"{path}: {error}") from error


def named(names: Sequence[str], values: Sequence[V]) -> dict[str, V]:
    """Return a dict of values. Raises GraphDataError: an input has more or fewer values than names, or a name twice."""
    if len(names) != len(values):
        raise GraphDataError(f"{len(values)} values for {len(names)} names: {', '.join(map(str, names))}")
    return once(zip(names, values, strict=True))


def once(pairs: Iterable[tuple[K, V]]) -> dict[K, V]:
    """Return a dict of pairs. Raises GraphDataError: an input gives a name twice."""
    result: dict[K, V] = {}
    for name, value in pairs:
        if name in result:
            raise GraphDataError(f"{name!r} is there twice")
        result[name] = value
    return result


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raises GraphDataError: it is none, or has a name twice; names the file."""
    with reading(path):
        return json.loads(read_text(path), object_pairs_hook=once)


class Errors(dict[str, str]):
    """Errors of several columns, by name, which are told together."""

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Keep the GraphDataError of a block."""
        try:
            yield
        except GraphDataError as error:
            self[name] = str(error)

    def check(self) -> None:
        """Raise GraphDataError with all that were kept, if any."""
        if self:
            raise GraphDataError(";\n".join(self.values()))


def graph_of(
    counts: Mapping[str, int],
    edges: Mapping[Relation, tuple[RowArray, RowArray]],
    node_feats: Mapping[str, Mapping[str, Feature]] | None = None,
    edge_feats: Mapping[Relation, Mapping[str, Feature]] | None = None,
    **more: Any,
) -> GraphSource:
    """Return a graph with types and relations in alphabetical order, as from every reader.

    Arguments are numbers of nodes and features by type, ends of edges and features by relation, and further fields of
    the graph. Raises GraphDataError if the arrays do not fit together.
    """
    schema = Schema(tuple(sorted(counts)), tuple(sorted(edges)))
    of_edges = {relation_key(relation): feats for relation, feats in (edge_feats or {}).items()}
    return GraphSource(
        schema,
        tuple(counts[ntype] for ntype in schema.ntypes),
        tuple(edges[relation] for relation in schema.relations),
        {ntype: {} for ntype in schema.ntypes} | {**(node_feats or {})},
        {key: {} for key in schema.relation_keys} | of_edges,
        **more,
    )


_LOCAL_HEADER = 30  # bytes before the names of an entry of a zip file


def is_npy(path: Path) -> bool:
    """Return whether a file is one of ``.npy``, by its first bytes. Raises GraphDataError: it is no file."""
    with opened(path) as file, reading(path):
        return file.read(len(_NPY)) == _NPY


def mapped_npy(path: Path) -> Array:
    """Map an ``.npy`` file.

    Raises GraphDataError: it is missing, damaged or too short, or holds Python objects; names it.
    """
    with reading(path):
        os.close(open_regular(path))
        array: Array = np.lib.format.open_memmap(path, mode="r")
        return array


def mapped_npz(path: Path) -> dict[str, Array]:
    """Return the arrays of an ``.npz`` file: mapped if not compressed (``np.savez``), else read.

    Raises:
        GraphDataError: it is missing or damaged, or holds Python objects; names the file and the array.
    """
    arrays: dict[str, Array] = {}
    with reading(path), open(open_regular(path), "rb") as file, zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            with reading(f"{path}: {name}"), archive.open(info) as stream:  # which checks that the entry is there
                if info.compress_type != zipfile.ZIP_STORED:
                    arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
                    continue
                file.seek(info.header_offset + _LOCAL_HEADER - 4)
                lengths = np.frombuffer(file.read(4), "<u2")
                file.seek(int(lengths.sum()), os.SEEK_CUR)
                is_first = np.lib.format.read_magic(file) == (1, 0)
                read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
                shape, in_fortran_order, dtype = read(file)
                if dtype.hasobject:
                    raise GraphDataError("it holds Python objects, which are not read")
                if 0 in shape:
                    arrays[name] = np.zeros(shape, dtype)
                else:
                    arrays[name] = np.memmap(path, dtype, "r", file.tell(), shape, "F" if in_fortran_order else "C")
    return arrays


def checked_parts(path: Path, parts: RowArray, count: int, num_parts: int | None) -> I32:
    """Return the part of each node of a type, int32[count], from the content of a file; ``num_parts`` None: any parts.

    Raises GraphDataError: it has not one part for each node, or one that does not exist; names the file and the row.
    """
    if parts.ndim != 1 or parts.dtype.kind not in "iu":
        raise GraphDataError(f"{path} must hold one integer for each node (got {parts.dtype}{list(parts.shape)})")
    if len(parts) != count:
        raise GraphDataError(f"{path} has parts of {len(parts)} nodes, but there are {count}")
    limit = 2**31 - 1 if num_parts is None else num_parts
    rows = np.asarray(parts[:])
    bad = np.flatnonzero((rows < 0) | (rows >= limit))
    if len(bad):
        among = "" if num_parts is None else f" among {num_parts}"
        raise GraphDataError(f"{path}, row {bad[0]}: there is no part {rows[bad[0]]}{among}")
    return rows.astype(np.int32)
