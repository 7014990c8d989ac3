"""What holds for any input: more GPUs never hold less, and no file, however wrong, ends in anything but a message."""

import json
import math
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ropeswitch.deploy.plan import gpus
from ropeswitch.deploy.plan.costs import GIB, Workload, bounds, memory
from ropeswitch.deploy.plan.layouts import Layout, broken_rule, place
from ropeswitch.deploy.plan.model_shape import ModelShape, shape_from_config
from ropeswitch.deploy.plan.planner import Cluster, make_plan
from ropeswitch.factors.errors import UsageError
from ropeswitch.server.cli import main
from tests.deploy.configs import ALL, PHI4_MINI

SHAPES = [shape_from_config(name, config) for name, config in ALL.items()]
KINDS = list(gpus.load().values())
shapes = st.sampled_from(SHAPES)
kinds = st.sampled_from(KINDS)
powers = st.sampled_from([1, 2, 4, 8, 16, 32])
workloads = st.builds(Workload, st.integers(1, 2_097_152), st.sampled_from([1, 2]), st.floats(0.1, 1), st.floats(0, 8))


@given(shapes, kinds, workloads, st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_more_gpus_never_hold_less(shape: ModelShape, gpu: gpus.Gpu, load: Workload, count: int) -> None:
    """Neither twice the GPUs, nor one more in a bigger node."""

    def best(number: int) -> int:
        plan = make_plan(shape, Cluster(gpu, number, number, 1), load)
        return max((candidate.sequences for candidate in plan.candidates), default=0)

    assert best(2 * count) >= best(count)


@given(shapes, kinds, workloads, powers, powers)
def test_shares_add_up(shape: ModelShape, gpu: gpus.Gpu, load: Workload, tensor: int, pipeline: int) -> None:
    """Ranks hold all of the KV, and more only where heads are copied or stages uneven; DCP divides it evenly."""
    layout = Layout(tensor, 1, pipeline)
    if broken_rule(shape, layout):
        return
    held = memory(shape, layout, gpu, load)
    whole = shape.layers * 2 * shape.kv_heads * shape.head_dim * load.kv_bytes
    copies = max(1, tensor // shape.kv_heads)
    assert held.kv_per_token * tensor * pipeline >= whole * copies
    if shape.layers % pipeline == 0:
        assert held.kv_per_token * tensor * pipeline == whole * copies
    for decode_context in (2, 4, 8):
        shared = Layout(tensor, decode_context, pipeline)
        if broken_rule(shape, shared) is None:
            assert copies % decode_context == 0
            assert memory(shape, shared, gpu, load).kv_per_token * decode_context == held.kv_per_token
            assert memory(shape, shared, gpu, load).longest >= held.longest
            assert bounds(shape, shared, gpu, load).next_token <= bounds(shape, layout, gpu, load).next_token


@given(shapes, kinds, workloads, powers)
def test_what_fits_is_within_the_memory(shape: ModelShape, gpu: gpus.Gpu, load: Workload, tensor: int) -> None:
    layout = Layout(tensor)
    if broken_rule(shape, layout):
        return
    held = memory(shape, layout, gpu, load)
    used = held.weights + held.sequences * held.kv_per_sequence
    assert held.sequences == 0 or used + load.reserve_gib * GIB <= gpu.memory_gib * GIB * load.memory_utilization + 1
    assert (held.sequences > 0) == (held.longest == load.max_model_len)
    times = bounds(shape, layout, gpu, load)
    assert 0 < times.first_token < math.inf and 0 < times.next_token < math.inf


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 16), st.integers(1, 16))
def test_replicas_never_take_more_gpus_than_there_are(count: int, node: int, tensor: int, pipeline: int) -> None:
    layout = Layout(tensor, 1, pipeline)
    placement = place(layout, count, node)
    if not isinstance(placement, str):
        assert placement.replicas >= 1 and placement.replicas * layout.gpus <= count
        assert placement.nodes * placement.gpus_per_node == layout.gpus and placement.gpus_per_node <= node


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.text(max_size=200)
    | st.sampled_from(["a", "[a]\n", "[a]\nmemory_gib = "]).flatmap(lambda s: st.text().map(s.__add__))
)
def test_any_text_as_a_gpu_file_is_read_or_refused_with_a_message(text: str) -> None:
    try:
        assert all(gpu.memory_gib > 0 for gpu in gpus.parse(text, "f").values())
    except UsageError as error:
        assert str(error).startswith("f")


UNSET = ("quantization_config", "head_dim", "layer_types", "layer_rope_theta", "swa_rope_theta", "kv_lora_rank")
ROPE = ("type", "rope_type", "short_factor", "long_factor", "factor", "rope_theta", "mrope_section", "beta_fast")


CONFIGS = (
    st.dictionaries(st.sampled_from([*PHI4_MINI, *UNSET]), VALUES).map(lambda change: PHI4_MINI | change)
    | st.dictionaries(st.sampled_from(ROPE), VALUES).map(
        lambda change: PHI4_MINI | {"rope_scaling": PHI4_MINI["rope_scaling"] | change}
    )
    | VALUES
)


@given(CONFIGS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
def test_any_config_is_planned_or_refused_with_a_message(tmp_path: Path, config: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["plan", str(tmp_path), "--gpu", "L4", "--gpus", "2"]) in (0, 1, 2)
