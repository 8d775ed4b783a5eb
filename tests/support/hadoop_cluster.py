"""Hadoop's mini cluster: HDFS with a data node, and YARN with two node managers, as one process on this machine.

``python -m tests.support.hadoop_cluster`` fetches what pyspark's own Hadoop lacks of it, 67 MB.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any, Final

from py4j.java_gateway import GatewayParameters, JavaGateway

from flushtracker.jvm.ivy_jars import JarSet
from flushtracker.jvm.java import check_java
from tests.support.spark_cluster import DEADLINE_S, FAST_START, MARK, SPARK_HOME, SparkCluster
from tests.support.waiting import wait_until

HADOOP_JARS: Final = JarSet(
    ivy_xml=Path(__file__).with_name("hadoop_jars.xml"),
    owner="the tests' Hadoop",
    megabytes=67,
    command="python -m tests.support.hadoop_cluster",
    folder="hadoop/",
    of_spark=True,
)
_SCHEDULERS: Final = "org.apache.hadoop.yarn.server.resourcemanager.scheduler"
_SETTINGS: Final = {
    "dfs.replication": "1",
    # Containers get the mark of this cluster's processes, too.
    "yarn.nodemanager.env-whitelist": f"JAVA_HOME,PATH,{MARK}",
    # What a JVM reserves is more than what it uses.
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
    "yarn.scheduler.minimum-allocation-mb": "256",
    # The default one needs a file with its queues.
    "yarn.resourcemanager.scheduler.class": f"{_SCHEDULERS}.fifo.FifoScheduler",
}
_NODE_MANAGERS: Final = 2


class HadoopCluster(SparkCluster):
    """YARN, with room for the executors of a job; :attr:`hdfs` is the URI of the file system."""

    hdfs = ""

    def start(self) -> None:
        jvm, conf = self._start_jvm(), self.folder / "conf"
        hadoop = jvm.org.apache.hadoop
        settings = hadoop.hdfs.HdfsConfiguration()
        for name, value in _SETTINGS.items():
            settings.set(name, value)
        files = hadoop.hdfs.MiniDFSCluster.Builder(settings).format(True).build()  # noqa: FBT003  Java's argument
        files.waitClusterUp()
        yarn = hadoop.yarn.server.MiniYARNCluster("yarn", _NODE_MANAGERS, 1, 1)
        yarn.init(hadoop.yarn.conf.YarnConfiguration(settings))
        yarn.start()
        assert yarn.waitForNodeManagersToConnect(DEADLINE_S * 1000)
        conf.mkdir()
        written = hadoop.conf.Configuration(yarn.getConfig())
        # A class of the mini cluster alone.
        written.unset("net.topology.node.switch.mapping.impl")
        stream = jvm.java.io.FileOutputStream(str(conf / "core-site.xml"))
        written.writeXml(stream)
        stream.close()
        shutil.copy(conf / "core-site.xml", conf / "yarn-site.xml")
        self.master_url, self.hdfs = "yarn", str(files.getURI().toString())

    def _start_jvm(self) -> Any:
        """A JVM that writes where it is started, and does what it is told."""
        classpath = os.pathsep.join([*map(str, HADOOP_JARS.paths()), f"{SPARK_HOME}/jars/*"])
        command = [str(check_java().launcher), "-Xmx700m", "-cp", classpath, "py4j.GatewayServer", "0"]
        process = self.start_process("hadoop", command, self.folder, self.environ())
        self.daemons.append(process)

        def port() -> "re.Match[str] | None":
            log = (self.folder / "hadoop.log").read_text(errors="replace")
            assert process.poll() is None, log
            return re.search(r"^\d+$", log, re.MULTILINE)

        found = int(wait_until(port, "the JVM of Hadoop has started", DEADLINE_S)[0])
        return JavaGateway(gateway_parameters=GatewayParameters(port=found)).jvm

    def environ(self) -> dict[str, str]:
        home = str(check_java().launcher.resolve().parents[1])
        return super().environ() | {"JAVA_HOME": home, "HADOOP_CONF_DIR": str(self.folder / "conf")}

    def flags(self) -> list[str]:
        settings = {
            # Otherwise all of them would be copied to HDFS, for each application.
            "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
            # Its servlets are attached while YARN's filter is added, which sometimes ends the start of Spark 4.2.
            "spark.ui.enabled": "false",
            "spark.executor.instances": "2",
            "spark.executor.memory": "700m",
            "spark.yarn.am.memory": "256m",
            # The environment of this process does not reach the containers.
            "spark.executor.extraJavaOptions": FAST_START,
            "spark.yarn.am.extraJavaOptions": FAST_START,
        }
        return [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]


if __name__ == "__main__":
    HADOOP_JARS.fetch(os.environ)
