"""``make soak``: the soak of the whole loop with tables and checkpoints on a server with the API of S3.

:mod:`tests.integration.soak_loop` says what is killed and checked. The programs and the followers find the server by
the environment's credentials. The checks and the other readers read the files in which it keeps its objects.

``python -m tests.integration.soak_store [--kills 100] [--seed N]``
"""

import os
from pathlib import Path

from tests.integration.soak_loop import soak
from tests.support.object_store import store_options
from tests.support.s3_server import running_s3
from tests.support.seeded_soak import main


def _soak(folder: Path, kills: int, seed: int) -> None:
    with running_s3(folder / "store") as store:
        os.environ.update(store_options(store.port))
        soak(folder, kills, seed, store)


if __name__ == "__main__":
    main(__doc__, "kills", _soak)
