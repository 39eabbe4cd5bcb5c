"""One module for each relation, with the arguments and conventions of ``dgl.nn.HeteroGraphConv``."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from mpigraph.errors import EdgeTypeError, InvalidArgumentError
from mpigraph.graphs.message_passing import combine
from mpigraph.metadata.schema import Relation, escape
from mpigraph.nn.typed import TypedFeatures, TypedGraph, sides

Aggregate = Callable[[list[torch.Tensor], str], torch.Tensor]

_OPS = ("sum", "mean", "max", "min", "stack")

_TAKEN = frozenset(dir(nn.ModuleDict()))
"""Names that no key of a ModuleDict may have."""


class HeteroGraphConv(nn.Module):
    """Apply a module to each relation, then combine the outputs for the same destination type.

    A module is called with the graph or block of its relation and a pair of features, of the sources and of the
    destinations, even if the relation has no edge. Modules and inputs that a minibatch does not need get gradients of
    0, so that every rank of a job has gradients of the same parameters. ``set_allow_zero_in_degree(True)`` is called on
    modules that have it.

    Args:
        mods: module by relation, a triple or the name alone; a triple takes precedence over a name.
        aggregate: "sum", "mean", "max", "min", "stack" (along a new second dimension, the relations in the order of
            ``canonical_etypes``), or a function of the list of tensors and the destination type.

    Raises:
        InvalidArgumentError: another ``aggregate``.
    """

    def __init__(self, mods: Mapping[Any, nn.Module], aggregate: str | Aggregate = "sum") -> None:
        super().__init__()
        if isinstance(aggregate, str) and aggregate not in _OPS:
            raise InvalidArgumentError(f"aggregate must be one of {_OPS} or a function (got {aggregate!r})")
        self.mods = nn.ModuleDict({_key(etype): module for etype, module in mods.items()})
        self._aggregate = partial(_combined, aggregate) if isinstance(aggregate, str) else aggregate
        for module in self.mods.values():
            # a node may have edges of one relation and none of another
            allow = getattr(module, "set_allow_zero_in_degree", None)
            if callable(allow):
                allow(True)

    def forward(
        self,
        g: TypedGraph,
        inputs: TypedFeatures,
        mod_args: Mapping[Any, tuple[Any, ...]] | None = None,
        mod_kwargs: Mapping[Any, Mapping[str, Any]] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Apply the modules.

        Args:
            g: a graph, or a block whose first sources of each type are the destinations.
            inputs: node type -> [num_nodes, ...]; or a pair of dicts for sources and destinations. A relation is
                skipped if the type of one of its ends is missing.
            mod_args: relation (triple or name) -> more arguments of its module.
            mod_kwargs: relation (triple or name) -> named arguments of its module.

        Returns:
            Destination type -> the combined outputs of its relations. Types without relations are left out.

        Raises:
            EdgeTypeError: there is no module for a relation.
        """
        src_inputs, dst_inputs = sides(g, inputs)
        by_type: dict[str, list[torch.Tensor]] = {ntype: [] for ntype in g.dsttypes}
        idle = dict(self.mods.items())
        unread = dict(src_inputs)
        for relation in g.canonical_etypes:
            src, _, dst = relation
            if src in src_inputs and dst in dst_inputs:
                key = self._key_of(relation)
                idle.pop(key, None)
                unread.pop(src, None)
                args = _of(relation, mod_args, ())
                kwargs = _of(relation, mod_kwargs, {})
                pair = src_inputs[src], dst_inputs[dst]
                by_type[dst].append(self.mods[key](g[relation], pair, *args, **kwargs))
        results = {ntype: self._aggregate(outputs, ntype) for ntype, outputs in by_type.items() if outputs}
        nothing = _sum_of_none([p for module in idle.values() for p in module.parameters()] + list(unread.values()))
        return results if nothing is None else {ntype: rows + nothing for ntype, rows in results.items()}

    def _key_of(self, relation: Relation) -> str:
        for key in (_key(relation), _key(relation[1])):
            if key in self.mods:
                return key
        raise EdgeTypeError(f"there is no module for relation {relation} (have {list(self.mods)})")


def _key(etype: str | Relation) -> str:
    """Return a key that a ModuleDict takes: no dot, and not the name of an attribute of it ("to", "items")."""
    name = escape(str(etype), ".", "%")
    return f"{name}%" if name in _TAKEN else name


def _of(relation: Relation, by_etype: Mapping[Any, Any] | None, default: Any) -> Any:
    """Look a relation up by its triple, then by its name."""
    by_etype = by_etype or {}
    return by_etype.get(relation, by_etype.get(relation[1], default))


def _combined(op: str, outputs: list[torch.Tensor], ntype: str) -> torch.Tensor:
    """Reduce by a built-in operation, as a function like those that users give."""
    return outputs[0] if len(outputs) == 1 and op != "stack" else combine(outputs, op)


def _sum_of_none(tensors: list[torch.Tensor]) -> torch.Tensor | None:
    """Return 0 as the sum of no element of each tensor, which gives each a gradient of 0; None if none needs one."""
    sums = [tensor.flatten()[:0].sum() for tensor in tensors if tensor.requires_grad]
    return torch.stack(sums).sum() if sums and torch.is_grad_enabled() else None
