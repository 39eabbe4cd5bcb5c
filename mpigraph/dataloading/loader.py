"""Loaders: every trainer's seeds, batch by batch, sampled ahead of the model. Options of other libraries' loaders.

``seeds -> sample -> fetch -> queue -> model``: everything before the queue runs in a thread, ``num_prefetch`` batches
ahead. Loops need not be in step.

Where MPI lacks ``MPI_THREAD_MULTIPLE`` nothing runs in the background: the consumer's thread makes each batch, and a
trainer that has finished or left its loop waits there, in the others' rounds, until all are done. Trainers must then
end their loops in the same order.
"""

import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from inspect import signature
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypedDict

import torch
from typing_extensions import TypeVar, Unpack  # torch depends on it

from mpigraph.arrays import I64
from mpigraph.collective import collective
from mpigraph.dataloading.edge_sampler import EdgePredictionSampler
from mpigraph.dataloading.fetcher import Stages, check_cache, open_caches
from mpigraph.dataloading.sampler import Sampler, check_graph, needs_of
from mpigraph.dataloading.seeds import EpochPlan, Passes, Seeds, TypedIds
from mpigraph.dataloading.to_device import ToDevice
from mpigraph.dataloading.work_ahead import LoaderStats, Pipeline, Prefetch
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.typed_ids import Names
from mpigraph.errors import ClosedError, InvalidArgumentError, check_integer
from mpigraph.log import get_logger
from mpigraph.mpi.wait import UNINTERRUPTED
from mpigraph.recording import delayed, step
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.session.context import CREATING, Session, check_seed, current
from mpigraph.session.control import Operation
from mpigraph.trace import met, span

Batch = TypeVar("Batch", default=Any)
"""What a loader yields."""


class Foreign(TypedDict, total=False):
    """Options of DGL's and PyTorch's loaders, of every version, that ours lack and that change nothing here.

    They are about processes that sample, copies to a GPU, and how ids are shared: a trainer has threads, a stream of
    its own, and its own ids.
    """

    async_load: object
    cpu_worker_affinity_cores: object
    ddp_seed: object
    gb_padding: object
    gpu_cache: object
    in_order: object
    multiprocessing_context: object
    num_workers: object
    persistent_workers: object
    pin_memory_device: object
    pin_prefetcher: object
    prefetch_factor: object
    timeout: object
    use_alternate_streams: object
    use_cpu_worker_affinity: object
    use_ddp: object
    use_prefetch_thread: object
    use_uva: object
    worker_init_fn: object


class Options(Foreign, total=False):
    """The options that type checkers know of loaders of nodes and of edges, besides those that say what they yield."""

    batch_size: int
    shuffle: bool
    drop_last: bool
    features: Names
    labels: Names
    num_prefetch: int
    seed: int | None
    cache: str | int | None
    lookahead: int | None
    pin_memory: bool
    queue_size: int | None


# Others raise an error that says what to do instead.
_INSTEAD = {
    "cache_policy": "a full cache keeps the rows that are read soonest; cache= is its size",
    "g_sampling": "neighbours are sampled from the graph of the edges: leave it out; what to leave out of the graph is "
    "exclude=, a fanout of 0 for a relation, or a sampler of your own",
    "load_input": "name the features: features=[...] gathers them for the input nodes",
    "load_output": "name the features: labels=[...] gathers them for the output nodes",
    "collate_fn": "the sampler makes the minibatches: change them in the loop, or use DistDataLoader(ids, batch_size, "
    "collate_fn=...)",
    "generator": "order and draws depend on seed=",
    "sampler": "ids go in their order, or with shuffle=True in another one in each epoch; the sampler of blocks is "
    "graph_sampler",
    "batch_sampler": "ids go in batches of batch_size; other batches are a loop over sampler.sample(g, ids)",
}


def check_foreign(loader: type, options: Mapping[str, object]) -> None:
    """Check the options of a loader that are not its own, by name; None counts as absent.

    Raises:
        InvalidArgumentError: one would change something, or is unknown; says what to do.
    """
    for name, value in options.items():
        if name in Foreign.__optional_keys__ or (value is None and name in _INSTEAD):
            continue
        if name in _INSTEAD:
            raise InvalidArgumentError(f"{loader.__name__} takes no {name}: {_INSTEAD[name]}")
        close = get_close_matches(name, signature(loader.__init__).parameters, 1)  # type: ignore[misc]
        raise InvalidArgumentError(
            f"unknown argument {name!r} of {loader.__name__}" + (f" (do you mean {close[0]}?)" if close else "")
        )


_CLOSED = "the loader was closed"


