"""The benchmark: every figure is in the document, one rank speaks, and the verdict is that of the slowest trainer."""

import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from layouts import API, WAIT, WORLD, Layout, on_all, own_on_layouts

from mpigraph.cli.bench import cache_curve, job, report
from mpigraph.cli.bench import step as step_module
from mpigraph.cli.bench.caching import SIZES, fetched, figures_of
from mpigraph.cli.bench.figures import CATALOGUE, STAGES, Figure, in_digits
from mpigraph.cli.bench.settings import Settings
from mpigraph.cli.bench.step import TrainingStep
from mpigraph.cli.bench.verdict import METIS, NO_SERVERS, bottleneck, slowest_trainer, verdict
from mpigraph.cli.main import main
from mpigraph.errors import InvalidArgumentError

SMALL = {
    "nodes": 400, "edges": 4000, "feat_dim": 8, "batch_size": 20, "fanouts": "2,3", "hidden": 8, "seconds": 0.1,
}  # fmt: skip
TOP = {"schema", "version", "time", "machine", "mpi", "layout", "settings", "figures", "verdict", "cache"}
FAR = {
    "far_rma", "service_latency", "step_exchange", "step_far", "sampling_bytes_per_batch", "row_bytes_per_batch",
    "cache_far", "cache_saved", "cache_floor", "cache_default", "cache_all", "cache_tables", "cache_batches",
    "cache_epoch", "loader_bytes", *(f"cache_{size}" for size in SIZES),
}  # fmt: skip
BEGINNINGS = [
    "starting the ranks", "generating a graph of 400 nodes and 4000 edges", "partitioning it into", "loading the graph",
    "making a loader", "measuring memory and rows", "measuring rounds", "measuring the training step, stage by stage",
    "measuring the training step with prefetching",
]  # fmt: skip
LARGER = [*API[1:], Layout(2, 1, 0)]
BETWEEN_TRAINERS = {"round_latency", "rounds_per_s", "round_rate"}
LINUX = {"start_python", "start_total", "memory_trainer", "memory_server", "memory_node"}


def run(layout, monkeypatch, **options):
    """Run as a job of a layout; the status on trainers, None on servers."""
    monkeypatch.setenv("MPIGRAPH_RANKS_PER_NODE", str(layout.layout.ranks_per_node))
    monkeypatch.setenv("MPIGRAPH_TIMEOUT", str(WAIT))
    try:
        return job.run(Settings(**(SMALL | {"num_servers": layout.layout.servers} | options)), 1.0, layout.comm)
    except SystemExit as stop:
        assert stop.code == 0
        return None


