"""The switch: every request rotated with the factor set for its own length.

``placement.py`` decides, ``engine_args.py`` configures an engine and ``plugin.py`` hooks that into vLLM. A room knows only
those before it: ``config``, ``kv``, ``models``, ``rows``, ``drafts``, ``engine``.
"""
