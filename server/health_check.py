"""``python -m ropeswitch.server.health_check``: exits with 0 if the server is ready, for container health checks."""

import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus

# Overrides the URL below, which fits the image's own command.
VARIABLE = "ROPESWITCH_HEALTH_URL"
URL = "http://127.0.0.1:8000/health/ready"
# The path that plain `vllm serve` has instead.
VLLM_PATH = "/health"
TIMEOUT = 4.0


def main() -> int:
    """Check once and return the exit code: 0, or 1 if the server is not ready or not reachable."""
    url = os.environ.get(VARIABLE, URL)
    try:
        try:
            urllib.request.urlopen(url, timeout=TIMEOUT).close()
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND or VARIABLE in os.environ:
                raise
            urllib.request.urlopen(urllib.parse.urljoin(url, VLLM_PATH), timeout=TIMEOUT).close()
    except (OSError, ValueError) as error:
        print(f"ropeswitch: {url}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
