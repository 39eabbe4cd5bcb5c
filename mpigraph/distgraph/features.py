"""The features of a DistGraph, by type and name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distgraph.typed_ids import Names
from mpigraph.errors import FieldNameError, InvalidArgumentError, TensorMismatchError, check_text
from mpigraph.graphs.face import TypesView
from mpigraph.graphs.fields import Fields
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import Relation
from mpigraph.rows.row_tensor import Policy

Kind = TypeVar("Kind", str, Relation)


class Changes:
    """The number of assignments and deletions of a graph's features so far."""

    number = 0


class Scheme(NamedTuple):
    """Shape and dtype of one row of a feature."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Features(Fields[DistTensor]):
    """Features of one node type or relation: name -> :class:`DistTensor`, whose rows have the policy."""

    def __init__(self, num_rows: int, owner: str, policy: Policy, changes: Changes) -> None:
        super().__init__(num_rows, owner)
        self._policy = policy
        self._changes = changes

    def _checked(self, name: str, values: Any) -> DistTensor:
        check_text("the name of a feature", name)
        if not isinstance(values, DistTensor):
            raise InvalidArgumentError(self._not_distributed(name, values))
        if values.rows.policy != self._policy:
            raise TensorMismatchError(
                f"feature {name!r}: the rows of tensor {values.name!r} are not {self.owner} (give part_policy)"
            )
        self._changes.number += 1
        return values

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._changes.number += 1

    def _not_distributed(self, name: str, value: object) -> str:
        if not isinstance(value, torch.Tensor):
            return f"feature {name!r} must be a DistTensor (got {type(value).__name__})"
        return (
            f"feature {name!r} must be a DistTensor, whose rows are spread over the hosts (got a Tensor). Make one on "
            f"all trainers: t = mpigraph.distributed.DistTensor({tuple(value.shape)}, {value.dtype}, {name!r}); write "
            "rows, each trainer some of them: t[ids] = rows; call g.barrier(), and set the feature to t"
        )


def features_by_type(
    is_node: bool,
    kinds: Sequence[Kind],
    book: RangeBook,
    known: Mapping[tuple[Policy, str], DistTensor],
    changes: Changes,
) -> dict[Kind, Features]:
    """Return the features of each node type or relation, those that are known already."""
    by_type = {}
    for number, kind in enumerate(kinds):
        count = book.num_nodes(number) if is_node else book.num_edges(number)
        what = "nodes of type" if is_node else "edges of relation"
        by_type[kind] = Features(count, f"{what} {kind!r}", Policy(is_node, number), changes)
    for (policy, name), tensor in known.items():
        if policy.is_node == is_node:
            by_type[kinds[policy.type_id]][name] = tensor
    return by_type


def named(view: TypesView[Kind, Features], *names: Names) -> dict[tuple[Kind, str], DistTensor]:
    """Return features of ``g.nodes`` or ``g.edges`` by type (of edges: the triple) and name, each once.

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
                kinds = _types_with(view, name) if of_type is None else [view.find(of_type)]
                tensors.update({(kind, name): view.frames[kind][name] for kind in kinds})
    return tensors


def _types_with(view: TypesView[Kind, Features], name: str) -> Sequence[Kind]:
    """Return the types that have a feature; the only type in any case, whose error then names it."""
    having = [kind for kind, features in view.frames.items() if name in features]
    if not having and len(view.frames) != 1:
        raise FieldNameError(f"no feature {name!r} on any of {list(view.frames)}")
    return having or list(view.frames)
