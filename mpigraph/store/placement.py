"""Where the features of a graph are: in the hosts' memory, or on disk in the shards (``storage``)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from mpigraph.errors import FieldNameError, InvalidArgumentError, check_text
from mpigraph.rows.row_tensor import Policy
from mpigraph.storage.part_config import FeatureInfo, PartConfig

Storage: TypeAlias = str | dict[str, dict[str, str]] | None
"""A word of :data:`WORDS` for every feature with rows of numbers; ``{"node": {name: word}, "edge": {name: word}}``, a
name means the feature in every type that has it; None for memory."""

WORDS = ("memory", "disk", "auto")
_KINDS = ("node", "edge")


def check_storage(storage: object, what: str = "storage") -> Storage:
    """Return the checked argument, mappings as dicts; text is a word, or such as ``"feat=disk,x=memory"``.

    Args:
        storage: the argument.
        what: where it comes from, for errors.

    Raises:
        InvalidArgumentError: it is no :data:`Storage`.
    """
    if not storage:
        return None
    if isinstance(storage, str) and "=" in storage:
        pairs = [pair.partition("=") for pair in storage.split(",")]
        named = {name.strip(): _checked(f"{what} of {name.strip()!r}", word.strip()) for name, _, word in pairs}
        if len(named) < len(pairs):
            raise InvalidArgumentError(f"{what} must name each feature once (got {storage!r})")
        return {"": named}
    if not isinstance(storage, Mapping):
        return _checked(what, storage)
    for kind, names in storage.items():
        if kind not in _KINDS or not isinstance(names, Mapping):
            raise InvalidArgumentError(
                f"storage must be one of {list(WORDS)}, or such as {{'node': {{'feat': 'disk'}}}} (got {storage!r})"
            )
    return {
        kind: {check_text("name in storage", n): _checked(f"storage of {n!r}", word) for n, word in names.items()}
        for kind, names in storage.items()
    }


def _checked(what: str, word: object) -> str:
    if not isinstance(word, str) or word not in WORDS:
        raise InvalidArgumentError(f"{what} must be one of {list(WORDS)} (got {word!r})")
    return word


def features_of(config: PartConfig) -> Iterator[tuple[Policy, str, FeatureInfo]]:
    """Yield all features, in the order in which their tensors are made."""
    schema = config.schema
    for t, ntype in enumerate(schema.ntypes):
        for name, info in sorted(config.node_features[ntype].items()):
            yield Policy(True, t), name, info
    for r in config.with_features:
        for name, info in sorted(config.edge_features[schema.relation_key(r)].items()):
            yield Policy(False, r), name, info


def info_of(config: PartConfig, policy: Policy, name: str) -> FeatureInfo:
    """Return a feature's dtypes and row shape."""
    if policy.is_node:
        return config.node_features[config.schema.ntypes[policy.type_id]][name]
    return config.edge_features[config.schema.relation_key(policy.type_id)][name]


def places_of(config: PartConfig, storage: Storage) -> dict[tuple[Policy, str], str]:
    """Return the word for each feature that need not be in memory.

    Raises:
        FieldNameError: no type has a feature that is named.
        InvalidArgumentError: a feature that is named "disk" has rows of one number or of bools.
    """
    places: dict[tuple[Policy, str], str] = {}
    if storage in (None, "memory"):
        return places
    by_name = storage if isinstance(storage, dict) else {}
    for kind, names in by_name.items():
        known = {name for policy, name, _ in features_of(config) if kind in ("", _KINDS[not policy.is_node])}
        for name in names:
            if name not in known:
                raise FieldNameError(
                    f"storage: no {kind or 'node or edge'} feature {name!r} (there are {sorted(known)})"
                )
    for policy, name, info in features_of(config):
        words = by_name.get("") or by_name.get(_KINDS[not policy.is_node], {})
        word = words.get(name, storage if isinstance(storage, str) else "memory")
        if word == "memory" or not np.prod(info.shape):
            continue
        if info.shape and info.dtype != "bool":
            places[policy, name] = word
        elif words.get(name) == "disk":
            raise InvalidArgumentError(
                f"storage: feature {name!r} has {info.dtype} rows of shape {info.shape}: only rows of numbers, of one "
                "or more dimensions, can stay on disk"
            )
    return places


def without(config: PartConfig, places: Mapping[tuple[Policy, str], str]) -> PartConfig:
    """Return a configuration without the features that have a place of their own."""
    if not places:
        return config
    schema = config.schema

    def of_type(is_node: bool, number: int, table: Mapping[str, FeatureInfo]) -> dict[str, FeatureInfo]:
        return {name: info for name, info in table.items() if (Policy(is_node, number), name) not in places}

    nodes = {ntype: of_type(True, t, config.node_features[ntype]) for t, ntype in enumerate(schema.ntypes)}
    keys = [schema.relation_key(r) for r in range(len(schema.relations))]
    edges = {key: of_type(False, r, config.edge_features[key]) for r, key in enumerate(keys)}
    return replace(config, node_features=nodes, edge_features=edges)
