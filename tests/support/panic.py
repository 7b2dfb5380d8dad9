"""A failure of another language's library."""


class Panic(BaseException):
    """As libraries in Rust raise it: no `Exception`."""
