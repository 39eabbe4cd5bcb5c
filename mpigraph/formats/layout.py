"""The interface of a module that reads a layout of files: its entry in the registry, and its options."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.typed_tables import TableOptions
from mpigraph.partition.source import GraphSource


@dataclass(frozen=True)
class ReadOptions:
    """Options of reading a graph."""

    num_nodes: int | None = None  # number of nodes, where ids are to be taken as they are; None if the user gave none
    # the ranks that read it, and where their temporary files lie
    ranks: ReadingRanks = field(default_factory=ReadingRanks)
    dataset: str | None = None  # name of a known data set, such as "ogbn-products"; None if the user gave none
    adds_reverse: bool = False  # the user asks for reverse edges, which the caller adds
    nodes: tuple[Path, ...] = ()  # files of nodes beside a file of edges
    # options of the user for columns of csv and parquet files
    tables: TableOptions = field(default_factory=TableOptions)

    @property
    def scratch(self) -> Path | None:
        """The folder of temporary files; None for the system's."""
        return self.ranks.folder


@dataclass(frozen=True)
class Layout:
    """A layout of files."""

    name: str  # the layout in messages, such as "HDF5"
    marks: str  # the files by which a directory of this layout is recognised, for a message; "" if it is a single file
    # returns whether a path, a file or a directory, has this layout; looks at names and first lines alone
    is_at: Callable[[Path], bool]
    # reads the graph. Errors are GraphDataErrors that name the file and, in text, the line
    read: Callable[[Path, ReadOptions], GraphSource]
    takes: tuple[str, ...] = ()  # names of the :class:`ReadOptions` that it uses; the user gets an error for others
    # every rank calls ``read``, which only maps files, or divides the work; else one rank calls it for all
    by_all_ranks: bool = False
