"""The edge words a field: the message itself is never edited."""

import pickle

from ropeswitch.factors.errors import FieldError


def test_an_edge_words_its_fields() -> None:
    error = FieldError("ladder", "{text!r} needs lengths; set {max_model_len} TOKENS", text="{ladder}")
    assert str(error) == "--ladder: '{ladder}' needs lengths; set --max-model-len TOKENS"
    names = {"ladder": "additional_config.ropeswitch.ladder", "max_model_len": "max_model_len"}
    message = "additional_config.ropeswitch.ladder: '{ladder}' needs lengths; set max_model_len TOKENS"
    assert error.worded(names) == message
    assert (error.field, error.reason) == ("ladder", "'{ladder}' needs lengths; set --max-model-len TOKENS")


def test_a_field_that_is_the_same_everywhere() -> None:
    assert str(FieldError("sets[0].factors", "{value} must be a list", value=3)) == "sets[0].factors: 3 must be a list"


def test_workers_send_it_to_the_engine() -> None:
    error = FieldError("ladder", "{value!r} exceeds {end:,}", value="a{b}", end=8192)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.worded({"ladder": "x"})) == (
        FieldError,
        str(error),
        "x: 'a{b}' exceeds 8,192",
    )


def test_values_may_be_named_like_fields() -> None:
    assert (
        str(FieldError("factors", "{ladder} is no {max_model_len}", ladder=3)) == "--factors: 3 is no --max-model-len"
    )


def test_other_braces_stay() -> None:
    reason = 'give {"a": 1}, {} or {name!r}; not {0}, { or }'
    assert str(FieldError("sets", reason)) == f"sets: {reason}"
