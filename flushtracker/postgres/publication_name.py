"""``PublicationName``: a publication as it is configured, wherever its name is used."""


class PublicationName(str):
    """``sets_identities``: capture sets REPLICA IDENTITY FULL on tables in it whose shapes need that."""

    __slots__ = ("sets_identities",)
    sets_identities: bool

    @classmethod
    def of(cls, name: str, *, sets_identities: bool) -> "PublicationName":
        found = cls(name)
        found.sets_identities = sets_identities
        return found
