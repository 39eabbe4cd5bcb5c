"""``python -m mpigraph forecast``: rows that are known beforehand, and times of jobs that can be computed by hand."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from oracle import NAME, oracle_source

from mpigraph.cli.forecast.timing import Machine, Model, steps
from mpigraph.cli.forecast.traffic import Asked, Cluster, Graph, Minibatch, Workload, simulate
from mpigraph.cli.main import main
from mpigraph.errors import InvalidArgumentError
from mpigraph.metadata.schema import Schema
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.part_config import PartConfig

IDEAL = Machine(
    latency=0.0, bandwidth=np.inf, receive=0.0, handshake=np.inf, message=0.0, byte=0.0, rows=np.inf, polling=0.0
)
ALONE = Cluster(1, 1, 0)
TWO = Cluster(2, 1, 1)


def parts(folder: Path, nodes: int, num_parts: int) -> str:
    return str(partition_source(oracle_source(nodes, 6 * nodes), NAME, num_parts, folder, "random").config_path)


def graph_of(path: str) -> Graph:
    with PartFiles(PartConfig.read(path)) as files:
        return Graph(files)


def milliseconds(machine: Machine, cluster: Cluster, model: float, minibatch: Minibatch) -> float:
    of_all = []
    for number in range(cluster.nodes * cluster.trainers):
        other = (number // cluster.trainers + 1) % cluster.nodes
        asked = [[one._replace(host=other) for one in hop] for hop in minibatch.asked]
        of_all.append(replace(minibatch, trainer=number, asked=asked))
    return 1e3 * float(np.mean(steps(machine, cluster, Model([model], False, 0.0), of_all, 8.0, 20)))


def asking(request: int, reply: int) -> Minibatch:
    """A minibatch that asks the other of two hosts once."""
    return Minibatch(0, [[Asked(1, request, [reply], 1e-9)], []], [0.0])


def test_a_trainer_with_all_neighbours_of_its_part_reads_the_halo(tmp_path: Path) -> None:
    graph = graph_of(parts(tmp_path, 300, 2))
    offsets, indptr, sources = graph.config.book.node_offsets[0], graph.indptr[0], graph.indices[0]
    made = simulate(graph, TWO, Workload([-1], 1000, 1000), epochs=2)
    for minibatch in made:
        first, last = offsets[minibatch.trainer : minibatch.trainer + 2]
        seeds = np.array_split(graph.seeds, 2)[minibatch.trainer]
        read = np.concatenate([seeds, *(sources[indptr[v] : indptr[v + 1]] for v in seeds)])
        remote = np.unique(read[(read < first) | (read >= last)])
        assert minibatch.remote == len(remote) * len(graph.features) > 0
        assert minibatch.inputs == len(np.unique(read))
    assert [m.fetched for m in made[::2]] == [m.remote for m in made[::2]]
    assert [m.fetched for m in made[1::2]] == [0, 0]  # the cache has them


def test_relations_that_share_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The minibatches are those of tables of their own; a hop asks each host once."""
    schema = Schema(("n",), tuple(("n", f"r{r}", "n") for r in range(20)))
    ends = np.random.default_rng(0).integers(0, 300, (20, 2, 60))
    source = GraphSource(schema, (300,), tuple(map(tuple, ends)), {"n": {"x": Feature.of(np.zeros((300, 2)))}})

    def made(name: str) -> list[Minibatch]:
        path = partition_source(source, name, 3, tmp_path / name, "random").config_path
        return simulate(graph_of(str(path)), Cluster(2, 1, 1), Workload([3, 2], 30, 1000), epochs=2)

    shared = made("shared")
    monkeypatch.setattr("mpigraph.partition.source.shared_relations", lambda *_: ())
    for one, other in zip(shared, made("own"), strict=True):
        assert (one.edges, one.inputs, one.remote, one.fetched) == (
            other.edges,
            other.inputs,
            other.remote,
            other.fetched,
        )
        assert one.remote > 0
        assert [[asked.host for asked in hop] for hop in one.asked] == [
            [asked.host for asked in hop] for hop in other.asked
        ]
        assert all(a.request < b.request / 4 for a, b in zip(one.asked[0], other.asked[0], strict=True))


