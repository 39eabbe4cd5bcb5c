"""Every layout is known to readers, help and tutorial, and told apart from the others by its files."""

from pathlib import Path

import pytest

from mpigraph.cli.main import main
from mpigraph.errors import GraphDataError
from mpigraph.formats.readers import LAYOUTS, read_source

ROOT = Path(__file__).resolve().parents[2]


def test_help_and_tutorial_name_every_layout(capsys):
    with pytest.raises(SystemExit):
        main(["partition", "--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    tutorial = (ROOT / "examples" / "partitioning.md").read_text()
    for layout in LAYOUTS:
        names = {"DGL's chunked graph": "chunked", "PyG's parts": "Partitioner", "tables": "edges.csv"}
        name = names.get(layout.name, layout.name.split()[0])
        assert name in help_text, name
        assert layout.name == "tables" or name in tutorial, name


def test_files_of_no_layout(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty.bin", "one.bin", "out.x"):
        (tmp_path / name).write_bytes(b"" if name == "empty.bin" else b"%")
    for path in tmp_path.iterdir():
        with pytest.raises(GraphDataError, match=path.name):
            read_source(path)
