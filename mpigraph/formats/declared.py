"""Declarations of other programs: relations in names, entries of JSON and YAML, features that names describe."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError, check_text
from mpigraph.log import get_logger
from mpigraph.metadata.schema import Relation, relations_in
from mpigraph.partition.row_arrays import RowArray, as_floats, as_labels, as_mask
from mpigraph.partition.source import Feature, mask_of

MASKS = ("train_mask", "val_mask", "test_mask")
_CHUNK = 1 << 20  # rows


def relation_of(text: str, separator: str, ntypes: Mapping[str, Any] | None, place: object) -> Relation:
    """Return the relation whose three names, joined by a separator, are a text.

    ``ntypes`` has the node types, which may have the separator in their names; None if only the text tells them.
    Raises GraphDataError, which begins with ``place``: the text is no relation, or can be read as several.
    """
    src, *rest = text.split(separator)
    if ntypes is None:
        relations = [(src, rest[0], rest[1])] if len(rest) == 2 and all((src, *rest)) else []
    else:
        relations = relations_in(text, list(ntypes), separator)
    if len(relations) != 1:
        known = "" if ntypes is None else f", with types of {list(ntypes)}"
        form = f"{separator.join(('<src>', '<rel>', '<dst>'))}{known}"
        raise GraphDataError(f"{place}: an edge type is {form} (got {text!r})")
    return relations[0]


def relation_in(text: str, ntypes: Iterable[str], place: str, remedy: str) -> Relation | None:
    """Return the relation whose three names, joined by "__", are a text; None if there is no such one among types.

    Raises GraphDataError, which begins with ``place`` and ends with ``remedy``: the text can be read as several.
    """
    relations = relations_in(text, list(ntypes), "__")
    if len(relations) > 1:
        raise GraphDataError(f"{place} can be read as {' and as '.join(map(str, relations))}: {remedy}")
    return relations[0] if relations else None


@dataclass(frozen=True)
class Entry:
    """A mapping in a JSON or YAML file, whose values are checked when they are asked for.

    Every method raises GraphDataError, which names the place and the key, for a value of another kind.

    Attributes:
        place: the file, and where in it.
        values: the content.
    """

    place: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, place: object, values: object) -> "Entry":
        """Return an entry, if a value is a mapping."""
        if not isinstance(values, dict):
            raise GraphDataError(f"{place} must be a mapping (got {values!r:.80})")
        return cls(str(place), values)

    def mapping(self, key: str) -> "Entry":
        """Return a mapping; it is empty where there is no such key."""
        return self.of(f"{self.place}: {key}", self.values.get(key) or {})

    def mappings(self, key: str) -> list["Entry"]:
        """Return a list of mappings; it is empty where there is no such key."""
        entries = self.values.get(key) or []
        if not isinstance(entries, list):
            raise self.error(f"{key} must be a list of mappings (got {entries!r:.80})")
        return [self.of(f"{self.place}: {key}", entry) for entry in entries]

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string that is not empty; ``default`` where there is no such key, or None stands there."""
        value = default if self.values.get(key) is None else self.values[key]
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.error(f"{key} must be a string (got {value!r:.80})")
        return check_text(key, value)

    def error(self, text: str) -> GraphDataError:
        """Return an error about this entry."""
        return GraphDataError(f"{self.place}: {text}")


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
