"""``make bench-search``: what it refuses."""

import pytest

from ropeswitch.loadtests.bench.search import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "m", "--length", "1x"], "--length: '1x' must be a whole number of tokens"),
        (["--model", "m", "--documents", "0"], "--documents: 0 must be at least 1"),
        (["--rounds", "0"], "--rounds: 0 must be at least 1"),
        (["--candidates", "17"], "--candidates: 17 must be from 1 to 16"),
        (["--dtype", "int8"], "--dtype: invalid choice: 'int8'"),
        (["--length", "1k"], "--length: needs --model"),
        (["--documents", "2"], "--documents: needs --model"),
        (["--model", "nowhere"], "model 'nowhere': cannot be opened"),
    ],
)
def test_wrong_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