def test_a_network_without_delay_gives_the_time_of_computing() -> None:
    for sample, model in ((0.010, 0.002), (0.003, 0.020)):
        minibatch = Minibatch(0, [[]], [], sample=sample)
        assert milliseconds(IDEAL, ALONE, model, minibatch) == pytest.approx(1e3 * max(sample, model))


def test_speed_and_shared_cores() -> None:
    minibatch = Minibatch(0, [[]], [], sample=0.010)
    assert milliseconds(replace(IDEAL, speed=2.0), ALONE, 0.0, minibatch) == pytest.approx(5)
    shared = replace(IDEAL, shared_cores=True, cores=1)
    assert milliseconds(shared, Cluster(3, 1, 0), 0.0, minibatch) == pytest.approx(30, rel=0.02)
    polling = replace(shared, polling=0.1)  # by three ranks
    assert milliseconds(polling, Cluster(3, 1, 0), 0.0, minibatch) == pytest.approx(39, rel=0.02)


@pytest.mark.parametrize(
    ("request_bytes", "reply", "latencies"), [(100, 100, 2), (100, 10_000, 4), (10_000, 10_000, 6)]
)
def test_latencies_of_a_question(request_bytes: int, reply: int, latencies: int) -> None:
    machine = replace(IDEAL, latency=0.1, handshake=5000)
    assert milliseconds(machine, TWO, 0.0, asking(request_bytes, reply)) == pytest.approx(100 * latencies, rel=0.01)


@pytest.mark.parametrize("nodes", [2, 4, 12])
@pytest.mark.parametrize("asks", [False, True])
def test_latencies_of_a_sum(nodes: int, asks: bool) -> None:
    free = [Minibatch(trainer, [[]]) for trainer in range(nodes)]
    model = Model([0.0], False, 1e6, asks=asks)
    machine = replace(IDEAL, latency=0.1, bandwidth=1e7)
    seconds = steps(machine, Cluster(nodes, 1, 1), model, free, 8.0, 5)
    assert seconds == pytest.approx(2 * (nodes - 1) * (0.1 * (1 + asks) + 0.1 / nodes))


