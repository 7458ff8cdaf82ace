"""Fixtures of pytest.

``davit_cluster``: a control plane for one test. ``davit_cluster_factory``: makes clusters with options, which end with the test.
"""

import pytest

from . import Cluster


@pytest.fixture
def davit_cluster_factory():
    """Starts clusters with the options of ``Cluster``; they end with the test."""
    started = []

    def start(**options):
        cluster = Cluster(**options).start()
        started.append(cluster)
        return cluster

    yield start
    for cluster in reversed(started):
        cluster.stop()


@pytest.fixture
def davit_cluster(davit_cluster_factory):
    """A control plane."""
    return davit_cluster_factory()
