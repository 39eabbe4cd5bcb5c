"""Ranks that read an input together: what one has parsed into temporary files, all of them map.

So no text is parsed twice. The files have no names: a rank opens those of another rank of its node by
``/proc/<pid>/fd``. Each other node gets one copy, sent to one of its ranks. Where ranks of a node cannot open one
another's files (no ``/proc``, or process ids that mean something else), each is a node of its own.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.formats.input_files import GrowingFile
from mpigraph.metadata.schema import Schema
from mpigraph.partition.exchange import ALONE, Exchange, even_bounds
from mpigraph.partition.row_arrays import Concatenated, RowArray, concatenated, release
from mpigraph.partition.source import Feature, Features, GraphSource, Parts

_CHUNK_BYTES = 32 << 20


class Gathered(NamedTuple):
    """The contribution of one rank to all ranks."""

    note: Any  # what JSON can hold
    arrays: list[Array]  # its files, mapped


class ReadingRanks:
    """All ranks, which make it together, and so is every call.

    Args:
        folder: of temporary files; None for the system's.
        exchange: the ranks.

    Attributes are the arguments.
    """

    @collective("ranks")
    def __init__(self, folder: Path | None = None, exchange: Exchange = ALONE) -> None:
        self.folder = folder
        self.exchange = exchange
        self._nodes = self._members_of_nodes() if exchange.size > 1 else [[0]]

    @collective("ranks")
    def gather(self, doing: str, note: Any = None, files: Sequence[GrowingFile] = ()) -> list[Gathered]:
        """Return the note (what JSON can hold) and the files of each rank; afterwards the complete files may be closed.

        ``doing`` says what, in errors. Raises StorageError, on every rank, if a file cannot be mapped.
        """
        if self.exchange.size == 1:
            return [Gathered(note, [file.finish() for file in files])]
        with self.exchange.together(doing):
            own = [file.finish() for file in files]
        forms = [(array.dtype.str, array.shape) for array in own]
        told = [json.loads(data) for data in self.exchange.gather_bytes(json.dumps([note, forms]).encode())]
        with ExitStack() as stack:
            copies = self._copies(doing, own, [its_forms for _, its_forms in told], self.growing(stack))
            held = {(self.exchange.rank, number): file for number, file in enumerate(files)} | copies
            places = [(key, os.getpid(), file.fileno()) for key, file in held.items()]
            where: dict[tuple[int, int], tuple[int, int]] = {}
            for rank, data in enumerate(self.exchange.gather_bytes(json.dumps(places).encode())):
                if rank in self._members:
                    where |= {tuple(key): place for key, *place in json.loads(data)}
            with self.exchange.together(doing):
                gathered = [
                    Gathered(its_note, [_mapped(*where[rank, number], *form) for number, form in enumerate(its_forms)])
                    for rank, (its_note, its_forms) in enumerate(told)
                ]
            with self.exchange.together(doing):  # all have mapped the files before they are closed
                return gathered

    @collective("ranks")
    def once(self, doing: str, make: Callable[["Grow"], tuple[Any, Sequence[GrowingFile]]]) -> Gathered:
        """Return the note and files that the first rank makes. Raises what it raised, on every rank."""
        with ExitStack() as stack:
            note: Any = None
            files: Sequence[GrowingFile] = ()
            with self.exchange.together(doing):
                if self.exchange.rank == 0:
                    note, files = make(self.growing(stack))
            return self.gather(doing, note, files)[0]

    @collective("ranks")
    def rows(self, doing: str, dtype: npt.DTypeLike, own: Callable[[], Iterable[Array]]) -> RowArray:
        """Return the rows, of one dimension, that the ranks make by ``own()``, some at a time: the first rank's first.

        Raises what a rank raised, on every rank.
        """
        with ExitStack() as stack:
            with self.exchange.together(doing):
                file = self.growing(stack)(dtype, ())
                for chunk in own():
                    file.append(chunk)
            pieces: list[RowArray] = [its.arrays[0] for its in self.gather(doing, files=[file])]
            return concatenated([piece for piece in pieces if len(piece)] or pieces[:1])

    def share_of(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return the consecutive items that this rank works on."""
        first, last = even_bounds(len(items), self.exchange.size)[self.exchange.rank :][:2]
        return items[first:last]

    def growing(self, stack: ExitStack) -> "Grow":
        """Return what makes temporary files, which are closed with a stack."""
        return lambda dtype, row_shape: stack.enter_context(GrowingFile(dtype, row_shape, self.folder))

    @property
    def _members(self) -> list[int]:
        return next(members for members in self._nodes if self.exchange.rank in members)

    def _copies(
        self, doing: str, own: Sequence[Array], forms: Sequence[Sequence[Any]], grow: "Grow"
    ) -> dict[tuple[int, int], GrowingFile]:
        """Send own files to a rank of each other node; return the copies of others' files that are kept here."""
        here = self._members
        remote = [members for members in self._nodes if members is not here]
        copies: dict[tuple[int, int], GrowingFile] = {}
        if not remote:
            return copies
        rank = self.exchange.rank
        counts = np.zeros(self.exchange.size, np.int64)
        step = max(1, _CHUNK_BYTES // len(remote))
        sizes = [[_bytes_of(dtype, shape) for dtype, shape in its_forms] for its_forms in forms]
        for number in range(max(map(len, sizes))):
            with self.exchange.together(doing):
                for sender, its_sizes in enumerate(sizes):
                    if number < len(its_sizes) and sender not in here and here[sender % len(here)] == rank:
                        copies[sender, number] = grow(np.uint8, ())
            data = own[number].reshape(-1).view(np.uint8) if number < len(own) else np.zeros(0, np.uint8)
            for at in range(0, max(its[number] for its in sizes if number < len(its)), step):
                chunk = data[at : at + step]
                counts[[members[rank % len(members)] for members in remote]] = len(chunk)
                came, coming = self.exchange.all_to_all(np.tile(chunk, len(remote))[:, None], counts)
                ends = np.cumsum(coming)
                with self.exchange.together(doing):
                    for sender in np.flatnonzero(coming).tolist():
                        copies[sender, number].append(came[ends[sender] - coming[sender] : ends[sender], 0])
        with self.exchange.together(doing):
            for file in copies.values():
                file.finish()
        return copies

    def _members_of_nodes(self) -> list[list[int]]:
        """Return the ranks of each node that can open one another's files; others are alone."""
        token = np.frombuffer(secrets.token_bytes(16), np.uint8)
        with ExitStack() as stack:
            with self.exchange.together("beginning to read"):
                file = self.growing(stack)(np.uint8, ())
                file.append(token)
                file.finish()
            place = [os.uname().nodename, os.getpid(), file.fileno(), token.tolist()]
            told = [json.loads(data) for data in self.exchange.gather_bytes(json.dumps(place).encode())]
            nodes: dict[str, list[int]] = {}
            for rank, (name, *_) in enumerate(told):
                nodes.setdefault(name, []).append(rank)
            sees = all(_sees(*told[rank][1:]) for rank in nodes[place[0]])
            all_see = self.exchange.gather(np.array([[sees]], np.int64))[:, 0]
        groups = ([its] if all_see[its].all() else [[rank] for rank in its] for its in nodes.values())
        return [members for group in groups for members in group]


Grow = Callable[[npt.DTypeLike, tuple[int, ...]], GrowingFile]
"""Makes a temporary file for rows of a dtype and shape."""


def _sees(pid: int, number: int, token: list[int]) -> bool:
    try:
        return bool(_mapped(pid, number, "|u1", (len(token),)).tolist() == token)
    except (OSError, ValueError):
        return False


def _bytes_of(dtype: str, shape: Sequence[int]) -> int:
    return int(np.prod(shape)) * np.dtype(dtype).itemsize


def _mapped(pid: int, number: int, dtype: str, shape: Sequence[int]) -> Array:
    """Map a file that a process of this node has open."""
    if 0 in shape:
        return np.zeros(tuple(shape), dtype)
    with os.fdopen(os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY), "rb") as file:  # whose name is a number
        return np.memmap(file, dtype, "r", shape=tuple(shape))


