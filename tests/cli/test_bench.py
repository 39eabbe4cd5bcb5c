"""The benchmark: every figure is in the document, one rank speaks, and the verdict follows from the figures."""

import json
import re
import sys

import pytest
from layouts import WAIT, WORLD, on_all

from mpigraph.cli.bench import job, plot, report
from mpigraph.cli.bench.figures import CATALOGUE, STAGES
from mpigraph.cli.bench.settings import Settings
from mpigraph.cli.bench.verdict import bottleneck, verdict
from mpigraph.cli.main import main
from mpigraph.errors import InvalidArgumentError

SMALL = {
    "nodes": 400, "edges": 4000, "feat_dim": 8, "batch_size": 20, "fanouts": "2,3", "hidden": 8, "seconds": 0.1,
}  # fmt: skip
TOP = {"schema", "version", "time", "machine", "mpi", "layout", "settings", "figures", "verdict"}
FAR = {
    "far_rma", "service_latency", "step_exchange", "step_far", "sampling_bytes_per_batch", "row_bytes_per_batch",
}  # fmt: skip
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


def test_the_document_is_complete(layout, monkeypatch, tmp_path, capsys):
    out = layout.share(str(tmp_path / "bench.json"))
    status = run(layout, monkeypatch, out=out)
    told = capsys.readouterr()
    on_all(layout.comm, status in (0, None), f"status {status}")
    tables = layout.comm.allgather(told.out.count("copy of memory, one trainer"))
    assert tables == [1] + [0] * (layout.comm.size - 1)
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
    if layout.comm.rank == 0:
        assert told.out.rstrip().endswith(found["verdict"]) and len(told.out.splitlines()) < 60


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
    for arguments in ([], ["--num-servers", "0"]):
        with pytest.raises(SystemExit):
            main(["bench", *arguments])
    assert given == [None, 0]


def test_a_user_s_graph(comm, oracle, capsys):
    if comm.size != 1:
        pytest.skip("what graph it is makes no difference to the layouts")
    assert job.run(Settings(**(SMALL | {"part_config": oracle(2), "batch_size": 5})), 1.0, comm) == 0
    assert "gather near rows" in capsys.readouterr().out


def test_errors_are_printed_once(comm, capsys):
    if comm.size != WORLD.size:
        pytest.skip("the command runs on all ranks")
    for arguments, message in BAD_OPTIONS:
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
    (["--num-servers", "-1"], "--num-servers must be >= 0"),
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


@pytest.mark.parametrize(
    ("figures", "line"),
    [
        ({"step_far": 110.0, "far_rma": 0.3, "far_packed": 1.0}, "far gather: 73%.*TRANSPORT=packed"),
        ({"step_far": 110.0, "far_rma": 1.0, "far_packed": 0.3}, "far gather.*try MPIGRAPH_TRANSPORT=rma"),
        ({"step_far": 110.0, "far_rma": 1.0, "far_packed": None}, "far gather.*METIS.*float16"),
        ({"step_near": 60.0, "near_one": 1.0, "rows_one": 4.0}, "near gather: 60%.*bind"),
        ({"step_near": 60.0, "near_one": 4.0, "rows_one": 4.0}, "near gather.*float16"),
        ({"step_exchange": 60.0, "round_latency": 5000.0}, "exchange: 60%.*fewer ranks than cores"),
        ({"step_exchange": 60.0, "round_latency": 50.0, "service_latency": 5000.0}, "exchange.*num_servers=0"),
        ({"step_exchange": 60.0, "round_latency": 50.0}, "exchange.*larger minibatches"),
        ({"step_sample": 60.0}, "sampling: 60%.*waits 50% of the time.*return_eids=False"),
        ({"step_compute": 60.0, "step_wait": 2.0}, "compute: 60%.*waits 5%.*GPU"),
        ({"step_compute": 50.0, "step_sample": 20.0}, "sampling: 20%.*waits 50%"),
        ({"step_total": 50.0}, "sampling: 20%.*smaller fanouts$"),
        ({"step_total": 30.0}, "sampling: 20%.*gains nothing here: leave it a core"),
        ({"step_far": 110.0, "step_wait": 1.0}, "compute: 7%.*waits 2% of the time"),
        ({"step_far": None, "step_exchange": None, "step_sample": 30.0}, "sampling: 60%"),
    ],
)  # fmt: skip
def test_the_verdict_names_bottleneck_and_remedy(figures, line):
    said = verdict(STEP | figures)
    assert re.match(line, said), said
    assert "\n" not in said


def test_there_is_advice_for_every_stage():
    for stage in STAGES:
        values = {name: 1.0 if name == stage else 0.0 for name in STAGES}
        assert bottleneck(values) == (stage, 1.0)
        assert verdict(values).startswith(f"{STAGES[stage]}: 100% of the step; try ")


def invented():
    """A document of two trainers, without running anything."""
    figures = {
        name: {
            "value": 2.0,
            "unit": entry.unit,
            "meaning": entry.text,
            "combined": entry.combine,
            "trainers": [1.0, 3.0],
        }
        for name, entry in CATALOGUE.items()
    }
    figures["step_far"] = figures["step_far"] | {"value": None, "trainers": [None, None]}
    layout = {"ranks": 3, "nodes": 1, "trainers": 2, "hosts": 1, "servers_per_node": 1, "ranks_per_node": 0}
    machine = {"processor": "p", "cores": 2, "memory_GiB": 4.0}
    return {"machine": machine, "mpi": {"library": "m"}, "layout": layout, "figures": figures, "verdict": "compute: 9%"}


def test_the_table_shows_what_applies():
    text = report.table(invented())
    assert "gather far rows" not in text and text.endswith("compute: 9%")
    assert text.count("(1 to 3)") == len(CATALOGUE) - 1


def test_a_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    plot.draw(invented(), str(tmp_path / "split.png"))
    assert (tmp_path / "split.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_without_matplotlib_one_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InvalidArgumentError, match="--plot needs matplotlib"):
        plot.need_matplotlib()
