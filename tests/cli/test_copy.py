"""``python -m mpigraph copy``: every host gets its parts, the configuration and the scripts, whatever they are called.

ssh and rsync are stood in for by one script (``REMOTE``): each host is a directory; what ssh is given goes through a
real shell, as it would on the remote side, before the words are looked at.
"""

import shutil
import sys
from pathlib import Path

import pytest

from mpigraph.cli.main import main
from mpigraph.storage.part_config import PartConfig

REMOTE = """#!{python} -S
import os, shutil, subprocess, sys
ROOT, NAME, ARGUMENTS = {root!r}, os.path.basename(sys.argv[0]), sys.argv[1:]

def there(host, path):
    assert path.startswith("/"), path
    return os.path.join(ROOT, host, path[1:]) if host else path

def put(sources, host, directory):
    for source in sources:
        target = os.path.join(there(host, directory), os.path.basename(source))
        if os.path.islink(source) and "--copy-links" not in ARGUMENTS:
            os.symlink(os.readlink(source), target)
        elif os.path.isdir(source):
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)

def do(words, host):
    if words[:3] == ["mkdir", "-p", "--"]:
        for path in words[3:]:
            os.makedirs(there(host, path), exist_ok=True)
    else:
        sys.exit(127)

def behind_options(words):
    at = 0
    while words[at].startswith("-") and words[at] != "--":
        at += 2 if words[at] in ("-p", "-l", "-e") else 1
    return words[at:]

if NAME == "ssh":
    host, command = behind_options(ARGUMENTS)
    if host == "down":
        print("no route", file=sys.stderr)
        sys.exit(255)
    shell = "set -- " + command + "; for word; do printf '%s\\\\0' \\"$word\\"; done"
    do(subprocess.run(["sh", "-c", shell], stdout=-1, check=True, text=True).stdout.split("\\0")[:-1], host)
else:
    assert "--protect-args" in ARGUMENTS
    *sources, target = behind_options(ARGUMENTS)[1:]
    host, _, directory = target.rpartition(":/")
    put(sources, host.strip("[]"), "/" + directory if host else target)
"""
PLAIN = "/job/work"
HOSTILE = '/job/it\'s $(touch pwned) `touch pwned` ;touch pwned "x" größe'


@pytest.fixture(autouse=True)
def remote(tmp_path, monkeypatch):
    """The directory that holds the hosts; every tool is a stand-in."""
    root, tools = tmp_path / "remote", tmp_path / "tools"
    for directory in (root, tools):
        directory.mkdir()
    for name in ("ssh", "rsync"):
        (tools / name).write_text(REMOTE.format(python=sys.executable, root=str(root)))
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    scripts = tmp_path / "my scripts" / "deep"
    scripts.mkdir(parents=True)
    (scripts / "train.py").write_text("print()")
    return root


def copy(config, hosts, workspace=PLAIN, *more):
    Path("ip_config.txt").write_text("\n".join(hosts))
    arguments = ["copy", "--part_config", config, "--workspace", workspace, "--ip_config", "ip_config.txt"]
    return main([*map(str, arguments), "--rel_data_path", "my data", "--script_folder", "my scripts/", *more])


def found_parts(root, config, workspace, name="oracle"):
    """The parts at a host; that the host has all else that it should have."""
    assert (root / workspace[1:] / "my scripts" / "deep" / "train.py").read_text() == "print()"
    data = root / workspace[1:] / "my data"
    there, here = PartConfig.read(data / f"{name}.json"), PartConfig.read(config)
    parts = [k for k in range(there.num_parts) if there.part_path(k, "part_graph").exists()]
    for part in parts:
        for kind in ("part_graph", "node_feats", "edge_feats"):
            assert there.part_path(part, kind).read_bytes() == here.part_path(part, kind).read_bytes()
    assert sorted(path.name for path in data.iterdir()) == sorted([f"{name}.json", *(f"part{k}" for k in parts)])
    assert not list(Path.cwd().rglob("pwned"))
    return parts


