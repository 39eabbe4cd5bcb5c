"""The steps between the levels: clusters keep their caps, nothing is lost when they become nodes, refinement helps."""

import numpy as np
from mpi4py import MPI
from test_assign import Graph, communities

from mpigraph.partition.multilevel.clustering import Clusters, find_clusters
from mpigraph.partition.multilevel.contraction import contract
from mpigraph.partition.multilevel.dist_csr import Level, even_bounds, finest_level
from mpigraph.partition.multilevel.initial import spread
from mpigraph.partition.multilevel.over_mpi import MPIExchange
from mpigraph.partition.multilevel.refinement import Effort, global_loads, refine
