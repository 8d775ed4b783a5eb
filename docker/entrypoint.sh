#!/bin/bash
# The image's entrypoint. "driver" and "executor" are for Spark on Kubernetes; anything else goes to spark-submit.
set -euo pipefail

case "${1:-}" in
  driver)
    shift
    exec spark-submit --deploy-mode client --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
  executor)
    # Spark passes the options of the executor's JVM as SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...
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
