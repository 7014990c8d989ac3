"""How often a start that nobody watches says something."""

from ropeswitch.server.start.log.progress import Progress


def test_a_pipe_is_told_the_stage_at_pauses_that_double_up_to_a_minute() -> None:
    progress = Progress("loading", 1000.0)
    lines = []
    for seconds in range(200):
        if seconds == 15:
            progress.stage = "weights"
        if line := progress.due(1000.0 + seconds):
            lines.append(line)
    assert lines == ["loading (10 s)", "weights (20 s)", "weights (40 s)", "weights (80 s)", "weights (140 s)"]


def test_a_start_that_was_not_looked_at_for_long_gets_one_line() -> None:
    progress = Progress("loading", 0.0)
    assert progress.due(35.0) == "loading (35 s)"
    assert progress.due(69.0) is None and progress.due(70.0) == "loading (70 s)"
