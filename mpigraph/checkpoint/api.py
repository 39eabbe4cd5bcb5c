"""The public functions ``save``, ``async_save``, ``load``, ``latest``, ``wait``, and the saves of a job.

At most one save at a time is written in the background, by a thread of every trainer.
"""

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpigraph.checkpoint import folder, loading
from mpigraph.checkpoint.folder import Peers, Writer
from mpigraph.checkpoint.loading import as_directory
from mpigraph.checkpoint.saving import Save
from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError, MPIGraphError, check_integer
from mpigraph.log import get_logger
from mpigraph.mpi.messages import Comm
from mpigraph.mpi.wait import join
from mpigraph.rows.segments import RowPool
from mpigraph.rows.transport import nothing
from mpigraph.session.context import BackgroundLoop, Session, current
from mpigraph.trace import clock

_NICE = 10
SHARE = 0.08  # of a core: what training loses where all cores are busy
_KEPT = 1000  # copies of one size, for the next save
_LOOP = 0  # loaders, the other loops of a session, have numbers from 1 on


@collective("trainers")
def save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str],
    keep: int | None = None,
) -> None:
    """Save a job, so that any number of ranks can go on from there.

    Call it between two steps, on every trainer: minibatches that a loader has returned count as used. The checkpoint
    also holds the state of the job: the number of draws outside loaders, the next epoch of every loader, and the states
    of the default generators of torch, numpy and Python on each trainer.

    Args:
        state_dict: name -> value, in dicts and lists of any depth: objects with ``state_dict`` and ``load_state_dict``
            (modules, optimizers and schedulers of torch, loaders, :class:`.DistEmbedding`, sparse optimizers),
            :class:`.DistTensor`, tensors, arrays, numbers, strings, None. It must be the same on every trainer, except
            inside :class:`.OfTrainer`; of tensors, trainer 0's values are saved.
        checkpoint_id: the folder to write, which all trainers see. The folder around it is made if it does not exist.
            An older checkpoint in the folder is replaced once the new one is whole.
        keep: how many checkpoints to keep in the folder around, this one included; at least 2, so that one is left if
            the newest is damaged; by default all. Damaged ones do not count: they stay until there are that many newer
            ones that are whole. Checkpoints of other jobs are read once to verify them.

    Raises:
        InvalidArgumentError: an argument is not as described above; or the folder holds other files.
        OtherVersionError: the folder holds a checkpoint of another version of this library, which stays.
        StorageError: a file cannot be written, or a job that came later writes into the same folder. Older
            checkpoints stay.

    Every trainer raises the same error; the error of an earlier :func:`async_save` is raised here, too.

    One job at a time writes into a folder: the one that came last. A job comes by its first :func:`latest`,
    :func:`load` or save there. So a stopped and forgotten job cannot overwrite the checkpoints of its successor. Jobs
    that only load take the folder from no other job.

    Example:
        >>> state = {"model": layer, "step": 100}
        >>> mpigraph.checkpoint.save(state, checkpoint_id="checkpoints/100")
    """
    _save(state_dict, checkpoint_id, keep, background=False)


@collective("trainers")
def async_save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str],
    keep: int | None = None,
) -> None:
    """Save as :func:`save` does, in the background: copy to memory, and write in a thread while training goes on.

    The thread takes a twelfth of a core until :func:`wait`, the next save or the end of the job waits for it; these
    also raise its error. Each trainer needs memory for the rows that it owns, with their optimizer states, and keeps it
    for the next save. Without MPI_THREAD_MULTIPLE this is :func:`save`. Arguments and errors are those of :func:`save`.
    """
    _save(state_dict, checkpoint_id, keep, background=True)


def wait() -> None:
    """Wait until the checkpoint of :func:`async_save` is written, and raise its error if it failed.

    Raises:
        StorageError: as in :func:`save`; on every trainer.
    """
    saver_of(current()).finish()


def _save(
    state_dict: dict[str, Any],
    checkpoint_id: str | os.PathLike[str],
    keep: int | None,
    background: bool,
) -> None:
    session = current()
    with session.world.together("saving a checkpoint"):
        directory = as_directory(checkpoint_id)
        _check_dict(state_dict)
        if keep is not None:
            check_integer("keep", keep, 2)
        if session.rank == 0:
            folder.check_vacant(directory)
    saver_of(session).save(state_dict, directory, keep, background)


def _check_dict(state_dict: object) -> None:
    if not isinstance(state_dict, dict):
        raise InvalidArgumentError(f"state_dict must be a dict (got a {type(state_dict).__name__})")


@collective("trainers")
def load(state_dict: dict[str, Any], *, checkpoint_id: str | os.PathLike[str]) -> None:
    """Load a checkpoint, on any number of ranks, servers and nodes, and log a line about it on trainer 0.

    Tensors and the rows of DistTensors are overwritten in place, objects get ``load_state_dict``, also in lists, whose
    length must be as saved; other values are replaced by the saved ones. Afterwards every trainer reads the new rows.
    Further values of the checkpoint are ignored. The job continues with its number of draws, and with the
    generators as they were on each trainer; on another number of trainers they are seeded anew. On the same number of
    trainers, with the same seeds and batch size, loaders continue with the very minibatches that would have come next;
    else the trainers share the rest of the epoch's seeds.

    Args:
        state_dict: the values to load, by their saved names; the same on every trainer.
        checkpoint_id: the folder, for example of :func:`latest`.

    Raises:
        ShardFormatError: a file is missing or damaged; names it. Some values may have been overwritten.
        InvalidArgumentError: a value does not fit the saved one; names it. If an object refuses its state, some values
            have been overwritten.

    Every trainer raises the same error; the error of an earlier :func:`async_save` is raised here, too.

    Example:
        >>> newest = mpigraph.checkpoint.latest("checkpoints")
        >>> if newest:
        ...     mpigraph.checkpoint.load(state, checkpoint_id=newest)
    """
    session = current()
    with session.world.together("loading a checkpoint"):
        directory = as_directory(checkpoint_id)
        _check_dict(state_dict)
        if session.rank == 0:
            saver_of(session).writer.come(directory.parent)
    saver_of(session).finish()
    loading.load(session, state_dict, directory)


