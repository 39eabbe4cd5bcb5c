"""The reverse of every edge of a graph that is to be partitioned."""

from collections.abc import Mapping
from dataclasses import replace

from mpigraph.errors import GraphDataError
from mpigraph.log import get_logger
from mpigraph.metadata.schema import Relation, Schema, relation_key
from mpigraph.partition.row_arrays import Concatenated, RowArray, concatenated
from mpigraph.partition.source import Feature, GraphSource


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
            feats[relation] = {n: f._replace(values=Concatenated([f.values] * 2)) for n, f in of_relation.items()}
        else:
            reverse: Relation = relation[2], f"rev_{relation[1]}", relation[0]
            if reverse in source.schema.relations:
                raise GraphDataError(
                    f"the reverse of {relation} cannot be added: there is a relation {reverse} already"
                )
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