@collective("ranks")
def read_once(ranks: ReadingRanks, doing: str, read: Callable[[], GraphSource]) -> GraphSource:
    """Return what ``read`` does, which one rank calls. Raises what it raised, on every rank.

    What it has mapped from named files is mapped by the others, too. Everything else is copied to temporary files,
    unless there is only one rank.
    """
    if ranks.exchange.size == 1:
        return read()

    def make(grow: Grow) -> tuple[Any, Sequence[GrowingFile]]:
        files: list[GrowingFile] = []
        return _described(read(), partial(_place, grow, files)), files

    note, arrays = ranks.once(doing, make)
    return _source(note, arrays)


def _described(value: Any, place: Callable[[RowArray], Any]) -> Any:
    """Return a graph, or a value in it, so that JSON holds it, with arrays as ``place`` describes them."""
    if isinstance(value, GraphSource):
        described = {field.name: _described(getattr(value, field.name), place) for field in fields(value)}
        return described | {"schema": [value.schema.ntypes, value.schema.relations]}
    if isinstance(value, Mapping):
        return {key: _described(entry, place) for key, entry in value.items()}
    if isinstance(value, tuple):
        return [_described(entry, place) for entry in value]
    return place(value) if hasattr(value, "dtype") else value


def _place(grow: Grow, files: list[GrowingFile], array: RowArray) -> Any:
    """Return a list of chunks, a place in a named file, or the number of a temporary file that gets the rows."""
    if isinstance(array, Concatenated):
        return [_place(grow, files, chunk) for chunk in array.sources]
    place = _place_in_file(array)
    if place is not None:
        return place
    file = grow(array.dtype, tuple(array.shape[1:]))
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:]))
    step = max(1, _CHUNK_BYTES // max(row_bytes, 1))
    for first in range(0, len(array), step):
        file.append(np.asarray(array[first : first + step]))
    release(array)
    files.append(file)
    return len(files) - 1


def _place_in_file(array: RowArray) -> dict[str, Any] | None:
    """Return where in which file an array is mapped from; None if it is not, or not as it lies there."""
    name = getattr(array, "filename", None)
    if not isinstance(array, np.memmap) or name is None or not array.flags.c_contiguous or not array.size:
        return None
    whole: Any = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    if not isinstance(whole, np.memmap):
        return None
    begin = whole.offset + array.ctypes.data - whole.ctypes.data
    return {"file": os.fspath(name), "offset": int(begin), "dtype": array.dtype.str, "shape": array.shape}


def _source(note: Mapping[str, Any], files: Sequence[Array]) -> GraphSource:
    def array(place: Any) -> Any:
        if isinstance(place, list):
            return Concatenated([array(chunk) for chunk in place])
        if isinstance(place, dict):
            dtype = np.dtype(place["dtype"])
            shape = tuple(place["shape"])
            return np.memmap(place["file"], dtype, "r", place["offset"], shape)
        return files[place]

    def features(tables: Any) -> Features:
        return {
            owner: {
                name: Feature(array(place), dtype, categories=tuple(names))
                for name, (place, dtype, _, names) in table.items()
            }
            for owner, table in tables.items()
        }

    ntypes, relations = note["schema"]
    made_of_arrays: dict[str, Any] = {
        "schema": Schema(tuple(ntypes), tuple(map(tuple, relations))),  # type: ignore[arg-type]
        "num_nodes": tuple(note["num_nodes"]),
        "edges": tuple((array(src), array(dst)) for src, dst in note["edges"]),
        "node_feats": features(note["node_feats"]),
        "edge_feats": features(note["edge_feats"]),
        "left_out": tuple(note["left_out"]),
        "parts": None if note["parts"] is None else Parts(array(note["parts"][0]), note["parts"][1]),
    }
    for name in ("node_ids", "edge_ids"):
        made_of_arrays[name] = None if note[name] is None else tuple(map(array, note[name]))
    return GraphSource(**{**note, **made_of_arrays})
