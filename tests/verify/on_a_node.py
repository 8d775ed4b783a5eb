"""The programs of conf/kubernetes in real pods: with the probes and limits that they have, killed, moved and replaced.

``make verify`` does not run this, because Debian has no such cluster. docs/deploying.md says what must be on the path,
and how the image is made. As root, with archives of the images in ``FLUSHTRACKER_IMAGES``, separated by colons::

    unshare --net --mount --pid --fork --mount-proc --kill-child \
        env FLUSHTRACKER_IMAGES=… .venv/bin/python -m pytest tests/verify/on_a_node.py
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from flushtracker import read_shape, read_shape_log
from tests.support.deployed_programs import JOBS, PROGRAMS, READY_S, DeployedPrograms
from tests.support.kubernetes_node import KubernetesNode
from tests.support.object_store import store_options
from tests.support.pod_services import pod_services
from tests.support.waiting import wait_until

_IMAGES: Final = "FLUSHTRACKER_IMAGES"
_EXECUTORS: Final = ("flushtracker-write", "flushtracker-driver", "flushtracker-spark")
"""What puts those of one job into pods of their own: for both there is no room."""
_NAMESPACE: Final = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {
        "name": "flushtracker",
        "labels": {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")},
    },
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedPrograms]:
    """All programs are ready, on a table with rows from before."""
    folder = tmp_path_factory.mktemp("node")
    for each in (folder, *folder.parents[:2]):
        each.chmod(0o755)
    with KubernetesNode(folder) as node, pod_services(folder / "services") as services:
        services.create_topics(folder)
        services.postgres.execute(
            "CREATE TABLE orders (id serial PRIMARY KEY, what text)",
            "ALTER TABLE orders OWNER TO capture",
            "INSERT INTO orders (what) SELECT 'before ' || n FROM generate_series(1, 100) n",
        )
        node.load(*map(Path, os.environ[_IMAGES].split(":")))
        cluster = DeployedPrograms(node, services)
        cluster.apply(_NAMESPACE)
        cluster.apply(*services.objects())
        cluster.apply(*cluster.objects())
        cluster.wait_ready(*PROGRAMS)
        yield cluster


def test_rows_reach_the_clients_and_the_slot_is_confirmed(cluster: DeployedPrograms) -> None:
    """Also the rows from before, by the snapshot."""
    cluster.wait_served("before 1", "before 100", cluster.confirm())


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_rolling_restart_stops_a_program_before_its_successor_starts(cluster: DeployedPrograms, program: str) -> None:
    """SIGTERM ends it with exit code 0 within its grace period; a server of shapes is always ready."""
    before = cluster.pods(program)
    with cluster.watch(program) as seen:
        cluster.done("rollout", "restart", f"deployment/flushtracker-{program}")
        cluster.done("rollout", "status", f"deployment/flushtracker-{program}", f"--timeout={READY_S}s")
        cluster.wait_gone(before)
    names = {pod["metadata"]["name"] for pod in before}
    last = {each["metadata"]["name"]: each for each in seen if each["metadata"]["name"] in names}
    for pod in last.values():
        (status,) = pod["status"]["containerStatuses"]
        # After its grace period it would be 137.
        assert status["state"]["terminated"]["exitCode"] == 0
    if program == "serve":
        assert min(_counts(seen, _is_asked)) >= 1
    else:
        assert max(_counts(seen, _is_running)) == 1
    cluster.wait_served(cluster.confirm())


def _counts(seen: list[dict[str, Any]], counts: Callable[[dict[str, Any]], bool]) -> Iterator[int]:
    """How many pods counted after each state that was seen of one."""
    counted: dict[str, bool] = {}
    for pod in seen:
        counted[pod["metadata"]["name"]] = counts(pod)
        yield sum(counted.values())


def _is_running(pod: dict[str, Any]) -> bool:
    return any("running" in status["state"] for status in pod["status"].get("containerStatuses", []))


def _is_asked(pod: dict[str, Any]) -> bool:
    """Whether its Service sends it new connections."""
    ready = any(status["ready"] for status in pod["status"].get("containerStatuses", []))
    return ready and "deletionTimestamp" not in pod["metadata"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_killed_container_is_started_again_and_continues(cluster: DeployedPrograms, program: str) -> None:
    """SIGKILL to all its processes; of the servers, to both."""
    before = {pod["metadata"]["name"]: pod for pod in cluster.pods(program)}
    counts = [status["restartCount"] for status in cluster.statuses(program)]
    for pod in before.values():
        cluster.kill(pod)
    cluster.wait(
        lambda: sum(status["restartCount"] for status in cluster.statuses(program)) == sum(counts) + len(counts),
        f"{program} is started again",
    )
    cluster.wait_ready(program)
    assert {pod["metadata"]["name"] for pod in cluster.pods(program)} == {*before}
    ended = [status["lastState"]["terminated"]["exitCode"] for status in cluster.statuses(program)]
    assert ended == [137] * len(counts)
    cluster.wait_served(cluster.confirm())


def test_a_second_driver_fences_the_first_which_is_started_again(cluster: DeployedPrograms) -> None:
    """Why there is one replica: of two, each ends the other."""
    cluster.done("scale", "deployment/flushtracker-track", "--replicas=2")
    try:
        cluster.wait(lambda: {4, 5} & {*cluster.exit_codes("track")}, "a driver is fenced")
    finally:
        cluster.done("scale", "deployment/flushtracker-track", "--replicas=1")
    cluster.wait_ready("track")
    cluster.wait_served(cluster.confirm())


def test_while_the_node_is_drained_one_server_of_shapes_stays_and_after_it_all_continue(
    cluster: DeployedPrograms,
) -> None:
    """The budget is for the servers: the other programs leave at once, and have nowhere to go on this one node."""
    drained = cluster.kubectl("drain", "node", "--delete-emptydir-data", "--timeout=60s")
    try:
        assert drained.returncode != 0
        assert "violate the pod's disruption budget" in drained.stderr
        (left,) = (pod for pod in cluster.pods("serve") if "nodeName" in pod["spec"])
        assert [status["ready"] for status in left["status"]["containerStatuses"]] == [True]
        assert all("nodeName" not in pod["spec"] for program in ("capture", *JOBS) for pod in cluster.pods(program))
    finally:
        cluster.done("uncordon", "node")
    cluster.wait_ready(*PROGRAMS)
    cluster.wait_served(cluster.confirm())


def test_a_job_without_enough_memory_is_killed_and_says_so_and_continues_with_more(cluster: DeployedPrograms) -> None:
    """The limit holds; what was read before is in the bucket."""
    name = "deployment/flushtracker-write"
    cluster.done("set", "resources", name, "--limits=memory=400Mi", "--requests=memory=400Mi")
    cluster.wait(lambda: "OOMKilled" in cluster.reasons("write"), "the job is killed")
    cluster.done("set", "resources", name, "--limits=memory=3Gi", "--requests=memory=3Gi")
    cluster.wait_ready("write")
    cluster.wait_served(cluster.confirm())


def test_what_is_wrong_with_a_configuration_ends_a_job_with_exit_code_2_and_is_in_its_log(
    cluster: DeployedPrograms,
) -> None:
    """A Deployment starts it again, ever more seldom, until the configuration is changed."""
    objects = cluster.objects()
    (configuration,) = (each for each in objects if each["metadata"]["name"] == "flushtracker")
    right = dict(configuration["data"])
    configuration["data"]["track.yaml"] = right["track.yaml"].replace("shape_groups", "shape_group")
    cluster.apply(configuration)
    cluster.done("rollout", "restart", "deployment/flushtracker-track")
    cluster.wait(lambda: cluster.exit_codes("track") == [2], "the configuration is refused")
    logs = ("logs", "deployment/flushtracker-track", "--previous")
    cluster.wait(lambda: "state.shape_group" in cluster.kubectl(*logs).stdout, "the log says what it is")
    cluster.apply({**configuration, "data": right})
    cluster.wait_ready("track")
    cluster.wait_served(cluster.confirm())


def test_a_shape_that_is_added_to_its_map_is_captured_without_a_restart(cluster: DeployedPrograms) -> None:
    """The kubelet changes the mounted file."""
    before = cluster.statuses("capture")
    (shapes,) = (each for each in cluster.objects() if each["metadata"]["name"] == "flushtracker-shapes")
    shapes["data"]["shapes.yaml"] += "  - {id: orders-again, table: public.orders}\n"
    cluster.apply(shapes)
    text = cluster.confirm()
    cluster.wait(lambda: {text, "before 1"} <= {*cluster.served("orders-again")}, "the new shape is served")
    after = cluster.statuses("capture")
    assert [each["containerID"] for each in after] == [each["containerID"] for each in before]


@pytest.mark.parametrize("victim", ["executor", "driver", "pod"])
def test_with_executors_in_pods_of_their_own_no_row_is_lost_or_doubled_by_an_end_in_mid_batch(
    cluster: DeployedPrograms, victim: str
) -> None:
    """An executor is killed, its driver is, the driver's pod is deleted: others come in their places."""
    objects = cluster.objects("kubernetes_executors")
    cluster.apply(*(each for each in objects if each["metadata"]["name"] in _EXECUTORS))
    cluster.done("rollout", "status", "deployment/flushtracker-write", f"--timeout={READY_S}s")
    executor = cluster.wait(lambda: _both_executors(cluster), "the executors run")[0]
    (driver,) = cluster.pods("write")
    batch = _begun_batch(cluster, driver)
    if victim == "pod":
        cluster.done("delete", "pod", driver["metadata"]["name"], "--wait=false")
    else:
        cluster.kill(executor if victim == "executor" else driver)
    if victim == "executor":
        # The batch does not end with it.
        assert cluster.status(driver)["batch_running_since_ms"] == batch
    cluster.wait_served(cluster.confirm())
    _assert_exact(cluster)
    left = cluster.wait(lambda: _both_executors(cluster), "the executors run")
    assert executor["metadata"]["name"] not in {pod["metadata"]["name"] for pod in left}
    (status,), (before,) = cluster.statuses("write"), driver["status"]["containerStatuses"]
    assert (status["containerID"] == before["containerID"]) is (victim == "executor")


