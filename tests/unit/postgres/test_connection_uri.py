"""``connection_uri``: libpq reads the same options from it, without the secrets."""

from hypothesis import example, given
from hypothesis import strategies as st

from flushtracker.postgres.connection import parse_options
from flushtracker.postgres.connection_uri import SECRETS, connection_uri

_VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
_OPTIONS = st.dictionaries(
    st.sampled_from(["host", "port", "user", "dbname", "sslmode", "passfile", "options", "application_name", *SECRETS]),
    _VALUES,
)


@given(_OPTIONS)
@example({"host": "a,b", "port": "1,2", "target_session_attrs": "primary"})
@example({"host": "::1", "user": "a@b", "dbname": "x/y?z"})
@example({"host": "db", "port": "5432"})
@example({"port": "5433"})
@example({})
def test_libpq_reads_the_same_options(options: dict[str, str]) -> None:
    """Whatever characters their values have."""
    assert parse_options(connection_uri(options)) == {
        name: value for name, value in options.items() if name not in SECRETS
    }
