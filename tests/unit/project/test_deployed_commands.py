"""The commands of ``docs/operating.md`` for each way of running: of services and objects that are there."""

import re
import shlex
from pathlib import Path
from typing import Final

import yaml

from flushtracker.cli import command_line
from tests.support.manifests import Manifests

_ROOT: Final = Path(__file__).parents[3]
_SECTION: Final = (_ROOT / "docs" / "operating.md").read_text().partition("## Commands, by how it runs\n")[2]
_TEXT: Final = _SECTION.partition("\n## ")[0].replace("\\\n", " ")
_BLOCKS: Final = "\n".join(re.findall(r"```\n(.*?)```", _TEXT, re.S))
_COMMANDS: Final = [*re.findall(r"`((?:flushtracker|docker|kubectl) [^`]+)`", _TEXT), *_BLOCKS.splitlines()]
_SERVICES: Final = yaml.safe_load((_ROOT / "docker-compose.yml").read_text())["services"]
_MANIFESTS: Final = Manifests((_ROOT / "deploy" / "kubernetes" / "flushtracker.yaml").read_text())


def _of(tool: str) -> list[list[str]]:
    return [shlex.split(command)[1:] for command in _COMMANDS if command.startswith(f"{tool} ")]


def test_each_command_on_this_machine_is_taken() -> None:
    for words in _of("flushtracker"):
        command_line().parse_args(words)
    assert {words[0] for words in _of("flushtracker")} == {"up", "status", "resync", "capture"}


def test_each_command_of_compose_names_a_service_and_what_that_can_run() -> None:
    """``run`` replaces the service's command, and keeps its entrypoint; all of them connect to the server."""
    for compose, verb, *rest in _of("docker"):
        assert compose == "compose"
        service, *words = [word for word in rest if word not in {"--rm", "--no-deps"}]
        if verb in {"stop", "start", "restart"}:
            assert (service in _SERVICES, words) == (True, [])
            continue
        assert "PGPASSWORD" in _SERVICES[service]["environment"]
        program, *arguments = words if verb == "exec" else [_SERVICES[service]["entrypoint"][-1], *words]
        assert program == "flushtracker"
        command_line().parse_args(arguments)
    assert {verb for _, verb, *_ in _of("docker")} == {"exec", "run", "stop", "start", "restart"}


def test_each_command_of_kubernetes_names_a_deployment_and_what_that_can_run() -> None:
    """Also that the patch leads to arguments that capture takes."""
    for _, namespace, verb, *rest in _of("kubectl"):
        assert namespace == "flushtracker"
        (program,) = (found[1] for word in rest if (found := re.fullmatch(r"(?:deployment/)?flushtracker-(\w+)", word)))
        if verb == "exec":
            assert "PGPASSWORD" in _MANIFESTS.variables(program)
            command_line().parse_args(rest[rest.index("flushtracker") + 1 :])
        elif verb == "patch":
            (patch,) = yaml.safe_load(rest[-1])
            assert (patch["op"], patch["path"]) == ("add", "/spec/template/spec/containers/0/args/-")
            command_line().parse_args([*_MANIFESTS.container(program)["args"], patch["value"]])
        else:
            assert (program in _MANIFESTS.programs, verb in {"scale", "rollout"}) == (True, True)
    assert {verb for _, _, verb, *_ in _of("kubectl")} == {"exec", "scale", "rollout", "patch"}
