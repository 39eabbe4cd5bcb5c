"""The benchmark: every figure is in the document, and one rank speaks."""

import json
import re
import sys
from pathlib import Path

import pytest
from layouts import API, WAIT, WORLD, Layout, on_all, own_on_layouts

from mpigraph.cli.bench import job, report
from mpigraph.cli.bench.report import CATALOGUE, in_digits
from mpigraph.cli.bench.settings import Settings
from mpigraph.cli.main import main
from mpigraph.errors import InvalidArgumentError
from mpigraph.reports.summary import read

SMALL = {
    "nodes": 400, "edges": 4000, "feat_dim": 8, "batch_size": 20, "fanouts": "2,3", "hidden": 8, "seconds": 0.1,
}  # fmt: skip
TOP = {"schema", "version", "time", "machine", "mpi", "layout", "settings", "figures"}
REMOTE = {
    "remote_rma", "service_latency", "step_exchange", "step_remote", "sampling_bytes_per_batch", "row_bytes_per_batch",
    "cache_saved", "cache_default", "loader_bytes",
}  # fmt: skip
BEGINNINGS = [
    "starting the ranks", "generating a graph of 400 nodes and 4000 edges", "partitioning it into", "loading the graph",
    "making a loader", "measuring memory and rows", "measuring rounds", "measuring the training step, stage by stage",
    "measuring the training step with prefetching", "measuring one trainer with all threads",
]  # fmt: skip
LARGER = [*API[1:], Layout(2, 1, 0)]
BETWEEN_TRAINERS = {"round_latency", "rounds_per_s", "round_rate"}
ONE_OR_ALL = {"step_trainers", "step_one", "threads_one"}
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_the_process_that_makes_the_graph_is_no_rank(monkeypatch, tmp_path, name):
    """Although its environment is that of a rank: MPI would take it for one, or find it alone among three."""
    monkeypatch.setenv(name, "3")
    with pytest.raises(InvalidArgumentError, match=r"^num_nodes must be an integer >= 2 \(got 1\)$"):
        job._command("generate", "--nodes", 1, "--edges", 0, "-o", tmp_path / "x")


def check_run(layout, monkeypatch, tmp_path, capsys):
    out = layout.share(str(tmp_path / "bench.json"))
    folder = layout.share(str(tmp_path / "report"))
    status = run(layout, monkeypatch, out=out, report=folder)
    told = capsys.readouterr()
    on_all(layout.comm, status in (0, None), f"status {status}")
    summary = read(Path(folder))
    window = summary.job.window
    assert window is not None and window.first_step == 2 < window.last_step
    assert {len(rank.steps.seconds) for rank in summary.trainers} == {window.last_step - window.first_step}
    tables = layout.comm.allgather(told.out.count("copy of memory, one trainer"))
    assert tables == [1] + [0] * (layout.comm.size - 1)
    said = [line.removeprefix("bench: ") for line in told.err.splitlines() if line.startswith("bench: ")]
    expected = BEGINNINGS if layout.comm.rank == 0 else []
    on_all(layout.comm, len(said) == len(expected) and all(map(str.startswith, said, expected)), f"said {said}")
    with open(out) as file:
        result = json.load(file)
    assert set(result) == TOP and (result["schema"], result["version"]) == (report.SCHEMA, report.VERSION)
    assert set(result["figures"]) == set(CATALOGUE) and result["settings"]["nodes"] == 400
    size = result["layout"]
    assert (size["ranks"], size["servers_per_node"]) == (
        layout.comm.size,
        min(layout.layout.servers, size["ranks"] - 1),
    )
    missing = {name for name, figure in result["figures"].items() if figure["value"] is None}
    assert missing - LINUX == expected_missing(size, result["figures"]["remote_packed"]["value"]), missing
    for figure in result["figures"].values():
        assert figure["unit"] == CATALOGUE_UNITS[figure["meaning"]] and len(figure["trainers"]) == size["trainers"]
    check_traffic(result)


CATALOGUE_UNITS = {entry.text: entry.unit for entry in CATALOGUE.values()}


def expected_missing(size, packed):
    missing = set() if size["nodes"] > 1 else REMOTE | {"remote_packed"}
    if size["nodes"] > 1 and packed is None:
        missing |= {"remote_packed"}
    missing |= ONE_OR_ALL if size["trainers"] == 1 or size["nodes"] > 1 else set()
    return missing | (BETWEEN_TRAINERS if size["trainers"] == 1 else set())


def check_traffic(result):
    figures = {name: figure["value"] for name, figure in result["figures"].items()}
    if result["layout"]["nodes"] == 1:
        assert figures["rounds_per_batch"] == figures["messages_per_batch"] == 0
        return
    assert figures["rounds_per_batch"] == 2  # one for each layer
    assert figures["messages_per_batch"] >= 3  # a request and its answer (the first layer's may be local), and rows
    assert figures["sampling_bytes_per_batch"] > 0 and figures["row_bytes_per_batch"] > 0


