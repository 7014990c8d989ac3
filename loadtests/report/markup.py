"""Builds HTML, escaping every text that is not :class:`Markup`."""

from html import escape


class Markup(str):
    """Text that is already HTML."""


# Elements without an end tag.
VOID = frozenset({"meta", "br"})


def tag(name: str, *children: str, **attributes: str) -> Markup:
    """Build an element.

    Args:
        name: Its name.
        children: Its content; escaped unless :class:`Markup`.
        attributes: By name; a trailing underscore is dropped (``class_``), other underscores become dashes.
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Concatenate contents, escaping all but :class:`Markup`."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))
