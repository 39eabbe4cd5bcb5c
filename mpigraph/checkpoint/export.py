"""What a checkpoint holds, for programs without this library."""

import os
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from mpigraph.checkpoint.loading import CheckpointFiles, memory_of
from mpigraph.checkpoint.manifest import Manifest
from mpigraph.checkpoint.saving import as_directory
from mpigraph.checkpoint.state_tree import Decoder
from mpigraph.errors import InvalidArgumentError
from mpigraph.storage.files import NewFile

__all__ = ["export"]


def export(checkpoint_id: str | os.PathLike[str], path: str | os.PathLike[str], name: str = "model") -> None:
    """Write one value of a checkpoint, such as a model's ``state_dict``, to a file that torch reads by itself.

    ``model.load_state_dict(torch.load(path, weights_only=True))`` then works wherever torch is. This needs no job and
    no MPI, and of the checkpoint the manifest and the first trainer's file. What it writes is a file of ``torch.save``
    with nothing but tensors, numbers, strings and containers, so ``weights_only=True`` reads it.

    Args:
        checkpoint_id: the folder of the checkpoint.
        path: the file to write, usually ``.pt``.
        name: key of the value in the state dict that was saved. Of a module in DistributedDataParallel the prefix
            ``module.`` is taken away. Embeddings are written by :meth:`.DistEmbedding.save`.

    Raises:
        ShardFormatError: a file is missing or damaged; names it.
        InvalidArgumentError: there is no such value, or rows that are spread over hosts are part of it.
        StorageError: the file cannot be written.
    """
    directory = as_directory(checkpoint_id)
    manifest = Manifest.read(directory)
    decoder = Decoder(memory_of(manifest), f"the checkpoint {str(directory)!r}", arrays=False)
    value: Any = decoder.value(manifest.state, name)
    with CheckpointFiles(manifest, directory) as files:
        files.read_tensors(decoder.wanted.tensors)
    if decoder.wanted.own:
        raise InvalidArgumentError(f"{name!r} of the checkpoint {str(directory)!r} is of several trainers")
    if _has_names(value) and _has_names(getattr(value, "_metadata", {})):
        consume_prefix_in_state_dict_if_present(value, "module.")
    with NewFile(Path(path)) as file:
        torch.save(value, file)


def _has_names(value: object) -> bool:
    """Whether it is a dict by strings, as modules' states and what torch says of their parts are."""
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)
