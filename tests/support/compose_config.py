"""What docker-compose.yml runs with its profile ``sink``: the configuration with its commented section."""

import re
from pathlib import Path
from typing import Final

COMPOSE_CONFIG: Final = Path(__file__).parents[2] / "deploy" / "compose" / "flushtracker.yaml"


def config_with_sinks() -> str:
    return re.sub(r"^# (?=sink:|  )", "", COMPOSE_CONFIG.read_text(), flags=re.MULTILINE)
