"""The package for tests of others, with pytest and the official client."""

import os

import pytest
from davit_testing import Cluster, StartError
from kubernetes import client, config


def core(cluster):
    return client.CoreV1Api(config.new_client_from_config(cluster.kubeconfig))


def test_a_cluster_is_ready(davit_cluster):
    names = [item.metadata.name for item in core(davit_cluster).list_namespace().items]
    assert "default" in names
    assert davit_cluster.url.startswith("https://127.0.0.1:")


def test_clusters_know_nothing_of_each_other(davit_cluster_factory):
    one, other = davit_cluster_factory(), davit_cluster_factory(simulated_nodes=1)
    core(one).create_namespace({"metadata": {"name": "mine"}})
    names = [item.metadata.name for item in core(other).list_namespace().items]
    assert "mine" not in names


def test_nothing_is_left():
    with Cluster() as cluster:
        directory = os.path.dirname(os.path.dirname(cluster.kubeconfig))
        assert os.path.isdir(directory)
    assert not os.path.exists(directory)


def test_what_does_not_start_says_why():
    with pytest.raises(StartError, match="--no-such-flag"):
        Cluster(flags=["--no-such-flag"]).start()
    with pytest.raises(StartError, match="cannot start /nonexistent/davit"):
        Cluster(binary="/nonexistent/davit").start()
