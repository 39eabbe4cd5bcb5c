#!/usr/bin/env bash
# Install on nodes without a network, with wheels that were collected on a machine like them (same CPU, same Python):
#     bash slurm/install/wheelhouse.sh collect wheelhouse PACKAGE  # with a network
#     bash wheelhouse/wheelhouse.sh install ~/mpigraph-venv        # copied to the cluster, without one
# PACKAGE is what pip takes: the wheel, or a name and version on an index of your site; in a checkout leave it out.
# PACKAGES adds others: PACKAGES="mpich torch_geometric". Those of PyTorch's own index (CUDA, CPU):
#     PIP_EXTRA_INDEX_URL=... bash slurm/install/wheelhouse.sh collect wheelhouse
set -euo pipefail

usage() {
  echo "usage: wheelhouse.sh collect FOLDER [PACKAGE] | install FOLDER" >&2
  exit 2
}
[ "$#" -ge 2 ] || usage
here=$(cd "$(dirname "$0")" && pwd)
case $1 in
  collect)
    package=${3:-$here/../..}
    if [ "$#" -lt 3 ] && [ ! -f "$package/pyproject.toml" ]; then
      echo "this is no checkout: give the wheel, wheelhouse.sh collect $2 mpigraph-VERSION-py3-none-any.whl" >&2
      exit 2
    fi
    mkdir -p "$2"
    # shellcheck disable=SC2086 # words
    python3 -m pip wheel --wheel-dir "$2" "$package" ${PACKAGES:-}
    cp "$here/wheelhouse.sh" "$2"
    echo "${PACKAGES:-}" >"$2/packages"
    ;;
  install)
    python3 -m venv "$2"
    # shellcheck disable=SC2046 # words
    "$2/bin/python" -m pip install --no-index --find-links "$here" mpigraph $(cat "$here/packages")
    ;;
  *) usage ;;
esac
