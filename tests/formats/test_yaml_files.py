"""YAML files are plain values, or one error that names the file."""

import sys

import pytest

from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import read_yaml


def test_plain_values(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_bytes(b"name: x\r\nlist:\r\n  - {type: 'a:r:b', num: 3}\r\n")
    assert read_yaml(path) == {"name": "x", "list": [{"type": "a:r:b", "num": 3}]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "must be a YAML mapping"),
        (b"3", "must be a YAML mapping"),
        (b"a: [", "line 1"),
        (b"a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        (b"a: !!int ''", "cannot be read as YAML"),
        (b"\xff\xfe\xff", "cannot be read as YAML"),
        (b"a: " + b"[" * 20000, "cannot be read as YAML"),
        (None, "No such file"),
    ],
)
def test_what_is_no_mapping_is_an_error(tmp_path, content, reason):
    path = tmp_path / "a.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(GraphDataError, match=rf"a\.yaml.*{reason}"):
        read_yaml(path)


def test_without_pyyaml_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(GraphDataError, match=r"a\.yaml.*pip install 'mpigraph\[yaml\]'"):
        read_yaml(tmp_path / "a.yaml")
