"""The forecast for each number of nodes, as a table, as JSON and as a picture."""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import F64
from mpigraph.cli.forecast.timing import Machine, Model, simulated_of, steps
from mpigraph.cli.forecast.traffic import Cluster, Graph, Minibatch, Sampled, Workload, simulate
from mpigraph.cli.numbers_and_sizes import bytes_of, integers
from mpigraph.cli.pipes import table
from mpigraph.cli.plan import plan
from mpigraph.config import alone
from mpigraph.errors import InvalidArgumentError, PartitionError, check_integer
from mpigraph.memory import in_units
from mpigraph.partition.output_folder import check_writable
from mpigraph.reports.charts import curves
from mpigraph.reports.page import svg_file
from mpigraph.reports.summary import read, replacing
from mpigraph.rows.row_cache import cache_memory
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.part_config import PartConfig

_SHARES = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the remote rows, that the compared caches hold
_AS_GOOD = 1.02  # a smaller cache is better if its step takes at most so much longer
_REPEATS = 3  # forecasts with other draws
_MOST_ASKED = 100_000  # requests in one of them
_SHORT = 4  # an epoch of at most so many times the minibatches that count is forecast whole, with its end
_MOST_RANKS = 1 << 12  # of a job; messages grow with their square
_STEPS = (4, 40)  # fewest and most of one of them
_WITHIN = 0.1  # either way, for what is not drawn; an assumption


@dataclass(frozen=True)
class Forecast:
    """A job on so many nodes. Seconds are (low, middle, high); the rest are means of a trainer's minibatch."""

    nodes: int  # of the cluster
    trainers: int  # on each node
    parts: int  # of the graph, which the nodes share
    step: tuple[float, float, float]  # seconds of steps
    epoch: tuple[float, float, float]  # seconds of an epoch
    bound: str  # without it steps would be shortest
    messages: float  # asked and answered
    mbytes: float  # of these messages
    cache: int  # bytes of a node's cache
    cached: float  # share of the remote rows that it saves
    memory: int  # bytes of the largest node, before minibatches and model


class _Cached(NamedTuple):
    """A size of the cache, and what trainers do with it."""

    nbytes: int
    minibatches: list[Minibatch]


def run(arguments: argparse.Namespace) -> int:
    """Print a forecast and return the exit status.

    Raises:
        InvalidArgumentError: an option is wrong.
        PartitionError, ShardFormatError: the graph cannot be read.
        StorageError: the report cannot be read.
    """
    clusters = [
        Cluster(nodes, trainers, check_integer("--servers", arguments.servers, 0))
        for nodes in dict.fromkeys(integers("--nodes", arguments.nodes, 1))
        for trainers in dict.fromkeys(integers("--trainers", arguments.trainers, 1))
    ]
    for nodes, trainers, servers in clusters:
        check_integer("--nodes times --trainers and --servers", nodes * (trainers + servers), 1, _MOST_RANKS)
    _check(arguments)
    model = _model(arguments)
    measured = list(_scaling(arguments.measured))
    configs = {config.num_parts: config for config in map(PartConfig.read, arguments.part_configs)}
    if len({config.graph_name for config in configs.values()}) > 1:
        raise PartitionError("PARTS must be of one graph, each in another number of parts")
    forecasts: list[Forecast] = []
    notes: list[str] = []
    with ExitStack() as undo:
        known: dict[int, Graph] = {}
        for cluster in clusters:
            # as many as nodes, else the fewest that give each node several, else the most
            parts = min((number for number in configs if number % cluster.nodes == 0), default=max(configs))
            if parts != cluster.nodes and arguments.cut and cluster.nodes > 1:
                folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="mpigraph-forecast-"))
                configs[cluster.nodes] = _cut(configs[parts], cluster.nodes, folder)
                parts = cluster.nodes
            notes += _note(cluster.nodes, parts)
            if parts not in known:
                known.clear()
                with PartFiles(configs[parts]) as files:
                    known[parts] = Graph(files)
            _say(f"{cluster.nodes} nodes, {cluster.trainers} trainers on each")
            forecasts.append(_forecast(known[parts], cluster, model, arguments))
    best = {
        nodes: min((f for f in forecasts if f.nodes == nodes), key=lambda f: f.epoch[1])
        for nodes in dict.fromkeys(f.nodes for f in forecasts)
    }
    if arguments.json:
        print(json.dumps([asdict(forecast) for forecast in forecasts], indent=1), flush=True)
    else:
        notes += measured
        memory = None if arguments.memory is None else bytes_of("--memory", arguments.memory)
        print("\n".join([*_as_text(forecasts, best, memory), *dict.fromkeys(notes)]), flush=True)
    if arguments.svg:
        with replacing(Path(arguments.svg)) as temporary:
            temporary.write_text(_picture(list(best.values())), encoding="utf-8")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    integers("--fanouts", arguments.fanouts, -1)
    if arguments.memory is not None:
        bytes_of("--memory", arguments.memory)
    if arguments.cache not in ("none", "best"):
        bytes_of("--cache", arguments.cache)
    counts = {"batch_size": 1, "minibatches": 1, "warm": 0, "simulated_nodes": 1}
    for name, least in counts.items():
        check_integer(f"--{name.replace('_', '-')}", getattr(arguments, name), least)
    if arguments.machine is not None:
        Machine.read(arguments.machine, 1.0)
    if arguments.svg:
        check_writable(Path(arguments.svg).parent)


