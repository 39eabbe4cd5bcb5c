"""Parts of nodes that other programs have chosen, read from their files.

One file is of all nodes, types one after the other; a folder has one file for each node type, ``<type>.txt`` or
``<type>.npy``, as DGL's ``random_partition.py`` and ``parmetis_postprocess.py`` write it. A file holds

- an array of integers (``.npy``), one for each node;
- a line for each node, with its part: METIS and ParMETIS (``graph.part.4``), DGL's ``<type>.txt``;
- a line with a node and its part, in any order: ``pm_dglpart``, DGL's ParMETIS. Only for one node type: the file counts
  all nodes through, in an order of the types that it does not tell.
"""

import os
from pathlib import Path

import numpy as np

from mpigraph.arrays import I32, I64
from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import UNREADABLE, first_bytes, mapped_npy
from mpigraph.metadata.schema import Schema
from mpigraph.partition.row_arrays import RowArray
from mpigraph.storage.files import open_regular

_NPY = b"\x93NUMPY"
_ENDINGS = (".txt", ".npy")


def read_assignment(
    path: str | os.PathLike[str], schema: Schema, num_nodes: tuple[int, ...], num_parts: int | None = None
) -> I32:
    """Read the part of every node.

    Args:
        path: a file, or a folder with a file for each node type; other files in it are not looked at.
        schema: the types.
        num_nodes: number of nodes of each type.
        num_parts: how many parts there are; None: whatever the files have.

    Returns:
        int32[all nodes], types one after the other.

    Raises:
        GraphDataError: a file is missing, is no such file, has not one part for each node, or has one that does not
            exist; names the file and the row.
    """
    path = Path(path)
    if not path.exists():
        raise GraphDataError(f"{path}: no such file or directory")
    if not path.is_dir():
        parts = _parts_in(path, sum(num_nodes), len(schema.ntypes) == 1)
        return checked_parts(path, parts, sum(num_nodes), num_parts)
    whole = np.empty(sum(num_nodes), np.int32)
    done = 0
    for ntype, count in zip(schema.ntypes, num_nodes, strict=True):
        file = _file_of(path, ntype, count)
        if file is not None:
            whole[done : done + count] = checked_parts(file, _parts_in(file, count, True), count, num_parts)
        done += count
    return whole


def _file_of(folder: Path, ntype: str, count: int) -> Path | None:
    """Return the file of a node type; None for a type without a file and without nodes."""
    names = [ntype] if "/" not in ntype else []
    every = [folder / f"{name}{ending}" for name in names for ending in _ENDINGS]
    files = [file for file in every if os.path.lexists(file)]
    if len(files) > 1:
        raise GraphDataError(f"{folder} has both {files[0].name} and {files[1].name}: which one is meant?")
    if not files and count:
        wanted = f"{names[-1]}.txt or {names[-1]}.npy"
        raise GraphDataError(f"{folder} has no parts of the {count} nodes of type {ntype!r}: {wanted}")
    return files[0] if files else None


def _parts_in(path: Path, count: int, one_type: bool) -> RowArray:
    if first_bytes(path, len(_NPY)) == _NPY:
        return mapped_npy(path)
    try:
        os.close(open_regular(path))
        is_empty = not path.stat().st_size
        table: I64 = np.zeros((0, 1), int) if is_empty else np.loadtxt(path, np.int64, comments=None, ndmin=2)
    except UNREADABLE as error:
        raise GraphDataError(f"{path}: must have one part in each line: {error}") from error
    if table.shape[1] == 1:
        return table[:, 0]
    if table.shape[1] != 2:
        raise GraphDataError(f"{path} must have lines with a part, or with a node and its part (got {table.shape[1]})")
    if not one_type:
        raise GraphDataError(
            f"{path} numbers nodes of several types, in an order that it does not tell: give a folder with one file "
            "for each node type (DGL's parmetis_postprocess.py makes them)"
        )
    nodes, parts = table.T
    bad = np.flatnonzero((nodes < 0) | (nodes >= count))
    if len(bad):
        raise GraphDataError(f"{path}, row {bad[0]}: there is no node {nodes[bad[0]]} among {count}")
    in_order = np.full(count, -1, np.int64)
    in_order[nodes] = parts
    times = np.bincount(nodes, minlength=count)
    wrong = np.flatnonzero(times != 1)
    if len(wrong):
        raise GraphDataError(f"{path} must have every node once (got node {wrong[0]} {times[wrong[0]]} times)")
    return in_order


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
