"""The folder that a partitioned graph is written to: graphs that lie there, files of a stopped run, .npy files.

Another graph is overwritten only on request. A run keeps the assignment of nodes in a file beside the shards, and like
them, ``<graph>.assignment.h5``, a name that no user gives an assignment of his own, since it is removed when the graph
is written. Its identity is a hash of everything that the assignment depends on, so a run for another graph or with
other options ignores it, and keeps its own in its place.

``.npy`` files are written by all ranks together, each its own rows; they get their names when all of them are whole.
"""

import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I32, Array, Mask
from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError, ShardFormatError, StorageError
from mpigraph.log import get_logger
from mpigraph.partition.exchange import Exchange
from mpigraph.storage.files import check_space, nearest_folder, read_text, storage_errors, temporary_name
from mpigraph.storage.part_config import CONFIG_FORMAT, PartConfig
from mpigraph.storage.shard import ShardReader

_PART = re.compile(r"part([0-9]+)")
_LEFT = re.compile(r"\.?(.+)\.assignment\.h5(\.tmp)?")


def refusal(what: str) -> InvalidArgumentError:
    """Return the error that something "would be overwritten", without a request."""
    return InvalidArgumentError(
        f"{what} would be overwritten: write to another folder, or say --overwrite (overwrite=True)"
    )


def check_writable(directory: str | os.PathLike[str]) -> Path:
    """Check that a graph can be written to a directory, or it be created; return it, or the nearest one above it.

    Raises InvalidArgumentError, which says why it cannot.
    """
    path = Path(directory).absolute()
    nearest = nearest_folder(path)
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"\0")  # fails on a full disk
    except OSError as error:
        raise InvalidArgumentError(f"{directory}: cannot write there: {error.strerror or error}") from error
    check_links(path)
    return nearest


def check_links(folder: Path) -> None:
    """Check that no part is a link: to a place where no job would read it, to another graph's parts, to another part.

    Raises InvalidArgumentError, which names the link.
    """
    for part, _ in _parts(folder) if folder.is_dir() else ():
        if part.is_symlink():
            raise InvalidArgumentError(f"{part}: a link to {part.resolve()}, where a graph would be written over")


def check_vacant(folder: Path, graph_name: str, sizes: tuple[int, int] | None) -> None:
    """Check that no other graph lies in a folder, complete or begun.

    Graphs of one name are told apart by their numbers of nodes and edges; without these, only names are compared.

    Raises InvalidArgumentError, which names the other graph and says what to do.
    """
    if not folder.is_dir():
        return
    configs = _configs(folder)
    own = folder / f"{graph_name}.json"
    for path, content in configs.items():
        nodes, edges = there = content.get("num_nodes", -1), content.get("num_edges", -1)
        if path != own or (sizes is not None and there != sizes):
            but = "" if path != own or sizes is None else f" (not {sizes[0]} and {sizes[1]})"
            raise refusal(f"{folder} holds the graph {path.stem!r} of {nodes} nodes and {edges} edges{but}, which")
    if own.exists() and own not in configs:
        raise refusal(f"{own} is no partition configuration, and")
    for _, name in _files_left(folder):
        if name != graph_name:
            raise refusal(f"{folder} holds files that an interrupted run has left of the graph {name!r}, which")


def remove_other_graphs(folder: Path, graph_name: str) -> None:
    """Remove the configurations of other graphs, and files that interrupted runs have left of them; parts stay.

    Raises OSError: a file cannot be removed.
    """
    for path, name in [*((path, path.stem) for path in _configs(folder)), *_files_left(folder)]:
        if name != graph_name:
            path.unlink(missing_ok=True)


def remove_parts(folder: Path, kept: Mask) -> None:
    """Remove the files of all parts in a folder, except those to be kept (bool[parts]); other files stay.

    Raises OSError: a file cannot be removed.
    """
    for directory, part in _parts(folder):
        if part >= len(kept) or not kept[part]:
            for name in PartConfig.files_of(part).values():
                (folder / name).unlink(missing_ok=True)
                temporary_name(folder / name).unlink(missing_ok=True)
        if part >= len(kept):  # the others are written to again, and users may have made them, as with stripes
            with suppress(OSError):
                directory.rmdir()  # fails unless it is empty


def assignment_path(folder: Path, graph_name: str) -> Path:
    """Return the file of the assignment that a run for a graph leaves in the graph's folder until it is written."""
    return folder / f"{graph_name}.assignment.h5"


def kept_assignment(path: Path, graph_name: str, word: str) -> I32 | None:
    """Return a kept assignment, int32[all nodes], if ``word`` is the hash of all that it depends on.

    None if it is missing, of something else, or damaged; the log says so.
    """
    if not path.exists():
        return None
    try:
        parts: I32 = ShardReader(path, graph_name, identity=word).read("parts")
    except ShardFormatError as error:
        get_logger().warning("the assignment of an interrupted run is ignored: %s", error)
        return None
    get_logger().warning("the assignment of an interrupted run is taken from %s", path)
    return parts


