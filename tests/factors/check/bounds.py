"""The published lower bounds of the base (arXiv:2405.14591, for a head dimension of 128)."""

PUBLISHED_BOUNDS = {
    "1k": 4.3e3,
    "2k": 1.6e4,
    "4k": 2.7e4,
    "8k": 8.4e4,
    "16k": 3.1e5,
    "32k": 6.4e5,
    "64k": 2.1e6,
    "128k": 7.8e6,
    "256k": 3.6e7,
    "512k": 6.4e7,
    "1M": 5.1e8,
}


def published_lengths(name: str) -> tuple[int, int]:
    """The tokens that a key of :data:`PUBLISHED_BOUNDS` stands for, with k as 1000 and as 1024."""
    power = {"k": 1, "M": 2}[name[-1]]
    return int(name[:-1]) * 1000**power, int(name[:-1]) * 1024**power
