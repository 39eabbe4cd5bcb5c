"""A training step in its pieces, one after the other, and the same step behind a loader that samples ahead."""

import time
from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mpigraph.cli.bench.rounds import TimedService
from mpigraph.cli.bench.rows import is_far
from mpigraph.cli.bench.settings import Settings
from mpigraph.dataloading.loader import DistNodeDataLoader
from mpigraph.dataloading.sampler import NeighborSampler
from mpigraph.distgraph.dtypes import to_torch
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.split import node_split
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.graphs.block import Block
from mpigraph.graphs.fields import NID
from mpigraph.nn.sageconv import SAGEConv
from mpigraph.sampling.hops import RandomContext
from mpigraph.session.context import Session

__all__ = ["Pipeline"]

_CLASSES = 47
_FEWEST, _MOST = 3, 500
_WARM_UP = 2


class _Sage(nn.Module):
    """Layers of GraphSAGE with the mean."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in pairwise(widths))

    def forward(self, blocks: list[Block], h: torch.Tensor) -> torch.Tensor:
        for block, layer in zip(blocks[:-1], self.layers[:-1], strict=True):
            h = F.relu(layer(block, h))
        last: torch.Tensor = self.layers[-1](blocks[-1], h)
        return last


class Pipeline:
    """Sampling, gathering and computing on one trainer; every trainer has a model of its own.

    Collective on the trainers: construction and the ``measure_`` methods.
    """

    def __init__(self, session: Session, g: DistGraph, feature: DistTensor, settings: Settings) -> None:
        """Take this trainer's nodes as seeds and make a model."""
        self._session, self._g, self._feature, self._settings = session, g, feature, settings
        self._sampler = NeighborSampler(settings.layers(), return_eids=False)
        mine = node_split(torch.ones(g.num_nodes(), dtype=torch.bool))
        self._nodes = np.random.default_rng(session.rank).permutation(mine.numpy())
        self._buffer = np.empty((0, *feature.shape[1:]), feature.rows.window.dtype)
        layers = [settings.hidden] * (len(settings.layers()) - 1)
        self._model = _Sage([feature.shape[1], *layers, _CLASSES])
        self._optimizer = torch.optim.Adam(self._model.parameters())

    def measure_first(self) -> float:
        """Seconds until a new loader has given its first minibatch with its rows. Collective on the trainers."""
        begin = time.perf_counter()
        loader = self._loader(1)
        for _ in loader:
            pass
        spent = time.perf_counter() - begin
        loader.close()
        return spent

    def measure_pieces(self, seconds: float) -> dict[str, float | None]:
        """Time the pieces of a step, with nothing ahead, and count what travels. Collective on the trainers."""
        service = TimedService.open(self._session)
        self._session.use(service, RandomContext(0, 0))
        try:
            return self._pieces(service, seconds)
        finally:
            self._session.use(None, None)
            service.drop(self._session)

    def _pieces(self, service: TimedService, seconds: float) -> dict[str, float | None]:
        warm = [self._one_step(service, seeds) for seeds in self._batches(_WARM_UP)]
        steps = self._agree(seconds, warm[-1]["step_total"])
        before = self._traffic(service)
        rows = [self._one_step(service, seeds) for seeds in self._batches(steps)]
        middle: dict[str, float | None] = {name: median(row[name] for row in rows) for name in rows[0]}
        for name, count in self._traffic(service).items():
            middle[name] = (count - before[name]) / steps
        sampling = sum(row["step_sample"] + row["step_exchange"] for row in rows) / 1e3
        middle["edges_per_s"] = sum(row["edges"] for row in rows) / sampling / 1e6
        del middle["edges"]
        if self._session.world.all_near:
            middle["step_exchange"] = middle["step_far"] = None
        return middle

    def measure_ahead(self, seconds: float, step_ms: float) -> dict[str, float | None]:
        """Time steps behind a loader that samples and gathers two minibatches ahead. Collective on the trainers."""
        steps = self._agree(seconds, step_ms)
        loader = self._loader(steps + _WARM_UP)
        waits, ends = list[float](), list[float]()
        begin = time.perf_counter()
        for _, _, blocks in loader:
            waits.append(time.perf_counter() - begin)
            self._compute(blocks, blocks[0].srcdata[self._feature.name])
            begin = time.perf_counter()
            ends.append(begin)
        loader.close()
        step = (ends[-1] - ends[_WARM_UP - 1]) / steps
        wait = sum(waits[_WARM_UP:]) / steps
        return {"step_prefetch": step * 1e3, "step_wait": wait * 1e3, "batches_per_s": 1 / step}

    def _agree(self, seconds: float, step_ms: float) -> int:
        """How many steps fill the time on the slowest trainer."""
        return min(
            _MOST, max(_FEWEST, self._session.world.allreduce_minmax(int(seconds / step_ms * 1e3), largest=False))
        )

    def _batches(self, count: int) -> Iterator[torch.Tensor]:
        """Seeds, beginning again when all nodes were taken."""
        size = min(self._settings.batch_size, len(self._nodes))
        for batch in range(count):
            place = np.arange(batch * size, (batch + 1) * size) % max(1, len(self._nodes))
            yield torch.from_numpy(self._nodes[place])

    def _loader(self, steps: int) -> DistNodeDataLoader:
        seeds = torch.cat(list(self._batches(steps)))
        size = min(self._settings.batch_size, len(self._nodes))
        return DistNodeDataLoader(
            self._g,
            seeds,
            self._sampler,
            batch_size=max(1, size),
            num_prefetch=2,
            features=[self._feature.name],
        )

    def _one_step(self, service: TimedService, seeds: torch.Tensor) -> dict[str, float]:
        """One step; milliseconds of each piece, and how many edges."""
        exchanged, start = service.exchange_seconds, time.perf_counter()
        _, _, blocks = self._sampler.sample_blocks(self._g, seeds)
        sampled, exchange = time.perf_counter(), service.exchange_seconds - exchanged
        ids = blocks[0].srcdata[NID].numpy()
        rows = self._gather(ids)
        gathered = time.perf_counter()
        self._compute(blocks, rows)
        end = time.perf_counter()
        window = self._feature.rows.window
        far = is_far(window, ids)
        near_alone = self._time_near(ids[~far]) if far.any() else gathered - sampled
        near = min(near_alone, gathered - sampled)
        spent = {
            "step_sample": sampled - start - exchange,
            "step_exchange": exchange,
            "step_near": near,
            "step_far": gathered - sampled - near,
            "step_compute": end - gathered,
            "step_total": end - start,
        }
        found = {name: value * 1e3 for name, value in spent.items()}
        found["edges"] = float(sum(block.num_edges() for block in blocks))
        return found

    def _time_near(self, ids: Any) -> float:
        """Seconds to gather a step's near rows by themselves; the rest of its gather is what far rows cost."""
        begin = time.perf_counter()
        self._gather(ids)
        return time.perf_counter() - begin

    def _gather(self, ids: Any) -> torch.Tensor:
        """Rows in a buffer that is used again."""
        if len(ids) > len(self._buffer):
            self._buffer = np.empty((len(ids) * 5 // 4, *self._buffer.shape[1:]), self._buffer.dtype)
        return to_torch(self._feature.rows.gather(ids, self._buffer[: len(ids)]), self._feature.rows.dtype)

    def _compute(self, blocks: list[Block], rows: torch.Tensor) -> None:
        """One step of the model; which labels there are makes no difference to its time."""
        scores = self._model(blocks, rows.float())
        loss = F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64))
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def _traffic(self, service: TimedService) -> dict[str, float]:
        """What sampling and gathering have moved so far."""
        if self._session.world.all_near:
            return {"rounds_per_batch": 0, "messages_per_batch": 0}
        sampling, rows = service.channel, self._session.world.transport.traffic
        return {
            "rounds_per_batch": sampling.rounds,
            "messages_per_batch": sampling.messages + rows.messages,
            "sampling_bytes_per_batch": sampling.bytes / 1e6,
            "row_bytes_per_batch": (rows.bytes_sent + rows.bytes_received) / 1e6,
        }
