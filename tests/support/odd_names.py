"""Names of types, relations and features as people have them, and a typed graph that has them all."""

import numpy as np
from typed_parts import typed_source

from mpigraph.metadata.schema import Relation
from mpigraph.partition.source import Feature, GraphSource

NAMES = (
    "/people/person/place_of_birth",
    "/award/award_nominee/award_nominations./award/award_nomination/award",
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#type?a=1&b=%2F",
    "a:b:c",
    "node~paper",
    "has__rated",
    "two words\t\n",
    "\x01\x1b[31m\x7f\u202e",
    "caf\u00e9",
    "cafe\u0301",
    "Caf\u00e9",
    "\u8bba\u6587 \U0001f600",
    ".",
    "..",
    "x.npy",
    "%",
    "~2F",
    "/",
    "to",
    "a\\b\"c'd",
    "long" * 1000,
)
TYPES = ("/m/0", "a:b", "paper")


def odd_source() -> GraphSource:
    """A graph with each of the names as a relation, as a node's feature and as a feature of some edges.

    The value of a feature is 1000 times the number of its name, plus the original id. The last two relations join to
    the same text, with colons and with underscores.
    """
    counts = dict(zip(TYPES, (12, 9, 30), strict=True))
    relations: list[Relation] = [(TYPES[i % 3], name, TYPES[(i + 1) % 3]) for i, name in enumerate(NAMES)]
    source = typed_source(counts, dict.fromkeys([*relations, ("a:b", "c:paper", "/m/0"), ("a:b", "c", "paper")], 40))
    for table in [*source.node_feats.values(), *list(source.edge_feats.values())[::8]]:
        rows = len(next(iter(table.values())).values)
        table.update({name: Feature.of(number * 1000 + np.arange(rows)) for number, name in enumerate(NAMES)})
    return source
