"""Uses an API server the way programs built on the official Python client do; one line a step, non-zero on failure."""

import sys
import threading
import time
import traceback

from kubernetes import client, config, dynamic, utils, watch
from kubernetes.client.rest import ApiException

NAMESPACE = "python"


def namespace(core):
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))


def typed_objects(core):
    made = core.create_namespaced_config_map(
        NAMESPACE, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="typed"), data={"a": "1"})
    )
    core.patch_namespaced_config_map("typed", NAMESPACE, {"data": {"b": "2"}})
    read = core.read_namespaced_config_map("typed", NAMESPACE)
    assert read.data == {"a": "1", "b": "2"}, read.data
    assert read.metadata.uid == made.metadata.uid
    made.data = {"a": "stale"}
    try:
        core.replace_namespaced_config_map("typed", NAMESPACE, made)
    except ApiException as error:
        assert error.status == 409, error
    else:
        raise AssertionError("a stale replace was taken")
    core.delete_namespaced_config_map("typed", NAMESPACE)
    try:
        core.read_namespaced_config_map("typed", NAMESPACE)
    except ApiException as error:
        assert error.status == 404, error
    else:
        raise AssertionError("a deleted object was read")


def watched(core):
    seen = []

    def follow():
        stream = watch.Watch().stream(
            core.list_namespaced_config_map, NAMESPACE, label_selector="watched", timeout_seconds=30
        )
        for event in stream:
            seen.append(event["type"])
            if event["type"] == "DELETED":
                return

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    time.sleep(0.5)
    core.create_namespaced_config_map(
        NAMESPACE, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="w", labels={"watched": ""}))
    )
    core.patch_namespaced_config_map("w", NAMESPACE, {"data": {"k": "v"}})
    core.delete_namespaced_config_map("w", NAMESPACE)
    follower.join(30)
    assert seen == ["ADDED", "MODIFIED", "DELETED"], seen


def manifests(api):
    utils.create_from_dict(
        api,
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "from-dict", "namespace": NAMESPACE},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"a": "b"}},
                "template": {
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {"containers": [{"name": "c", "image": "example/none"}]},
                },
            },
        },
    )
    apps = client.AppsV1Api(api)
    scale = apps.read_namespaced_deployment_scale("from-dict", NAMESPACE)
    assert scale.spec.replicas in (0, None), scale
    apps.delete_namespaced_deployment("from-dict", NAMESPACE)


def custom_objects(api):
    extensions = client.ApiextensionsV1Api(api)
    extensions.create_custom_resource_definition(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "gizmos.python.davit.dev"},
            "spec": {
                "group": "python.davit.dev",
                "scope": "Namespaced",
                "names": {"plural": "gizmos", "singular": "gizmo", "kind": "Gizmo"},
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "subresources": {"status": {}},
                        "schema": {
                            "openAPIV3Schema": {
                                "type": "object",
                                "properties": {
                                    "spec": {"type": "object", "properties": {"size": {"type": "integer", "minimum": 1}}},
                                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                },
                            }
                        },
                    }
                ],
            },
        }
    )
    custom = client.CustomObjectsApi(api)
    where = ("python.davit.dev", "v1", NAMESPACE, "gizmos")
    until(lambda: established(extensions, "gizmos.python.davit.dev"))
    body = {"apiVersion": "python.davit.dev/v1", "kind": "Gizmo", "metadata": {"name": "g"}, "spec": {"size": 2}}
    custom.create_namespaced_custom_object(*where, body)
    custom.patch_namespaced_custom_object_status(*where, "g", {"status": {"phase": "Done"}})
    read = custom.get_namespaced_custom_object(*where, "g")
    assert read["status"] == {"phase": "Done"} and read["spec"] == {"size": 2}, read
    try:
        custom.patch_namespaced_custom_object(*where, "g", {"spec": {"size": 0}})
    except ApiException as error:
        assert error.status == 422 and "should be greater than or equal to 1" in error.body, error.body
    else:
        raise AssertionError("an invalid size was taken")

    resources = dynamic.DynamicClient(api).resources.get(api_version="python.davit.dev/v1", kind="Gizmo")
    applied = resources.server_side_apply(
        namespace=NAMESPACE, body={**body, "spec": {"size": 7}}, field_manager="python", force_conflicts=True
    )
    assert applied.spec.size == 7, applied
    extensions.delete_custom_resource_definition("gizmos.python.davit.dev")


def established(extensions, name):
    conditions = extensions.read_custom_resource_definition(name).status.conditions or []
    return any(c.type == "Established" and c.status == "True" for c in conditions)


def until(holds, seconds=20):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError("waited too long")
        time.sleep(0.05)


def main():
    config.load_kube_config(sys.argv[1])
    api = client.ApiClient()
    core = client.CoreV1Api(api)
    steps = [
        ("namespace", lambda: namespace(core)),
        ("typed", lambda: typed_objects(core)),
        ("watch", lambda: watched(core)),
        ("manifests", lambda: manifests(api)),
        ("custom objects", lambda: custom_objects(api)),
    ]
    failed = False
    for name, step in steps:
        try:
            step()
            print("ok", name, flush=True)
        except Exception:
            failed = True
            print("FAIL", name, flush=True)
            traceback.print_exc()
    sys.exit(failed)


if __name__ == "__main__":
    main()