def _model(arguments: argparse.Namespace) -> Model:
    """Return the model's times: given, of a report's steps, of a bench's, or 0."""
    gradients = bytes_of("--gradients", arguments.gradients)
    if arguments.model_ms:
        try:
            times = [float(word) / 1e3 for word in arguments.model_ms.split(",")]
        except ValueError:
            times = [-1.0]
        if not all(0 <= seconds < np.inf for seconds in times):
            raise InvalidArgumentError(f"--model-ms must be milliseconds such as 80 (got {arguments.model_ms!r})")
        return Model(times, False, gradients)
    if arguments.report:
        ranks = read(Path(arguments.report)).trainers
        times = [max(s - m, 0.0) for rank in ranks for s, m in zip(rank.steps.seconds, rank.steps.meet, strict=False)]
        if not times:
            raise InvalidArgumentError(f"--report {arguments.report} has no steps: give --model-ms")
        return Model(times, True, gradients, asks=True)
    return _bench_model(arguments.machine, Model([0.0], False, gradients))


def _cut(config: PartConfig, parts: int, folder: str) -> PartConfig:
    _say(f"cutting {parts} parts")
    words = [sys.executable, "-m", "mpigraph", "partition", str(config.path), "--parts", str(parts)]
    words += ["--method", "multilevel", "-o", folder]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=alone())
    if done.returncode:
        raise InvalidArgumentError(f"--cut: {(done.stderr.strip().splitlines() or ['partition failed'])[-1]}")
    return PartConfig.read(str(next(Path(folder).glob("*.json"))))


def _note(nodes: int, parts: int) -> Iterator[str]:
    if nodes == parts or nodes == 1:
        return
    if parts % nodes == 0:
        yield (f"{nodes} nodes: each has {parts // nodes} of {parts} parts; with {nodes} parts fewer edges cross nodes")
    else:
        bounds = "so most neighbours are remote, and times are upper bounds"
        remedy = f"cut {nodes} parts (--cut, or PARTS of as many) for a forecast of such"
        yield f"{nodes} nodes: {parts} parts are divided among them by ids, {bounds}; {remedy}"