class _Epochs:
    """Runs a loader's epochs; does not know the loader, so the loader can be dropped.

    Attributes:
        depth: how many minibatches a thread is ahead; 0 without a thread.
        caches: numbers of the caches, which are freed with it.
    """

    @collective("trainers")
    def __init__(self, session: Session, seed: int, depth: int) -> None:
        self.session = session
        self._seed = seed
        self.depth = depth
        self._number = session.control.call(Operation.CREATE_LOADER, doing=CREATING)
        self._service = NeighborService(session.store)
        self.pipeline = Pipeline()
        self.caches: list[int] = []
        self._last: Prefetch[Any] | None = None
        self._closed = self._dropped = False
        self._over = True  # no pass uses the caches

    def make_way(self) -> None:
        """Wait until the epoch in progress is over on every trainer, so that another one can begin."""
        self.session.check_open()
        if self._closed:
            raise ClosedError(_CLOSED)
        self.stop("another pass over this loader was begun: it makes one at a time, so make a loader for each")

    def start(self, plan: EpochPlan, seeds_at: Callable[[I64], object], stages: Stages[Any]) -> Prefetch[Any]:
        """Begin an epoch, after :meth:`make_way`; ``seeds_at`` returns seeds by position."""
        session, service = self.session, self._service
        service.purpose = f"epoch {plan.epoch} of loader {self._number}"
        contexts = plan.contexts(self._seed)

        def sample(positions: I64) -> Any:
            with session.sampling_with(service, next(contexts)):
                return stages.sample(seeds_at(positions))

        self._over = False
        produce = partial(self.pipeline.produce, plan.batches(), sample, stages)
        self._last = Prefetch(produce, self._end, self.depth, session.world)
        session.loops[self._number] = self._last
        return self._last

    def _end(self) -> None:
        """End a pass, in the thread that has made it; the last one of a dropped loader frees the caches."""
        self.session.store.exchange.leave()
        self._over = True  # before the look: either this thread or the one that drops sees what the other did
        if self._dropped:
            self._drop()

    def stop(self, because: str) -> None:
        """End the epoch in progress, telling its consumer why, and wait until every trainer has ended its own."""
        if self._last is not None:
            self._last.abandon(because)
            with self.session.world.watchdog.own("the end of a loader's epoch on every trainer"):
                self._last.stop(because)
            self._last = None  # only now: after a Ctrl-C the next epoch waits for this one, too

    def close(self) -> None:
        """End the epoch in progress, and begin no other."""
        self._closed = True
        self.stop(_CLOSED)

    def retire(self) -> None:
        """Drop the caches once no thread uses them."""
        if self._last is not None:
            self._last.abandon(_CLOSED)
        self._dropped = True
        if self._over:
            self._drop()

    def _drop(self) -> None:
        for number in self.caches:
            self.session.control.drop(number)


