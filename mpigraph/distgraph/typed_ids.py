"""Ids, rows, fanouts and names in the forms of arguments, and in those inside the library.

In a graph with one node type, node ids are plain arrays, else dicts by node type; so it is with edges and relations.
Arguments about relations may be one value for all or a dict by edge type.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.errors import InvalidArgumentError, MaskLengthError, check_integer
from mpigraph.graphs import fields
from mpigraph.graphs.block import Block
from mpigraph.graphs.fields import (
    ByEdgeType as ByEdgeType,
    EdgeIds as EdgeIds,
    IdsLike,
    NodeIds as NodeIds,
    canonical as canonical,
)
from mpigraph.metadata.schema import Relation, Schema

_MOST_NEIGHBOURS = 2**31 - 1
NodeTensors: TypeAlias = torch.Tensor | dict[str, torch.Tensor]
"""Node ids as they are returned: int64[n] where the graph has one node type, else node type -> int64[n]."""
EdgeTensors: TypeAlias = torch.Tensor | dict[Relation, torch.Tensor]
"""Edge ids as they are returned: int64[n] where the graph has one relation, else relation -> int64[n]."""
Blocks: TypeAlias = tuple[NodeTensors, NodeTensors, list[Block]]
"""Input nodes, output nodes, and blocks, outermost hop first."""
Fanout: TypeAlias = int | ByEdgeType[int]
"""Most neighbours of a node in each relation, -1 for all; or edge type -> most neighbours."""
FeatureName: TypeAlias = str | ByEdgeType[str]
"""An edge feature of all relations that have one of that name; or edge type -> name."""
Names: TypeAlias = str | Sequence[str] | ByEdgeType[str | Sequence[str]]
"""Names of features, each for all types that have one of that name; or type -> names."""


def id_array(ids: IdsLike, what: str) -> I64:
    """:func:`mpigraph.graphs.fields.as_ids`, with its errors, as an array: int64[n]."""
    array: I64 = fields.as_ids(ids, what).cpu().contiguous().numpy()
    return array


def to_rows(index: slice | IdsLike, num_rows: int, name: str) -> I64:
    """Return int64[n], the rows that an index of a tensor selects: integers in any form, a slice, or a mask of bool.

    Raises:
        MaskLengthError: a mask of another length than ``num_rows``.
        InvalidArgumentError: not an index.
    """
    if isinstance(index, slice):
        try:
            return np.arange(*index.indices(num_rows), dtype=np.int64)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"index of tensor {name!r}: {error}") from None
    what = f"index of tensor {name!r}"
    if isinstance(index, tuple) and any(isinstance(one, slice) for one in index):
        raise InvalidArgumentError(f"{what}: rows alone can be chosen (tensor[rows][:, columns])")
    tensor = fields.as_tensor(index, what)
    if tensor.dtype != torch.bool:
        return id_array(tensor, what)
    if tensor.shape != (num_rows,):
        raise MaskLengthError(f"mask of tensor {name!r} must have {num_rows} entries (got shape {tuple(tensor.shape)})")
    return np.flatnonzero(tensor.detach().cpu().numpy())


def by_ntype(schema: Schema, nodes: NodeIds, what: str = "node ids") -> dict[int, I64]:
    """Return node ids by node type id; ``what`` names them in errors.

    Raises:
        NodeTypeError: a type does not exist, or the ids are not by type and the graph has several.
        InvalidArgumentError: the ids are not integers in one dimension.
    """
    by_type: Mapping[str, IdsLike] = fields.by_ntype(schema, nodes, what)
    return {schema.ntype_id(ntype): id_array(ids, what) for ntype, ids in by_type.items()}


def unwrap_nodes(schema: Schema, nodes: Mapping[int, I64], *, every_type: bool = True) -> NodeTensors:
    """Undo :func:`by_ntype`, with every node type, or with those of ``nodes`` alone."""
    none = np.empty(0, np.int64)
    if len(schema.ntypes) == 1:
        return torch.from_numpy(nodes.get(0, none))
    types = range(len(schema.ntypes)) if every_type else nodes
    return {schema.ntypes[t]: torch.from_numpy(nodes.get(t, none)) for t in types}


def by_relation(schema: Schema, ids: EdgeIds, what: str) -> dict[Relation, torch.Tensor]:
    """Key ids by canonical relation, int64 on the CPU; ``what`` names them in errors.

    Raises:
        EdgeTypeError: an edge type is unknown or ambiguous, or the ids are not keyed and the graph has several.
        InvalidArgumentError: the ids are not integers in one dimension, or two edge types are the same relation.
    """
    by_triple: dict[Relation, IdsLike] = canonical(schema, ids, what)
    return {relation: fields.as_ids(values, what).cpu().contiguous() for relation, values in by_triple.items()}


def unwrap_edges(schema: Schema, ids: dict[Relation, torch.Tensor]) -> EdgeTensors:
    """Undo :func:`by_relation`: a tensor where the graph has one relation."""
    if len(schema.relations) > 1:
        return ids
    return ids.get(schema.relations[0], torch.empty(0, dtype=torch.int64))


def check_fanout(fanout: object) -> int:
    """Return a fanout. Raises InvalidArgumentError if it is not an integer from -1 to 2**31 - 1."""
    return check_integer("fanout", fanout, -1, _MOST_NEIGHBOURS)


def check_layers(fanouts: object) -> list[Fanout]:
    """Return the fanouts of all layers, each unchecked. Raises InvalidArgumentError if they are no sequence."""
    if hasattr(fanouts, "canonical_etypes"):
        raise InvalidArgumentError(
            f"fanouts come first, and the graph goes to the loader: NeighborSampler([10, 25]) (got {fanouts!r})"
        )
    if isinstance(fanouts, str | Mapping) or not isinstance(fanouts, Iterable):
        raise InvalidArgumentError(f"fanouts must be a list with a fanout for each layer (got {fanouts!r})")
    return list(fanouts)
