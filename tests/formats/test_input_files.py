"""Files of a user come in the order in which people count them; YAML is plain values, or one error with its file."""

import sys
from pathlib import Path

import pytest

from mpigraph.errors import GraphDataError
from mpigraph.formats.graphbolt import _read_yaml
from mpigraph.formats.input_files import in_natural_order


def test_numbers_in_names_count_by_their_value():
    names = ["part-2", "part-10", "part-10-1", "part-10-2", "part-10-11", "part-x", "x", "9", "10", "1", "01"]
    ordered = ["01", "1", "9", "10", "part-2", "part-10", "part-10-1", "part-10-2", "part-10-11", "part-x", "x"]
    assert [path.name for path in in_natural_order(map(Path, names))] == ordered


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "must be a mapping"),
        (b"3", "must be a mapping"),
        (b"a: [", "line 1"),
        (b"a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        (b"a: !!int ''", "cannot be read"),
        (b"\xff\xfe\xff", "cannot be read"),
        (b"a: " + b"[" * 20000, "cannot be read"),
        (None, "No such file"),
    ],
)
def test_what_is_no_mapping_is_an_error(tmp_path, content, reason):
    path = tmp_path / "a.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(GraphDataError, match=rf"a\.yaml.*{reason}"):
        _read_yaml(path)


def test_without_pyyaml_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(GraphDataError, match=r"a\.yaml.*pip install PyYAML"):
        _read_yaml(tmp_path / "a.yaml")
