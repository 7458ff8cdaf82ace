"""A Kubernetes cluster in a test.

    from davit_testing import Cluster

    with Cluster() as cluster:
        kubernetes.config.load_kube_config(cluster.kubeconfig)

Each cluster is a process of its own (``davit up --ephemeral --exit-with-parent``) with directories and ports that nobody
else has: many run at once, and none outlives the program that started it, even if that is killed. The program davit is found
by the variable ``DAVIT_BINARY`` or in ``PATH``. Nothing but Python is needed; with pytest there is the fixture ``davit_cluster``.
"""

import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading

__all__ = ["Cluster", "StartError"]


class StartError(RuntimeError):
    """There is no davit, or it did not become ready; the text ends with what it wrote."""


class Cluster:
    """A cluster that runs from ``start`` to ``stop``, or as a context.

    simulated_nodes: so many real node agents with devices, whose containers run nothing; they need no privileges.
    node: with a node that runs containers; needs root.
    devices: an inventory of simulated devices as YAML (docs/lab.md).
    template: the data directory of a cluster that is stopped; this one begins as a copy of it.
    flags: further flags of ``davit up``.
    timeout: seconds that it may take to start.
    log: a file for what davit writes; without, it is kept only where the start fails.
    """

    def __init__(self, *, simulated_nodes=0, node=False, devices=None, template=None, flags=(), timeout=60.0, log=None,
                 binary=None):
        self._binary = binary or os.environ.get("DAVIT_BINARY") or shutil.which("davit")
        self._line = ["up", "--ephemeral", "--exit-with-parent"]
        if not node:
            self._line.append("--no-node")
        if simulated_nodes:
            self._line += ["--sim-nodes", str(simulated_nodes)]
        if template:
            self._line += ["--template", os.fspath(template)]
        self._flags = list(flags)
        self._devices = devices
        self._timeout = timeout
        self._log_path = log
        self._process = None
        #: The administrator's kubeconfig.
        self.kubeconfig = None
        #: Where the API server is.
        self.url = None

    def start(self):
        """Starts the cluster and waits until it is ready."""
        if not self._binary:
            raise StartError("no davit was found in PATH; DAVIT_BINARY=FILE names one")
        log = open(self._log_path, "w+b") if self._log_path else tempfile.TemporaryFile()
        with log, tempfile.TemporaryDirectory() as inputs:
            line = [self._binary, *self._line]
            if self._devices:
                inventory = os.path.join(inputs, "devices.yaml")
                with open(inventory, "w", encoding="utf-8") as file:
                    file.write(self._devices)
                line += ["--devices", inventory]
            try:
                self._process = subprocess.Popen(
                    line + self._flags, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
            except OSError as error:
                raise StartError(f"cannot start {self._binary}: {error}") from error
            ready = self._first_line()
            if not ready.startswith("ready in "):
                self.stop()
                log.seek(0)
                written = log.read().decode(errors="replace")
                raise StartError(f"davit did not become ready within {self._timeout} s; its log:\n{written}")
        rest, self.url = ready.rstrip("\n").rsplit("  server=", 1)
        self.kubeconfig = rest.split("  kubeconfig=", 1)[1]
        return self

    def _first_line(self):
        lines = queue.Queue()
        stdout = self._process.stdout
        threading.Thread(target=lambda: lines.put(stdout.readline().decode()), daemon=True).start()
        try:
            return lines.get(timeout=self._timeout)
        except queue.Empty:
            return ""

    @property
    def process_id(self):
        """The number of davit's process."""
        return self._process.pid

    def stop(self):
        """Stops the cluster and waits until nothing of it is left."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()
