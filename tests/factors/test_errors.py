"""The edge words a field: the message itself is never edited."""

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
