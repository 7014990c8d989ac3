"""Pages that get changed figures: what a small server cannot have, such as a thousand requests in flight."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from playwright.sync_api import Page, Route


def with_figures(page: Page, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the figures of each answer of ``/v1/status`` on its way to the page."""

    def answer(route: Route) -> None:
        response = route.fetch()
        if not response.ok:
            route.fulfill(response=response)
            return
        body = response.json()
        change(body["figures"])
        route.fulfill(response=response, json=body)

    page.route("**/v1/status", answer)


def with_requests(page: Page, running: Sequence[Mapping[str, Any]]) -> None:
    """Show these sequences in flight."""
    with_figures(page, lambda figures: figures.update(running=running))
