"""Arguments that are true or false."""

import sys


def as_bool(name, value, hint=""):
    """True or False for those two, for NumPy's, and for 1 and 0, which DeepSeek's module takes too. TypeError for
    anything else: a text that says "no" is not true."""
    if value is True or value is False:
        return value
    numpy = sys.modules.get("numpy")
    if (type(value) is int and 0 <= value <= 1) or (numpy is not None and isinstance(value, numpy.bool_)):
        return bool(value)
    said = f"an array ({type(value).__name__})" if hasattr(value, "shape") else repr(value)
    raise TypeError(f"{name} must be a bool, not {said}{hint}")