def _both_executors(cluster: DeployedPrograms) -> list[dict[str, Any]]:
    """As many as spark.conf says; fewer are none."""
    found = cluster.executors()
    return found if len(found) == 2 else []


def _begun_batch(cluster: DeployedPrograms, driver: dict[str, Any]) -> int:
    """When the batch with the first of many changes began, which has only just begun."""

    def running() -> int | None:
        since: int | None = cluster.status(driver)["batch_running_since_ms"]
        return since

    change = "INSERT INTO orders (what) SELECT 'of many ' || n FROM generate_series(1, 500) n"
    wait_until(lambda: running() is None, "no batch runs", READY_S)
    cluster.services.postgres.execute(*[change] * 40)
    return wait_until(running, "a batch runs", READY_S)


def _assert_exact(cluster: DeployedPrograms) -> None:
    """The log gives the rows of the table, and has no change twice."""
    store = store_options(cluster.services.store.port)
    wanted = cluster.services.postgres.execute("SELECT id::text, what FROM orders ORDER BY orders.id")
    rows = read_shape("s3://flushtracker/log", "orders", storage_options=store).rows
    assert sorted(zip(*rows.to_pydict().values(), strict=True), key=lambda row: int(row[0])) == wanted
    changes = read_shape_log("s3://flushtracker/log", "orders", changes_only=True, storage_options=store).rows
    offsets = [*zip(*changes.select(["tx_offset", "op_offset", "operation"]).to_pydict().values(), strict=True)]
    assert len({*offsets}) == len(offsets)
