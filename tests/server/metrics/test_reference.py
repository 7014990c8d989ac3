"""docs/metrics.md has the metrics as the code has them."""

from tests.docs.made import written
from tests.docs.pages import ROOT
from tests.server.metrics.page import PAGE, TABLES


def test_the_page_is_as_make_docs_metrics_writes_it() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert written(page, "docs-metrics", TABLES) == page, "run make docs-metrics"
