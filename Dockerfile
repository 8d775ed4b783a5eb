# One image for everything: the job's driver and executors, a standalone cluster's master and workers, and the tools.
FROM python:3.11.14-slim-bookworm

# Debian keeps only the newest build of a package, so the release above is the tightest possible pin.
# The Java package links its manual pages, and fails without a folder for them, which a slim image lacks.
RUN mkdir -p /usr/share/man/man1 \
 && apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless tini \
 && rm -rf /var/lib/apt/lists/*

# If Maven Central or PyPI is unreachable: docker build --build-arg FLUSHTRACKER_MAVEN=... --build-arg PIP_INDEX_URL=...
ARG FLUSHTRACKER_MAVEN
ARG PIP_INDEX_URL

# First what changes rarely, so that a change of the code keeps the half gigabyte of packages and jars in the build cache:
# of the package only what fetches the jars.
WORKDIR /build
COPY pyproject.toml setup.py constraints.txt ./
COPY flushtracker/__init__.py flushtracker/errors.py flushtracker/
COPY flushtracker/jvm flushtracker/jvm
RUN touch README.md \
 && pip install --no-cache-dir --root-user-action ignore -c constraints.txt '.[spark,capture,serve]'

# Spark's extra jars, also those for S3, go next to its own, where each driver and executor finds them without --jars. A
# program that is started without spark-submit looks for the latter in a folder of theirs.
ENV SPARK_HOME=/opt/spark
RUN ln -s "$(python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')" "$SPARK_HOME" \
 && python -m flushtracker.jvm.jars spark s3 \
 && mv .jars/*.jar .jars/s3/*.jar "$SPARK_HOME/jars/" \
 && ln -s . "$SPARK_HOME/jars/s3"
ENV FLUSHTRACKER_JARS=$SPARK_HOME/jars

COPY README.md LICENSE ./
COPY jobs jobs
COPY docs/runbook.md docs/
COPY flushtracker flushtracker
RUN pip install --no-cache-dir --root-user-action ignore --no-deps --force-reinstall -c constraints.txt .

WORKDIR /opt/flushtracker
COPY docker/entrypoint.sh docker/flushtracker.yaml ./
COPY jobs jobs

# The user is a number, because only then can Kubernetes verify that it is not root; 185 is the user of Spark's images.
# /data is for a volume, which inherits its owner.
RUN useradd --system --uid 185 --create-home spark && install --directory --owner spark --group spark /data
USER 185
ENV FLUSHTRACKER_CONFIG=/opt/flushtracker/flushtracker.yaml \
    PYSPARK_PYTHON=/usr/local/bin/python3 \
    SPARK_WORKER_DIR=/home/spark/work

ENTRYPOINT ["tini", "--", "/opt/flushtracker/entrypoint.sh"]
CMD ["jobs/track_flushes.py"]
