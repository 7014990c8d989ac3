"""The edge words a field: the message itself is never edited."""

import pickle

from ropeswitch.factors.errors import FieldError


def test_an_edge_words_its_fields_also_after_the_way_from_a_worker() -> None:
    made = FieldError("ladder", "{text!r} needs lengths; set {max_model_len} TOKENS", text="{ladder}")
    names = {"ladder": "additional_config.ropeswitch.ladder", "max_model_len": "max_model_len"}
    for error in (made, pickle.loads(pickle.dumps(made))):
        assert type(error) is FieldError and error.field == "ladder"
        assert error.reason == "'{ladder}' needs lengths; set --max-model-len TOKENS"
        assert str(error) == f"--ladder: {error.reason}"
        worded = "additional_config.ropeswitch.ladder: '{ladder}' needs lengths; set max_model_len TOKENS"
        assert error.worded(names) == worded


def test_values_may_be_named_like_fields_and_other_braces_stay() -> None:
    named = FieldError("factors", "{ladder} is no {max_model_len}", ladder=3)
    assert str(named) == "--factors: 3 is no --max-model-len"
    assert str(FieldError("sets[0].factors", "{value:,} is long", value=8192)) == "sets[0].factors: 8,192 is long"
    reason = 'give {"a": 1}, {} or {name!r}; not {0}, { or }'
    assert str(FieldError("sets", reason)) == f"sets: {reason}"
