"""The features of a DistGraph by type and name: ``g.ndata``, ``g.nodes[ntype].data`` and the like."""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch

from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distgraph.typed_ids import Names
from mpigraph.errors import FieldNameError, InvalidArgumentError, TensorMismatchError, check_text
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.rows.row_tensor import Policy

Kind = TypeVar("Kind", str, Relation)


class Features(dict[tuple[Policy, str], DistTensor]):
    """All features of a graph, by what their rows are and by name.

    Attributes:
        changes: the number of assignments and deletions so far.
    """

    changes = 0


class Scheme(NamedTuple):
    """Shape and dtype of one row of a feature."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class FeatureMap(MutableMapping[str, DistTensor]):
    """Features of one node type or relation: name -> :class:`DistTensor`."""

    def __init__(self, features: Features, policy: Policy, what: str) -> None:
        self._features = features
        self._policy = policy
        self._what = what

    def __getitem__(self, name: str) -> DistTensor:
        try:
            return self._features[self._policy, name]
        except KeyError:
            raise FieldNameError(f"no feature {name!r} on {self._what} (there are {list(self)})") from None

    def __setitem__(self, name: str, tensor: DistTensor) -> None:
        check_text("the name of a feature", name)
        if not isinstance(tensor, DistTensor):
            raise InvalidArgumentError(self._not_distributed(name, tensor))
        if tensor.rows.policy != self._policy:
            raise TensorMismatchError(
                f"feature {name!r}: the rows of tensor {tensor.name!r} are not {self._what} (give part_policy)"
            )
        self._features[self._policy, name] = tensor
        self._features.changes += 1

    def _not_distributed(self, name: str, value: object) -> str:
        if not isinstance(value, torch.Tensor):
            return f"feature {name!r} must be a DistTensor (got {type(value).__name__})"
        return (
            f"feature {name!r} must be a DistTensor, whose rows are spread over the hosts (got a Tensor). Make one on "
            f"all trainers: t = mpigraph.distributed.DistTensor({tuple(value.shape)}, {value.dtype}, {name!r}); write "
            "rows, each trainer some of them: t[ids] = rows; call g.barrier(), and set the feature to t"
        )

    def __delitem__(self, name: str) -> None:
        self[name]
        del self._features[self._policy, name]
        self._features.changes += 1

    def __iter__(self) -> Iterator[str]:
        return iter([name for policy, name in self._features if policy == self._policy])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr({name: Scheme(t.shape[1:], t.dtype) for name, t in self.items()})


class Space(NamedTuple):
    """The nodes of one type or the edges of one relation."""

    data: FeatureMap


class Spaces(Generic[Kind]):
    """``g.nodes``, by node type, or ``g.edges``, by relation; ``types`` are these, by id."""

    def __init__(self, schema: Schema, features: Features, is_node: bool) -> None:
        self.types: tuple[Kind, ...] = cast(Any, schema.ntypes if is_node else schema.relations)
        self._number_of: Callable[[Any], int] = schema.ntype_id if is_node else schema.relation_id
        self._features = features
        self._is_node = is_node

    def __getitem__(self, kind: str | Relation) -> Space:
        policy = Policy(self._is_node, self._number_of(kind))
        return Space(FeatureMap(self._features, policy, f"{'nodes' if self._is_node else 'edges'} of type {kind!r}"))

    def named(self, *names: Names) -> dict[tuple[Kind, str], DistTensor]:
        """Return features by type (of edges: the triple) and name, each once.

        Raises:
            InvalidArgumentError: an argument is neither names nor a dict of them by type.
            FieldNameError: no type has the feature, or not the type that names it.
            NodeTypeError, EdgeTypeError: a type does not exist.
        """
        tensors: dict[tuple[Kind, str], DistTensor] = {}
        for argument in names:
            by_type = argument if isinstance(argument, Mapping) else {None: argument}
            for of_type, listed in by_type.items():
                if not isinstance(listed, Iterable):
                    raise InvalidArgumentError(f"features are given by name (got {listed!r})")
                for name in [listed] if isinstance(listed, str) else listed:
                    types = self._types_with(name) if of_type is None else [self.types[self._number_of(of_type)]]
                    tensors.update({(kind, name): self[kind].data[name] for kind in types})
        return tensors

    def _types_with(self, name: str) -> Sequence[Kind]:
        """Return the types that have a feature; the only type in any case, whose error then names it."""
        ids = (policy.type_id for policy, known in self._features if known == name and policy.is_node == self._is_node)
        having = [self.types[number] for number in sorted(ids)]
        if not having and len(self.types) != 1:
            raise FieldNameError(f"no feature {name!r} on any of {list(self.types)}")
        return having or self.types
