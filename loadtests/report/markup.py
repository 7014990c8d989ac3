"""HTML put together so that a text is escaped unless it is HTML by its type."""

from html import escape


class Markup(str):
    """A text that is HTML already."""


# These have no end tag.
VOID = frozenset({"meta", "br"})


def tag(name: str, *children: str, **attributes: str) -> Markup:
    """An element.

    Args:
        name: Its name.
        children: Its content; escaped, but for :class:`Markup`.
        attributes: By name; an underscore at the end is dropped (``class_``), other underscores are dashes.
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Contents one after the other; escaped, but for :class:`Markup`."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))