@collective("trainers")
def latest(folder_of_checkpoints: str | os.PathLike[str]) -> Path | None:
    """Return the newest whole checkpoint in a folder, None without one.

    The trainers together read all its files and compare them with their checksums. A warning names each newer
    checkpoint that is damaged. The call waits for a save in the background.

    Raises:
        OtherVersionError: a checkpoint is of another version of this library; a job that begins anew would replace it.
        StorageError: the folder is there, and cannot be read; or a save in the background has failed.

    Every trainer raises the same error.
    """
    session = current()
    with session.world.together("looking for checkpoints"):
        around = as_directory(folder_of_checkpoints)
        if session.rank == 0:
            saver_of(session).writer.come(around)
    saver = saver_of(session)
    saver.finish()
    peers = Peers(session.world.trainers)
    doing = f"looking for checkpoints in {str(around)!r}"
    for _, name, word in peers.on_first(doing, lambda: folder.checkpoints(around, warn=True)):
        saver.writer.whole.pop(word, None)  # read it again
        if loading.is_whole(peers, around / name, doing, saver.writer.whole, word):
            return Path(around, name)
    return None


class Saver(BackgroundLoop):
    """The saves of one job; ``writer`` is its right to write."""

    def __init__(self, session: Session) -> None:
        """Save nothing yet."""
        self._session = session
        self.writer = Writer()
        self._copies = RowPool(kept=_KEPT, largest=sys.maxsize)
        self._comm: Comm | None = None
        self._thread: threading.Thread | None = None
        self._pace = Pace()
        self._error: MPIGraphError | None = None

    @collective("trainers")
    def save(self, state_dict: dict[str, Any], directory: Path, keep: int | None, background: bool) -> None:
        """Wait for the save before, whose error is raised here, and save a state dict."""
        self.finish()
        session = self._session
        background = background and session.world.threads_may_communicate
        self._pace = Pace()
        copies, pause = (self._copies, self._pace.pause) if background else (None, nothing)
        save = Save(session, self.writer, directory, keep, copies, pause)
        save.take(state_dict)
        if not background:
            save.run(Peers(session.world.trainers))
            return
        if self._comm is None:
            self._comm = session.world.group(range(session.num_trainers))
        session.loops[_LOOP] = self
        self._thread = threading.Thread(
            target=self._run, args=(save, self._comm), name="mpigraph-checkpoint", daemon=True
        )
        self._thread.start()

    def finish(self) -> None:
        """Wait for the save in the background. Raises its error, the same on every trainer."""
        self._join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _join(self) -> None:
        if self._thread is not None:
            self._pace.urgent.set()
            with self._session.world.watchdog.own("the writing of a checkpoint"):
                join(self._thread)  # the user may interrupt it, and wait again later
            self._thread = None

    def abandon(self, because: str) -> None:
        """Do nothing: the save is written to its end."""

    @collective("trainers")
    def stop(self, because: str) -> None:
        """Wait for the save in the background, and log its error."""
        self._join()
        if self._error is not None and self._session.rank == 0:
            get_logger().error("the last checkpoint was not written: %s", self._error)
        if self._comm is not None:
            self._comm.Free()
            self._comm = None

    def _run(self, save: Save, comm: Comm) -> None:
        """Run the thread; foreign errors end the job, as in any thread."""
        world = self._session.world
        with world.watchdog.working():
            try:
                self._pace.step_back()
                save.copy_rows(Peers(comm))
                save.run(Peers(comm))
            except MPIGraphError as error:  # on every trainer
                self._error = error


class Pace:
    """Keeps a thread at a small share of a core.

    A low priority alone does not suffice: a trainer that needs the core is often asleep, waiting for a peer that waits
    for a core. So the thread rests after each piece of work. Waiting for the disk counts as rest.
    """

    def __init__(self) -> None:
        self.urgent = threading.Event()  # somebody waits: rest no more
        self.begun = self.worked = 0.0  # clock and processor time at the begin of a piece of work

    def step_back(self) -> None:
        """Begin, at the lowest priority."""
        if sys.platform == "linux":  # where threads have priorities of their own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        self._work()

    def pause(self) -> None:
        """Rest in proportion to the work since the last call."""
        took, worked = clock() - self.begun, time.thread_time() - self.worked
        self.urgent.wait(max(0.0, worked / SHARE - took))
        self._work()

    def _work(self) -> None:
        self.begun = clock()
        self.worked = time.thread_time()


def saver_of(session: Session) -> Saver:
    """Return the saver of a job, the same on each call."""
    if session.saver is None:
        session.saver = Saver(session)
    assert isinstance(session.saver, Saver)
    return session.saver
