"""What a user sees of a start and a stop: our own lines, progress, and the first request.

vLLM and its libraries log to standard error, which :mod:`~ropeswitch.server.start.held_log` turns to a file;
:mod:`~ropeswitch.server.start.log_lines` picks what a user must see, and :mod:`~ropeswitch.server.start.console` prints it.
"""
