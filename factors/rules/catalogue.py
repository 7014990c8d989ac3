"""The rules by name, with their options and sources."""

from collections.abc import Callable
from dataclasses import dataclass

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.quoted import quoted
from ropeswitch.factors.rules import formulas
from ropeswitch.factors.rules.formulas import Factors, Options, Target
from ropeswitch.factors.rules.rope import Rope

RAMP = ("alpha", "beta")


@dataclass(frozen=True)
class Rule:
    """A closed-form rule for factors: its name on the command line, and where its formula comes from.

    Attributes:
        formula: Description; L is the original length, s the extension ratio, d the rotary dimension.
        attention: Name of its attention scale in ``formulas.ATTENTION``.
        options: Fields of :class:`Options` that it takes.
        takes_scale: Whether it uses s; otherwise only lengths.
    """

    name: str
    formula: str
    source: str
    factors: Callable[[Rope, Target, Options], Factors]
    attention: str = "none"
    options: tuple[str, ...] = ()
    takes_scale: bool = True


RULES = (
    Rule("pi", "lambda_i = s", "position interpolation, arXiv:2306.15595", formulas.position_interpolation),
    Rule(
        "ntk",
        "lambda_i = s^(2i/(d-2)), the base times s^(d/(d-2))",
        "NTK-aware, arXiv:2309.00071 definition 1",
        formulas.ntk_aware,
    ),
    Rule(
        "dynamic-ntk",
        "ntk with the ratio f s - (f-1), one set per length; f = --dynamic-factor",
        "transformers 'dynamic'; f = 1 is arXiv:2309.00071",
        formulas.dynamic_ntk,
        options=("dynamic_factor",),
    ),
    Rule(
        "ntk-by-parts",
        "1/lambda_i = (1-g)/s + g, g falling linearly in i from the pair with beta rotations to the pair with alpha",
        "YaRN's code and transformers 'yarn', which models were trained with",
        formulas.yarn_by_index,
        options=(*RAMP, "truncate"),
    ),
    Rule(
        "ntk-by-parts-linear-r",
        "1/lambda_i = (1-g)/s + g, g = (r_i - alpha)/(beta - alpha) clipped to 0 to 1, r_i = L/wavelength_i",
        "arXiv:2309.00071 definition 2, as in its text",
        formulas.yarn_by_turns,
        options=RAMP,
    ),
    Rule(
        "yarn",
        "ntk-by-parts, q and k each multiplied by 0.1 ln s + 1",
        "arXiv:2309.00071 definition 3, with the ramp of YaRN's code and transformers 'yarn'",
        formulas.yarn_by_index,
        attention="yarn",
        options=(*RAMP, "truncate"),
    ),
    Rule(
        "yarn-linear-r",
        "ntk-by-parts-linear-r, q and k each multiplied by 0.1 ln s + 1",
        "arXiv:2309.00071 definition 3, as in its text",
        formulas.yarn_by_turns,
        attention="yarn",
        options=RAMP,
    ),
    Rule(
        "deepseek-v2",
        "ntk-by-parts, q and k each multiplied by 0.0707 ln s + 1; the model uses s = 40 to extend 4k to 128k",
        "arXiv:2405.04434 section 3.1.4, yarn_get_mscale with mscale 0.707",
        formulas.yarn_by_index,
        attention="deepseek-v2",
        options=(*RAMP, "truncate"),
    ),
    Rule(
        "llama3",
        "1/lambda_i = (1-g)/s + g, g = (r_i - low)/(high - low) clipped to 0 to 1",
        "Llama 3.1, transformers 'llama3'",
        formulas.llama3,
        options=("low_freq_factor", "high_freq_factor"),
    ),
    Rule(
        "theta",
        "theta' = theta^(log_{L/2pi}(L'/2pi))",
        "Scaling Laws of RoPE-based Extrapolation, arXiv:2310.05209",
        formulas.theta_scaling,
        takes_scale=False,
    ),
    Rule(
        "longrope2",
        "lambda_i = lambda_K^(i/K) below the critical pair K, --above (default: s) from K on",
        "LongRoPE2, arXiv:2502.20082 algorithms 1 and 2",
        formulas.longrope2,
        attention="longrope",
        options=("critical_index", "above"),
    ),
)


def rule(name: str) -> Rule:
    """Return the rule named ``name``; a FactorError lists the rules."""
    for each in RULES:
        if each.name == name:
            return each
    raise FactorError(f"factors rule: unknown rule {quoted(name)}; the rules are {', '.join(r.name for r in RULES)}")
