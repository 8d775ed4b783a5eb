"""Options of Spark's Kafka source, whose client is Java's, derived from those of librdkafka: how both log in."""

import re
from typing import Final

from flushtracker.config.strict_yaml import YamlMapping

_SAME: Final = {
    "security.protocol": "kafka.security.protocol",
    "sasl.mechanism": "kafka.sasl.mechanism",
    "sasl.mechanisms": "kafka.sasl.mechanism",
    "ssl.ca.location": "kafka.ssl.truststore.location",
}
_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_LOGIN: Final = ("sasl.username", "sasl.password")
_REMEDY: Final = "say what the jobs need in kafka.spark_options (docs/security.md)"


def spark_kafka_options(options: YamlMapping) -> dict[str, str]:
    """The options of Spark's client.

    Raises:
        ConfigError: one of them concerns security, and has no counterpart that is known here.
    """
    values, found = options.scalars(), dict[str, str]()
    for name in options:
        if name in _SAME:
            found[_SAME[name]] = values[name]
        elif name not in _LOGIN and re.match(r"(?:sasl|ssl|enable\.ssl|https)\.", name):
            raise options.error(name, f"is not known for Spark's client: {_REMEDY}")
    if "ssl.ca.location" in options:
        found["kafka.ssl.truststore.type"] = "PEM"
    if "sasl.username" in options or "sasl.password" in options:
        mechanism = values.get("sasl.mechanism", values.get("sasl.mechanisms", ""))
        if mechanism not in _MODULES:
            raise options.error("sasl.mechanism", f"is none of {', '.join(_MODULES)}: {_REMEDY}")
        login = " ".join(f'{name[5:]}="{_escaped(values.get(name, ""))}"' for name in _LOGIN)
        found["kafka.sasl.jaas.config"] = f"{_MODULES[mechanism]} required {login};"
    return found


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
