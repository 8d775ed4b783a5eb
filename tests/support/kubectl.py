"""kubectl, and etcd with an API server for it, of Kubernetes: programs that must be on the path."""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from flushtracker.local.postgres import HOST, free_port
from tests.support.processes import run_to_end

_TOKEN: Final = "correct-horse"  # noqa: S105  of a server that the tests start and stop
_ADMINISTRATOR: Final = (_TOKEN, "administrator", "administrator", "system:masters")


def write_access(file: Path, address: str, token: str = _TOKEN) -> Path:
    """A configuration of a client, so that it reaches this server and no other cluster."""
    entries: dict[str, dict[str, object]] = {
        "clusters": {"cluster": {"server": address, "insecure-skip-tls-verify": True}},
        "users": {"user": {"token": token}},
        "contexts": {"context": {"cluster": "it", "user": "it", "namespace": "flushtracker"}},
    }
    lists = {key: [{"name": "it", **value}] for key, value in entries.items()}
    head = {"apiVersion": "v1", "kind": "Config", "current-context": "it"}
    file.write_text(yaml.safe_dump({**head, **lists}))
    return file


class Kubectl:
    """kubectl with a configuration of its own in ``folder``."""

    def __init__(self, folder: Path, address: str) -> None:
        access = write_access(folder / "kubectl.yaml", address)
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": str(access)}

    def command(self, *arguments: str) -> list[str]:
        """What runs it with these arguments, in :attr:`environment`."""
        return ["kubectl", *arguments]

    def __call__(self, *arguments: str, manifest: object = None) -> "subprocess.CompletedProcess[str]":
        """Run it with these arguments, and the manifest as its input."""
        text = None if manifest is None else json.dumps(manifest)
        return run_to_end(self.command(*arguments), input=text, env=self.environment)

    def apply(self, *arguments: str, manifest: object = None) -> "subprocess.CompletedProcess[str]":
        """Apply on the server; an unknown key, and any warning, is an error."""
        strictly = ("--server-side", "--validate=strict", "--warnings-as-errors")
        return self("apply", *strictly, *(arguments or ("-f", "-")), manifest=manifest)


def server_commands(
    folder: Path, port: int, *, further: Mapping[str, object] | None = None, users: Iterable[tuple[str, ...]] = ()
) -> dict[str, list[str]]:
    """etcd, and the API server on ``port`` with these further settings, and everything in ``folder``.

    ``users`` beside the administrator are token, name, number and groups of each.
    """
    key, tokens = folder / "accounts.key", folder / "tokens.csv"
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key.write_bytes(made.private_bytes(*form))
    tokens.write_text("".join(f"{','.join(user)}\n" for user in (_ADMINISTRATOR, *users)))
    clients, peers = (f"http://{HOST}:{free_port()}" for _ in range(2))
    etcd = {
        "data-dir": folder / "etcd",
        "listen-client-urls": clients,
        "advertise-client-urls": clients,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
    }
    server = {
        "etcd-servers": clients,
        "bind-address": HOST,
        "secure-port": port,
        "cert-dir": folder / "certificates",
        "service-account-issuer": "https://flushtracker.test",
        "service-account-key-file": key,
        "service-account-signing-key-file": key,
        "service-cluster-ip-range": "10.0.0.0/24",
        "token-auth-file": tokens,
        **(further or {}),
    }
    return {"etcd": command("etcd", etcd), "kube-apiserver": command("kube-apiserver", server)}


def command(program: str, flags: Mapping[str, object]) -> list[str]:
    """How a program is started with these flags."""
    return [program, *(f"--{flag}={value}" for flag, value in flags.items())]
