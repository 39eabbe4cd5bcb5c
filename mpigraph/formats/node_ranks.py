"""Ranks of one node that read an input together: what one has parsed into temporary files, all of them map.

So no text is parsed twice on a node, and no temporary file has a copy. The files have no names: a rank opens those of
another by ``/proc/<pid>/fd``. Where it cannot (no ``/proc``, or process ids that mean something else), each rank reads
everything for itself.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import Array
from mpigraph.partition.chunks import GrowingFile, concatenated
from mpigraph.partition.exchange import ALONE, Exchange
from mpigraph.partition.row_arrays import RowArray

__all__ = ["Gathered", "NodeRanks"]


class Gathered(NamedTuple):
    """What a rank gives to the ranks of its node.

    Attributes:
        note: what JSON can hold.
        arrays: its files, mapped.
    """

    note: Any
    arrays: list[Array]


class NodeRanks:
    """The ranks of this node. To be made by all ranks of all nodes together, and so is every call.

    Args:
        folder: of temporary files; None for the system's.
        exchange: all ranks.

    Attributes:
        folder: as given.
        index: number of this rank among those of its node.
        count: how many there are.

    Collective on the ranks: construction and every method that says so.
    """

    def __init__(self, folder: Path | None = None, exchange: Exchange = ALONE) -> None:
        self.folder = folder
        self._exchange = exchange
        self._members = [exchange.rank]
        if exchange.size > 1:
            self._members = self._find_members()
        self.index = self._members.index(exchange.rank)
        self.count = len(self._members)

    @property
    def are_one(self) -> bool:
        """Whether there is only one rank in all."""
        return self._exchange.size == 1

    def together(self, doing: str) -> AbstractContextManager[None]:
        """Run local code; if it raised on any rank, raise on every rank. Collective on the ranks."""
        return self._exchange.together(doing)

    def gather(self, doing: str, note: Any = None, files: Sequence[GrowingFile] = ()) -> list[Gathered]:
        """Return what each rank of the node gives; afterwards the files may be closed. Collective on the ranks.

        Args:
            doing: what, for the message of an error.
            note: what JSON can hold.
            files: complete.

        Raises:
            StorageError: a file cannot be mapped; on every rank.
        """
        if self._exchange.size == 1:
            return [Gathered(note, [file.finish() for file in files])]
        with self.together(doing):
            own = [file.finish() for file in files]
        places = [(file.fileno(), array.dtype.str, array.shape) for file, array in zip(files, own, strict=True)]
        told = self._exchange.gather_bytes(json.dumps([os.getpid(), note, places]).encode())
        found = []
        with self.together(doing):
            for rank in self._members:
                pid, its_note, its_places = json.loads(told[rank])
                mapped = own if rank == self._exchange.rank else [_mapped(pid, *place) for place in its_places]
                found.append(Gathered(its_note, mapped))
        return found

    def once(self, doing: str, make: Callable[["Grow"], tuple[Any, Sequence[GrowingFile]]]) -> Gathered:
        """Return what the first rank of the node makes: a note and files. Collective on the ranks.

        Raises:
            MPIGraphError: what it raised; on every rank.
        """
        with ExitStack() as stack:
            note: Any = None
            files: Sequence[GrowingFile] = ()
            with self.together(doing):
                if self.index == 0:
                    note, files = make(self.growing(stack))
            return self.gather(doing, note, files)[0]

    def rows(self, doing: str, dtype: npt.DTypeLike, own: Callable[[], Iterable[Array]]) -> RowArray:
        """Return the rows that the ranks of the node make, those of the first rank first. Collective on the ranks.

        Args:
            doing: what, for the message of an error.
            dtype: of the rows, of one dimension.
            own: makes the rows of this rank, some at a time.

        Raises:
            MPIGraphError: what a rank raised; on every rank.
        """
        with ExitStack() as stack:
            with self.together(doing):
                file = self.growing(stack)(dtype, ())
                for chunk in own():
                    file.append(chunk)
            pieces: list[RowArray] = [its.arrays[0] for its in self.gather(doing, files=[file])]
            return concatenated([piece for piece in pieces if len(piece)] or pieces[:1])

    def share_of(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return the consecutive items that this rank works on."""
        return items[len(items) * self.index // self.count : len(items) * (self.index + 1) // self.count]

    def growing(self, stack: ExitStack) -> "Grow":
        """Return what makes temporary files, which are closed with a stack."""
        return lambda dtype, row_shape: stack.enter_context(GrowingFile(dtype, row_shape, self.folder))

    def _find_members(self) -> list[int]:
        """Return the ranks of this node, if each of them can open the files of the others; else this one."""
        token = np.frombuffer(secrets.token_bytes(16), np.uint8)
        with ExitStack() as stack:
            with self.together("beginning to read"):
                file = self.growing(stack)(np.uint8, ())
                file.append(token)
                file.finish()
            place = [os.uname().nodename, os.getpid(), file.fileno(), token.tolist()]
            told = [json.loads(data) for data in self._exchange.gather_bytes(json.dumps(place).encode())]
            members = [rank for rank, (name, *_) in enumerate(told) if name == place[0]]
            sees = all(_sees(*told[rank][1:]) for rank in members)
            all_see = self._exchange.gather(np.array([[sees]], np.int64))[:, 0]
        return members if all_see[members].all() else [self._exchange.rank]


Grow = Callable[[npt.DTypeLike, tuple[int, ...]], GrowingFile]
"""Makes a temporary file for rows of a dtype and shape."""


def _sees(pid: int, number: int, token: list[int]) -> bool:
    try:
        return bool(_mapped(pid, number, "|u1", (len(token),)).tolist() == token)
    except (OSError, ValueError):
        return False


def _mapped(pid: int, number: int, dtype: str, shape: Sequence[int]) -> Array:
    """Map the file that another process has open."""
    if 0 in shape:
        return np.zeros(tuple(shape), dtype)
    with os.fdopen(os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY), "rb") as file:  # whose name is a number
        return np.memmap(file, dtype, "r", shape=tuple(shape))
