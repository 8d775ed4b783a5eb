"""PostgreSQL, Kafka and a bucket for pods of :mod:`tests.support.kubernetes_node`, under the names of conf/kubernetes.

They run beside the cluster, as in most installations, and its Services lead to them.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres
from tests.support.kubernetes_node import ADDRESS
from tests.support.object_store import store_config
from tests.support.s3_server import S3Server, running_s3

PASSWORD: Final = "correct-horse"  # noqa: S105  of servers that the tests start and stop
_CONF: Final = Path(__file__).parents[2] / "conf"
_NAMESPACE: Final = "flushtracker"


class PodServices:
    """The running servers, and what a cluster must know of them."""

    def __init__(self, postgres: LocalPostgres, kafka: str, store: S3Server) -> None:
        self.postgres = postgres
        self.kafka = kafka
        self.store = store
        self.files = store.folder.parent / "flushtracker"
        """The bucket of the configurations, as files."""
        self.files.mkdir()

    def objects(self) -> list[dict[str, Any]]:
        """The Services that lead to the servers, and the Secrets."""
        ports = {"postgres": (5432, self.postgres.port), "kafka": (9092, int(self.kafka.rpartition(":")[2]))}
        made = [each for name, (port, target) in ports.items() for each in _service(name, port, target)]
        store = store_config(self.store.port)
        secrets = {
            "flushtracker-postgres": {"password": PASSWORD},
            "flushtracker-store": {"access-key-id": store.access_key_id, "secret-access-key": store.secret_access_key},
            "flushtracker-serve": {"secret": PASSWORD},
        }
        made += [{**_named("v1", "Secret", name), "stringData": values} for name, values in secrets.items()]
        return made

    def storage(self) -> str:
        """The line of each configuration that names the store; the keys come from the Secret."""
        store = store_config(self.store.port)
        return f"storage: {{s3: {{endpoint: 'http://{ADDRESS}:{self.store.port}', region: {store.region}}}}}"

    def create_topics(self, folder: Path) -> None:
        """As the kustomization says, but for one broker."""
        config = yaml.safe_load((_CONF / "kafka.yaml").read_text())
        (folder / "kafka.yaml").write_text(yaml.safe_dump({**config, "replication_factor": 1}))
        command = [sys.executable, "-m", "flushtracker", "topics", "--config", str(folder / "kafka.yaml"), "--create"]
        subprocess.run(command, env={**os.environ, "KAFKA_BOOTSTRAP": self.kafka}, check=True)


@contextmanager
def pod_services(folder: Path) -> Iterator[PodServices]:
    """Start the servers; the role capture has a password, which each pod must send."""
    postgres = LocalPostgres(folder / "postgres", settings={"listen_addresses": "*"})
    clients = f"CLIENTS://{ADDRESS}:{{port}}"
    listeners = {"listeners": f"{clients},CONTROLLER://{{host}}:{{controller_port}}", "advertised.listeners": clients}
    broker = LocalBroker(folder / "broker", settings=listeners)
    with ExitStack() as stack:
        for server in (postgres, broker):
            stack.enter_context(server)
        store = stack.enter_context(running_s3(folder / "store", address="0.0.0.0"))  # noqa: S104  for pods
        with (postgres.data / "pg_hba.conf").open("a") as access:
            access.write("host all,replication all 10.8.0.0/24 scram-sha-256\n")
        postgres.execute(
            f"CREATE ROLE capture LOGIN REPLICATION PASSWORD '{PASSWORD}'",
            "GRANT CREATE ON DATABASE postgres TO capture",
            "SELECT pg_reload_conf()",
        )
        kafka = f"{ADDRESS}:{broker.bootstrap_servers.rpartition(':')[2]}"
        yield PodServices(postgres, kafka, store)


def _named(version: str, kind: str, name: str, **metadata: object) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": _NAMESPACE, **metadata}}


def _service(name: str, port: int, target: int) -> list[dict[str, Any]]:
    """A Service without pods, and where it leads to."""
    service = {**_named("v1", "Service", name), "spec": {"ports": [{"port": port, "targetPort": target}]}}
    labels = {"kubernetes.io/service-name": name}
    slice_ = {
        **_named("discovery.k8s.io/v1", "EndpointSlice", name, labels=labels),
        "addressType": "IPv4",
        "endpoints": [{"addresses": [ADDRESS]}],
        "ports": [{"port": target, "protocol": "TCP"}],
    }
    return [service, slice_]
