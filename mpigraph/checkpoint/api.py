"""What users call: ``save``, ``async_save``, ``load``, ``latest``."""

import os
from pathlib import Path
from typing import Any

from mpigraph.checkpoint import folder, loading
from mpigraph.checkpoint.background import saver_of
from mpigraph.checkpoint.loading import as_directory
from mpigraph.checkpoint.peers import Peers
from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.session.context import current

__all__ = ["async_save", "latest", "load", "save", "wait"]


@collective("trainers")
def save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str],
    keep: int | None = None,
    overwrite: bool = False,
) -> None:
    """Save a job, so that any number of ranks can go on from there.

    Call it between two steps, on every trainer: what a loader has handed out counts as used. With the state dict the
    state of the job is saved: the number of draws outside loaders, the next epoch of every loader, and the state of
    torch's default generators on each trainer.

    Args:
        state_dict: name -> value, in dicts and lists of any depth: objects with ``state_dict`` and ``load_state_dict``
            (modules, optimizers and schedulers of torch, loaders, :class:`.DistEmbedding`, sparse optimizers),
            :class:`.DistTensor`, tensors, arrays, numbers, strings, None. It must be the same on every trainer, except
            for what is inside of :class:`.OfTrainer`; of tensors, trainer 0's values are saved.
        checkpoint_id: the folder to write; one that each node has on a disk of its own will do. The folder around is
            made if it does not exist. A checkpoint that lies there is replaced once the new one is whole.
        keep: how many checkpoints to keep in the folder around this one, itself among them, at least 2 so that there
            is one if the newest is damaged; all by default. Damaged ones do not count: they stay until there are as
            many newer ones that are whole. Those that this job has not written are read once to see that.
        overwrite: write into a folder that holds something else and no checkpoint. What lies there stays, except files
            of the names that a checkpoint has.

    Raises:
        InvalidArgumentError: an argument is not what it says above, which it names; or the folder holds something else.
        StorageError: a file cannot be written, or a job that came later writes into the same folder. What was saved
            before stays.

    All of these are raised on every trainer, as is what a save in the background (:func:`async_save`) has failed with.

    One job at a time writes into a folder: the one that came last, where a job comes by its first :func:`latest` or
    :func:`load` there, else by its first save. So a job that was stopped and forgotten cannot overwrite the checkpoints
    of its successor. Jobs that only load take the folder from no other.
    """
    _save(state_dict, checkpoint_id, keep, overwrite, background=False)


@collective("trainers")
def async_save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str],
    keep: int | None = None,
    overwrite: bool = False,
) -> None:
    """:func:`save` in the background: copies are made in memory, and a thread writes them while training goes on.

    The thread takes a twelfth of a core, until :func:`wait` or the next save waits for it. A save waits for the one
    before, and raises what that one failed with. Each trainer needs memory for the rows that it owns, their optimizer's
    states included, and keeps it for the next save. Leaving the job waits for what is being written, and raises what it
    failed with. Where MPI lacks MPI_THREAD_MULTIPLE it is the same as :func:`save`. Arguments and errors are those of
    :func:`save`.
    """
    _save(state_dict, checkpoint_id, keep, overwrite, background=True)


def wait() -> None:
    """Wait until what :func:`async_save` has begun is written, and raise what it failed with.

    Raises:
        StorageError: as in :func:`save`; on every trainer.
    """
    saver_of(current()).finish()


def _save(
    state_dict: dict[str, Any],
    checkpoint_id: str | os.PathLike[str],
    keep: int | None,
    overwrite: bool,
    background: bool,
) -> None:
    session = current()
    with session.world.together("saving a checkpoint"):
        directory = as_directory(checkpoint_id)
        _check_dict(state_dict)
        if keep is not None:
            check_integer("keep", keep, 2)
        if not overwrite:
            folder.check_vacant(directory)
    saver_of(session).save(state_dict, directory, keep, background)


def _check_dict(state_dict: object) -> None:
    if not isinstance(state_dict, dict):
        raise InvalidArgumentError(f"state_dict must be a dict (got a {type(state_dict).__name__})")


@collective("trainers")
def load(state_dict: dict[str, Any], *, checkpoint_id: str | os.PathLike[str]) -> None:
    """Go on from a checkpoint, on any number of ranks, servers and nodes.

    Tensors and the rows of DistTensors are overwritten in place, objects get ``load_state_dict``, also in lists, which
    must be as long as they were; other values are replaced by the saved ones. Afterwards every trainer reads the new
    rows. What the checkpoint holds beside is left out. The job goes on with its number of draws, and with torch's
    generators as they were on each trainer; on another number of trainers they are seeded anew. Loaders go on behind
    what was handed out: on as many trainers, with the same seeds and batch size, by the very minibatches that would
    have come; else the trainers share the seeds that are left of the epoch.

    Args:
        state_dict: what to load, by the names under which it was saved; the same on every trainer.
        checkpoint_id: the folder, for example of :func:`latest`.

    Raises:
        ShardFormatError: a file is missing or damaged; names it. Some values may have been overwritten.
        InvalidArgumentError: it holds something else; says what. All values are as they were, unless an object of the
            user's has rows of a DistTensor in its state, and refuses them.

    All of these are raised on every trainer, as is what a save in the background has failed with.
    """
    session = current()
    with session.world.together("loading a checkpoint"):
        directory = as_directory(checkpoint_id)
        _check_dict(state_dict)
    saver = saver_of(session)
    saver.finish()
    saver.writer.come(Peers(session.world), f"loading the checkpoint {str(directory)!r}", directory.parent)
    loading.load(session, state_dict, directory)


@collective("trainers")
def latest(folder_of_checkpoints: str | os.PathLike[str]) -> Path | None:
    """The newest checkpoint in a folder that is whole, or None if there is none.

    All its files are read, by the trainers together, and compared with their checksums. A warning names each newer one
    that is damaged. What is being written in the background is waited for.

    Raises:
        StorageError: the folder is there, and cannot be read; or a save in the background has failed; on every trainer.
    """
    session = current()
    with session.world.together("looking for checkpoints"):
        around = as_directory(folder_of_checkpoints)
    saver = saver_of(session)
    saver.finish()
    peers = Peers(session.world)
    doing = f"looking for checkpoints in {str(around)!r}"
    saver.writer.come(peers, doing, around)
    for name, word in loading.newest_first(peers, around, doing, warn=True):
        saver.writer.whole.pop(word, None)  # read it again
        if loading.is_whole(peers, around / name, doing, saver.writer.whole, word):
            return around / name
    return None
