"""Which graphs lie in a folder already: another one is not written over without being told to."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mpigraph.errors import InvalidArgumentError, ShardFormatError
from mpigraph.partition.kept import names_left, remove_all
from mpigraph.storage.files import open_regular, temporary_name
from mpigraph.storage.part_config import CONFIG_FORMAT, PartConfig
from mpigraph.storage.shard import ShardReader

__all__ = ["OVERWRITE", "Sizes", "check_vacant", "remove_other_graphs", "remove_stale_parts"]

OVERWRITE = "write to another folder, or say --overwrite (overwrite=True)"
_HEAD_BYTES = 4096  # of a configuration, which begins with its format
_PART = re.compile(r"part([0-9]+)")


class Sizes(NamedTuple):
    """By how much graphs of one name are told apart: numbers of all nodes and edges."""

    num_nodes: int
    num_edges: int

    @classmethod
    def of(cls, config: PartConfig) -> "Sizes":
        """Return the sizes of a partitioned graph."""
        book, schema = config.book, config.schema
        nodes = map(book.num_nodes, range(len(schema.ntypes)))
        return cls(sum(nodes), sum(map(book.num_edges, range(len(schema.relations)))))


def check_vacant(folder: Path, graph_name: str, sizes: Sizes | None) -> None:
    """Check that no other graph lies in a folder, complete or begun.

    Args:
        folder: where a partitioned graph is to be written; it need not exist.
        graph_name: its name.
        sizes: its sizes; None where they are not known yet, so that only names count.

    Raises:
        InvalidArgumentError: another graph lies there; names it and says what to do.
    """
    if not folder.is_dir():
        return
    configs = _configs(folder)
    own = folder / f"{graph_name}.json"
    for path, content in configs.items():
        there = Sizes(content.get("num_nodes", -1), content.get("num_edges", -1))
        if path != own or (sizes is not None and there != sizes):
            what = f"{folder} holds the graph {path.stem!r} of {there.num_nodes} nodes and {there.num_edges} edges"
            but = "" if path != own or sizes is None else f" (not {sizes.num_nodes} and {sizes.num_edges})"
            raise InvalidArgumentError(f"{what}{but}, which would be overwritten: {OVERWRITE}")
    if own.exists() and own not in configs:
        raise InvalidArgumentError(f"{own} is no partition configuration, and would be overwritten: {OVERWRITE}")
    left = names_left(folder)
    others = sorted(left - {graph_name})
    if others:
        raise InvalidArgumentError(
            f"{folder} holds what an interrupted run has left of the graph {others[0]!r}, which would be overwritten: "
            f"{OVERWRITE}"
        )
    if own not in configs and not left:
        _check_shards(folder, graph_name)


def remove_other_graphs(folder: Path, graph_name: str) -> None:
    """Remove the configurations of other graphs, and what interrupted runs have left of them; their parts stay.

    Raises:
        OSError: a file cannot be removed.
    """
    for path in _configs(folder):
        if path.stem != graph_name:
            path.unlink(missing_ok=True)
    for name in names_left(folder) - {graph_name}:
        remove_all(folder, name)


def remove_stale_parts(folder: Path, num_parts: int) -> None:
    """Remove the files of parts that a graph in a folder no longer has; what else lies beside them stays."""
    with suppress(OSError):  # the graph stands
        for directory, part in _parts(folder):
            if part >= num_parts:
                for name in PartConfig.files_of(part).values():
                    (folder / name).unlink(missing_ok=True)
                    temporary_name(folder / name).unlink(missing_ok=True)
                with suppress(OSError):
                    directory.rmdir()  # if it is empty


def _configs(folder: Path) -> dict[Path, dict[str, Any]]:
    """Return the partition configurations in a folder, of any version of the format, and what they say."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError, RecursionError), open(open_regular(path), "rb") as file:
            head = file.read(_HEAD_BYTES)
            if CONFIG_FORMAT.encode() in head:
                content = json.loads(head + file.read())
                if isinstance(content, dict) and content.get("format") == CONFIG_FORMAT:
                    found[path] = content
    return found


def _check_shards(folder: Path, graph_name: str) -> None:
    """Check that parts without a configuration are of a graph of this name: then a run of it was interrupted."""
    for _, part in _parts(folder):
        for name in PartConfig.files_of(part).values():
            path = folder / name
            if path.exists():
                try:
                    ShardReader(path, graph_name).close()
                except ShardFormatError as error:
                    raise InvalidArgumentError(f"{error}; it would be overwritten: {OVERWRITE}") from error


def _parts(folder: Path) -> list[tuple[Path, int]]:
    """Return the folders of parts, and their numbers."""
    found = [(path, _PART.fullmatch(path.name)) for path in sorted(folder.iterdir()) if path.is_dir()]
    return [(path, int(match[1])) for path, match in found if match]
