"""For the modules that compute on torch tensors; `mla` itself needs no other package."""


def need_torch(module):
    """Says in one sentence what is missing, before an import deep inside does it in its own way."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"{module} computes on torch tensors, and torch is not installed: pip install torch", name="torch"
        ) from None
