"""What modules share that read layouts of files: registry entry, options, reverse edges, what names declare."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.log import get_logger
from mpigraph.metadata.schema import Relation, Schema, relation_key, relations_in
from mpigraph.partition.row_arrays import RowArray, as_floats, as_labels, as_mask, concatenated
from mpigraph.partition.source import Feature, GraphSource, mask_of

MASKS = ("train_mask", "val_mask", "test_mask")
NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
"""A number in text."""
_CHUNK = 1 << 20  # rows
_TYPES = (*"bool int8 int16 int32 int64 uint8 uint16 uint32 float16 float32 float64".split(), "string")


@dataclass(frozen=True)
class TableOptions:
    """Options of a user for all tables.

    Attributes:
        types: dtypes of columns, or of the features they become; "string" keeps ids as text, and leaves other columns
            out.
        columns: features by name, for tables with such columns. Each is made of a column, or of several side by side,
            which may be patterns such as ``f*``. "src", "dst" and "id" are the columns with the ids.
        categories: columns of names, which are numbered in their order.
        no_header: files of text have no line of names: columns are "src", "dst", "column2" and so on, of nodes "id",
            "column1" and so on.
        decimal: what stands before the fraction of numbers in text, a point or a comma; numbers with the other one are
            refused.
        fill: what rows without a value get, by column or feature of numbers: a number, or "mean", that of the others.
        node_type: the column of a table of nodes that has the type of each.
        edge_type: the column of a table of edges that has the name of the relation of each.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    categories: tuple[str, ...] = ()
    no_header: bool = False
    decimal: str = "."
    fill: Mapping[str, str] = field(default_factory=dict)
    node_type: str | None = None
    edge_type: str | None = None

    def __post_init__(self) -> None:
        for column, dtype in self.types.items():
            if dtype not in _TYPES:
                known = ", ".join(_TYPES)
                raise InvalidArgumentError(f"the type of column {column!r} must be one of {known} (got {dtype!r})")
        if self.decimal not in (".", ","):
            raise InvalidArgumentError(f"decimals have a point or a comma (got {self.decimal!r})")
        for column, value in self.fill.items():
            if value != "mean" and not re.fullmatch(NUMBER, value):
                raise InvalidArgumentError(f"rows of {column!r} without a value get a number or mean (got {value!r})")


@dataclass(frozen=True)
class ReadOptions:
    """Options of reading a graph."""

    num_nodes: int | None = None  # number of nodes, where ids are to be taken as they are; None if the user gave none
    # the ranks that read it, and where their temporary files lie
    ranks: ReadingRanks = field(default_factory=ReadingRanks)
    adds_reverse: bool = False  # the user asks for reverse edges, which the caller adds
    nodes: tuple[Path, ...] = ()  # files of nodes beside a file of edges
    # options of the user for columns of csv and parquet files
    tables: TableOptions = field(default_factory=TableOptions)


@dataclass(frozen=True)
class Layout:
    """A layout of files."""

    name: str  # the layout in messages, such as "HDF5"
    marks: str  # the files by which a directory of this layout is recognised, for a message; "" if it is a single file
    # returns whether a path, a file or a directory, has this layout; looks at names and first lines alone
    is_at: Callable[[Path], bool]
    # reads the graph, on all ranks, which map files or divide the work. Errors are GraphDataErrors that name the file
    # and, in text, the line
    read: Callable[[Path, ReadOptions], GraphSource]


def add_reverse_edges(source: GraphSource, own_relations: bool = False) -> GraphSource:
    """Return the graph with the reverse of every edge.

    A relation gets a reverse ``(dst_type, "rev_<rel>", src_type)``; one from a type to itself becomes twice as long
    instead, as by DGL's ``AddReverse``. Edge features go along. Nothing is copied.

    Args:
        source: the graph.
        own_relations: a relation from a type to itself gets a reverse, too (``AddReverse(sym_new_etype=True)``).

    Raises:
        GraphDataError: there is a relation of a reverse's name already, or edges have original ids; or every edge has
            its reverse already, which makes no relations.
    """
    if source.has_reverse:
        what = f"{source.path or 'the graph'}: every edge has its reverse already"
        if own_relations:
            raise GraphDataError(f"{what}: no relations of reverses are added (leave add_reverse out)")
        get_logger().warning("%s: none are added", what)
        return source
    if source.edge_ids is not None:
        raise GraphDataError("reverse edges cannot be added to a partitioned graph: they would have no original ids")
    edges: dict[Relation, tuple[RowArray, RowArray]] = {}
    feats: dict[Relation, Mapping[str, Feature]] = {}
    for relation, (src, dst) in zip(source.schema.relations, source.edges, strict=True):
        of_relation = source.edge_feats.get(relation_key(relation), {})
        if relation[0] == relation[2] and not own_relations:
            edges[relation] = concatenated([src, dst]), concatenated([dst, src])
            feats[relation] = {n: f._replace(values=concatenated([f.values] * 2)) for n, f in of_relation.items()}
            continue
        reverse: Relation = relation[2], f"rev_{relation[1]}", relation[0]
        if reverse in source.schema.relations:
            raise GraphDataError(f"the reverse of {relation} cannot be added: there is a relation {reverse} already")
        edges |= {relation: (src, dst), reverse: (dst, src)}
        feats |= {relation: of_relation, reverse: of_relation}
    relations = sorted(edges)  # the order of relations in every graph, which numbers the matrices of layers
    return replace(
        source,
        schema=Schema(source.schema.ntypes, tuple(relations)),
        edges=tuple(edges[relation] for relation in relations),
        edge_feats={relation_key(relation): feats[relation] for relation in relations},
        has_reverse=True,
    )


