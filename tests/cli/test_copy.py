"""``python -m mpigraph copy``: every host gets its parts, the configuration and the scripts, whatever they are called.

ssh, scp, rsync and Slurm are stood in for by one script (``REMOTE``): each host is a directory; what ssh is given goes
through a real shell, as it would on the remote side, before the words are looked at. Copies to this machine are real.
"""

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest

import mpigraph
from mpigraph.cli.main import main
from mpigraph.distributed import partition_graph
from mpigraph.storage.part_config import PartConfig
from mpigraph.storage.shard import ShardReader

REMOTE = """#!{python} -S
import os, shutil, subprocess, sys
ROOT, NAME, ARGUMENTS = {root!r}, os.path.basename(sys.argv[0]), sys.argv[1:]

def there(host, path):
    assert path.startswith("/"), path
    return os.path.join(ROOT, host, path[1:])

def put(sources, host, directory):
    for source in sources:
        target = os.path.join(there(host, directory), os.path.basename(source))
        if os.path.isdir(source):
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)

def do(words, host):
    if words[:3] == ["mkdir", "-p", "--"]:
        for path in words[3:]:
            os.makedirs(there(host, path), exist_ok=True)
    elif words[:3] == ["cp", "-Rp", "--"]:
        put(words[3:-1], host, words[-1])
    elif words[:2] == ["sh", "-c"]:
        status = subprocess.call([*words[:4], there(host, words[4]), *words[5:]])
        if status:
            sys.exit(status)
    else:
        sys.exit(0 if words == ["rsync", "--version"] and host != "bare" else 127)

def behind_options(words):
    at = 0
    while words[at].startswith("-") and words[at] != "--":
        at += 2 if words[at] in ("-p", "-P", "-l", "-o", "-e") else 1
    return words[at:]

if NAME == "ssh":
    host, command = behind_options(ARGUMENTS)
    if host == "down":
        print("no route", file=sys.stderr)
        sys.exit(255)
    shell = "set -- " + command + "; for word; do printf '%s\\\\0' \\"$word\\"; done"
    do(subprocess.run(["sh", "-c", shell], stdout=-1, check=True, text=True).stdout.split("\\0")[:-1], host)
elif NAME in ("scp", "rsync"):
    assert NAME == "scp" or "--protect-args" in ARGUMENTS
    *sources, target = behind_options(ARGUMENTS)[1:]
    host, _, directory = target.rpartition(":/")
    put(sources, host.strip("[]"), "/" + directory)
elif NAME == "srun":
    told = dict(word[2:].split("=") for word in ARGUMENTS if word.startswith("--") and "=" in word)
    command = [word for word in ARGUMENTS[len(told):]]
    for node in range(int(told["nodes"])):
        do(command, "node" + str(int(told["relative"]) + node))
elif NAME == "sbcast":
    source, target = ARGUMENTS[ARGUMENTS.index("--") + 1:]
    for node in range(int(os.environ["SLURM_JOB_NUM_NODES"])):
        shutil.copy(source, there("node" + str(node), target))
"""
PLAIN = "/job/work"
HOSTILE = '/job/it\'s $(touch pwned) `touch pwned` ;touch pwned "x" größe'


@pytest.fixture(autouse=True)
def remote(tmp_path, monkeypatch):
    """The directory that holds the hosts; every tool is a stand-in."""
    root, tools = tmp_path / "remote", tmp_path / "tools"
    for directory in (root, tools):
        directory.mkdir()
    for name in ("ssh", "scp", "rsync", "srun", "sbcast"):
        (tools / name).write_text(REMOTE.format(python=sys.executable, root=str(root)))
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    scripts = tmp_path / "my scripts" / "deep"
    scripts.mkdir(parents=True)
    (scripts / "train.py").write_text("print()")
    return root


def slurm(monkeypatch, nodes):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", str(nodes))


def copy(config, hosts=None, workspace=PLAIN, *more):
    arguments = ["copy", "--part_config", config, "--workspace", workspace, "--rel_data_path", "my data"]
    if hosts is not None:
        Path("ip_config.txt").write_text("\n".join(hosts))
        arguments += ["--ip_config", "ip_config.txt"]
    return main([*map(str, arguments), "--script_folder", "my scripts/", *more])


def found_parts(root, config, workspace, name="oracle"):
    """The parts at a host; that the host has all else that it should have."""
    assert (root / workspace[1:] / "my scripts" / "deep" / "train.py").read_text() == "print()"
    data = root / workspace[1:] / "my data"
    there, here = PartConfig.read(data / f"{name}.json"), PartConfig.read(config)
    parts = [k for k in range(there.num_parts) if there.part_path(k, "part_graph").exists()]
    for part in parts:
        with ShardReader(there.part_path(part, "part_graph"), there.graph_name, part):
            pass
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


