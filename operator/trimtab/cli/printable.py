"""What others wrote, made harmless for a terminal: texts of models, tenants and files may hold escapes that move the
cursor, set its title or hide what follows.
"""

from __future__ import annotations


def printable(text: str, *, keep: str = "") -> str:
    """Characters that a terminal would act on, or that turn the direction of writing, as Python writes them. Line ends
    among them, unless they are to be kept.
    """
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )
