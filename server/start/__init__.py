"""The output of startup and shutdown: our own lines, progress, and a first request.

vLLM and its libraries log to standard error, which :mod:`~ropeswitch.server.start.held_log` redirects to a file;
:mod:`~ropeswitch.server.start.log_lines` selects the lines a user must see, and :mod:`~ropeswitch.server.start.console`
prints them.
"""
