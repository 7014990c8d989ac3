"""A step's rows: each token gets those of its own request's set, whichever requests are in the step."""

from dataclasses import replace
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding

from ropeswitch.factors.factor_set import FactorError, FactorLadder, LayerFactors
from ropeswitch.factors.rope_layers import axes_of
from ropeswitch.kernels.angles import Frequencies
from ropeswitch.kernels.reference import fill_rows_reference
from ropeswitch.model_patches.switch.config.settings import RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.rows import step_rows as module_
from ropeswitch.model_patches.switch.rows.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.rows.rotation import Rotation, rotation_of
from ropeswitch.model_patches.switch.rows.step_rows import StepRows, check_axes

THETA, ROTARY, END, MOST = 10000.0, 16, 4096, 64
LADDER = FactorLadder.checked(
    [
        {"name": "short", "max_length": 100, "factors": [1.0] * 8},
        {"name": "long", "max_length": END, "factors": [1.5 + i for i in range(8)], "scale": 1.2, "start_tokens": 20},
    ]
)
CPU = torch.device("cpu")
ROTATION = Rotation(THETA, ROTARY)
LOCAL = Rotation(100.0, ROTARY, laddered=False)


def bound(*rotations: Rotation, angles: str = "exact") -> tuple[StepRows, list[LadderRotaryEmbedding]]:
    """The rows of a model with a module for each rotation."""
    step_rows = StepRows(RopeSettings(LADDER, THETA, angles), END, MOST, CPU)
    modules = [LadderRotaryEmbedding(ROTARY, each, True) for each in rotations or (ROTATION,)]
    step_rows.bind(torch.nn.Sequential(*modules))
    return step_rows, modules


@pytest.mark.parametrize(("angles", "tolerance"), [("exact", 3e-7), ("hf", 1e-3)])
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_every_token_gets_its_own_requests_set(angles: str, tolerance: float, data: st.DataObject) -> None:
    """Requests without tokens too; rows after the last request keep what they hold."""
    step_rows, [module] = bound(angles=angles)
    module.rows.fill_(torch.nan)
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=8))
    sets = np.array(data.draw(st.lists(st.integers(0, 1), min_size=len(lengths), max_size=len(lengths))))
    count = sum(lengths)
    positions = np.array(data.draw(st.lists(st.integers(0, END - 1), min_size=count, max_size=count)), dtype=np.int64)
    step_rows.fill(torch.from_numpy(positions), sets, torch.tensor([0, *accumulate(lengths)], dtype=torch.int32))
    expected = fill_rows_reference(
        positions, np.repeat(sets, lengths), THETA, ROTARY, ROTATION.sets(RopeSettings(LADDER, THETA))
    )
    assert not count or float((module.rows[:count] - expected).abs().max()) < tolerance
    assert module.rows[count:].isnan().all()


@pytest.mark.parametrize("angles", ["exact", "hf"])
@pytest.mark.parametrize("axes", [None, (0, 1, 2, 0, 1, 2, 0, 1)])
def test_layers_with_factors_of_their_own(angles: str, axes: tuple[int, ...] | None) -> None:
    """Each module of a layer reads that layer's rows, in the sets that have them; bound again, all read the new ones."""
    layers = tuple(LayerFactors((1.0 + layer,) * 8, 0.8 + layer) for layer in range(3))
    ladder = FactorLadder((LADDER.sets[0], replace(LADDER.sets[1], layers=layers)))
    shared, local = LadderRotaryEmbedding(ROTARY, replace(ROTATION, axes=axes), True), Rotation(7.0, ROTARY, 0, False)
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.ModuleDict({"q": shared, "k": shared}) for _ in range(3))
    model.local = LadderRotaryEmbedding(ROTARY, replace(local, axes=axes), True)
    for _ in range(2):
        step_rows = StepRows(RopeSettings(ladder, THETA, angles), END, MOST, CPU)
        step_rows.bind(model)
        positions = np.array([7, 90, 30, 1])
        step_rows.fill(torch.from_numpy(positions), np.array([1, 0]), torch.tensor([0, 3, 4], dtype=torch.int32))
        for index, layer in enumerate(model.layers):
            sets = tuple(
                Frequencies(s.factors, s.scale, s.start_tokens) for s in (s.of_layer(index) for s in ladder.sets)
            )
            expected = fill_rows_reference(positions, np.array([1, 1, 1, 0]), THETA, ROTARY, sets)
            assert float((layer["q"].rows[:4] - expected).abs().max()) < (3e-7 if angles == "exact" else 1e-4)
            assert layer["q"] is layer["k"] and layer["q"].rows.is_contiguous()
    with pytest.raises(UnsupportedError, match="layers: the model rotates layers by a module that they share"):
        shared(step_rows.numbers[:2], torch.zeros(2, ROTARY))
    # Whatever the buffers became while the engine slept.
    for rows in step_rows.by_rotation.values():
        rows._first_sets.zero_()
    step_rows.restore()
    step_rows.fill(torch.from_numpy(positions), np.array([1, 0]), torch.tensor([0, 3, 4], dtype=torch.int32))
    assert float((model.layers[2]["q"].rows[:4] - expected).abs().max()) < (3e-7 if angles == "exact" else 1e-4)


