"""An API server of Kubernetes over TLS that holds ConfigMaps and records patches, and a service account for it."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from door_certificates import CertificateAuthority
from penstock.chassis.kubernetes import KubernetesApi

PREFIX = "/api/v1/namespaces/penstock/"


@dataclass
class ApiServer:
    """Objects are by kind and name, such as configmaps/region-state. A refusal is the status of each call on a name."""

    api: KubernetesApi
    objects: dict = field(default_factory=dict)
    refusals: dict = field(default_factory=dict)
    patches: list = field(default_factory=list)
    authorizations: set = field(default_factory=set)

    def get(self, path):
        if path not in self.objects:
            return HTTPStatus.NOT_FOUND, {}
        return HTTPStatus.OK, self.objects[path]

    def patch(self, path, change):
        """Merge two levels, which is as deep as the changes of Penstock are."""
        self.patches.append((path, change))
        found = self.objects.get(path)
        if found is None:
            return HTTPStatus.NOT_FOUND, {}
        metadata = found["metadata"]
        if change["metadata"].get("resourceVersion", metadata["resourceVersion"]) != metadata["resourceVersion"]:
            return HTTPStatus.CONFLICT, {}
        for part, values in change.items():
            found.setdefault(part, {}).update(values)
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
        return HTTPStatus.OK, found

    def add(self, path, **parts):
        self.objects[path] = {"metadata": {"resourceVersion": "1"}, **parts}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):  # name of the base class
        self._answer(lambda api, path: api.get(path))

    def do_PATCH(self):  # name of the base class
        assert self.headers["Content-Type"] == "application/merge-patch+json"
        change = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(lambda api, path: api.patch(path, change))

    def _answer(self, handle):
        api, path = self.server.penstock, self.path.removeprefix(PREFIX)
        api.authorizations.add(self.headers["Authorization"])
        status, content = handle(api, path)
        status = api.refusals.get(path.rpartition("/")[2], status)
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def serving_api(folder) -> Iterator[ApiServer]:
    """Serve the API. `folder` becomes that of the service account."""
    authority = CertificateAuthority()
    certificate, key = authority.issue()
    (folder / "ca.crt").write_bytes(authority.pem)
    (folder / "server.pem").write_bytes(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    (folder / "token").write_text("secret\n")
    (folder / "namespace").write_text("penstock")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.penstock = ApiServer(KubernetesApi(f"https://127.0.0.1:{server.server_port}", folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.penstock
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
