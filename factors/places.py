"""Refuses a ``config.json`` whose places disagree about the rotation, where readers silently prefer one of them.

transformers 5.19 (``RotaryEmbeddingConfigMixin``) uses ``rope_scaling`` and drops ``rope_parameters`` where a config has
both, so a base that only the latter states becomes a default. It prefers a block's ``rope_theta`` and
``partial_rotary_factor`` to those at the top level, the top level's ``original_max_position_embeddings`` to a block's, and a
``text_config`` to what surrounds it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.family_config import CLASS_BLOCKS, IGNORED, NAMES, PARTIAL
from ropeswitch.factors.quoted import quoted
from ropeswitch.factors.rope_layers import FULL

_BLOCKS = ("rope_parameters", "rope_scaling")
# Scalings of a window, which transformers takes from `max_position_embeddings` where a config does not state it.
WINDOWED = ("llama3", "yarn", "longrope")
# Fields that a config states in its block, at its top level, or in both.
WINDOW = "original_max_position_embeddings"
_SHARED = ("rope_theta", "partial_rotary_factor", WINDOW)
# Old names of types that mean the same.
_SAME = {"su": "longrope", "mrope": "default"}
# Configs within a config that hold the text model's.
_TEXT = ("text_config", "language_config", "llm_config", "thinker_config")
# Other names of the base: GPT-NeoX's and Nomic's, ModernBERT's, ChatGLM's, and DBRX's.
_BASES = ("rotary_emb_base", "global_rope_theta", "rope_ratio")


def check_places(config: Mapping[str, Any]) -> None:
    """Check that a ``config.json``, as written, states one rotation; a FactorError names both places and values."""
    _check_level(config, "")


def _check_level(config: Mapping[str, Any], where: str) -> None:
    _check(config, where)
    for name in _TEXT:
        if not isinstance(inner := config.get(name), Mapping):
            continue
        within, kind = f"{where}{name}.", f"{config.get('model_type')}_text"
        if "model_type" not in inner and (kind in IGNORED or kind in PARTIAL or kind in CLASS_BLOCKS):
            raise FactorError(f"{within}model_type: missing; transformers would take {kind!r}. Write it there")
        _check_level(inner, within)
        outer_rope, inner_rope = (dict(_stated(each, "")) for each in (config, inner))
        for field, (place, value) in outer_rope.items():
            other, inside = inner_rope.get(field, ("", None))
            if inside is not None and inside != value:
                raise _differ(f"{where}{place}", value, within + other, inside, f"Remove {where}{place}: it is ignored")


def check_effect(stated: Mapping[str, Any], effect: Mapping[str, Any]) -> None:
    """Check that the rotation that a ``config.json`` or ``--hf-overrides`` states is the one in effect.

    ``effect`` are the rotary parameters that the engine's config ended with (``hf_config.rope_parameters``).
    """
    where = ""
    while (name := next((each for each in _TEXT if isinstance(stated.get(each), Mapping)), None)) is not None:
        stated, where = stated[name], f"{where}{name}."
    blocks = [(f"{name}.", stated[name]) for name in _BLOCKS if isinstance(stated.get(name), Mapping)]
    blocks = [
        (f"{name}{FULL}.", block[FULL]) if isinstance(block.get(FULL), Mapping) else (name, block)
        for name, block in blocks
    ]
    places = [("rope_theta", "", stated)] + [
        (field, name, block) for name, block in blocks for field in ("rope_theta", "factor", "rope_type", "type")
    ]
    for field, name, values in places:
        value, used = values.get(field), effect.get("rope_type" if field == "type" else field)
        alike = isinstance(value, str) and isinstance(used, str) and _SAME.get(value, value) == _SAME.get(used, used)
        comparable = all(isinstance(each, str | int | float) for each in (value, used))
        if comparable and value != used and not alike:
            raise FactorError(
                f"{where}{name}{field}: {quoted(value)} has no effect: the model's config class ends with "
                f"{quoted(used)}. Write it where the class reads it, or remove it"
            )


def base_place(config: Mapping[str, Any]) -> str:
    """Return the place of ``rope_theta`` in a config, as written, or an empty string if it does not state one."""
    for name in _TEXT:
        if isinstance(inner := config.get(name), Mapping):
            found = base_place(inner)
            return found and f"{name}.{found}"
    for name in reversed(_BLOCKS):
        block = config.get(name)
        layers = block.get(FULL) if isinstance(block, Mapping) else None
        for place, values in ((f"{name}.{FULL}", layers), (name, block)):
            if isinstance(values, Mapping) and values.get("rope_theta") is not None:
                return f"{place}.rope_theta"
    if isinstance(attention := config.get("attn_config"), Mapping) and "rope_theta" in attention:
        return "attn_config.rope_theta"
    return next((name for name in ("rope_theta", *_BASES) if config.get(name) is not None), "")


def base_line(theta: float, place: str, model_type: str) -> str:
    """Return the startup line that names the rotary base and where it comes from.

    ``place`` is its place in ``config.json``, another source with spaces, or empty for the default of ``model_type``.
    """
    if not place:
        source = f"the default of model_type {model_type}: config.json states none"
    else:
        source = place if " " in place else f"{place} of config.json"
    return f"rope_theta {theta:.12g}, from {source}"


def _check(config: Mapping[str, Any], where: str) -> None:
    """Check one level of a config, whose fields are called ``where`` and their name in messages."""
    for name in _BLOCKS:
        if config.get(name) is not None and not isinstance(config[name], Mapping):
            raise FactorError(f"{where}{name}: {quoted(config[name])} must be a JSON object")
    blocks = {name: config[name] for name in _BLOCKS if isinstance(config.get(name), Mapping) and config[name]}
    for name, block in blocks.items():
        _check_block(config, block, f"{where}{name}.", where)
        if isinstance(layers := block.get(FULL), Mapping):
            _check_block(config, layers, f"{where}{name}.{FULL}.", where)
            for field in (*_SHARED, "factor"):
                if (value := block.get(field)) is not None and value != layers.get(field):
                    place, other = f"{where}{name}.{field}", f"{where}{name}.{FULL}.{field}"
                    raise _differ(place, value, other, layers.get(field), f"Remove {place}: it is ignored")
    _check_family(config, blocks, where)
    if len(blocks) < 2:
        return
    kept, added = (_filled(config, blocks[name]) for name in _BLOCKS)
    for field in kept | added:
        if kept.get(field) != added.get(field):
            raise _differ(
                f"{where}rope_parameters.{field}",
                kept.get(field),
                f"{where}rope_scaling.{field}",
                added.get(field),
                "transformers and vLLM ignore rope_parameters then. Remove rope_scaling: the server extends the context "
                "without it (--max-model-len, --ladder yarn). Or move every field into rope_parameters",
            )


def _check_family(config: Mapping[str, Any], blocks: Mapping[str, Mapping[str, Any]], where: str) -> None:
    """Refuse what the config class of the model's family ignores (``family_config.py``)."""
    family, theta = str(config.get("model_type", "")), config.get("rope_theta")
    if family in CLASS_BLOCKS and not blocks and theta is not None:
        own = CLASS_BLOCKS[family]
        if own is None or any(config.get(field) != value for field, value in own.items()):
            raise FactorError(
                f"{where}rope_theta: {quoted(theta)}, but {where}rope_parameters: missing. For model_type {family}, "
                f"transformers uses {own or 'a scaling of its own'} then. Write the parameters into rope_parameters"
            )
    for field, (name, default) in NAMES.get(family, {}).items():
        value, own = config.get(field), config.get(name, default)
        if value is not None and value != own:
            raise _differ(f"{where}{field}", value, f"{where}{name}", own, f"Remove {where}{field}: it is ignored")
    for fields in (config, *blocks.values()) if family in PARTIAL or family in NAMES else ():
        if "partial_rotary_factor" in fields and fields["partial_rotary_factor"] is None:
            raise FactorError(f"{where}partial_rotary_factor: null has two readings for model_type {family}. Remove it")
    for place in IGNORED.get(family, ()):
        if place == "flat":
            found = "rope_parameters" in blocks and not isinstance(blocks["rope_parameters"].get(FULL), Mapping)
            name, remedy = "rope_parameters", f"Write it by layer type, under {FULL!r}"
        elif place == "layers":
            found = any(isinstance(block.get(FULL), Mapping) for block in blocks.values())
            name, remedy = f"rope_parameters.{FULL}", "Remove it"
        elif place == "type":
            found = any("type" in block and "rope_type" not in block for block in blocks.values())
            name, remedy = "rope_scaling.type", "Write rope_type"
        elif place == "scaling":
            kinds = [block.get("rope_type", block.get("type", "default")) for block in blocks.values()]
            found, name, remedy = any(kind != "default" for kind in kinds), "rope_scaling.rope_type", "Remove it"
        else:
            found, name, remedy = config.get(place) is not None, place, "Remove it"
        if found:
            raise FactorError(f"{where}{name}: transformers ignores it for model_type {family}. {remedy}")


