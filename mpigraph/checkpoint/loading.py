"""Reading a checkpoint on any number of trainers: shared tensors by the first one, each row by its new owner."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.checkpoint.folder import GRAPH, TENSORS, Manifest, Peers, TensorRows
from mpigraph.checkpoint.job_state import load_epochs, load_generators
from mpigraph.checkpoint.state_tree import Decoder
from mpigraph.collective import collective
from mpigraph.distgraph.dtypes import to_torch
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import InvalidArgumentError, ShardFormatError
from mpigraph.log import get_logger
from mpigraph.rows.transport import nothing
from mpigraph.session.context import Session
from mpigraph.session.control import Operation
from mpigraph.storage.format import storage_dtype
from mpigraph.storage.shard import ShardReader, read_chunks


def as_directory(checkpoint_id: str | os.PathLike[str]) -> Path:
    """Return the folder of a checkpoint. Raises InvalidArgumentError if ``checkpoint_id`` is no path."""
    try:
        text = os.fspath(checkpoint_id)
    except TypeError:
        text = ""
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgumentError(f"checkpoint_id must be the path of a folder (got {checkpoint_id!r})")
    return Path(os.path.abspath(text))


@collective("trainers")
def find_manifest(peers: Peers, directory: Path, doing: str) -> Manifest:
    """Return the manifest of a checkpoint, which the first trainer reads. Raises ShardFormatError on every trainer."""
    return Manifest.of(peers.on_first(doing, lambda: Manifest.read(directory).content()))


def written_files(manifest: Manifest, directory: Path) -> Callable[[int], ShardReader]:
    """Return a function from a trainer to the file that it wrote; each is looked at once.

    The function raises ShardFormatError if the file is missing, damaged or of another save.
    """

    @cache
    def file(trainer: int) -> ShardReader:
        path = directory / manifest.file(trainer)
        if not path.exists():
            node = os.uname().nodename
            raise ShardFormatError(f"{path}: file is missing on node {node}: all trainers must see one folder")
        return ShardReader(path, GRAPH, trainer, manifest.word)

    return file


@collective("trainers")
def is_whole(
    peers: Peers, directory: Path, doing: str, known: dict[str, bool], word: str, pause: Callable[[], None] = nothing
) -> bool:
    """Return whether a checkpoint is whole; reads all of it unless ``known`` has the word of its save.

    A warning names the damage. ``pause`` is called after each piece that was read.
    """
    if word not in known:
        try:
            _verify(peers, find_manifest(peers, directory, doing), directory, doing, pause)
        except ShardFormatError as error:  # on every trainer
            known[word] = False
            if peers.leads:
                get_logger().warning("checkpoint %s is passed over: %s", directory, error)
        else:
            known[word] = True
    return known[word]


@collective("trainers")
def _verify(peers: Peers, manifest: Manifest, directory: Path, doing: str, pause: Callable[[], None]) -> None:
    """Read all files of a checkpoint, each on one trainer, and compare them with their checksums.

    Raises ShardFormatError, on every trainer, if one is missing or damaged.
    """
    file = written_files(manifest, directory)
    with peers.together(doing):
        for k in range(peers.rank, manifest.trainers, peers.size):
            shard = file(k)
            for name in shard.names():
                for _ in read_chunks(shard, name):
                    pause()


@collective("trainers")
def load(session: Session, state_dict: dict[str, Any], directory: Path) -> None:
    """Load a checkpoint into the values of a state dict; see :func:`mpigraph.checkpoint.load`."""
    doing = f"loading the checkpoint {str(directory)!r}"
    peers = Peers(session.world.trainers)
    manifest = find_manifest(peers, directory, doing)
    file = written_files(manifest, directory)
    data = np.empty(int(manifest.ends()[-1]), np.uint8)
    with peers.together(doing):
        if peers.leads:
            file(0).read_into(TENSORS, data)
    peers.broadcast(doing, data)
    plan = Decoder(manifest.tensors_in(data), f"the checkpoint {str(directory)!r}")
    with peers.together(doing):
        plan.update(state_dict, manifest.state)
        job: dict[str, Any] = plan.decode(manifest.job, "the state of the job")
        for number, tensor in plan.rows:
            _check_rows(manifest.rows[number], tensor)
    peers.check_same(doing, plan.places)
    with peers.together(doing):
        _read_own(peers, manifest, file, plan)
    with peers.together(doing):
        for number, tensor in plan.rows:
            _read_rows(manifest.rows[number], f"rows/{number}", file, tensor)
    for _, tensor in plan.rows:
        tensor.rows.window.sync()
        tensor.rows.note_write()  # on every trainer: cached copies of remote rows are old
    session.control.call(Operation.BARRIER)  # drops data derived from rows, such as tables of edge weights
    with peers.together(doing):
        if peers.leads:
            get_logger().warning("resumes from checkpoint %s", directory)
        load_epochs(session, job)
        for put in plan.put:
            put()
    for load_object in plan.objects:  # they may read rows
        with peers.together(doing):
            load_object()
    with peers.together(doing):
        load_generators(session, job)  # last: an object may have drawn


def _check_rows(saved: TensorRows, tensor: DistTensor) -> None:
    here = (tensor.rows.stored, list(tensor.shape), tensor.part_policy.policy_str)
    if here != (saved.dtype, saved.shape, saved.of):
        raise InvalidArgumentError(
            f"tensor {saved.name!r} is {saved.dtype}{saved.shape} of {saved.of!r} there, and "
            f"{here[0]}{here[1]} of {here[2]!r} here"
        )
    if saved.identity != tensor.graph_identity:
        raise InvalidArgumentError(
            f"tensor {saved.name!r} is of another partitioning of the graph, in which nodes and edges have other ids"
        )


def _read_own(peers: Peers, manifest: Manifest, file: Callable[[int], ShardReader], plan: Decoder) -> None:
    """Read this trainer's OfTrainer rows; on another number of trainers, an even share of all rows."""
    for number, rows_of in plan.own.items():
        own = manifest.own[number]
        ends = np.cumsum([0, *own.lengths])
        first, last = share(ends, peers.rank, peers.size)
        rows = np.empty((last - first, *own.row_shape), storage_dtype(own.dtype))
        for k in range(manifest.trainers):
            begin, end = max(first, int(ends[k])), min(last, int(ends[k + 1]))
            if begin < end:
                file(k).read_into(f"own/{number}", rows[begin - first : end - first], begin - int(ends[k]))
        rows_of.append(to_torch(rows, own.dtype))


def share(ends: "np.ndarray[Any, Any]", rank: int, trainers: int) -> tuple[int, int]:
    """Return the range of rows that a trainer gets, if the trainers that saved them ended at ``ends[1:]``."""
    if len(ends) - 1 == trainers:
        return int(ends[rank]), int(ends[rank + 1])
    total = int(ends[-1])
    return total * rank // trainers, total * (rank + 1) // trainers


def _read_rows(saved: TensorRows, name: str, file: Callable[[int], ShardReader], tensor: DistTensor) -> None:
    """Read the rows that this trainer owns into the shared memory of its node."""
    for trainer, ranges in enumerate(saved.ranges):
        for place, (first, last) in enumerate(ranges):
            for owned in tensor.owned():
                begin, end = max(first, owned.first), min(last, owned.last)
                if begin < end:
                    at = owned.rows.start + begin - owned.first
                    with tensor.rows.writing(owned.host) as segment:
                        rows = segment[at : at + end - begin]
                        file(trainer).read_into(f"{name}/{place}", rows, begin - first)