def test_modules_that_are_not_of_one_layer_are_refused() -> None:
    """In two lists of numbers, in blocks that layers share (Zamba 2, Gemma 3n), or beyond the last layer."""
    ladder = FactorLadder((replace(LADDER.sets[1], layers=(LayerFactors((2.0,) * 8),) * 3),))
    block = torch.nn.ModuleDict({"q": LadderRotaryEmbedding(ROTARY, ROTATION, True)})
    nested, shared = torch.nn.ModuleList([torch.nn.ModuleList([block])]), torch.nn.ModuleList([block, block])
    for model in (nested, shared, torch.nn.ModuleDict({"7": block})):
        with pytest.raises(UnsupportedError, match=r"sets.layers: \S+ rotates for other than one layer"):
            StepRows(RopeSettings(ladder, THETA), END, MOST, CPU).bind(model)
        block["q"] = LadderRotaryEmbedding(ROTARY, ROTATION, True)


@pytest.mark.parametrize("module", [torch.nn.Linear(2, 2), LadderRotaryEmbedding(ROTARY, LOCAL, True)])
def test_a_model_that_the_ladder_does_not_rotate(module: torch.nn.Module) -> None:
    step_rows = StepRows(RopeSettings(LADDER, THETA), END, MOST, CPU)
    step_rows.bind(torch.nn.Sequential(module))
    with pytest.raises(UnsupportedError, match="model: has no rotary embedding"):
        step_rows.require_rotation()


def test_local_layers_keep_their_own_base() -> None:
    step_rows, [module, local, again] = bound(ROTATION, LOCAL, ROTATION)
    assert module.rows is again.rows and module.rows is not local.rows
    positions, sets = np.array([7, 90, 30, 1]), np.array([1, 0])
    step_rows.fill(torch.from_numpy(positions), sets, torch.tensor([0, 3, 4], dtype=torch.int32))
    plain = fill_rows_reference(positions, np.zeros(4, dtype=int), 100.0, ROTARY, (Frequencies((1.0,) * 8),))
    assert float((local.rows[:4] - plain).abs().max()) < 3e-7
    assert float((module.rows[:4] - plain).abs().max()) > 0.1


def test_a_layer_without_a_mark_is_local_where_others_are_marked() -> None:
    """Plamo 3 writes the base of its local layers itself, and it may be the ladder's."""
    _, [full, local] = bound(replace(ROTATION, marked=True), ROTATION)
    assert full.rotation.laddered and not local.rotation.laddered and full.rows is not local.rows


