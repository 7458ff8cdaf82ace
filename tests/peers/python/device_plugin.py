"""A device plugin in Python: device_plugin.py FOLDER-OF-GENERATED-CODE SOCKET-FOLDER RESOURCE COUNT.

It serves first, registers, and registers again whenever the kubelet's socket is made anew.
"""

import os
import sys
import time
from concurrent import futures

import grpc

sys.path.insert(0, sys.argv[1])
import v1beta1_pb2  # noqa: E402
import v1beta1_pb2_grpc  # noqa: E402


class Plugin(v1beta1_pb2_grpc.DevicePluginServicer):
    def __init__(self, count):
        self.ids = [f"py-{i}" for i in range(count)]

    def GetDevicePluginOptions(self, request, context):
        return v1beta1_pb2.DevicePluginOptions()

    def ListAndWatch(self, request, context):
        yield v1beta1_pb2.ListAndWatchResponse(devices=[v1beta1_pb2.Device(ID=i, health="Healthy") for i in self.ids])
        while context.is_active():
            time.sleep(0.2)

    def Allocate(self, request, context):
        return v1beta1_pb2.AllocateResponse(
            container_responses=[
                v1beta1_pb2.ContainerAllocateResponse(envs={"PY_THINGS": ",".join(sorted(c.devices_ids))})
                for c in request.container_requests
            ]
        )


def identity(path):
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return (status.st_ino, status.st_mtime_ns)


def main():
    _, _, folder, resource, count = sys.argv
    server = grpc.server(futures.ThreadPoolExecutor(8))
    v1beta1_pb2_grpc.add_DevicePluginServicer_to_server(Plugin(int(count)), server)
    server.add_insecure_port(f"unix://{folder}/python.sock")
    server.start()
    kubelet = f"{folder}/kubelet.sock"
    known = None
    while True:
        now = identity(kubelet)
        if now and now != known:
            try:
                with grpc.insecure_channel(f"unix://{kubelet}") as channel:
                    request = v1beta1_pb2.RegisterRequest(version="v1beta1", endpoint="python.sock", resource_name=resource)
                    v1beta1_pb2_grpc.RegistrationStub(channel).Register(request, timeout=5)
                known = now
                print("registered", flush=True)
            except grpc.RpcError as error:
                print("not registered:", error.details(), flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