def test_the_number_of_servers_is_the_jobs_unless_it_is_given(monkeypatch):
    monkeypatch.setenv("MPIGRAPH_NUM_SERVERS", "3")
    numbers = []
    monkeypatch.setattr(job, "initialize", lambda **options: numbers.append(options["num_servers"]) or sys.exit(0))
    for arguments in ([], ["--num_servers", "0"]):
        with pytest.raises(SystemExit):
            main(["bench", *arguments])
    assert numbers == [None, 0]


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
def test_a_user_s_graph(comm, oracle, tmp_path, capsys):
    path, out = oracle(2), tmp_path / "bench.json"
    assert job.run(Settings(**(SMALL | {"part_config": path, "batch_size": 5, "out": str(out)})), 1.0, comm) == 0
    assert "gather local rows" in capsys.readouterr().out


@pytest.mark.parametrize("comm", [WORLD.size], indirect=True)
def test_errors_are_printed_once(comm, capsys):
    nowhere = ["--nodes", "100", "--edges", "400", "--out", "/proc/nowhere/bench.json"]
    cases = [*BAD_OPTIONS, (nowhere, "/proc/nowhere/bench.json: cannot be written: No such file")]
    for arguments, message in cases:
        try:
            good = main(["bench", *arguments]) == 2
        except SystemExit as stop:
            good = stop.code == (2 if "many" in arguments else 0)  # argparse ends so, and a server
        lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        on_all(comm, good and all(re.search(message, line) for line in lines), f"{arguments}: {lines}")
        assert comm.allreduce(len(lines)) == 1


BAD_OPTIONS = [
    (["--nodes", "many"], "argument --nodes: invalid int value: 'many'"),
    (["--nodes", "3"], "--nodes must be >= 100"),
    (["--fanouts", "10,x"], "--fanouts must be integers.*10,x"),
    (["--seconds", "nan"], "--seconds must be >= 0.01"),
    (["--part-config", "/nowhere/x.json", "--num_servers", "0"], "/nowhere/x.json"),
    (["--num_servers", "-1"], "--num_servers must be >= 0"),
    (["--nodes", "100", "--edges", "100000", "--seconds", "1", "--num_servers", "0"], "num_edges must be <= 4950"),
]


def test_fanouts_are_numbers():
    assert Settings(fanouts="15, 10,-1").layers() == [15, 10, -1]


@pytest.mark.parametrize(("value", "text"), [
    (0, "0"), (0.25, "0.250"), (1.0, "1"), (12.346, "12.35"), (999.96, "1000"), (1030.4, "1030"), (123456.7, "123457"),
])  # fmt: skip
def test_numbers_have_no_exponent(value, text):
    assert in_digits(value) == text


def invented():
    """A document of two trainers, without running anything."""
    figures = {name: {"value": 2.0, "unit": entry.unit, "trainers": [1.0, 3.0]} for name, entry in CATALOGUE.items()}
    figures["step_remote"] = figures["step_remote"] | {"value": None, "trainers": [None, None]}
    layout = {"ranks": 3, "nodes": 1, "trainers": 2, "hosts": 1, "servers_per_node": 1, "ranks_per_node": 0}
    machine = {"processor": "p", "cores": 2, "memory_GiB": 4.0, "torch_threads": 1}
    return {"machine": machine, "mpi": {"library": "m"}, "layout": layout, "figures": figures}


def test_the_table_shows_what_applies():
    text = report.table(invented())
    assert "gather remote rows" not in text
    assert text.count(": 1 to 3)") == len(CATALOGUE) - 1


def test_every_row_says_whose_value_it_is():
    result = invented()
    result["figures"]["batches_per_s"] |= {"value": 4.0, "trainers": [2.0, 2.0]}
    result["figures"]["memcpy_one"] |= {"trainers": [2.0, None]}
    result["figures"]["step_total"] |= {"trainers": [2.0, 2.1]}
    rows = [line[10:] for line in report.table(result).splitlines()]
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


@pytest.mark.parametrize(("one", "advice"), [
    (1.0, "faster here: 1 trainer with 2 thread(s), 2.00 times as fast as 2 trainers with 1 thread(s) each"),
    (3.0, "faster here: 2 trainers with 1 thread(s) each, 1.50 times as fast as 1 trainer with 2 thread(s)"),
    (2.01, "1 trainer with 2 thread(s) and 2 trainers with 1 thread(s) each are as fast here"),
])  # fmt: skip
def test_the_table_says_whether_one_trainer_is_faster(one, advice):
    result = invented()
    result["figures"]["step_one"] |= {"value": one}
    assert report.table(result).splitlines()[-1].startswith(f"trainers: {advice}")


@pytest.mark.parametrize(("layout", "reason"), [
    ({"trainers": 1}, "the job has one trainer"), ({"nodes": 2}, "the job has several nodes"),
    ({}, "each trainer has cores of its own"),
])  # fmt: skip
def test_the_table_says_why_one_trainer_was_not_compared(layout, reason):
    result = invented()
    result["layout"] |= layout
    result["figures"]["step_one"] |= {"value": None, "trainers": [None, None]}
    assert report.table(result).splitlines()[-1].endswith(f"was not compared, as {reason}")


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
