"""Strings of a JSON document, for the scripts that compare tokenizers."""


def strings(value):
    """All strings in a JSON value except keys, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)
