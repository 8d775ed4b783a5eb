"""conf/kubernetes_executors, as far as it can be checked without a cluster."""

from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

_FOLDER: Final = Path(__file__).parents[2] / "conf" / "kubernetes_executors"
_BASE: Final = _FOLDER.with_name("kubernetes")
_JOBS: Final = ("track", "write")


def _load(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def _deployment(folder: Path, job: str) -> dict[str, Any]:
    (found,) = (each for each in _load(folder / f"{job}.yaml") if each["kind"] == "Deployment")
    assert isinstance(found, dict)
    return found


def _properties() -> dict[str, str]:
    lines = (_FOLDER / "spark.conf").read_text().splitlines()
    return {line.split()[0]: line.split()[-1] for line in lines if not line.startswith("#")}


def test_objects_follow_the_schema_of_kubernetes() -> None:
    """Strictly; the patches have only what they change."""
    for manifest in (*_load(_FOLDER / "account.yaml"), *_load(_FOLDER / "executor.yaml")):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_kustomization_names_every_file() -> None:
    (kustomization,) = _load(_FOLDER / "kustomization.yaml")
    (generated,) = kustomization["configMapGenerator"]
    named = [*generated["files"], *(patch["path"] for patch in kustomization["patches"])]
    files = {path.name for path in _FOLDER.iterdir()}
    assert {*named, *kustomization["resources"]} == files - {"kustomization.yaml"} | {"../kubernetes"}


@pytest.mark.parametrize("job", _JOBS)
def test_a_driver_runs_the_same_job_with_the_properties_and_may_create_its_executors(job: str) -> None:
    """The patch changes what is before the job in the arguments, and gives the pod an account."""
    patch, base = (_deployment(folder, job)["spec"]["template"]["spec"] for folder in (_FOLDER, _BASE))
    (changed,), (container,) = patch["containers"], base["containers"]
    assert changed["args"][-3:] == container["args"][-3:]
    (mount,), (volume,) = changed["volumeMounts"], patch["volumes"]
    (generated,) = _load(_FOLDER / "kustomization.yaml")[0]["configMapGenerator"]
    assert volume == {"name": mount["name"], "configMap": {"name": generated["name"]}}
    assert changed["args"][:2] == ["--properties-file", f"{mount['mountPath']}/spark.conf"]
    assert _properties()["spark.kubernetes.executor.podTemplateFile"] == f"{mount['mountPath']}/executor.yaml"
    named = {variable["name"] for variable in changed["env"]}
    assert {word.split("$(")[1].rstrip(")") for word in changed["args"] if "$(" in word} == named
    account, role, binding = _load(_FOLDER / "account.yaml")
    assert patch["serviceAccountName"] == account["metadata"]["name"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"]}]


def test_executors_are_as_restricted_as_their_drivers_and_have_the_same_image_and_keys() -> None:
    """Otherwise the Pod Security Standard refuses them, or they cannot write the tables."""
    (executor,), driver = _load(_FOLDER / "executor.yaml"), _deployment(_BASE, "write")["spec"]["template"]["spec"]
    (container,), (drivers,) = executor["spec"]["containers"], driver["containers"]
    assert executor["spec"]["securityContext"] == driver["securityContext"]
    assert container["securityContext"] == drivers["securityContext"]
    (image,) = _load(_BASE / "kustomization.yaml")[0]["images"]
    properties = _properties()
    assert properties["spark.kubernetes.container.image"] == f"{image['newName']}:{image['newTag']}"
    assert properties["spark.ui.killEnabled"] == "false"
    assert properties["spark.kubernetes.namespace"] == _load(_BASE / "kustomization.yaml")[0]["namespace"]
    for variable in drivers["env"]:
        secret = variable["valueFrom"]["secretKeyRef"]
        named = properties[f"spark.kubernetes.executor.secretKeyRef.{variable['name']}"]
        assert named == f"{secret['name']}:{secret['key']}"
