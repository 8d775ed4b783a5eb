"""``read_program_status``: the ``/status.json`` of a running program."""

from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError

from flushtracker.errors import DecodeError, StatusError
from flushtracker.status.http.peers import fetch, fetch_failure
from flushtracker.status.program_status import ProgramStatus, parse_status

_SHOWN_LENGTH: Final = 200


def read_program_status(url: str, timeout_s: float) -> ProgramStatus:
    """The status of the program at ``url``.

    Each step over the network may take ``timeout_s``; many small ones may take longer.

    Raises:
        StatusError: there is no response, or it is not a status of this version.
    """
    try:
        return parse_status(fetch(f"{url}/status.json", timeout_s))
    except HTTPError as error:
        raise StatusError(f"{url} answers, but with HTTP status {error.code}") from error
    except (OSError, HTTPException, UnicodeError) as error:
        reason = " ".join(fetch_failure(error).split())[:_SHOWN_LENGTH]
        raise StatusError(f"{url} does not answer ({reason[:1].lower()}{reason[1:]})") from error
    except (DecodeError, ValueError) as error:
        raise StatusError(f"{url} answers, but {error}") from error
