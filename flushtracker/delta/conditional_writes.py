"""Checks that an object store has conditional writes, without which two writers of a table could overwrite each other.

A store that ignores ``If-None-Match`` silently replaces one writer's commit by another's. deltalake does not reveal
that, because it lists a table's log before it commits. So an object is put twice on the condition that it does not
exist.
"""

import logging
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from flushtracker.delta.storage import StoreRetry, storage_reason
from flushtracker.errors import ConfigError

if TYPE_CHECKING:
    from obstore.store import S3Config

logger = logging.getLogger(__name__)

_SCHEMES: Final = ("s3://", "s3a://")
_TRIED: Final = ".flushtracker-tried-"
_LOCKED: Final = "AWS_S3_LOCKING_PROVIDER"
"""deltalake's option for a user's lock in place of conditional writes."""

TIMEOUT: Final = timedelta(seconds=10)

_OPTIONS: Final = {
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
}
"""The options for the store's address and credentials, which both packages know."""


def require_conditional_writes(key: str, uri: str, storage_options: Mapping[str, str]) -> None:
    """Try a conditional write at ``uri``, configured as ``key``, if it is on S3.

    If the attempt fails, nothing is raised here: opening the table reports the problem, if it cannot be written either.

    Raises:
        ConfigError: the store has replaced an object that it must not replace.
    """
    options = {name.upper(): value for name, value in storage_options.items()}
    if not uri.startswith(_SCHEMES) or _LOCKED in options:
        return
    try:
        is_refused = _is_second_write_refused(uri, _store(uri, options))
    except (BaseError, OSError, ValueError) as error:
        logger.warning(
            "it is unknown whether the object store has conditional writes uri=%s reason=%s", uri, storage_reason(error)
        )
        return
    if not is_refused:
        raise ConfigError(
            f"{key}: the object store of {uri} ignores If-None-Match, so two programs would replace each other's "
            "commits; use a store, or a version of it, with conditional writes"
        )


def _store(uri: str, options: Mapping[str, str]) -> S3Store:
    config = {name.lower(): value for name, value in options.items() if name in _OPTIONS}
    store: S3Store = S3Store.from_url(
        uri,
        # Not every store deletes several objects in one request.
        config=cast("S3Config", {**config, "disable_bulk_delete": "true"}),
        client_options={"allow_http": True, "timeout": TIMEOUT, "connect_timeout": TIMEOUT},
        retry_config={"max_retries": 3, "retry_timeout": TIMEOUT},
    )
    return store


def _is_second_write_refused(uri: str, store: S3Store) -> bool:
    name = _TRIED + uuid.uuid4().hex
    try:
        # The response to the first put may be lost, and its retry refused.
        _put_new(uri, store, name, b"1")
        return not _put_new(uri, store, name, b"2")
    finally:
        with suppress(BaseError, OSError):
            obstore.delete(store, name)


def _put_new(uri: str, store: S3Store, name: str, content: bytes) -> bool:
    """Put an object on the condition that it does not exist; false if it does, perhaps from an earlier try."""
    retry = StoreRetry(uri)
    while True:
        try:
            obstore.put(store, name, content, mode="create")
        except (BaseError, OSError) as error:  # noqa: PERF203  each round is a request
            if isinstance(error, AlreadyExistsError):
                return False
            if not retry.pause():
                raise
        else:
            return True
