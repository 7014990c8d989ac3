"""Published factors become ladders unchanged, from both CSV layouts and from configs; the rest is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.factors.factor_set import FactorError, FactorLadder, LayerFactors
from ropeswitch.factors.import_factors import CsvSet, ladder_file_from_config, ladder_from_csv, read_csv
from tests.factors.strategies import positive


def longrope(kind: str, original: int, maximum: int, short: list[float], long: list[float]) -> dict[str, Any]:
    lengths = {"original_max_position_embeddings": original, "max_position_embeddings": maximum}
    rope = {"type": kind, "short_factor": short, "long_factor": long}
    return {"model_type": "phi3", "rope_theta": 10000.0, **lengths, "rope_scaling": rope}


CONFIGS = {
    "longrope": longrope("longrope", 4096, 131072, [1.0, 1.05, 0.99], [1.08, 4.5, 3]),
    "su": longrope("su", 64, 512, [1, 1], [1, 8]),
    "window-not-extended": longrope("longrope", 32786, 32768, [0.99, 1.2], [0.99, 1.2]),
}


def write(folder: Path, text: str, name: str = "f.csv") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def imported(*sets: CsvSet, **changes: Any) -> FactorLadder:
    arguments: dict[str, Any] = {"scale": "none", "start_tokens": 0, "original_length": None}
    return ladder_from_csv(sets, **(arguments | changes))


@given(st.lists(positive, min_size=2, max_size=70), st.integers(min_value=1, max_value=3))
def test_any_list_is_read_exactly(tmp_path_factory: pytest.TempPathFactory, factors: list[float], layers: int) -> None:
    folder = tmp_path_factory.getbasetemp()
    assert read_csv(write(folder, "\n".join(map(repr, factors)))) == [tuple(factors)]
    assert read_csv(write(folder, (",".join(map(repr, factors)) + "\n") * layers)) == [tuple(factors)] * layers


def test_spaces_blank_lines_and_windows_line_ends(tmp_path: Path) -> None:
    assert read_csv(write(tmp_path, " 1.5e+00 , 2 ,.5\r\n\r\n1.5,2.0,0.5\r\n\r\n")) == [(1.5, 2.0, 0.5)] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no factors"),
        ("1\n\nx\n", "line 3, value 1: 'x' must be a finite number greater than 0"),
        ("1,2,\n", "line 1, value 3: '' must be"),
        ("1\n0\n", "line 2, value 1: '0' must be"),
    ],
)
def test_wrong_csv_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FactorError, match=rf"f\.csv': {message}"):
        read_csv(write(tmp_path, text))


def test_rows_that_differ_are_layers(tmp_path: Path) -> None:
    alike, other = write(tmp_path, "1,2\n1,2\n", "a"), write(tmp_path, "1,2\n1,3\n", "b")
    short, long = imported(CsvSet("8k", 8192, alike), CsvSet("16k", 16384, other), scale="1.5").sets
    assert short.layers == () and long.factors == (1.0, 2.0)
    assert long.layers == (LayerFactors((1.0, 2.0), 1.5), LayerFactors((1.0, 3.0), 1.5))
    with pytest.raises(FactorError, match=r"c': has rows of 2 and 3 factors"):
        imported(CsvSet("8k", 8192, write(tmp_path, "1,2\n1,2,3\n", "c")))


@pytest.mark.parametrize("name", CONFIGS)
def test_configs(tmp_path: Path, name: str) -> None:
    config = CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    content = ladder_file_from_config(tmp_path / "config.json")
    rope = config["rope_scaling"]
    original, maximum = config["original_max_position_embeddings"], config["max_position_embeddings"]
    scale = math.sqrt(1 + math.log(maximum / original) / math.log(original)) if maximum > original else 1.0
    expected = [("short", min(original, maximum), tuple(map(float, rope["short_factor"])), scale)]
    if maximum > original:
        expected.append(("long", maximum, tuple(map(float, rope["long_factor"])), scale))
    assert [(s.name, s.max_length, s.factors, s.scale) for s in content.ladder.sets] == expected
    assert content.theta == config["rope_theta"]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "text_config": config}))
    assert ladder_file_from_config(tmp_path) == content


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_position_embeddings": 4096}, "rope_type: 'default'; only 'longrope' and 'su'"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_type: 'yarn'; only"),
        ({"rope_scaling": {"type": "longrope"}}, "short_factor: must be a list"),
        (longrope("su", 8, 16, [1, 2], [1, 0]), r"sets\[1\]\.factors\[1\]: 0.0"),
    ],
)
def test_configs_without_usable_factors(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(FactorError, match=r"config\.json': does not exist"):
        ladder_file_from_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(FactorError, match=rf"config\.json': .*{message}"):
        ladder_file_from_config(tmp_path)
