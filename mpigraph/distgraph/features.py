"""The features of a DistGraph by type and name: what ``g.ndata``, ``g.nodes[ntype].data`` and the like are."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from mpigraph.dataloading.sampler import Names
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import FieldNameError, InvalidArgumentError, TensorMismatchError
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.rows.row_tensor import Policy

__all__ = ["EdgeSpaces", "FeatureMap", "Features", "NodeSpaces", "Scheme", "named_tensors"]

Features = dict[tuple[Policy, str], DistTensor]
"""All features of a graph, by what their rows are and by name."""


class Scheme(NamedTuple):
    """Shape and dtype of one row of a feature."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class FeatureMap(MutableMapping[str, DistTensor]):
    """Features of one node type or relation: name -> :class:`DistTensor`."""

    def __init__(self, features: Features, policy: Policy, what: str) -> None:
        self._features, self._policy, self._what = features, policy, what

    def __getitem__(self, name: str) -> DistTensor:
        try:
            return self._features[self._policy, name]
        except KeyError:
            raise FieldNameError(f"no feature {name!r} on {self._what} (there are {list(self)})") from None

    def __setitem__(self, name: str, tensor: DistTensor) -> None:
        if not isinstance(tensor, DistTensor):
            raise InvalidArgumentError(f"feature {name!r} must be a DistTensor (got {type(tensor).__name__})")
        if tensor.rows.policy != self._policy:
            raise TensorMismatchError(
                f"feature {name!r}: the rows of tensor {tensor.name!r} are not {self._what} (give part_policy)"
            )
        self._features[self._policy, name] = tensor

    def __delitem__(self, name: str) -> None:
        self[name]
        del self._features[self._policy, name]

    def __iter__(self) -> Iterator[str]:
        return iter([name for policy, name in self._features if policy == self._policy])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr({name: Scheme(t.shape[1:], t.dtype) for name, t in self.items()})


class _Space(NamedTuple):
    data: FeatureMap


class NodeSpaces:
    """``g.nodes[ntype]``."""

    def __init__(self, schema: Schema, features: Features) -> None:
        self._schema, self._features = schema, features

    def __getitem__(self, ntype: str) -> _Space:
        policy = Policy(True, self._schema.ntype_id(ntype))
        return _Space(FeatureMap(self._features, policy, f"nodes of type {ntype!r}"))

    @property
    def types(self) -> tuple[str, ...]:
        """The node types."""
        return self._schema.ntypes

    def canonical(self, ntype: str) -> str:
        """The node type itself. Raises NodeTypeError if unknown."""
        return self._schema.ntypes[self._schema.ntype_id(ntype)]


class EdgeSpaces:
    """``g.edges[etype]``."""

    def __init__(self, schema: Schema, features: Features) -> None:
        self._schema, self._features = schema, features

    def __getitem__(self, etype: str | Relation) -> _Space:
        policy = Policy(False, self._schema.relation_id(etype))
        return _Space(FeatureMap(self._features, policy, f"edges of type {etype!r}"))

    @property
    def types(self) -> tuple[Relation, ...]:
        """The relations."""
        return self._schema.relations

    def canonical(self, etype: str | Relation) -> Relation:
        """The triple of an edge type. Raises EdgeTypeError if unknown or ambiguous."""
        return self._schema.to_canonical(etype)


class _Spaces(Protocol):
    """Node spaces or edge spaces."""

    @property
    def types(self) -> Sequence[Any]: ...
    def canonical(self, kind: Any, /) -> Any: ...
    def __getitem__(self, kind: Any, /) -> _Space: ...


def named_tensors(spaces: _Spaces, *names: Names) -> dict[tuple[Any, str], DistTensor]:
    """Features by type (of edges: the triple) and name, each once.

    Raises:
        FieldNameError: no type has the feature, or not the type that was given with it.
        NodeTypeError, EdgeTypeError: a type that was given does not exist.
    """
    found = {}
    for some in names:
        given = some if isinstance(some, Mapping) else {None: some}
        for one, listed in given.items():
            for name in [listed] if isinstance(listed, str) else listed:
                types = _types_with(spaces, name) if one is None else [spaces.canonical(one)]
                found.update({(kind, name): spaces[kind].data[name] for kind in types})
    return found


def _types_with(spaces: _Spaces, name: str) -> Sequence[Any]:
    """The types that have a feature; all if there is but one, which then says what is missing."""
    having = [kind for kind in spaces.types if name in spaces[kind].data]
    if not having and len(spaces.types) != 1:
        raise FieldNameError(f"no feature {name!r} on any of {list(spaces.types)}")
    return having or spaces.types
