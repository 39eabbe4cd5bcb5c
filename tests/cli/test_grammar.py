"""One grammar for all commands: how they are listed, what wrong words give, one name for one thing, quiet and JSON."""

import json
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from jobs import ROOT, clean_environment, run_job
from made_summaries import Fault, Setup, made

import mpigraph
from mpigraph.cli.grammar import STATUSES
from mpigraph.cli.main import COMMANDS, main
from mpigraph.partition.assign import PART_METHODS
from mpigraph.partition.generate import Recipe
from mpigraph.reports.summary import write


@pytest.fixture(autouse=True)
def first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """It speaks for all."""
    monkeypatch.setattr("mpigraph.cli.main.launcher_rank", lambda: 0)


def test_the_list_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for words in ([], ["-h"], ["--help"]):
        assert main(words) == 0
        printed.append(capsys.readouterr().out)
    assert len(set(printed)) == 1
    assert all(re.search(rf"^  {name} +[A-Z]", printed[0], re.MULTILINE) for name in COMMANDS)
    table = (ROOT / "examples" / "troubleshooting.md").read_text()
    for status, text in STATUSES.items():
        assert re.search(rf"^  {status} +{re.escape(text)}$", printed[0], re.MULTILINE)
        assert f"| {status} | {text} |" in table
    assert main(["--version"]) == 0 and capsys.readouterr().out == f"mpigraph {mpigraph.__version__}\n"


def test_usage_names_what_was_typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for program, typed in (("bin/mpigraph", "mpigraph"), ("mpigraph/__main__.py", "python -m mpigraph")):
        monkeypatch.setattr(sys, "argv", [program])
        assert main([]) == 0 and capsys.readouterr().out.startswith(f"usage: {typed} COMMAND")
        with pytest.raises(SystemExit):
            main(["info"])
        assert capsys.readouterr().err.startswith(f"usage: {typed} info ")


def test_help_loads_no_library() -> None:
    heavy = {"numpy", "torch", "h5py", "mpi4py", "numba", "pyarrow"}
    check = (
        "import sys, contextlib\nfrom mpigraph.cli.main import COMMANDS, main\n"
        "for words in [[], *([name, '--help'] for name in COMMANDS)]:\n"
        "    with contextlib.suppress(SystemExit):\n        main(words)\n"
        f"assert not {heavy} & sys.modules.keys(), {heavy} & sys.modules.keys()"
    )
    done = run_job([sys.executable, "-c", check], clean_environment())
    assert done.status == 0, done.output


@pytest.mark.parametrize(
    "words, said",
    [
        ("parition x", "'parition' is no command (did you mean partition?)"),
        ("info /nowhere.json", "mpigraph info: error: /nowhere.json: cannot read"),
        ("verify /nowhere.json", "mpigraph verify: error: /nowhere.json: cannot read"),
        ("zzz", "'zzz' is no command; python -m mpigraph lists them"),
        ("info x --jsn", "unrecognized arguments: --jsn (did you mean --json?)"),
        ("doctor --num_servers 1", "--num_servers 1 (did you mean --servers?)"),
        ("partition x --ouut=y", "required: -o/--out (did you mean --out?)"),
        ("launch --num-trainers 2 c", "required: --num_trainers (did you mean --num_trainers?)"),
        ("generate --nodes many --edges 3 -o x", "argument --nodes: invalid int value: 'many'"),
        ("partition x --undirected --add-reverse -o y", "give --undirected or --add-reverse, not both"),
    ],
)
def test_wrong_words(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(words.split())
    except SystemExit as error:
        status = error.code
    assert status == 2 and said in capsys.readouterr().err


def test_one_name_for_one_thing() -> None:
    """A graph is the first argument; an option has one type in all commands; DGL's names aside."""
    types: dict[str, set[Any]] = {}
    for name, (cls, _) in COMMANDS.items():
        own = {field.name: field for field in fields(cls) if not field.metadata.get("underscores")}
        assert "part_config" not in own or fields(cls)[0].name == "part_config", name
        assert not own.keys() & {"num_servers", "config", "output", "trainers_per_host"}, name
        for field in own.values():
            types.setdefault(field.name, set()).add(field.type)
    assert {name for name, kinds in types.items() if len(kinds) > 1} <= {"scratch"}
    generate, _ = COMMANDS["generate"]
    defaults = {field.name: field.default for field in fields(Recipe)}
    assert all(field.default in (None, defaults[field.name]) for field in fields(generate) if field.name in defaults)
    partition, _ = COMMANDS["partition"]
    (method,) = (field.metadata["metavar"] for field in fields(partition) if field.name == "method")
    assert sorted(method.split("|")) == sorted(PART_METHODS)


def test_the_page_of_a_report_is_made_again_and_the_verdict_printed(tmp_path: Path, capsys: Any) -> None:
    write(tmp_path, made(1, Setup(), Fault("model", 3)))
    assert main(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Trainer 3 on node n3 is the slowest: ") and printed.endswith("report.html\n")
    assert "\nThe script does more there" in printed
    assert "Trainer 3 on node n3 is the slowest: " in (tmp_path / "report.html").read_text()
    (tmp_path / "summary.json").write_text('{"format": "mpigraph report", "version": 7}')
    assert main(["report", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "summary.json is no report of this version" in error and "7" in error


def test_results_as_json_and_quietly(oracle, tmp_path: Path) -> None:
    """In processes of their own: a quiet command sets the level of the log."""
    write(tmp_path / "report", made(1, Setup(), Fault("model", 3)))
    graph = oracle(2)
    for words, key, wanted in (
        (["info", graph], "num_parts", 2),
        (["verify", graph], "bad", []),
        (["partition", graph, "--parts", "3", "--method", "random", "-o", tmp_path / "out"], "num_parts", 3),
        (["report", tmp_path / "report"], "kind", "trainer"),
    ):
        done = run_job([sys.executable, "-m", "mpigraph", *words, "--json", "-q"], clean_environment())
        assert done.status == 0 and done.stderr == "", done.output
        assert json.loads(done.stdout)[key] == wanted