def test_the_layers_of_all_pipeline_stages_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage builds only its own: here it has none of the marked ones, or none that the ladder rotates."""
    other = replace(ROTATION, marked=True)
    monkeypatch.setattr(module_, "on_all_stages", lambda own: [own, ({other}, set())])
    step_rows, [local] = bound(ROTATION)
    assert not local.rotation.laddered
    step_rows.require_rotation()
    step_rows, _ = bound(LOCAL)
    step_rows.require_rotation()
    with pytest.raises(UnsupportedError, match="only some layers have it"):
        bound(replace(other, axes=(0,) * 8))
    monkeypatch.setattr(module_, "on_all_stages", lambda own: [own, ({LOCAL}, set())])
    step_rows, _ = bound(LOCAL)
    with pytest.raises(UnsupportedError, match="model: has no rotary embedding"):
        step_rows.require_rotation()
    monkeypatch.setattr(module_, "on_all_stages", lambda own: [own, (set(), {other})])
    step_rows, [module] = bound(ROTATION)
    assert module.rotation.laddered
    step_rows.require_rotation()


def test_layers_that_cannot_be_told_apart() -> None:
    marked = replace(ROTATION, marked=True)
    with pytest.raises(UnsupportedError, match="a layer scales its rotary embedding itself"):
        bound(marked, replace(ROTATION, scaled=True))
    with pytest.raises(UnsupportedError, match="only some layers have it"):
        bound(replace(ROTATION, axes=(0,) * 8), LOCAL)
    settings = RopeSettings(LADDER, THETA)
    with pytest.raises(UnsupportedError, match=r"rope_theta 500\.0"):
        rotation_of(ROTARY, ROTARY, {"rope_theta": 500.0, "ropeswitch": "ladder"}, settings, multimodal=False)
    # As Bailing V3's layers do, whatever the config says.
    rope = {"rope_theta": THETA, "ropeswitch": "ladder", "rope_type": "bailing_mrope", "mrope_section": [3, 3, 2]}
    with pytest.raises(UnsupportedError, match="a layer asks for rope_type 'bailing_mrope', whose axes"):
        rotation_of(ROTARY, ROTARY, rope, settings, multimodal=True)


@pytest.mark.parametrize(
    ("sections", "interleaved"), [((2, 3, 3), False), ((4, 2, 2), True), ((3, 3, 2), True), ((8, 0, 0), False)]
)
def test_m_rope(sections: tuple[int, ...], interleaved: bool) -> None:
    """Against upstream's module with the set's frequencies."""
    rope = {"mrope_section": list(sections), "mrope_interleaved": interleaved}
    step_rows, [module] = bound(Rotation(THETA, ROTARY, axes=axes_of(rope, 8)))
    positions = torch.tensor([[3, 50, 900], [3, 7, 901], [3, 12, 40]])
    step_rows.fill(positions, np.array([1, 0]), torch.tensor([0, 2, 3], dtype=torch.int32))
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        upstream = MRotaryEmbedding(ROTARY, ROTARY, END, THETA, True, torch.float32, **rope)
    query = torch.randn(3, 2 * ROTARY)
    numbers = step_rows.numbers[:3].expand(3, -1)
    rotated = []
    for entry in LADDER.sets:
        inverse = upstream._compute_inv_freq(THETA) / torch.tensor(entry.factors)
        angles = torch.arange(END).float()[:, None] * inverse
        early = torch.arange(END)[:, None] < entry.start_tokens
        angles = torch.where(early, torch.arange(END).float()[:, None] * upstream._compute_inv_freq(THETA), angles)
        upstream.cos_sin_cache = torch.cat((angles.cos(), angles.sin()), dim=1) * entry.scale
        rotated.append(upstream.forward_native(positions, query, query.clone())[0])
    expected = torch.cat((rotated[1][:2], rotated[0][2:]))
    torch.testing.assert_close(module(numbers, query)[0], expected, rtol=0, atol=2e-3)
    text = torch.tensor([5, 6, 7])
    step_rows.fill(text, np.array([0]), torch.tensor([0, 3], dtype=torch.int32))
    one_axis = module.rows[:3].clone()
    step_rows.fill(text.expand(3, -1), np.array([0]), torch.tensor([0, 3], dtype=torch.int32))
    assert torch.equal(one_axis, module.rows[:3])


@pytest.mark.parametrize("angles", ["exact", "hf"])
def test_positions_on_an_axis_beyond_the_longest_sequence(angles: str) -> None:
    """A video's time axis may skip ahead of the number of tokens."""
    rotation = Rotation(THETA, ROTARY, axes=(0,) * 8)
    step_rows, [module] = bound(rotation, angles=angles)
    places = np.array([END - 1, END, 40 * END + 7])
    step_rows.fill(torch.from_numpy(places).expand(3, -1), np.array([1]), torch.tensor([0, 3], dtype=torch.int32))
    ones = np.ones(3, dtype=int)
    expected = fill_rows_reference(places, ones, THETA, ROTARY, rotation.sets(RopeSettings(LADDER, THETA)))
    assert float((module.rows[:3] - expected).abs().max()) < (3e-7 if angles == "exact" else 3e-2)


def test_axes_that_do_not_fit_or_that_a_model_does_not_have() -> None:
    for sections in ([2, 3], [2, 3, 4], [4, 4], [2.0, 3, 3], [9, -1, 0], 8, "abc"):
        with pytest.raises(FactorError, match=r"mrope_section: .* must be three sizes that add up to 8"):
            axes_of({"mrope_section": sections}, 8)

    class Model(torch.nn.Module):
        supports_mrope = True

        def get_mrope_input_positions(self) -> None: ...

    check_axes(Model(), SimpleNamespace(uses_mrope=True))
    check_axes(torch.nn.Linear(2, 2), SimpleNamespace(uses_mrope=False))
    with pytest.raises(UnsupportedError, match=r"mrope_section: Linear has no positions on several axes"):
        check_axes(torch.nn.Linear(2, 2), SimpleNamespace(uses_mrope=True))
