"""What the bodies of the requests in hand hold of the memory."""


class HeldBodies:
    """One per API server process, used on its event loop alone.

    Args:
        limit: The most bytes (``--max-held-body-bytes``).

    Attributes:
        bytes: Those that are held.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
