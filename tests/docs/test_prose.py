"""The phrase check of the pages finds what it should, in prose alone, and each phrase can be found."""

import re

import pytest

from tests.docs import prose


def test_phrases_are_found_with_line_and_reason() -> None:
    text = "# A page\n\nThe server tells the ladder.\nIt is made anew.\n"
    assert [(line, phrase) for line, phrase, _ in prose.findings(text)] == [(3, "tells"), (4, "anew")]


def test_a_phrase_may_go_over_the_end_of_a_line() -> None:
    text = "A server with a pool of its\nown.\n\nRequests are in\n\nhand.\n"
    assert [(line, phrase) for line, phrase, _ in prose.findings(text)] == [(1, "a pool of its\nown")]


@pytest.mark.parametrize(
    "text",
    [
        "`tells`",
        "[a link](beside.md)",
        "```bash\necho anew\n```",
        'He said "anew"',
        "It can tell the two sets apart.",
        "<!-- exact: made by make docs-models -->\n| anew |\n<!-- end -->",
    ],
)
def test_code_links_quotations_and_measured_tables_are_left_out(text: str) -> None:
    assert list(prose.findings(text)) == []


def test_each_phrase_is_a_pattern_with_a_reason() -> None:
    for phrase, reason in prose.PHRASES:
        assert re.compile(phrase) and reason