def _forecast(graph: Graph, cluster: Cluster, model: Model, arguments: argparse.Namespace) -> Forecast:
    fanouts = integers("--fanouts", arguments.fanouts, -1)
    batch_size = arguments.batch_size
    row_bytes = sum(nbytes for _, _, nbytes in graph.features)
    sizes = plan(graph.config, cluster.nodes, cluster.trainers, cluster.servers)
    limit = None if arguments.memory is None else max(bytes_of("--memory", arguments.memory) - sizes.memory, 0) // 2
    work = Workload(fanouts, batch_size, None)
    at = np.linspace(0, cluster.nodes - 1, min(arguments.simulated_nodes, cluster.nodes)).astype(int).tolist()
    simulate(graph, cluster, work, nodes=[0], minibatches=1)  # loads the kernels, whose time would count
    of_epoch = -(-len(graph.seeds) // (cluster.nodes * cluster.trainers * batch_size))
    whole = of_epoch if of_epoch <= _SHORT * arguments.minibatches else 1

    sampled: Sampled = {}

    def cached(slots: int | None) -> _Cached:
        warm, counted = (-(-n // whole) * whole for n in (arguments.warm if slots else 1, arguments.minibatches))
        work_here, count = work._replace(slots=slots), warm + counted
        simulated = simulate(graph, cluster, work_here, nodes=at, minibatches=count, epochs=1 << 20, sampled=sampled)
        of_each: dict[int, list[Minibatch]] = {}
        for minibatch in simulated:
            of_each.setdefault(minibatch.trainer, []).append(minibatch)
        nbytes = sum(
            cache_memory(graph.config.book.num_nodes(t), (slots or 0) * cluster.trainers, of_row) if slots else 0
            for t, _, of_row in graph.features
        )
        return _Cached(nbytes, [m for each in of_each.values() for m in each[min(warm, len(each) - 1) :]])

    caches = [cached(slots) for slots in _slots(graph, cluster, arguments.cache, limit)]
    machine = Machine()
    if arguments.machine is not None:
        first = caches[0].minibatches
        spent = sum(m.sample + sum(m.draw) for m in first)
        machine = Machine.read(arguments.machine, sum(m.edges for m in first) / max(spent, 1e-9))

    def times(cache: _Cached, node: Machine, what: Model, repeat: int = 0) -> F64:
        asked = sum(map(len, (hop for m in cache.minibatches for hop in m.asked))) / len(cache.minibatches) + 1
        most = int(_MOST_ASKED / (asked * simulated_of(node, cluster).nodes * cluster.trainers))
        return steps(node, cluster, what, cache.minibatches, row_bytes, min(max(most, _STEPS[0]), _STEPS[1]), repeat)

    each = [(times(cache, machine, model), cache) for cache in caches]
    quickest = min(seconds.mean() for seconds, _ in each)
    first_drawn, cache = next(one for one in each if one[0].mean() <= _AS_GOOD * quickest)
    drawn = [first_drawn, *(times(cache, machine, model, repeat) for repeat in range(1, _REPEATS))]
    means = [float(seconds.mean()) for seconds in drawn]
    without = {
        "latency": (replace(machine, latency=0.0), model),
        "bandwidth": (replace(machine, bandwidth=np.inf, receive=0.0), model),
        "processors": (
            replace(machine, speed=np.inf, rows=np.inf, message=0.0, request=0.0, byte=0.0, minibatch=0.0),
            model,
        ),
        "model": (machine, replace(model, seconds=[0.0])),
    }
    bound = min(without, key=lambda name: float(times(cache, *without[name]).mean()))
    low, middle, high = np.quantile(np.concatenate(drawn), (0.1, 0.5, 0.9)).tolist()
    remote = sum(m.remote for m in cache.minibatches)
    moved = [one for m in cache.minibatches for hop in m.asked for one in hop]
    return Forecast(
        cluster.nodes,
        cluster.trainers,
        graph.config.num_parts,
        (low * (1 - _WITHIN), middle, high * (1 + _WITHIN)),
        (of_epoch * min(means) * (1 - _WITHIN), of_epoch * median(means), of_epoch * max(means) * (1 + _WITHIN)),
        bound,
        sum(1 + len(one.replies) for one in moved) / len(cache.minibatches),
        sum(one.request + sum(one.replies) for one in moved) / len(cache.minibatches) / 1e6,
        cache.nbytes,
        max(1 - sum(m.fetched for m in cache.minibatches) / remote, 0.0) if remote else 0.0,  # some are for later ones
        sizes.memory + cache.nbytes,
    )


def _slots(graph: Graph, cluster: Cluster, cache: str, limit: int | None) -> Sequence[int | None]:
    """Return the slots of a trainer in each cache to try, for each feature, the smallest first."""
    if cache == "none" or cluster.nodes == 1 or not graph.features:
        return [None]
    counts = [graph.config.book.num_nodes(t) for t, _, _ in graph.features]
    remote = max(counts) * (cluster.nodes - 1) // cluster.nodes

    def fitting(nbytes: int) -> int:
        tables = sum(cache_memory(count, 0, 0) for count in counts)
        of_slot = sum(cache_memory(0, 1, of_row) for _, _, of_row in graph.features)
        return max(nbytes - tables, 0) // of_slot // cluster.trainers

    if cache != "best":
        return [min(fitting(bytes_of("--cache", cache)), remote)]
    most = remote if limit is None else fitting(limit)
    return sorted({min(int(share * remote / cluster.trainers), most) for share in _SHARES})


def _bench_model(path: str | None, model: Model) -> Model:
    """Return the model of ``bench``, which computes on cores, if the file is its; :meth:`.Machine.read` checked it."""
    document = {} if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
    if "figures" not in document:
        return model
    try:
        times = [one / 1e3 for one in document["figures"]["step_compute"]["trainers"] if one is not None]
    except (KeyError, TypeError):
        times = []
    if not times or not all(0 <= seconds < np.inf for seconds in times):
        raise InvalidArgumentError(f"--machine {path} has no times of step_compute: give --model-ms")
    return replace(model, seconds=times, on_cores=True, asks=True)


def _scaling(paths: Sequence[str]) -> Iterator[str]:
    """Yield a line for each bench: minibatches a second, and the share of the speed on the fewest nodes."""
    known = []
    for path in paths:
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            known.append((int(document["layout"]["nodes"]), float(document["figures"]["batches_per_s"]["value"])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError(f"--measured {path} must be a file of `bench --out` ({error!r})") from None
    known.sort()
    for nodes, speed in known:
        share = speed * known[0][0] / (known[0][1] * nodes)
        yield f"measured: {nodes} node(s): {speed:.4g} minibatches a second, {share:.0%} of {known[0][0]} node(s)' each"


def _say(text: str) -> None:
    print(f"forecast: {text}", file=sys.stderr, flush=True)


def _as_text(forecasts: Sequence[Forecast], best: dict[int, Forecast], memory: int | None) -> list[str]:
    names = "nodes|trainers|step, ms|epoch, s|bound by|messages|MB|cache|saves|memory".split("|")
    several = len(forecasts) > len(best)
    rows = []
    for forecast in forecasts:
        best_here = "*" if several and best[forecast.nodes] is forecast else ""
        too_much = " (too much)" if memory is not None and forecast.memory > memory else ""
        rows.append([
            str(forecast.nodes), f"{forecast.trainers}{best_here}", _range(1e3 * np.array(forecast.step)),
            _range(np.array(forecast.epoch)), forecast.bound, f"{forecast.messages:.1f}", f"{forecast.mbytes:.2f}",
            in_units(forecast.cache), f"{forecast.cached:.0%}", in_units(forecast.memory) + too_much,
        ])  # fmt: skip
    notes = [
        "step, epoch: the middle, and from the low to the high end",
        "messages, MB: asked and answered for a trainer's minibatch; cache: of a node; saves: of the remote rows",
    ]
    notes += ["*: the shortest epoch on so many nodes"] if several else []
    return [*table(names, rows), *notes]


def _range(seconds: F64) -> str:
    low, middle, high = (f"{one:.3g}" if one < 1000 else f"{one:.0f}" for one in seconds.tolist())
    return f"{middle} ({low}-{high})"


def _picture(forecasts: Sequence[Forecast]) -> str:
    """Return efficiency by the number of nodes: of an epoch of all seeds, and of steps of as many seeds a trainer."""
    first = forecasts[0]
    x = [float(np.log2(f.nodes)) for f in forecasts]
    ticks = [(at, str(f.nodes)) for at, f in zip(x, forecasts, strict=True)]
    whole = first.epoch[1] * first.nodes * first.trainers
    strong = [[whole / (f.epoch[k] * f.nodes * f.trainers) for f in forecasts] for k in (2, 1, 0)]
    weak = [[first.step[1] / f.step[k] for f in forecasts] for k in (2, 1, 0)]
    about = "; ".join(f"{f.nodes} nodes: epoch {_range(np.array(f.epoch))} s" for f in forecasts)
    drawn = "".join(
        f"<section><h2>{title}</h2><p class='soft'>share of the speed of {first.nodes} node(s) that each trainer "
        f"keeps, by the number of nodes; {about}</p>{curves(title, about, x, np.array(shares), ticks)}</section>"
        for title, shares in (("Strong scaling: the same seeds", strong), ("Weak scaling: as many seeds a node", weak))
    )
    return svg_file(drawn, 900)
