"""The error that a failed start goes back to, in one line."""

import pytest

from ropeswitch.server.start.refusals import MOST, root_cause


def chained() -> BaseException:
    """An error raised from another, in the handling of a third."""
    try:
        try:
            {}["no key"]
        except KeyError:
            try:
                raise ValueError("No common\n  block size for 16")
            except ValueError as cause:
                raise RuntimeError("the engine failed") from cause
    except RuntimeError as error:
        return error
    raise AssertionError


def test_the_explicit_cause_is_told_in_one_line() -> None:
    assert root_cause(chained()) == "ValueError: No common block size for 16"
    assert root_cause(KeyError()) == "KeyError: no message"
    assert len(root_cause(ValueError("x" * 9999))) < MOST + 20


def test_an_error_that_is_its_own_cause() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert root_cause(one) == "ValueError: other"


@pytest.mark.parametrize("module", ["vllm.v1.utils", "ropeswitch.server.utils"])
def test_the_place_is_the_innermost_line_of_vllm_or_ours(module: str) -> None:
    """By the module's name, whatever folder it was loaded from."""
    code = compile("\ndef choose(text):\n    return int(text)\n", "/anywhere/utils.py", "exec")
    names: dict[str, object] = {"__name__": module}
    exec(code, names)
    with pytest.raises(ValueError, match="invalid literal") as caught:
        names["choose"]("x")  # type: ignore[operator]
    assert root_cause(caught.value).endswith(f" ({module.replace('.', '/')}.py:3)")


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ("{'EngineCore_DP0': -9}", "an engine process was killed by SIGKILL (the system does this when memory"),
        ("{'EngineCore_DP0': -11}", "an engine process was killed by SIGSEGV"),
        ("{'EngineCore_DP0': 3}", "RuntimeError: Engine core initialization failed. "),
    ],
)
def test_processes_that_a_signal_ended(codes: str, expected: str) -> None:
    error = RuntimeError(f"Engine core initialization failed. See root cause above. Failed core proc(s): {codes}")
    assert root_cause(error).startswith(expected)