def test_the_end_of_an_epoch() -> None:
    """The first minibatch of the next one is begun once the last one was used."""
    short = [Minibatch(0, [[]], sample=0.010, epoch=at // 2) for at in range(8)]
    assert np.mean(steps(IDEAL, ALONE, Model([0.004], False, 0.0), short, 8.0, 20)) == pytest.approx(0.012)


def test_what_a_node_sends_takes_its_turn() -> None:
    machine = replace(IDEAL, bandwidth=1e6)
    for trainers in (1, 4):  # which ask one host
        cluster = Cluster(2, trainers, 1)
        assert milliseconds(machine, cluster, 0.0, asking(0, 50_000)) == pytest.approx(50 * trainers, rel=0.05)


@pytest.mark.parametrize("receive", [1e6, 5e5])
def test_a_message_is_received_while_it_is_sent(receive: float) -> None:
    in_pieces = Minibatch(0, [[Asked(1, 0, [200_000] * 4, 1e-9)], []], [0.0])
    machine = replace(IDEAL, bandwidth=1e6, receive=receive)
    assert milliseconds(machine, TWO, 0.0, in_pieces) == pytest.approx(1e3 * 800_000 / receive, rel=0.1)


def with_known_times(minibatch: Minibatch) -> Minibatch:
    asked = [[one._replace(seconds=1e-4 if one.seconds else 0.0) for one in hop] for hop in minibatch.asked]
    return replace(minibatch, asked=asked, draw=[1e-4] * len(minibatch.draw), sample=4e-4, plan=1e-5)


def test_a_faster_network_is_never_slower(tmp_path: Path) -> None:
    graph = graph_of(parts(tmp_path, 400, 4))
    cluster = Cluster(4, 1, 1)
    made = [with_known_times(m) for m in simulate(graph, cluster, Workload([3, 3], 20, None))]
    for changed in ("bandwidth", "latency"):
        values = np.geomspace(1e4, 1e9, 6) if changed == "bandwidth" else np.geomspace(1e-6, 1, 6)[::-1]
        machines = [replace(IDEAL, **{"bandwidth": 1e7, changed: float(value)}) for value in values]
        times = [float(np.sum(steps(m, cluster, Model([0.001], False, 0.0), made, 64.0, 10))) for m in machines]
        assert all(later <= earlier * 1.02 for earlier, later in pairwise(times)), times
        assert times[-1] < times[0] / 2


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = parts(tmp_path, 400, 2)
    words = ["forecast", path, *"--nodes 1,2,4 --trainers 1,2 --fanouts 3,3 --batch-size 40 --model-ms 2,3".split()]
    assert main([*words, "--svg", str(tmp_path / "scaling.svg"), "--memory", "700MiB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:7]] == ["1", "1", "2", "2", "4", "4"]
    assert "too much" in lines[2] and "too much" not in lines[1]
    assert any("4 nodes: 2 parts are divided" in line for line in lines)
    assert (tmp_path / "scaling.svg").read_text().count('class="band"') == 2
    assert main([*words, "--json", "--cache", "none", "--cut"]) == 0
    forecasts = json.loads(capsys.readouterr().out)
    assert [one["parts"] for one in forecasts] == [2, 2, 2, 2, 4, 4]
    for one in forecasts:
        assert 0 < one["epoch"][0] < one["epoch"][1] < one["epoch"][2]
        assert (one["messages"] > 0) == (one["nodes"] > 1)


def test_more_trainers_than_seeds(tmp_path: Path) -> None:
    graph = graph_of(parts(tmp_path, 6, 1))
    assert len(graph.seeds) <= 6
    made = simulate(graph, Cluster(2, 8, 1), Workload([2], 5, None), minibatches=3, epochs=1 << 40)
    assert {m.trainer for m in made} == set(range(len(graph.seeds)))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--nodes", "2,0"], "--nodes must be"),
        (["--nodes", "2,x"], "--nodes must be integers"),
        (["--model-ms", "-3"], "--model-ms must be milliseconds"),
        (["--model-ms", "nan"], "--model-ms must be milliseconds"),
        (["--model-ms", "2,inf"], "--model-ms must be milliseconds"),
        (["--minibatches", "0"], "--minibatches must be an integer >= 1"),
        (["--warm", "-1"], "--warm must be an integer >= 0"),
        (["--simulated-nodes", "0"], "--simulated-nodes must be an integer >= 1"),
        (["--memory", "much"], "--memory must be a size"),
        (["--measured", "wrong.json"], "--measured"),
        (["--cache", "much"], "--cache must be a size"),
        (["--fanouts", "-2"], "--fanouts must be"),
        (["--machine", "wrong.json"], "--machine"),
        (["--report", "."], "summary.json"),
        (["--nodes", "4,1000000"], "--nodes times --trainers and --servers must be an integer <= 4096"),
        (["--svg", "/proc/x.svg"], "/proc: cannot write there"),
    ],
)
def test_wrong_options(words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.json").write_text('{"latency": "soon"}')
    words = [str(tmp_path / word) if word in ("wrong.json", ".") else word for word in words]
    assert main(["forecast", parts(tmp_path, 60, 2), "--batch-size", "10", *words]) == 2
    err = capsys.readouterr().err
    assert told in err and "trainers on each" not in err  # before anything is simulated


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"latency": NaN}', "latency must be 0 to"),
        ('{"latency": -1}', "latency must be 0 to"),
        ('{"latency": "1"}', "'1' is not a number"),
        ('{"bandwidth": 0}', "bandwidth must be 1 to"),
        ('{"cores": 0}', "cores must be 1 to"),
        ('{"cores": Infinity}', "an object of numbers"),
        ('{"speed": 1e300}', "speed must be"),
        ('{"Latency": 1}', "an object of numbers"),
        ("[1]", "an object of numbers"),
        (
            '{"schema": "mpigraph-bench", "layout": {"nodes": 0, "trainers": 1}, "figures": {}}',
            "a file of `bench --out`",
        ),
    ],
)
def test_wrong_machines(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(text)
    with pytest.raises(InvalidArgumentError, match=told):
        Machine.read(str(file), 1.0)
