"""``make docs-tool-parsers``: writes the table of ``docs/configuration.md`` on tool calls from the code."""

from pathlib import Path

from ropeswitch.server.start.tool_parsers import FAMILIES
from tests.docs.made import Tables, table, write

PAGE = Path("docs/configuration.md")


def _parsers() -> str:
    rows = (
        (
            ", ".join(f"`{name}`" for name in names),
            "; ".join(f"`` {markup} ``: `{parser}`" for markup, parser in choices),
        )
        for names, choices in FAMILIES.items()
    )
    return table(("`model_type`", "markup in the chat template: parser"), rows)


TABLES: Tables = {"tool-parsers": _parsers}

if __name__ == "__main__":
    write(PAGE, "docs-tool-parsers", TABLES)
