"""Files of a user: opened if they are files, unpacked, mapped, in their natural order; files that a reader left.

Arrays of ``.npy`` and ``.npz`` are mapped into memory.
"""

import bz2
import gzip
import lzma
import math
import os
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np

from mpigraph.arrays import I32, Array
from mpigraph.errors import GraphDataError, StorageError
from mpigraph.metadata.schema import Relation, Schema, relation_key
from mpigraph.partition.row_arrays import RowArray
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.files import open_regular

K = TypeVar("K")
V = TypeVar("V")
_MARKERS = ("_SUCCESS", "_metadata", "_common_metadata")  # of Spark and of parquet
_PICKLES = (".pt", ".pth", ".pkl", ".pickle")
_PACKED = {".gz": gzip.open, ".bz2": bz2.open}
_NUMBER = re.compile(r"([0-9]+)")

UNREADABLE = (
    OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, EOFError, RuntimeError, MemoryError,
    SyntaxError, tokenize.TokenError, struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile,
)  # fmt: skip
"""Exceptions that Python and numpy raise for damaged files of their formats."""


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
        unread = []
        for name, folders, files in os.walk(self._folder):
            here = Path(name)
            for folder in sorted(folders):
                path = here / folder
                if path.resolve() in with_read_files:
                    continue
                count = sum(len(names) for _, _, names in os.walk(path))
                if count and not _is_hidden(path):
                    unread.append(f"{path.relative_to(self._folder)}/ ({count} file{'s' if count > 1 else ''})")
            folders[:] = sorted(folder for folder in folders if here / folder in with_read_files)
            for path in (here / file for file in sorted(files)):
                if path.resolve() not in self._read and not _is_hidden(path):
                    why = " (a pickle, which can run code)" if path.suffix in _PICKLES else ""
                    unread.append(f"{path.relative_to(self._folder)}{why}")
        return tuple(unread)


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".") or path.name in _MARKERS


def in_natural_order(paths: Iterable[Path]) -> list[Path]:
    """Return files in the order of their names, with numbers inside names by value: ``part-2`` before ``part-10``."""

    def key(path: Path) -> tuple[list[tuple[int, str]], str]:
        pieces = _NUMBER.split(path.name)
        values = [(int(piece), "") if place % 2 else (0, piece) for place, piece in enumerate(pieces)]
        return values, str(path)  # which decides between 01 and 1

    return sorted(paths, key=key)


def is_packed(path: Path) -> bool:
    """Return whether a file is unpacked when it is read, by its name."""
    return path.suffix.lower() in _PACKED


def opened(path: Path) -> IO[bytes]:
    """Open a file for reading; ``.gz`` and ``.bz2`` are unpacked on the way.

    Raises GraphDataError: it is missing or is no file.
    """
    with reading(path):
        os.close(open_regular(path))
        return cast(IO[bytes], _PACKED.get(path.suffix.lower(), open)(path, "rb"))  # type: ignore[operator]


def first_bytes(path: Path, count: int) -> bytes:
    """Return the first bytes of a file, unpacked; fewer, or none, where it cannot be read."""
    try:
        with opened(path) as file:
            return file.read(count)
    except UNREADABLE:
        return b""


def failure(path: Path | str, error: Exception, within: Path | None = None) -> Exception:
    """Return the error of this library, which names the file, for one of Python, pyarrow or the system.

    ``path`` is the file, or a name that begins with it. An error that names a file in the folder ``within``, by default
    ``path`` itself, stays as it is.
    """
    if isinstance(error, StorageError):
        return error
    if isinstance(error, GraphDataError):
        return error if str(within or path) in str(error) else GraphDataError(f"{path}: {error}")
    reason = repr(error) if isinstance(error, KeyError) else str(error) or repr(error)
    if isinstance(error, OSError) and str(error.filename or path) == str(path):
        reason = error.strerror or reason
    return GraphDataError(f"{path}: cannot be read: {reason}")


@contextmanager
def reading(path: Path | str, within: Path | None = None) -> Iterator[None]:
    """Make every error in a block a GraphDataError that names the file, as by :func:`failure`."""
    try:
        yield
    except UNREADABLE as error:
        raise failure(path, error, within) from error


class Once(dict[K, V]):
    """A dict in which nothing is replaced: what an input gives twice is an error."""

    def __setitem__(self, name: K, value: V) -> None:
        if name in self:
            raise GraphDataError(f"{name!r} is there twice")
        super().__setitem__(name, value)


class Errors:
    """Errors of several columns or files, which are told together."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep the GraphDataError of a block."""
        try:
            yield
        except GraphDataError as error:
            self._texts.append(str(error))

    def check(self) -> None:
        """Raise GraphDataError with all that were kept, if any."""
        if self._texts:
            raise GraphDataError(";\n".join(self._texts))


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
    ntypes = tuple(sorted(counts))
    relations = tuple(sorted(edges))
    return GraphSource(
        Schema(ntypes, relations),
        tuple(counts[ntype] for ntype in ntypes),
        tuple(edges[relation] for relation in relations),
        node_feats or {},
        {relation_key(relation): feats for relation, feats in (edge_feats or {}).items()},
        **more,
    )


_LOCAL_HEADER = 30  # bytes before the names of an entry of a zip file


def mapped_npy(path: Path) -> Array:
    """Map an ``.npy`` file.

    Raises GraphDataError: it is missing, damaged or too short, or holds Python objects; names it.
    """
    with reading(path), open(open_regular(path), "rb") as file:
        return _mapped(path, file)


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
                arrays[name] = _mapped(path, file)
    return arrays


def _mapped(path: Path, file: IO[bytes]) -> Array:
    """Map the array whose ``.npy`` header begins at the file's position."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, in_fortran_order, dtype = read_header(file)
    if dtype.hasobject:
        raise GraphDataError("it holds Python objects, which are not read")
    if 0 in shape:
        return np.zeros(shape, dtype)
    if file.tell() + math.prod(shape) * dtype.itemsize > os.fstat(file.fileno()).st_size:
        raise GraphDataError(f"too short, or not written to the end: it should have the shape {shape}")
    return np.memmap(path, dtype, "r", file.tell(), shape, "F" if in_fortran_order else "C")


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