def bytes_of_parts(folder: Path, num_parts: int) -> int:
    """Return the size of the files of the first parts in a folder."""
    files = (folder / name for _, k in _parts(folder) if k < num_parts for name in PartConfig.files_of(k).values())
    return sum(path.stat().st_size for path in files if path.is_file())


def _files_left(folder: Path) -> list[tuple[Path, str]]:
    """Return assignments that runs have left, with the graph's name."""
    return [(path, match[1]) for path in sorted(folder.iterdir()) if (match := _LEFT.fullmatch(path.name))]


def _configs(folder: Path) -> dict[Path, dict[str, Any]]:
    """Return the partition configurations in a folder, of any version of the format, and their contents."""
    configs = {}
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError, RecursionError):
            content = json.loads(read_text(path))
            if isinstance(content, dict) and content.get("format") == CONFIG_FORMAT:
                configs[path] = content
    return configs


def _parts(folder: Path) -> list[tuple[Path, int]]:
    matches = ((path, _PART.fullmatch(path.name)) for path in sorted(folder.iterdir()) if path.is_dir())
    return [(path, int(match[1])) for path, match in matches if match]


Form = tuple[tuple[int, ...], npt.DTypeLike]
"""Shape and dtype of an array."""

UNFINISHED = ".generating-"  # beginning of the name of a folder with unfinished files


class NpyFile:
    """A ``.npy`` file that several ranks fill, of a shape and dtype.

    It is opened for writing only: an NFS client that could also read it would read whole blocks, and later write back
    the bytes that another node has written meanwhile.
    """

    def __init__(self, path: Path, form: Form) -> None:
        self._path = path
        self._shape = form[0]
        self._dtype = np.dtype(form[1])
        self._row_bytes = self._dtype.itemsize * int(np.prod(self._shape[1:]))
        self.num_bytes = self._shape[0] * self._row_bytes

    def create(self) -> None:
        """Create the file, of full size, without values."""
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": self._shape}
        with open(self._path, "xb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + self.num_bytes)

    def write(self, rows: Array, at: int) -> None:
        """Write rows from row number ``at`` on, or raise OSError."""
        with open(os.open(self._path, os.O_WRONLY | os.O_CLOEXEC), "wb") as file:
            file.seek(at * self._row_bytes - self.num_bytes, os.SEEK_END)
            file.write(np.ascontiguousarray(rows, dtype=self._dtype).reshape(-1).view(np.uint8).data)


@contextmanager
@collective("ranks")
def new_npy_files(
    exchange: Exchange, directory: Path, contents: Mapping[str, Form]
) -> Iterator[tuple[Path, dict[str, NpyFile]]]:
    """Create ``.npy`` files that the ranks fill inside the ``with`` block; ``contents`` has shape and dtype by name.

    Yields a temporary folder with the files, and the files by name. All ranks leave the block after all have written
    (:meth:`.Exchange.together`). Then all files of that folder move to the directory, which is created if missing,
    those that are not ``.npy`` last; if the block raises, on every rank, they are removed.

    Raises:
        StorageError: a rank cannot write, or does not see the first rank's files; on every rank.
    """
    number = exchange.sum_of(secrets.randbits(48) if exchange.rank == 0 else 0)  # so that no rank finds an older folder
    folder = directory / f"{UNFINISHED}{number:012x}"
    files = {name: NpyFile(folder / f"{name}.npy", form) for name, form in contents.items()}
    try:
        with exchange.together(f"creating files in {directory}"), storage_errors(directory):
            if exchange.rank == 0:
                folder.mkdir(parents=True)
                check_space(folder, sum(file.num_bytes for file in files.values()), "the graph")
                for file in files.values():
                    file.create()
        with exchange.together(f"opening files in {directory}"):
            if not folder.is_dir():
                raise StorageError(f"{directory} is not the directory that rank 0 sees: every rank must see it")
        yield folder, files
        with exchange.together(f"writing to {directory}"), storage_errors(directory):
            if exchange.rank == 0:
                # files that describe the others are removed first and moved last: they exist only with all others
                paths = sorted(folder.iterdir(), key=lambda path: (path.suffix != ".npy", path.name))
                for path in paths:
                    if path.suffix != ".npy":
                        (directory / path.name).unlink(missing_ok=True)
                for path in paths:
                    path.replace(directory / path.name)
    finally:
        if exchange.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


README = "README"


def write_readme(folder: Path, about: str, files: Mapping[str, str], *more: str) -> None:
    """Write the text file of a folder of results: what it is, what each file is, how to read them."""
    lines = [f"{name}: {text}" for name, text in files.items()]
    python = 'In Python: numpy.load(file), or numpy.load(file, mmap_mode="r") for one larger than the memory'
    (folder / README).write_text("\n".join([about, "", *lines, "", python, *more, ""]), "utf-8")
