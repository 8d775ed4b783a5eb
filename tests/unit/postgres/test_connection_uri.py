"""``connection_uri``: libpq reads the same options from it, but for secrets."""

from hypothesis import example, given
from hypothesis import strategies as st

from flushtracker.config.libpq_text import parse_options
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
    """Whatever characters their values have; of a secret it reads the variable's name."""
    secrets = {name: f"${{{variable}}}" for name, variable in SECRETS.items() if name in options}
    assert parse_options(connection_uri(options)) == {**options, **secrets}
