"""D and D_logit against Hugging Face's own attention weights, and what arXiv:2411.13476 says of them."""

import pytest
import torch
from transformers import AutoModelForCausalLM, SmolLM3Config, SmolLM3ForCausalLM

from ropeswitch.factors.check.shift import ARITHMETIC, Arithmetic, Shift, shift_difference
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.local_model import LocalModel
from tests.passkey_tiny import FOLDER

MODEL = FOLDER
FLOAT32, HUGGING_FACE, OURS = ARITHMETIC
IDS = torch.randint(3, 600, (2, 48), generator=torch.Generator().manual_seed(1))


def measured(arithmetic: Arithmetic, shifts: tuple[int, int] = (0, 16)) -> Shift:
    local = LocalModel.load(MODEL, str(arithmetic.dtype).removeprefix("torch."))
    assert local.ladder is not None
    return shift_difference(local, local.ladder.sets[0], IDS, arithmetic, shifts)


@pytest.fixture(scope="module")
def found() -> dict[str, Shift]:
    return {each.name: measured(each) for each in ARITHMETIC}


def test_bfloat16_breaks_what_float32_keeps(found: dict[str, Shift]) -> None:
    """The paper's figure 1: with float32 the difference is gone; published ratios are from 400 to 7000."""
    assert found[FLOAT32.name].d < 1e-3
    for name in (HUGGING_FACE.name, OURS.name):
        assert found[name].d > 400 * found[FLOAT32.name].d
        assert found[name].d_logit > 400 * found[FLOAT32.name].d_logit
        assert 0 < found[name].d_first < found[name].d
        assert found[name].d_others == pytest.approx(found[name].d - found[name].d_first)


def test_exact_angles_rounded_once_do_better(found: dict[str, Shift]) -> None:
    assert found[OURS.name].d < 0.9 * found[HUGGING_FACE.name].d
    assert found[OURS.name].d_logit < found[HUGGING_FACE.name].d_logit


def test_no_shift_makes_no_difference() -> None:
    none = measured(HUGGING_FACE, (16, 16))
    assert (none.d, none.d_logit) == (0.0, 0.0)


def test_it_is_the_difference_of_hugging_faces_attention_weights() -> None:
    """Equation 4 by hand from the weights that eager attention returns in bfloat16."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float64, attn_implementation="eager").eval()
    weights = []
    for shift in (0, 300):  # past the window, so that Hugging Face changes to the long factors
        positions = torch.arange(48)[None] + shift
        with torch.no_grad():
            weights.append(model(IDS[:1], position_ids=positions, output_attentions=True).attentions)
    by_key = sum((here - there).abs().sum((0, 1, 2)) for here, there in zip(*weights, strict=True))
    expected = by_key / torch.arange(48, 0, -1)

    local = LocalModel.load(MODEL)
    assert local.ladder is not None
    short, long = local.ladder.sets
    found = _between_sets(local, short, long)
    assert found[0] == pytest.approx(float(expected.sum()), rel=2e-3)
    assert found[1] == pytest.approx(float(expected[0]), rel=2e-3)


def _between_sets(local: LocalModel, short: object, long: object) -> list[float]:
    """D between two sets rather than two shifts: large enough for rounding not to matter."""
    from ropeswitch.factors.check import shift

    pairs = [
        shift._queries_and_keys(local, each, IDS[:1], FLOAT32, start)  # type: ignore[arg-type]
        for each, start in ((short, 0), (long, 300))
    ]
    total = torch.zeros(3, dtype=torch.float64)
    for here, there in zip(*pairs, strict=True):
        total += shift._layer_difference(here, there)
    return total.tolist()


def test_a_model_with_a_layer_that_does_not_rotate_is_refused() -> None:
    """D alone would not show it: without rotation nothing shifts."""
    sizes = {
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "initializer_range": 0.3,
    }
    config = SmolLM3Config(
        **sizes, num_attention_heads=2, num_key_value_heads=2, no_rope_layers=[1, 0], pad_token_id=0,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    local = LocalModel.of(SmolLM3ForCausalLM(config).eval(), None, config.to_dict(), "tiny")
    ids = torch.randint(64, (1, 50))
    with pytest.raises(FactorError, match="SmolLM3ForCausalLM rotates its queries and keys in an unsupported way"):
        shift_difference(local, local.plain_set(64), ids, ARITHMETIC[0])
