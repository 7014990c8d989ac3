"""``python -m ropeswitch.server.health_check``: exits with 0 when a server is ready, for container health checks."""

import os
import sys
import urllib.request

# Overrides the address of the image's own command.
VARIABLE = "ROPESWITCH_HEALTH_URL"
URL = "http://127.0.0.1:8000/health/ready"
TIMEOUT = 4.0


def main() -> int:
    """Check once; returns the exit code, 1 where the server is not ready or not reachable."""
    url = os.environ.get(VARIABLE, URL)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT):
            return 0
    except (OSError, ValueError) as error:
        print(f"ropeswitch: {url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
