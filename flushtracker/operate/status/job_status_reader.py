"""``read_job_status``: a program's ``/status.json``, as :class:`JobStatus` if it is the tracking job's."""

from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError

from flushtracker.errors import DecodeError, StatusError
from flushtracker.monitoring.peers import fetch, fetch_failure
from flushtracker.status.job_status import JobStatus
from flushtracker.status.program_status import parse_status

_SHOWN_LENGTH: Final = 200


def read_job_status(url: str, timeout_s: float) -> JobStatus | None:
    """The status of the job at ``url``, or ``None`` if another program of flushtracker answers there.

    Each step over the network may take ``timeout_s``; many small ones may take longer.

    Raises:
        StatusError: nothing answers, or what answers is not a status of this version.
    """
    try:
        status = parse_status(fetch(f"{url}/status.json", timeout_s))
    except HTTPError as error:
        raise StatusError(f"job {url} answers, but with HTTP status {error.code}") from error
    except (OSError, HTTPException, UnicodeError) as error:
        reason = " ".join(fetch_failure(error).split())[:_SHOWN_LENGTH]
        raise StatusError(f"job {url} does not answer ({reason[:1].lower()}{reason[1:]})") from error
    except (DecodeError, ValueError) as error:
        raise StatusError(f"job {url} answers, but {error}") from error
    return status if isinstance(status, JobStatus) else None
