"""What identifies a set: equal keys for equal cached keys, and for nothing else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.factors.factor_set import FactorLadder, FactorSet, LayerFactors
from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.model_patches.switch.placement import client_part, salt_of, shared_by
from ropeswitch.model_patches.switch.set_keys import set_keys

SET = FactorSet("a", 8, (1.0, 2.0), 1.5, 2, 0.5)
SETTINGS = RopeSettings(FactorLadder((SET,)), 1e4)


def key(settings: RopeSettings) -> str:
    return set_keys(settings)[0]


def with_set(**changes: object) -> RopeSettings:
    return replace(SETTINGS, ladder=FactorLadder((replace(SET, **changes),)))


@pytest.mark.parametrize(
    "changes",
    [{"factors": (1.0, 2.0000000000000004)}, {"factors": (1.0,)}, {"scale": 1.0}, {"start_tokens": 3},
     {"softmax_scale": None}, {"softmax_scale": 1.0}, {"layers": (LayerFactors((1.0, 2.0), 1.4),)}],
)  # fmt: skip
def test_another_content_is_another_key(changes: dict[str, object]) -> None:
    assert key(with_set(**changes)) != key(SETTINGS)


def test_a_softmax_scale_of_one_is_none() -> None:
    assert key(with_set(softmax_scale=1.0)) == key(with_set(softmax_scale=None))


def test_the_base_and_the_angles_count_names_and_ends_do_not() -> None:
    others = [SETTINGS, replace(SETTINGS, theta=2e4), replace(SETTINGS, angles="hf")]
    assert len(set(map(key, others))) == 3
    assert key(with_set(name="b", max_length=16)) == key(SETTINGS)
    assert key(RopeSettings.from_json(SETTINGS.to_json())) == key(SETTINGS)


@given(st.lists(st.tuples(st.sampled_from(["a" * 32, "b" * 32]), st.text(max_size=80)), min_size=2, unique=True))
def test_no_client_can_name_another_set_in_its_salt(pairs: list[tuple[str, str]]) -> None:
    assert len({salt_of(*pair) for pair in pairs}) == len(pairs)
    assert all(client_part(salt_of(*pair)) == (pair[1] or None) for pair in pairs)
    assert salt_of("a" * 32, salt_of("b" * 32, None)) != salt_of("b" * 32, None)


KEYS = [None, b"a" * 32, b"b" * 32]
# What a client could send to look like a request with a key, or like one without.
IMITATED = ["", "key", "key:", "key::", "key:::", "x", *(str(shared_by(key, "x")) for key in KEYS)]


@given(
    st.lists(
        st.tuples(st.sampled_from(KEYS), st.sampled_from(IMITATED) | st.text(max_size=80)), min_size=2, unique=True
    )
)
def test_no_client_can_name_another_key_in_its_salt(pairs: list[tuple[bytes | None, str]]) -> None:
    salts = [salt_of("a" * 32, shared_by(*pair)) for pair in pairs]
    assert len(set(salts)) == len(pairs)
    # Placed again, a sequence keeps its part.
    assert [salt_of("a" * 32, client_part(salt)) for salt in salts] == salts


def test_without_keys_salts_are_the_clients_own() -> None:
    assert [shared_by(None, salt) for salt in (None, "alice", "a:b")] == [None, "alice", "a:b"]
