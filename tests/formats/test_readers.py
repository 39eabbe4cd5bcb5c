"""Every layout is known to help and tutorial."""

from pathlib import Path

import pytest

from mpigraph.cli.main import main
from mpigraph.formats.readers import LAYOUTS

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
