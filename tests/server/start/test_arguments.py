"""The check of the command line before vLLM is imported."""

from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ropeswitch.factors.errors import UsageError
from ropeswitch.model_patches.switch.releases import release
from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server.start import arguments
from tests.serve_parser import serve_parser

NAMES = arguments.recorded_names()[release()]
MODEL = str(BUNDLED_MODEL)
TEXTS = ["", "auto", "3", "-1", "-0.5", "1e3", "{}", '{"mode":3}', "a=b", "a.b", "-x", "-x.y", "-tp", "-O", "-O3", "-"]


def test_the_recorded_names_are_those_of_the_installed_vllm() -> None:
    assert arguments.installed_names() == NAMES, "record them again: python -m ropeswitch.server.start.arguments"


def refuses(argv: list[str]) -> bool:
    try:
        serve_parser().parse_args(list(argv))
    except (Exception, SystemExit):
        return True
    return False


@st.composite
def words(draw: st.DrawFn) -> list[str]:
    """A flag, written in one of the ways that vLLM knows, or in a wrong one."""
    name = draw(st.sampled_from([*NAMES, "--ladder", "--max-prompt-tokens"]))
    spelled = [name, name.replace("-", "_").replace("__", "--", 1), name[:-1], name + "x", name[: len(name) // 2 + 2]]
    name = draw(st.sampled_from(spelled))
    # After a flag that takes a value, vLLM takes any word with a space for the value, even one that looks like a flag.
    value = draw(st.sampled_from(TEXTS) | st.text(st.characters(exclude_characters=" "), max_size=5))
    written = [[name], [f"{name}={value}"], [name, value], [f"{name}.a", value], [f"{name}.a={value}"], [f"-O{value}"]]
    return draw(st.sampled_from(written))


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@example(model=["m"], parts=[["-cc.mode", "3"], ["--compilation_config.pass-config.a+", "x,y"]])
@example(model=[], parts=[["--chat-template", "--a b"]])
@example(model=[], parts=[["--port", "1", "m"]])
@given(model=st.sampled_from([[], ["m"]]), parts=st.lists(words(), min_size=1, max_size=2))
def test_whatever_is_refused_vllm_refuses_too(model: list[str], parts: list[list[str]]) -> None:
    argv = [*model, *(word for part in parts for word in part)]
    try:
        arguments.full_names(argv, {*NAMES, *serve_parser()._option_string_actions})
    except UsageError as error:
        assert "--config=" in str(error) or refuses(argv), argv


def test_flags_that_vllm_takes_pass(tmp_path: Path) -> None:
    argv = "--max_num_seqs=3 --kv-cache-memory 1G -O3 -tp 2 --no-enable-prefix-caching --seed -1 --api-key -a b"
    argv += " --compilation-config.mode 3 -cc.mode 3 --step_latency_target=1e-3 --max-prompt 7"
    arguments.check([MODEL, *argv.split()])
    # These name the config that the folder lacks.
    for more in (["--hf-config-path", MODEL], ["--config", "c.yaml"]):
        arguments.check([str(tmp_path), *more])