@pytest.mark.parametrize(
    "num_hosts, parts",
    [
        pytest.param(1, [[0, 1]], marks=pytest.mark.slow),
        (2, [[0], [1]]),
        pytest.param(3, [[0], [0, 1], [1]], marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("workspace", [pytest.param(PLAIN, marks=pytest.mark.slow), HOSTILE])
def test_each_host_gets_its_parts_by_rsync(remote, oracle, num_hosts, parts, workspace):
    hosts = ["10.0.0.1", "node2", "fe80::3"][:num_hosts]
    assert copy(oracle(2), hosts, workspace) == 0
    assert [found_parts(remote / host, oracle(2), workspace) for host in hosts] == parts


def test_copies_on_this_machine_are_real(tmp_path, oracle):
    workspace = str(tmp_path / "here" / HOSTILE[1:].replace("touch pwned", "x"))
    for host in ("127.0.0.1", "localhost"):
        assert copy(oracle(2), [host], workspace) == 0
        assert found_parts(Path("/"), oracle(2), workspace) == [0, 1]


def test_parts_on_another_disk(remote, oracle, tmp_path):
    """A link to a folder here is none at the host."""
    config = shutil.copytree(Path(oracle(2)).parent, tmp_path / "graph") / "oracle.json"
    for name in ("part1", "oracle.json"):
        (tmp_path / "graph" / name).rename(tmp_path / name)
        (tmp_path / "graph" / name).symlink_to(tmp_path / name)
    assert copy(config, ["a", "b"]) == 0
    shutil.rmtree(tmp_path / "part1")
    data = remote / "b" / PLAIN[1:] / "my data"
    assert PartConfig.read(data / "oracle.json").file_sizes(1) and not (data / "oracle.json").is_symlink()


def test_a_dry_run_prints_the_commands_and_runs_none(remote, oracle, capsys, tmp_path):
    more = ("--rel_data_path", "data", "--ssh_port", "2222", "--ssh_username", "ann", "--dry-run")
    assert copy(oracle(2), ["10.0.0.1 30050", "fe80::2"], "/w", *more) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "ssh -p 2222 -l ann fe80::2 'mkdir -p -- /w /w/data'"
    rsync = "rsync -a --partial --protect-args -e 'ssh -p 2222 -l ann'"
    assert lines[-2:] == [
        f"{rsync} -- '{tmp_path}/my scripts' '[fe80::2]:/w/'",
        f"{rsync} --copy-links -- {oracle(2)} '[fe80::2]:/w/data/'",
    ]
    assert len(lines) == 8 and all(line.startswith(rsync) for line in lines[2:]) and list(remote.iterdir()) == []


def test_every_mistake_shows_before_the_first_copy(remote, oracle, capsys, tmp_path):
    graph = tmp_path / "graph"
    shutil.copytree(Path(oracle(2)).parent, graph)
    config = graph / "oracle.json"
    (graph / "part1" / "node_feat.h5").unlink()

    def error(*arguments):
        assert copy(*arguments) == 2 and list(remote.iterdir()) == []
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        return err

    assert "part1/node_feat.h5: No such file or directory (part 1 of" in error(config, ["a", "b"])
    assert "--workspace must be an absolute path" in error(oracle(2), ["a"], "work")
    assert "--script_folder: no such directory: 'none'" in error(oracle(2), ["a"], "/w", "--script_folder", "none")
    assert "ip_config.txt:2: expected" in error(oracle(2), ["a", "b;c"])
    assert "cannot read the partition configuration" in error(graph / "none.json", ["a"])


def test_a_host_that_fails_is_named(oracle, capsys):
    assert copy(oracle(2), ["10.0.0.1", "down"]) == 2
    out, err = capsys.readouterr()
    assert "rsync" not in out and "copying to down failed: ssh ended with status 255" in err
