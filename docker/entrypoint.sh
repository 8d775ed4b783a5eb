#!/bin/bash
# The image's one entry: as "driver" and "executor" what Spark on Kubernetes asks for; else spark-submit, as it stands.
set -euo pipefail

case "${1:-}" in
  driver)
    shift
    exec spark-submit --deploy-mode client --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
  executor)
    # Spark numbers the options that it has for the executor's JVM: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...
    mapfile -t options < <(env | grep '^SPARK_JAVA_OPT_' | sort -t _ -k 4 -n | cut -d = -f 2-)
    exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" \
      --executor-id "$SPARK_EXECUTOR_ID" \
      --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" \
      --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
      --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  *)
    exec spark-submit "$@"
    ;;
esac
