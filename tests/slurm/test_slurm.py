"""The shipped templates on a real Slurm of two nodes, unmodified except for the settings block.

Each node has a disk and shared memory of its own, so that a file a node lacks is missed.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from batch import COLD, OPEN, ROOT, SETUP, SLURM, SMALL, SOON, TASKS, log_of, needs_slurm, run, train_script, until_gone
from cluster import Cluster, settings, until
from installed import install, ran

TEMPLATES = sorted(SLURM.glob("*.sbatch"))


@pytest.mark.parametrize("restarts, resumes", [("", False), ("0", False), ("2", True)])
def test_a_requeued_partitioning_resumes(tmp_path: Path, restarts: str, resumes: bool) -> None:
    (tmp_path / "srun").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "srun").chmod(0o700)
    (tmp_path / "job").write_text(settings(SLURM / "partition.sbatch", {}, {"setup": "    :"}))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_CPUS_PER_TASK": "1", "SLURM_RESTART_COUNT": restarts}
    words = subprocess.run(["bash", tmp_path / "job"], env=env, check=True, capture_output=True, text=True).stdout
    assert ("--resume" in words.split()) == resumes and "mpigraph partition" in words


@needs_slurm
def test_the_example_trains_over_both_nodes_from_their_own_disks(cluster: Cluster, parts: Path, tmp_path: Path) -> None:
    changes = SMALL | {"PART_CONFIG": str(parts), "STAGE_TO": str(cluster.local / "parts")}
    flags = "--num_epochs 6 --fan_out 5,5 --num_hidden 32"
    example = (
        f'    run python {ROOT}/examples/node_classification.py --graph_name S --part_config "$PART_CONFIG" {flags}'
    )
    result, output = run(cluster, tmp_path, "train", changes, {"setup": SETUP, "train": example})
    assert (result["JobState"], result["ExitCode"]) == ("COMPLETED", "0:0"), output
    assert "2 trainer(s), 2 host(s), 2 node(s)" in output  # that is, a server on each
    accuracy = re.search(r"test accuracy ([0-9.]+)", output)
    assert accuracy and float(accuracy[1]) > 0.5, output
    for node, name in enumerate(cluster.names):
        assert re.search(rf"node {node} .*: part\(s\) {node}: 3 files copied .*, 0 kept", output), output
        staged = cluster.on_node(name, cluster.local / "parts")
        assert (staged / "S.json").is_file()
        assert sorted(path.name for path in staged.iterdir()) == ["S.json", f"part{node}"]
    said = cluster.run(["sacct", "--completion", "--noheader", "--parsable2", "--format=jobid,state"]).stdout
    assert f"{result['JobId']}|COMPLETED" in said, said
    until_gone(cluster)


@needs_slurm
@pytest.mark.slow
def test_templates_of_a_wheel_in_its_environment(cluster: Cluster, tmp_path: Path) -> None:
    """From nothing but ``pip install``: the settings keep their commands, only sizes change."""
    python = install(tmp_path, tmp_path / "made")
    for words in ("slurm slurm", "examples examples", "generate --nodes 3000 --edges 30000 --feat-dim 16 -o data/S"):
        assert ran(python, tmp_path, "-m", "mpigraph", *words.split()).status == 0
    logs = []
    sizes = {"partition": {"--cpus-per-task": "1"}, "train": SMALL, "doctor": SMALL}
    for name, changes in sizes.items():
        result, output = run(cluster, tmp_path, name, changes, {}, templates=tmp_path / "slurm")
        assert result["JobState"] == "COMPLETED", output
        logs.append(output)
    assert "edges cut" in logs[0] and "test accuracy" in logs[1] and "GB/s" in logs[2], logs


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_no_step_obeys_what_sbatch_was_told_to_export(template: Path, tmp_path: Path) -> None:
    (tmp_path / "srun").write_text('#!/bin/sh\necho "step ${SLURM_EXPORT_ENV-all} with $OMP_NUM_THREADS"\n')
    (tmp_path / "srun").chmod(0o700)
    (tmp_path / "job").write_text(settings(template, {}, {"setup": "    :"}))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_CPUS_PER_TASK": "3", "SLURM_EXPORT_ENV": "NONE"}
    env |= {"SLURM_JOB_NAME": "job", "SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1"}
    done = subprocess.run(["bash", tmp_path / "job"], env=env, check=True, capture_output=True, text=True)
    assert "step all with 3\n" in done.stdout and "NONE" not in done.stdout, done


@needs_slurm
def test_ranks_have_the_variables_of_the_script_where_sbatch_exports_none(cluster: Cluster, tmp_path: Path) -> None:
    names = ("MPIGRAPH_REQUEUE", "MPIGRAPH_NUM_SERVERS", "MPIGRAPH_REPORT", "OMP_NUM_THREADS", "OF_SETUP")
    (tmp_path / "script.py").write_text(f"import os\nprint('has', *map(os.environ.get, {names}))\n")
    setup = f"    export OF_SETUP=1 SLURM_CONF={cluster.env['SLURM_CONF']} PATH={cluster.env['PATH']}"
    commands = {"setup": setup, "train": f"    run {sys.executable} script.py"}
    text = settings(SLURM / "train.sbatch", SMALL | {"SERVERS": "0", "REPORT": "/r"}, commands)
    (tmp_path / "train.sbatch").write_text(text)
    job = cluster.submit(tmp_path / "train.sbatch", tmp_path, "--export=NONE")
    result = cluster.wait(job, SOON)
    output = log_of(tmp_path, job)
    assert result["JobState"] == "COMPLETED" and output.count(f"has exit 0 /r/{job}-0 1 1\n") == 2 * TASKS, output


@needs_slurm
def test_staging_again_copies_nothing(cluster: Cluster, parts: Path, tmp_path: Path) -> None:
    changes = SMALL | {"PART_CONFIG": str(parts), "STAGE_TO": str(cluster.local / "again")}
    commands = {"setup": SETUP, "train": '    echo "read $PART_CONFIG"'}
    assert "3 files" in run(cluster, tmp_path, "train", changes, commands)[1]
    result, output = run(cluster, tmp_path, "train", changes, commands)
    assert result["JobState"] == "COMPLETED" and output.count("0 files copied (0.0 KiB), 3 kept") == 2, output
    assert f"read {cluster.local}/again/S.json" in output


@needs_slurm
def test_a_failing_script_is_a_failed_job_in_seconds(cluster: Cluster, tmp_path: Path) -> None:
    job = train_script(cluster, tmp_path, 'if rank == 1: raise ValueError("no such luck")\ntime.sleep(300)')
    result = cluster.wait(job, SOON)
    output = log_of(tmp_path, job)
    assert result["JobState"] == "FAILED" and result["ExitCode"] not in ("0:0", ""), output
    assert "no such luck" in output and "trainer 1/2" in output
    until_gone(cluster)


@needs_slurm
def test_exit_codes_reach_slurm(cluster: Cluster, tmp_path: Path) -> None:
    job = train_script(cluster, tmp_path, "sys.exit(3)")
    result = cluster.wait(job, SOON)
    assert (result["JobState"], result["ExitCode"]) == ("FAILED", "3:0"), log_of(tmp_path, job)


HOLES = """
import ctypes, h5py, mpigraph.kernels, torch  # all that fills holes before MPI starts
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
holes = []
for size in [*range(1040, 4096, 16)] * 4:  # with text behind each
    holes.append(libc.malloc(size))
    ctypes.memset(libc.malloc(5000), ord("x"), 5000)