@pytest.mark.parametrize(
    "num_nodes, parts", [(2, [[0, 1], [2, 3]]), pytest.param(4, [[0], [1], [2], [3]], marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("workspace", [pytest.param(PLAIN, marks=pytest.mark.slow), HOSTILE])
def test_each_node_gets_its_parts_by_slurm(remote, oracle, monkeypatch, num_nodes, parts, workspace):
    slurm(monkeypatch, num_nodes)
    assert copy(oracle(4), None, workspace) == 0
    assert [found_parts(remote / f"node{k}", oracle(4), workspace) for k in range(num_nodes)] == parts


@pytest.mark.slow
def test_scp_where_a_host_has_no_rsync(remote, oracle, capsys):
    assert copy(oracle(2), ["10.0.0.1", "bare"], "/job", "--ssh_port", "22", "--rel_data_path", "data") == 0
    tools = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert tools == ["ssh", "rsync", "rsync", "rsync", "ssh", "scp", "scp", "scp"]
    assert (remote / "bare/job/data/part1/graph.h5").exists() and not (remote / "bare/job/data/part0").exists()
    assert copy(oracle(2), ["bare"], HOSTILE) == 2
    assert "scp does not copy to" in capsys.readouterr().err


def test_copies_on_this_machine_are_real(tmp_path, oracle):
    workspace = str(tmp_path / "here" / HOSTILE[1:].replace("touch pwned", "x"))
    for _ in range(2):
        assert copy(oracle(2), ["127.0.0.1"], workspace) == 0
        assert found_parts(Path("/"), oracle(2), workspace) == [0, 1]
    moved = Path(workspace) / "my data" / "oracle.json"
    assert copy(moved, ["localhost"], workspace) == 0  # what lies there already is left alone
    assert found_parts(Path("/"), oracle(2), workspace) == [0, 1]


@pytest.mark.parametrize("way", ["here", *(pytest.param(way, marks=pytest.mark.slow) for way in ("ssh", "slurm"))])
def test_another_graph_is_not_copied_over(remote, oracle, monkeypatch, capsys, tmp_path, way):
    """On no host, before the first copy; the same graph is, in other parts, too."""
    hosts = {"here": ["localhost"], "ssh": ["10.0.0.1", "10.0.0.2"], "slurm": None}[way]
    if way == "slurm":
        slurm(monkeypatch, 2)
    workspace = str(tmp_path / HOSTILE[1:].replace("touch pwned", "x"))
    last = {"here": Path("/"), "ssh": remote / "10.0.0.2", "slurm": remote / "node1"}[way] / workspace[1:] / "my data"
    partition_graph(mpigraph.graph(([0, 1], [1, 2])), "other", 3, last)
    assert copy(oracle(2), hosts, workspace) == 2
    said = capsys.readouterr()
    assert "my data/other.json is of another graph" in said.err and "--overwrite" in said.err and said.out == ""
    assert PartConfig.read(last / "other.json").num_parts == 3 and not (last / "oracle.json").exists()
    assert copy(oracle(2), hosts, workspace, "--overwrite") == 0
    assert not (last / "other.json").exists()
    assert copy(oracle(4), hosts, workspace) == 0
    partition_graph(mpigraph.graph(([0, 1], [1, 2])), "oracle", 2, last, overwrite=True)
    assert copy(oracle(2), hosts, workspace) == 2  # of the same name
    assert "my data/oracle.json is of another graph" in capsys.readouterr().err


SSH_GOLDEN = """ssh -p 2222 -l ann {host} 'mkdir -p -- /w /w/data /w/data/part{k}'
{tool} -- {{part{k}}} {quote}{there}:/w/data/part{k}/{quote}
{tool} -- '{{dir}}/my scripts' {quote}{there}:/w/{quote}
{tool} -- {{config}} {quote}{there}:/w/data/{quote}
"""
GOLDEN = {
    "slurm": """
{all} mkdir -p -- /w /w/data
{one} --relative=0 --input=none --kill-on-bad-exit=1 mkdir -p -- /w/data/part0
{one} --relative=0 --input=none --kill-on-bad-exit=1 cp -Rp -- {part0} /w/data/part0/
{one} --relative=0 --input=none --kill-on-bad-exit=1 cp -Rp -- '{dir}/my scripts' /w/
{one} --relative=1 --input=none --kill-on-bad-exit=1 mkdir -p -- /w/data/part1
{one} --relative=1 --input=none --kill-on-bad-exit=1 cp -Rp -- {part1} /w/data/part1/
{one} --relative=1 --input=none --kill-on-bad-exit=1 cp -Rp -- '{dir}/my scripts' /w/
sbcast --force --preserve -- {config} /w/data/oracle.json
""",
}
for name, words in (
    ("rsync", "rsync -a --partial --protect-args -e 'ssh -p 2222 -l ann'"),
    ("scp", "scp -rpq -P 2222 -o User=ann"),
):
    first = SSH_GOLDEN.format(tool=words, k=0, host="10.0.0.1", there="10.0.0.1", quote="")
    GOLDEN[name] = first + SSH_GOLDEN.format(tool=words, k=1, host="fe80::2", there="[fe80::2]", quote="'")


@pytest.mark.parametrize("tool", GOLDEN)
def test_what_a_dry_run_prints(remote, oracle, capsys, monkeypatch, tmp_path, tool):
    if tool == "slurm":
        slurm(monkeypatch, 3)  # one node more than hosts
    chosen = () if tool == "slurm" else ("--tool", tool)
    more = ("--rel_data_path", "data", "--ssh_port", "2222", "--ssh_username", "ann", "--dry-run")
    assert copy(oracle(2), ["10.0.0.1 30050", "fe80::2"], "/w", *more, *chosen) == 0
    names, directory = ("graph.h5", "node_feat.h5", "edge_feat.h5"), Path(oracle(2)).parent
    golden = GOLDEN[tool].lstrip().format(
        config=oracle(2), dir=tmp_path,
        all="srun --nodes=3 --ntasks=3 --ntasks-per-node=1 --relative=0 --input=none --kill-on-bad-exit=1",
        one="srun --nodes=1 --ntasks=1 --ntasks-per-node=1",
        **{f"part{k}": " ".join(f"{directory}/part{k}/{name}" for name in names) for k in range(2)},
    )  # fmt: skip
    assert capsys.readouterr().out == golden
    assert list(remote.iterdir()) == []


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

    assert "part1/node_feat.h5: no such file (part 1 of" in error(config, ["a", "b"])
    content = json.loads(config.read_text())
    for outside in ("/etc/passwd", "../x.h5"):
        content["part-1"]["node_feats"] = outside
        config.write_text(json.dumps(content))
        assert f"{outside!r} is no path inside the graph's folder" in error(config, ["a", "b"])
    assert "--workspace must be an absolute path" in error(oracle(2), ["a"], "work")
    assert "--script_folder: no such directory: 'none'" in error(oracle(2), ["a"], "/w", "--script_folder", "none")
    assert "--ip_config is needed" in error(oracle(2))
    assert "ip_config.txt:2: neither an IP address nor a host name" in error(oracle(2), ["a", "b;c"])
    assert "--ssh_port must be" in error(oracle(2), ["a"], "/w", "--ssh_port", "0")
    assert "cannot read the partition configuration" in error(graph / "none.json", ["a"])


def test_a_host_that_fails_is_named(oracle, capsys):
    assert copy(oracle(2), ["10.0.0.1", "down"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "ip_config.txt:2: ssh does not reach down: no route" in err
    assert copy(oracle(2), ["10.0.0.1", "down"], PLAIN, "--tool", "rsync") == 2
    assert "copying to down failed: ssh ended with status 255" in capsys.readouterr().err


def test_slurm_needs_enough_nodes_and_another_place(oracle, capsys, monkeypatch):
    slurm(monkeypatch, 1)
    assert copy(oracle(2), ["a", "b"]) == 2
    assert "2 hosts, but the Slurm allocation has 1 node(s)" in capsys.readouterr().err
    directory = Path(oracle(2)).parent
    assert copy(oracle(2), None, str(directory), "--rel_data_path", ".") == 2
    assert "is where the parts are" in capsys.readouterr().err


def test_nodes_that_share_the_workspace_copy_one_after_the_other(oracle, capsys, monkeypatch, tmp_path):
    slurm(monkeypatch, 2)
    assert copy(oracle(2), None, "/w", "--dry-run") == 0
    writes = [line for line in capsys.readouterr().out.splitlines() if "my scripts" in line]
    assert len(writes) == 2 and all("--nodes=1 " in line for line in writes)
    assert copy(oracle(2), None, str(tmp_path), "--dry-run") == 0  # where the scripts are already
    assert "my scripts" not in capsys.readouterr().out


def test_what_is_printed_can_be_typed(oracle, capsys):
    assert copy(oracle(1), ["10.0.0.1"], HOSTILE, "--dry-run") == 0
    first = shlex.split(capsys.readouterr().out.splitlines()[0])
    assert shlex.split(first[2])[3:] == [HOSTILE, f"{HOSTILE}/my data", f"{HOSTILE}/my data/part0"]
