"""The texts of a JSON document, shared by the scripts that compare tokenizers."""


def strings(value):
    """Every string in a JSON value, keys excepted, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)
