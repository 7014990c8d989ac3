"""Factor sets, ladders and factor files: what each length is rotated with, and how factors are made and judged.

The files here, ``ladders/`` and ``rules/`` (the part "ladder") know the standard library only. The tools ``check/``,
``search/`` and ``evaluate/`` may know torch, transformers and the engine; nothing that serves imports them.
"""