class DistDataLoader(Generic[Batch]):
    """Batches of a dataset of ids, made by the user's ``collate_fn``.

    Every rank yields its own ids, each once, in the same number of batches (see ``dataloading/seeds.py``). One epoch
    runs at a time: beginning another one ends the one before, whose iterator then raises ClosedError. Order, batches
    and draws depend only on ``seed`` and the number of the epoch; what a ``collate_fn`` samples depends on the batch,
    too, and differs between equal batches of an epoch. So a loader that is made anew in each epoch repeats
    the first one, with a warning, unless you set its epoch (:meth:`set_epoch`) or another ``seed``.

    Trainers may take different numbers of steps and leave early.
    """

    @collective("trainers")
    def __init__(
        self,
        dataset: TypedIds,
        batch_size: int,
        shuffle: bool = False,
        collate_fn: Callable[..., object] | None = None,
        drop_last: bool = False,
        queue_size: int | None = None,
        *,
        num_prefetch: int = 2,
        seed: int | None = None,
        **foreign: Unpack[Foreign],
    ) -> None:
        """Plan the batches.

        Args:
            dataset: int[n], this rank's ids; or type -> int[n], whose batches mix the types.
            batch_size: most ids of a batch.
            shuffle: another order in each epoch.
            collate_fn: makes a batch of a list of ids, or of ``(type, id)``; by default a tensor of the ids, or type ->
                tensor. It may sample and read features.
            drop_last: leave out ids that do not fill a batch.
            queue_size: DGL's name for ``num_prefetch``.
            num_prefetch: batches to prefetch; 0 makes each when it is asked for. The batches are the same.
            seed: seed of order and draws; the job's by default.
            foreign: further options of DGL's and PyTorch's loaders, see :func:`.check_foreign`.

        Raises:
            InvalidArgumentError: an argument is wrong; on every trainer.
            CollectiveError: other trainers are in another call; on every trainer.
        """
        session = current()
        with arguments(session):
            check_foreign(type(self), foreign)
            batch_size = check_integer("batch_size", batch_size, 1)
            depth = check_integer("num_prefetch", num_prefetch if queue_size is None else queue_size, 0)
            has_own_seed = seed is not None
            seed = session.store.seed if seed is None else check_seed(seed)
            if collate_fn is not None and not callable(collate_fn):
                raise InvalidArgumentError(f"collate_fn must be callable (got {collate_fn!r})")
            seeds = dataset if isinstance(dataset, Seeds) else Seeds(dataset, "dataset")
        if depth > 0 and not session.world.threads_may_communicate:
            get_logger().warning("MPI lacks MPI_THREAD_MULTIPLE: batches are made without prefetching")
            depth = 0
        self._by_item = collate_fn is not None
        self._stages: Stages[Any] = Stages(dataset, collate_fn or attrgetter("ids"))
        self._epochs = _Epochs(session, seed, depth)  # its checked call before the plain ones below
        self._retire = weakref.finalize(self, self._epochs.retire)
        self._retire.atexit = False
        self._passes = Passes(session.world, session.rank, seeds, batch_size, shuffle, drop_last, seed)
        if not has_own_seed and (shuffle or collate_fn is not None):
            self._passes.begun = session.loaders_begun
        self._running: Iterator[Batch] | None = None
        self._passes.fingerprint["loader"] = type(self).__name__
        session.num_loaders += 1
        session.loaders[session.num_loaders] = self

    @property
    def dataset(self) -> TypedIds:
        """This rank's ids, or type -> ids."""
        return self._stages.seeds

    def __len__(self) -> int:
        """Number of minibatches that this rank yields in an epoch; a resumed epoch has fewer left."""
        return len(self._passes.bounds) - 1

    @property
    def expected_idxs(self) -> int:
        """DGL's name for ``len``."""
        return len(self)

    def __repr__(self) -> str:
        return repr(self._passes)

    @property
    def epoch(self) -> int:
        """Number of the epoch in progress, else of the next one; a resumed script continues there."""
        return self._passes.epoch

    def set_epoch(self, epoch: int) -> None:
        """Number the next epoch, for example when training resumes. Raises InvalidArgumentError if it is no integer.

        If a loaded state is in this epoch, only the rest of it follows.
        """
        self._passes.set_epoch(check_integer("epoch", epoch, 0))

    def state_dict(self) -> dict[str, Any]:
        """Return this trainer's position: the epoch, the batches handed out, and the seeds left.

        A batch counts as used once the loop over the loader has it; prefetched ones do not count. So call it between
        two steps. An epoch that was left by ``break`` is over, as the next pass begins another one.
        """
        return self._passes.state_dict()

    @collective("trainers")
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state: the next pass yields the rest of its epoch.

        With as many trainers as before and the same seeds on each, batch size and options, the same batches and draws
        follow as without the interruption. Else the trainers share the seeds that are left, each once; later epochs are
        those of a job that began with this number of trainers. Where fewer seeds are left than there are trainers,
        some have no minibatch of that epoch.

        Raises:
            InvalidArgumentError: it is of other seeds, another graph or sampler, or another ``seed``; names the
                difference.
        """
        self._passes.load_state_dict(state_dict)

    def place(self) -> tuple[int, str]:
        """Return the number of the next epoch, and the kind of loader."""
        return self._passes.next, f"{type(self).__name__}, {self._passes.fingerprint.get('sampler')}"

    def __iter__(self) -> Iterator[Batch]:
        self._epochs.make_way()
        with UNINTERRUPTED:  # an epoch that has begun must be known, so that the next one waits for it
            plan, before = self._passes.begin(), self.stats()
            seeds_at: Callable[[I64], object] = plan.seeds.items if self._by_item else plan.seeds.chosen
            batches = self._epochs.start(plan, seeds_at, self._stages)
            return _hold(self, plan, before, map(self._stages.receive, batches))

    def __next__(self) -> Batch:
        """Return the next batch of the loader's own pass: DGL's loaders are their own iterators."""
        if self._running is None:
            self._running = iter(self)
        try:
            return next(self._running)
        except BaseException:
            self._running = None
            raise

    def stats(self) -> LoaderStats:
        """Return this trainer's counts and the seconds of each stage since the loader was made.

        ``loader.stats().since(before)`` is the difference to an earlier call. With ``MPIGRAPH_LOG_LEVEL=INFO`` each
        trainer prints that of an epoch at its end.
        """
        return self._epochs.pipeline.stats()

    @collective("trainers", "even in the middle of an epoch")
    def close(self) -> None:
        """End the epoch in progress; the caches are freed at the next collective call."""
        self._epochs.close()
        self._retire()


@contextmanager
@collective("trainers", "if the block raises")
def arguments(session: Session) -> Iterator[None]:
    """Raise an error in a loader's arguments on all trainers, in the first call that all make."""
    try:
        yield
    except Exception as error:
        session.control.call(Operation.CREATE_LOADER, doing=CREATING, error=error)
        raise


def _hold(
    loader: DistDataLoader[Batch], plan: EpochPlan, before: LoaderStats, batches: Iterator[Batch]
) -> Iterator[Batch]:
    """Iterate, keeping the loader alive: ``for batch in DistDataLoader(...)`` has no other reference to it.

    At the end, log what came to the stats since ``before``.
    """
    totals = loader._epochs.pipeline.totals
    try:
        while True:
            try:
                met_before = met()
                with span("wait", totals=totals) as waiting:
                    batch = next(batches)
            except StopIteration:
                break
            num_seeds = plan.next_size
            plan.taken += 1
            delayed_before = delayed()
            with span("step", totals=totals) as using:
                yield batch
            step(waiting, using, met_before, delayed_before, num_seeds, partial(_num_inputs, batch))
    finally:
        loader._passes.end(plan)
    get_logger().info("epoch %d of a loader: %s", plan.epoch, loader.stats().since(before))


def _num_inputs(batch: object) -> int:
    """Return the number of input nodes of a minibatch in one of the library's forms, else -1."""
    nodes: Any = batch[0] if isinstance(batch, tuple) and batch else getattr(batch, "num_nodes", None)
    if isinstance(nodes, int):
        return nodes
    ids = [*nodes.values()] if isinstance(nodes, dict) else [nodes]
    return sum(map(len, ids)) if all(isinstance(part, torch.Tensor) and part.ndim for part in ids) else -1


class Batching(NamedTuple):
    """The options of all loaders, as :class:`DistDataLoader` describes them."""

    batch_size: int
    shuffle: bool
    drop_last: bool
    queue_size: int | None
    num_prefetch: int
    seed: int | None


class LoaderOptions(NamedTuple):
    """The options that loaders of nodes and of edges share, as :class:`.DistNodeDataLoader` describes them."""

    device: torch.device | str | None
    features: Names
    labels: Names
    output: str
    seed_times: Any  # ``input_time`` of nodes, ``edge_label_time`` of edges
    cache: str | int | None
    lookahead: int | None
    pin_memory: bool


class SampledDataLoader(DistDataLoader[Batch]):
    """The common part of the loaders of nodes and of edges: a sampler makes the batches.

    Attributes:
        cache_bytes: memory on this node that its caches take once they are full.
    """

    @collective("trainers")
    def __init__(
        self,
        g: DistGraph,
        ids: TypedIds,
        sampler: Sampler,
        options: LoaderOptions,
        batching: Batching,
        foreign: Mapping[str, object],
    ) -> None:
        """Plan the batches, and prepare what the sampler needs of all ranks before the first one."""
        with arguments(check_graph(g).session):
            check_foreign(type(self), foreign)
            if options.output not in ("dgl", "pyg"):
                raise InvalidArgumentError(f"output must be 'dgl' or 'pyg' (got {options.output!r})")
            mover = ToDevice(options.device, options.pin_memory)
            stages = self._make_stages(g, ids, sampler, options, mover.pin_memory)
            needs = needs_of(sampler)
            weights = {} if needs.weights is None else g.edge_weights(needs.weights)
            caching = check_cache(options.cache, options.lookahead)
            if needs.times is not None:
                g.times(needs.times.attr)
            seeds: Any = Seeds(stages.seeds, "dataset", stages.times, placed=stages.placed)
        super().__init__(seeds, **batching._asdict())
        if isinstance(sampler, EdgePredictionSampler):
            sampler.look_up_reverse(g, ids)
        self._stages = mover.of(stages, own_thread=self._epochs.depth > 0)
        self._passes.fingerprint |= {"graph": g.identity, "sampler": needs.description}
        if batching.seed is None and (batching.shuffle or needs.random):
            self._passes.begun = g.session.loaders_begun
        caches = open_caches(g.session, caching, stages.inputs)
        self._epochs.pipeline.lookahead = caching.lookahead if caches else 0
        self._epochs.caches = [cache.number for cache in caches]
        self.cache_bytes = sum(cache.nbytes for cache in caches)
        if needs.times is not None:
            g.prepare_times(needs.times.attr)
        if weights:
            g.session.control.call(Operation.PREPARE_WEIGHTS, numbers=sorted(weights.values()))

    @abstractmethod
    def _make_stages(
        self, g: DistGraph, ids: Any, sampler: Any, options: LoaderOptions, pin_memory: bool
    ) -> Stages[Any]:
        """Return the stages that make minibatches of ``ids``; features come in pinned memory if ``pin_memory``."""
