"""Bad input has one base: whichever module finds it, the command line prints one line and exits with code 2."""

import pytest

from ropeswitch.factors import file
from ropeswitch.factors.errors import InputError, UsageError
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.model_patches.guard.fingerprints import RegistryError
from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.server.cli import main


@pytest.mark.parametrize("error", [UsageError, FactorError, UnsupportedError, RegistryError])
def test_every_error_of_bad_input_is_one_line(
    error: type[InputError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(path: str) -> None:
        raise error(f"{path}: is\nwrong")

    monkeypatch.setattr(file, "load", fail)
    assert main(["factors", "validate", "x.json"]) == 2
    assert capsys.readouterr().err == "ropeswitch: error: x.json: is wrong\n"