def relation_of(text: str, separator: str, ntypes: Iterable[str] | None, place: object) -> Relation:
    """Return the relation whose three names, joined by a separator, are a text.

    ``ntypes`` are the node types, which may have the separator in their names; None if only the text tells them.
    Raises GraphDataError, which begins with ``place``: the text is no relation, or can be read as several.
    """
    relation = relation_in(text, separator, ntypes, place)
    if relation is None:
        known = "" if ntypes is None else f", with types of {[*ntypes]}"
        form = f"{separator.join(('<src>', '<rel>', '<dst>'))}{known}"
        raise GraphDataError(f"{place}: an edge type is {form} (got {text!r})")
    return relation


def relation_in(
    text: str, separator: str, ntypes: Iterable[str] | None, place: object, remedy: str = "rename one of them"
) -> Relation | None:
    """Return as :func:`relation_of`, but None if the text is no relation; errors end with ``remedy``."""
    if ntypes is None:
        names = text.split(separator)
        return (names[0], names[1], names[2]) if len(names) == 3 and all(names) else None
    relations = relations_in(text, [*ntypes], separator)
    if len(relations) > 1:
        raise GraphDataError(f"{place}: {text!r} can be read as {' and as '.join(map(str, relations))}: {remedy}")
    return relations[0] if relations else None


def ends_of(place: object, edges: Array, in_columns: bool = False) -> tuple[Array, Array]:
    """Return the sources and the destinations of edges, integers [2, m], or [m, 2] if they stand in columns.

    Raises GraphDataError, which begins with ``place``: they are of another form.
    """
    if edges.ndim != 2 or edges.shape[in_columns] != 2 or edges.dtype.kind not in "iu":
        words = "columns" if in_columns else "rows"
        raise GraphDataError(f"{place} must hold two {words} of integers (got {edges.dtype}{list(edges.shape)})")
    src, dst = edges.T if in_columns else edges
    return src, dst


def feature_of(name: str, values: RowArray) -> Feature:
    """Return a feature in the dtype that its name tells: masks bool, "feat" float32 or float16; :func:`label_of`."""
    if name == "label":
        return label_of(values)
    if name in MASKS:
        return Feature.of(as_mask(values))
    return Feature.of(as_floats(values) if name == "feat" else values)


def label_of(rows: RowArray) -> Feature:
    """Return labels: int64 with -1 for NaN, or float32 if one of them has a fraction, as those of regression."""
    for first in range(0, len(rows) if rows.dtype.kind == "f" else 0, _CHUNK):
        chunk = np.asarray(rows[first : first + _CHUNK])
        if (np.isfinite(chunk) & (chunk != np.rint(chunk))).any():
            get_logger().warning("labels have fractions: they are float32, for regression")
            return Feature.of(as_floats(rows))
    return Feature(as_labels(rows), "int64")


def as_column(values: Array) -> Array:
    """Return an array [n, 1] as [n], and any other as it is."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def mask_name(split: str) -> str:
    """Return the name of the mask of a split: "val_mask" of "valid", "test_dev_mask" of "test-dev"."""
    return "val_mask" if split in ("valid", "validation") else f"{split.replace('-', '_')}_mask"


def masks_of(splits: Mapping[str, tuple[str, Array]], num_nodes: int) -> dict[str, Feature]:
    """Return the mask of each split, given where its ids stand, for messages, and the ids.

    Raises GraphDataError: they are no ids of nodes.
    """
    return {mask_name(split): mask_of(place, ids, num_nodes) for split, (place, ids) in splits.items()}