@own_on_layouts(LARGER)
def test_the_document_is_complete(layout, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(job, "_command", lambda *words: main([*map(str, words)]))  # in this process, which is faster
    check_run(layout, monkeypatch, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("layout", API[:1], indirect=True, ids=[API[0].name])
def test_the_document_is_complete_where_other_processes_make_the_graph(layout, monkeypatch, tmp_path, capsys):
    check_run(layout, monkeypatch, tmp_path, capsys)


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_the_process_that_makes_the_graph_is_no_rank(monkeypatch, tmp_path, name):
    """Although its environment is that of a rank: MPI would take it for one, or find it alone among three."""
    monkeypatch.setenv(name, "3")
    with pytest.raises(InvalidArgumentError, match=r"^num_nodes must be >= 2 \(got 1\)$"):
        job._command("generate", "--nodes", 1, "--edges", 0, "-o", tmp_path / "x")


def check_run(layout, monkeypatch, tmp_path, capsys):
    out = layout.share(str(tmp_path / "bench.json"))
    status = run(layout, monkeypatch, out=out)
    told = capsys.readouterr()
    on_all(layout.comm, status in (0, None), f"status {status}")
    tables = layout.comm.allgather(told.out.count("copy of memory, one trainer"))
    assert tables == [1] + [0] * (layout.comm.size - 1)
    said = [line.removeprefix("bench: ") for line in told.err.splitlines() if line.startswith("bench: ")]
    expected = [*BEGINNINGS, *(["sampling an epoch"] if layout.layout.ranks_per_node else [])]
    expected = expected if layout.comm.rank == 0 else []
    on_all(layout.comm, len(said) == len(expected) and all(map(str.startswith, said, expected)), f"said {said}")
    with open(out) as file:
        found = json.load(file)
    assert set(found) == TOP and (found["schema"], found["version"]) == (report.SCHEMA, report.VERSION)
    assert set(found["figures"]) == set(CATALOGUE) and found["settings"]["nodes"] == 400
    size = found["layout"]
    assert (size["ranks"], size["servers_per_node"]) == (
        layout.comm.size,
        min(layout.layout.servers, size["ranks"] - 1),
    )
    missing = {name for name, figure in found["figures"].items() if figure["value"] is None}
    assert missing - LINUX == expected_missing(size, found["figures"]["far_packed"]["value"]), missing
    for figure in found["figures"].values():
        assert figure["unit"] == CATALOGUE_UNITS[figure["meaning"]] and len(figure["trainers"]) == size["trainers"]
    check_traffic(found)
    assert ("all ranks are on one node" in found["cache"]) == (size["nodes"] == 1)
    if layout.comm.rank == 0:
        assert told.out.rstrip().endswith(found["verdict"]) and len(told.out.splitlines()) < 75
        assert found["cache"] in told.out
        assert told.out.count(" MB on each node") >= (6 if size["nodes"] > 1 else 0)


CATALOGUE_UNITS = {entry.text: entry.unit for entry in CATALOGUE.values()}


def expected_missing(size, packed):
    missing = set() if size["nodes"] > 1 else FAR | {"far_packed"}
    if size["nodes"] > 1 and packed is None:
        missing |= {"far_packed"}
    return missing | (BETWEEN_TRAINERS if size["trainers"] == 1 else set())


def check_traffic(found):
    figures = {name: figure["value"] for name, figure in found["figures"].items()}
    if found["layout"]["nodes"] == 1:
        assert figures["rounds_per_batch"] == figures["messages_per_batch"] == 0
        return
    assert figures["rounds_per_batch"] == 2  # one for each layer
    assert figures["messages_per_batch"] >= 3  # a request and its answer (the first layer's may be near), and rows
    assert figures["sampling_bytes_per_batch"] > 0 and figures["row_bytes_per_batch"] > 0


def test_the_number_of_servers_is_the_jobs_unless_it_is_given(monkeypatch):
    monkeypatch.setenv("MPIGRAPH_NUM_SERVERS", "3")
    given = []
    monkeypatch.setattr(job, "initialize", lambda **options: given.append(options["num_servers"]) or sys.exit(0))
    for arguments in ([], ["--num_servers", "0"], ["--num-servers", "0"]):
        with pytest.raises(SystemExit):
            main(["bench", *arguments])
    assert given == [None, 0, 0]


@pytest.mark.parametrize(
    "name",
    [
        "PMI_RANK",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")),
    ],
)
def test_one_rank_speaks_before_mpi_starts(monkeypatch, capsys, name):
    for variable in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "MPI_LOCALRANKID"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(job, "run", lambda settings, age: 0)
    said = []
    for rank in (None, "0", "3"):
        if rank is not None:
            monkeypatch.setenv(name, rank)
        assert main(["bench"]) == 0
        said.append(capsys.readouterr().err)
    assert said == ["bench: loading the library\n"] * 2 + [""]


@pytest.mark.slow
@pytest.mark.parametrize("comm", [1], indirect=True)
def test_a_user_s_graph(comm, oracle, capsys):
    assert job.run(Settings(**(SMALL | {"part_config": oracle(2), "batch_size": 5})), 1.0, comm) == 0
    assert "gather near rows" in capsys.readouterr().out


@pytest.mark.parametrize("comm", [WORLD.size], indirect=True)
def test_errors_are_printed_once(comm, capsys):
    nowhere = ["--nodes", "100", "--edges", "400", "--out", "/proc/nowhere/bench.json"]
    cases = [*BAD_OPTIONS, (nowhere, "/proc/nowhere/bench.json: cannot be written: No such file")]
    for arguments, message in cases:
        try:
            good = main(["bench", *arguments]) == 2
        except SystemExit as stop:
            good = stop.code == 0  # a server: the job had begun
        lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        on_all(comm, good and all(re.search(message, line) for line in lines), f"{arguments}: {lines}")
        assert comm.allreduce(len(lines)) == 1


BAD_OPTIONS = [
    (["--nodes", "many"], "--nodes must be a number .*many"),
    (["--nodes", "3"], "--nodes must be >= 100"),
    (["--fanouts", "10,x"], "--fanouts must be integers.*10,x"),
    (["--seconds", "nan"], "--seconds must be >= 0.01"),
    (["--part-config", "/nowhere/x.json"], "/nowhere/x.json"),
    (["--num_servers", "-1"], "--num_servers must be >= 0"),
    (["--nodes", "100", "--edges", "100000", "--seconds", "1"], "num_edges must be <= 4950"),
]


def as_typed(settings):
    return {name: None if value is None else str(value) for name, value in vars(settings).items()}


@pytest.mark.parametrize(("arguments", "message"), BAD_OPTIONS[:4])
def test_settings_name_the_option(arguments, message):
    texts = as_typed(Settings())
    texts[arguments[0][2:].replace("-", "_")] = arguments[1]
    with pytest.raises(InvalidArgumentError, match=message):
        Settings.of(texts)


def test_options_are_settings():
    assert Settings.of(as_typed(Settings())) == Settings()
    assert Settings(fanouts="15, 10,-1").layers() == [15, 10, -1]


STEP = {
    "step_sample": 10.0, "step_exchange": 10.0, "step_near": 10.0, "step_far": 10.0, "step_compute": 10.0,
    "step_prefetch": 40.0, "step_wait": 20.0,
}  # fmt: skip


def crafted(*trainers):
    """Figures of trainers whose own values are given, the median standing for all."""
    names = {name for values in trainers for name in values}
    figures = {}
    for name in names:
        each = [values.get(name) for values in trainers]
        known = sorted(value for value in each if value is not None)
        figures[name] = Figure(known[len(known) // 2] if known else None, each)
    return figures


@pytest.mark.parametrize(
    ("figures", "line"),
    [
        ({"step_far": 110.0, "far_rma": 0.3, "far_packed": 1.0}, "far gather: 73%.*TRANSPORT=packed"),
        ({"step_far": 110.0, "far_rma": 1.0, "far_packed": 0.3}, "far gather.*try MPIGRAPH_TRANSPORT=rma"),
        ({"step_far": 110.0, "far_rma": 1.0, "far_packed": None}, "far gather.*METIS.*float16"),
        ({"step_near": 60.0, "near_one": 1.0, "rows_one": 4.0}, "near gather: 60%.*bind"),
        ({"step_near": 60.0, "near_one": 4.0, "rows_one": 4.0}, "near gather.*float16"),
        ({"step_exchange": 60.0, "round_latency": 5.0}, "exchange: 60%.*fewer ranks than cores"),
        ({"step_exchange": 60.0, "round_latency": 0.05, "service_latency": 5.0}, "exchange.*num_servers=0"),
        ({"step_exchange": 60.0, "round_latency": 0.05}, "exchange.*larger minibatches"),
        ({"step_sample": 60.0}, "sampling: 60% of the step .*waits 50% of the time.*return_eids=False"),
        ({"step_compute": 60.0, "step_wait": 2.0}, "compute: 60%.*waits 5%.*GPU"),
        ({"step_compute": 50.0, "step_sample": 20.0}, "sampling: 20%.*waits 50%"),
        ({"step_total": 50.0}, "sampling: 20%.*smaller fanouts$"),
        ({"step_total": 30.0}, "sampling: 20%.*gains nothing here: leave it a core"),
        ({"step_far": 110.0, "step_wait": 1.0}, "compute: 7%.*waits 2% of the time"),
        ({"step_far": None, "step_exchange": None, "step_sample": 30.0}, "sampling: 60%"),
    ],
)  # fmt: skip
def test_the_verdict_names_bottleneck_and_remedy(figures, line):
    said = verdict(crafted(STEP | figures))
    assert re.match(line, said), said
    assert "\n" not in said and "slowest" not in said and "uneven" not in said


def test_the_verdict_advises_nothing_that_is_so_already():
    """Here auto has chosen the transport, servers there are none, METIS has cut the graph."""
    far = crafted(STEP | {"step_far": 110.0, "far_rma": 0.3, "far_packed": 1.0})
    assert verdict(far, {"MPIGRAPH_TRANSPORT=rma"}).endswith("; try MPIGRAPH_TRANSPORT=packed")
    said = verdict(far, {"MPIGRAPH_TRANSPORT=packed", METIS})
    assert said.endswith("; try float16 features, more memory (fewer, larger nodes)")
    rounds = crafted(STEP | {"step_exchange": 60.0, "service_latency": 5.0})
    assert verdict(rounds, {*NO_SERVERS, METIS}).endswith("; try larger minibatches (fewer rounds)")


@pytest.mark.parametrize(("value", "text"), [
    (0, "0"), (0.25, "0.250"), (1.0, "1"), (12.346, "12.35"), (999.96, "1000"), (1030.4, "1030"), (123456.7, "123457"),
])  # fmt: skip
def test_numbers_have_no_exponent(value, text):
    assert in_digits(value) == text
    uneven = verdict(crafted(COMPUTING, COMPUTING | {"step_total": 1030.4}))
    assert "a step takes 100 to 1030 ms" in uneven
    assert "   123457 MB on each node" in cache_curve.bars(CURVE | {"cache_all": 123456.7})[-1]


COMPUTING = {"step_sample": 5.0, "step_exchange": 1.0, "step_near": 4.0, "step_compute": 90.0, "step_total": 100.0}
SAMPLING = {"step_sample": 60.0, "step_exchange": 20.0, "step_near": 10.0, "step_compute": 10.0, "step_total": 100.0}


@pytest.mark.parametrize(
    ("trainers", "slowest", "line"),
    [
        (  # in step with each other by their rounds: half of them wait for the other half
            [
                SAMPLING | {"step_prefetch": 100.0, "step_wait": 90.0},
                SAMPLING | {"step_prefetch": 101.0, "step_wait": 91.0},
                COMPUTING | {"step_prefetch": 99.0, "step_wait": 2.0},
                COMPUTING | {"step_prefetch": 100.0, "step_wait": 1.0},
            ],
            3,
            r"compute: 90% of the step of trainer 3, the slowest \(with prefetching its model waits 1% of the time\); "
            r"try a GPU.*; trainers are uneven: a step takes 99 to 101 ms, of which models wait 1% to 90% "
            r"\(median 46%\)",
        ),
        (  # not in step: one has a crowded core and waits for its own sampling
            [
                COMPUTING | {"step_prefetch": 30.0, "step_wait": 0.0},
                SAMPLING | {"step_prefetch": 100.0, "step_wait": 60.0},
            ],
            1,
            r"sampling: 60% of the step of trainer 1.*waits 60%.*uneven: a step takes 30 to 100 ms",
        ),
        (  # even: no word of it
            [
                COMPUTING | {"step_prefetch": 95.0, "step_wait": 1.0},
                COMPUTING | {"step_prefetch": 90.0, "step_wait": 9.0},
            ],
            0,
            "compute: 90% of the step of trainer 0, the slowest .*a smaller model$",
        ),
        ([COMPUTING, COMPUTING | {"step_total": 130.0}], 1, "compute: 90%.*uneven: a step takes 100 to 130 ms"),
    ],
)
def test_the_verdict_is_that_of_the_slowest_trainer(trainers, slowest, line):
    figures = crafted(*trainers)
    assert slowest_trainer(figures) == slowest
    said = verdict(figures)
    assert re.match(line, said), said
    assert "\n" not in said


def test_what_only_one_trainer_of_a_node_measured_holds_for_all():
    step = {"step_near": 60.0, "step_prefetch": 100.0, "step_wait": 90.0, "step_total": 100.0}
    figures = crafted(
        step | {"near_one": 1.0, "rows_one": 4.0}, step | {"step_prefetch": 120.0, "near_one": None, "rows_one": None}
    )
    assert slowest_trainer(figures) == 1 and "binding ranks to cores and their memory" in verdict(figures)


def test_there_is_advice_for_every_stage():
    for stage in STAGES:
        values = {name: 1.0 if name == stage else 0.0 for name in STAGES}
        assert bottleneck(values) == (stage, 1.0)
        assert verdict(crafted(values)).startswith(f"{STAGES[stage]}: 100% of the step; try ")


def test_what_caches_of_other_sizes_fetch():
    trace = [np.array(rows) for rows in ([0, 1, 0], [1], [0, 2], [1])]
    assert [fetched(trace, 3, slots) for slots in (0, 1, 2, 3)] == [6, 4, 3, 3]
    found = figures_of([10 * rows for rows in trace])
    assert found["cache_far"] == 7 / 4 and found["cache_floor"] == 100 * 3 / 7
    assert found["cache_50"] == 100 * 4 / 7  # one row of three
    assert set(figures_of([np.empty(0, np.int64)]).values()) == {None}


CURVE = {
    "cache_5": 87.0, "cache_10": 75.0, "cache_20": 50.0, "cache_50": 16.0, "cache_floor": 5.0,
    "cache_tables": 2.0, "cache_all": 102.0, "cache_default": 30.0, "cache_batches": 100, "cache_epoch": 100,
}  # fmt: skip


def test_bars_show_what_a_cache_fetches():
    lines = cache_curve.bars(CURVE)
    assert len(lines) == 7 and max(map(len, lines)) < 90
    assert [line.count("#") for line in lines[1:]] == [40, 35, 30, 20, 6, 2]
    assert lines[4] == "       20 % |####################                    |  50.0 %        22 MB on each node"
    part = cache_curve.bars(CURVE | {"cache_batches": 25, "cache_epoch": 190})[0]
    assert "in the first 25 of 190 minibatches of an epoch: at most 100 are simulated, and 5 million far rows" in part
    assert cache_curve.bars({}) == []


@pytest.mark.parametrize(
    ("figures", "num_nodes", "line"),
    [
        ({}, 2, 'cache: 52 MB on each node would save 84% of the bytes of far rows: give loaders cache="52MB" .*30 MB'),
        ({"cache_default": 60.0}, 2, "cache: 52 MB on .* save 84% .*; the default takes 60 MB, which is enough$"),
        ({"cache_default": None}, 2, 'cache: .*: give loaders cache="52MB"$'),
        ({"cache_50": 60.0, "cache_20": 80.0}, 2, "cache: 102 MB on each node would save 95%"),
        ({"cache_5": 20.0}, 2, "cache: 7 MB on each node would save 80%"),
        (dict.fromkeys(CURVE, 97.0), 2, "cache: would save 3% of the bytes of far rows, however large"),
        (dict.fromkeys(CURVE), 1, "cache: no row is far, since all ranks are on one node"),
        (dict.fromkeys(CURVE), 2, "cache: no row that was read is far"),
    ],
)
def test_the_advice_on_caches(figures, num_nodes, line):
    said = cache_curve.advice(CURVE | figures, num_nodes)
    assert re.match(line, said) and "\n" not in said, said


def test_a_simulation_has_a_bound_in_rows(monkeypatch):
    """The trainer whose minibatches read most decides for all; the first minibatch is always there."""
    step = object.__new__(TrainingStep)
    world = SimpleNamespace(allreduce_minmax=lambda value, largest: value, local_trainer=0)
    window = type("Window", (), {"row_bytes": 400, "__len__": lambda self: 1000})()
    step._session, step._feature = SimpleNamespace(world=world), SimpleNamespace(rows=SimpleNamespace(window=window))
    step._nodes, step._batch_size = np.arange(1000), 10
    step._far_rows_of = lambda seeds: seeds.numpy()
    for most, expected in ((5_000_000, 100), (70, 7), (1, 1)):
        monkeypatch.setattr(step_module, "MOST_FAR_ROWS", most)
        found = step.simulate_caches()
        assert (found["cache_batches"], found["cache_epoch"], found["cache_floor"]) == (expected, 100, 100)
        assert found["cache_all"] == (4 * 1000 + 10 * expected * 412) / 1e6 and found["cache_tables"] == 4e-3


def invented():
    """A document of two trainers, without running anything."""
    figures = {
        name: {
            "value": 2.0,
            "unit": entry.unit,
            "meaning": entry.text,
            "of": entry.of,
            "combined": entry.combine,
            "trainers": [1.0, 3.0],
        }
        for name, entry in CATALOGUE.items()
    }
    figures["step_far"] = figures["step_far"] | {"value": None, "trainers": [None, None]}
    layout = {"ranks": 3, "nodes": 1, "trainers": 2, "hosts": 1, "servers_per_node": 1, "ranks_per_node": 0}
    machine = {"processor": "p", "cores": 2, "memory_GiB": 4.0}
    said = {"verdict": "compute: 9%", "cache": "cache: 3 MB"}
    return {"machine": machine, "mpi": {"library": "m"}, "layout": layout, "figures": figures} | said


def test_the_table_shows_what_applies():
    text = report.table(invented())
    assert "gather far rows" not in text and text.endswith("compute: 9%")
    assert text.count(": 1 to 3)") == len(CATALOGUE) - 1


def test_every_row_says_whose_value_it_is():
    found = invented()
    found["figures"]["batches_per_s"] |= {"value": 4.0, "trainers": [2.0, 2.0]}
    found["figures"]["memcpy_one"] |= {"trainers": [2.0, None]}
    found["figures"]["step_total"] |= {"trainers": [2.0, 2.1]}
    rows = [line[10:] for line in report.table(found).splitlines()]
    for row in (
        "        2 GB/s  one trainer              copy of memory, one trainer alone on its node",
        "        2 GB/s  sum of a node's trainers copy of memory, all at once (each trainer: 1 to 3)",
        "        2 ms    largest of 2 trainers    empty round between the trainers (each trainer: 1 to 3)",
        "        4 1/s   sum of 2 trainers        minibatches with num_prefetch=2 (each trainer: 2 to 2)",
        "        2 ms    median of 2 trainers     all of it, one after the other (num_prefetch=0)",
        "        2 MB    largest server           peak resident memory (each server: 1 to 3)",
        "        2 MB    largest of 2 nodes       all ranks, shared pages counted once, at the end (each node: 1 to 3)",
    ):
        assert row in rows, "\n".join(rows)


@pytest.mark.parametrize("name", ["missing/bench.json", "directory", "/dev/full"])
def test_where_the_report_cannot_be_written_is_known_at_the_start(tmp_path, name):
    (tmp_path / "directory").mkdir()
    with pytest.raises(InvalidArgumentError, match=f"{name}: cannot be written: "):
        report.check_file_writable(str(tmp_path / name))
    report.check_file_writable(str(tmp_path / "bench.json"))
    assert not (tmp_path / "bench.json").exists()
    (tmp_path / "bench.json").write_text("of a run before")
    report.check_file_writable(str(tmp_path / "bench.json"))
    assert (tmp_path / "bench.json").read_text() == "of a run before"


def test_a_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    report.draw(invented(), str(tmp_path / "split.png"))
    assert (tmp_path / "split.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_without_matplotlib_one_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InvalidArgumentError, match="--plot needs matplotlib"):
        report.need_matplotlib()