def _check_block(config: Mapping[str, Any], block: Mapping[str, Any], name: str, where: str) -> None:
    kinds = [block[key] for key in ("rope_type", "type") if key in block]
    if (
        len({_SAME.get(str(kind), kind) if kind is None or isinstance(kind, str) else quoted(kind) for kind in kinds})
        > 1
    ):
        null = next((key for key in ("rope_type", "type") if block[key] is None), "")
        remedy = f"Remove {name}{null or 'type'}"
        raise FactorError(f"{name}rope_type: {quoted(kinds[0])}, but {name}type: {quoted(kinds[1])}. {remedy}")
    top, kind = config.get(WINDOW), kinds[0] if kinds else None
    # Only Phi's config classes read the window at the top level; for others vLLM does, and transformers does not.
    by_class = str(config.get("model_type", "" if where else "phi3")).startswith(("phi3", "phi4", "phimoe"))
    if top is not None and WINDOW not in block and kind in WINDOWED and not by_class:
        remedy = f"transformers does not read the former. Move it into {name.removesuffix('.')}"
        raise _differ(f"{where}{WINDOW}", top, f"{name}{WINDOW}", None, remedy)
    for field in _SHARED:
        top = config.get(field)
        if field in block and top is not None and block[field] != top:
            read, other = (where, name) if field == WINDOW else (name, where)
            remedy = f"transformers reads {read}{field}. Remove {other}{field}"
            raise _differ(f"{where}{field}", top, f"{name}{field}", block[field], remedy)


def _filled(config: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block's fields, with those of the top level that reach it."""
    kind = block.get("rope_type", block.get("type", "default"))
    values = {key: value for key, value in block.items() if key not in ("type", "rope_type") and value is not None}
    top = {field: config[field] for field in _SHARED if config.get(field) is not None}
    return {"rope_type": _SAME.get(kind, kind) if isinstance(kind, str) else kind} | top | values


def _stated(config: Mapping[str, Any], where: str) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Yield the base, factor and window of one level, each with its place."""
    for field in ("rope_theta", WINDOW):
        if config.get(field) is not None:
            yield field, (f"{where}{field}", config[field])
    for name in _BLOCKS:
        block = config.get(name)
        if not isinstance(block, Mapping):
            continue
        for field in ("rope_theta", "factor", WINDOW):
            if block.get(field) is not None:
                yield field, (f"{where}{name}.{field}", block[field])


def _differ(place: str, value: Any, other: str, there: Any, remedy: str) -> FactorError:
    here, there = ("missing" if each is None else quoted(each) for each in (value, there))
    return FactorError(f"{place}: {here}, but {other}: {there}. {remedy}")