for hole in holes:
    libc.free(hole)
"""


@needs_slurm
def test_what_lies_on_the_heap_does_not_matter(cluster: Cluster, tmp_path: Path) -> None:
    result = cluster.wait(train_script(cluster, tmp_path, "sys.exit(0)", HOLES, COLD), SOON)
    assert result["JobState"] == "COMPLETED", log_of(tmp_path, result["JobId"])


@needs_slurm
def test_scancel_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    job = train_script(cluster, tmp_path, 'print("ready", flush=True)\ntime.sleep(300)')
    until(lambda: "ready" in log_of(tmp_path, job), SOON)
    assert len(cluster.processes()) >= 2 * TASKS
    cluster.run(["scancel", job])
    assert cluster.wait(job, SOON)["JobState"] == "CANCELLED"
    until_gone(cluster)


@needs_slurm
def test_trainers_see_the_gpus_of_their_node(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        OPEN + 'print("gpu", os.environ["LOCAL_RANK"], os.environ["CUDA_VISIBLE_DEVICES"], "by", sys.argv[1])'
    )
    changes = SMALL | {"--ntasks-per-node": "3", "--gpus-per-node": "2", "BACKEND": "nccl"}
    commands = {"setup": SETUP, "train": '    run python -u script.py "$BACKEND"'}
    result, output = run(cluster, tmp_path, "train", changes, commands)
    assert result["JobState"] == "COMPLETED", output
    assert sorted(re.findall(r"gpu \d \S+ by \w+", output)) == ["gpu 0 0,1 by nccl"] * 2 + ["gpu 1 0,1 by nccl"] * 2, (
        output
    )


@needs_slurm
def test_doctor_runs(cluster: Cluster, tmp_path: Path) -> None:
    result, output = run(cluster, tmp_path, "doctor", SMALL, {"setup": SETUP})
    assert result["JobState"] == "COMPLETED", output
    assert "srun, 4 processes" in output and "2 trainer(s), 2 host(s), 2 node(s)" in output, output
    assert re.search(r"rows, packed +[0-9.]+ GB/s", output) and "A job can run here." in output, output


@needs_slurm
def test_processes_that_do_not_find_each_other_are_told_why(cluster: Cluster, tmp_path: Path) -> None:
    job = train_script(cluster, tmp_path, "print('alone', world)", MPI="none")
    result = cluster.wait(job, SOON)
    output = log_of(tmp_path, job)
    assert result["JobState"] == "FAILED" and "alone" not in output, output
    assert "srun started 4 processes that MPI does not connect" in output and "srun --mpi=list" in output, output


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_templates_are_good_shell(template: Path) -> None:
    assert subprocess.run(["bash", "-n", template]).returncode == 0
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "-e", "SC1091", template], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    lines = template.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert not [line for line in lines[first:] if line.startswith("#SBATCH")], (
        f"sbatch reads no further than line {first}"
    )


def test_editing_the_settings_finds_what_it_edits() -> None:
    template = SLURM / "train.sbatch"
    text = settings(template, {"--nodes": "7", "SERVERS": "0", "--mem": ""}, {"setup": "    module load python"})
    assert "#SBATCH --nodes=7\n" in text and "\nSERVERS=0\n" in text and "#SBATCH --mem" not in text
    assert "\n##SBATCH --gpus-per-node=" in text
    assert "\n#SBATCH --gpus-per-node=2\n" in settings(template, {"--gpus-per-node": "2"}, {})
    assert "    module load python\n}\n" in text and ".venv" not in text
    for changes, commands in (({"--gpus": "1"}, {}), ({"NO": "1"}, {}), ({}, {"no": ""}), ({"child": ""}, {})):
        with pytest.raises(KeyError):
            settings(template, changes, commands)
