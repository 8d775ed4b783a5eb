"""What records the classes that Spark loads: its jobs have a configuration that they accept."""

from pathlib import Path

from flushtracker.config.job_config import load_config
from flushtracker.config.write_config import load_write_config
from flushtracker.kafka.kafka_config import load_kafka_config
from flushtracker.trials.warmup.sample_run import write_sample_config


def test_both_jobs_and_the_publisher_accept_the_configuration(tmp_path: Path) -> None:
    file = write_sample_config(tmp_path, "127.0.0.1:9092")
    assert load_config(file).trigger_ms is load_write_config(file).trigger_ms is None
    assert load_kafka_config(file).topics.by_role()["flushes"] == "warmup.flushes"
