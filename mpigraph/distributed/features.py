"""The features of a DistGraph by type and name: what ``g.ndata``, ``g.nodes[ntype].data`` and the like are."""

from collections.abc import Iterator, MutableMapping
from typing import NamedTuple

import torch

from mpigraph.distributed.tensor import DistTensor
from mpigraph.errors import FieldNameError, InvalidArgumentError, TensorMismatchError
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.store.tensors import Policy

__all__ = ["EdgeSpaces", "FeatureMap", "Features", "NodeSpaces", "Scheme"]

Features = dict[tuple[Policy, str], DistTensor]
"""All features of a graph, by what their rows are and by name."""


class Scheme(NamedTuple):
    """Shape and dtype of one row of a feature. Local; no communication."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class FeatureMap(MutableMapping[str, DistTensor]):
    """Features of one node type or relation: name -> :class:`DistTensor`. Local; no communication."""

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
    """``g.nodes[ntype]``. Local; no communication."""

    def __init__(self, schema: Schema, features: Features) -> None:
        self._schema, self._features = schema, features

    def __getitem__(self, ntype: str) -> _Space:
        policy = Policy(True, self._schema.ntype_id(ntype))
        return _Space(FeatureMap(self._features, policy, f"nodes of type {ntype!r}"))


class EdgeSpaces:
    """``g.edges[etype]``. Local; no communication."""

    def __init__(self, schema: Schema, features: Features) -> None:
        self._schema, self._features = schema, features

    def __getitem__(self, etype: str | Relation) -> _Space:
        policy = Policy(False, self._schema.relation_id(etype))
        return _Space(FeatureMap(self._features, policy, f"edges of type {etype!r}"))
