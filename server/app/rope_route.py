"""``GET /v1/rope``: lists the factor sets in use and the patches applied."""

from collections.abc import Sequence
from itertools import zip_longest

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.ladders.made import Origin
from ropeswitch.model_patches.guard.fingerprints import VLLM_VERSION, Patch
from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.server.patches import SERVER_PATCHES

router = APIRouter()


class FactorSetInfo(BaseModel):
    """One factor set of the ladder."""

    name: str
    max_length: int = Field(description="Maximum tokens of a sequence in this set.")
    scale: float = Field(description="Factor of cos and sin (the attention factor).")
    start_tokens: int = Field(description="Positions below this keep unscaled angles.")
    softmax_scale: float | None = Field(
        description="Additional factor of attention logits; null if the model's softmax scale is unchanged."
    )
    num_factors: int = Field(description="One factor per rotary frequency.")
    factor: float | None = Field(description="Extension ratio to the native window; null for listed factors.")
    source: str = Field(description="Origin of its length, factors and scale.")


class PatchInfo(BaseModel):
    """One symbol of vLLM that ropeswitch replaces, wraps or subclasses."""

    target: str
    kind: str
    file: str = Field(description="The module of ropeswitch that patches it.")


class RopeInfo(BaseModel):
    """The ladder in use. A sequence of n tokens uses the first set with n <= max_length."""

    sets: list[FactorSetInfo] = Field(description="Its factor sets, in order of length.")
    theta: float = Field(description="The model's rotary base.")
    rotary_dim: int = Field(description="Rotated values per head.")
    policy: str = Field(description="Ladder policy of requests that choose none: length or reserve.")
    angles: str = Field(description="exact, or hf for Hugging Face's float32 angles.")
    max_model_len: int = Field(description="Maximum tokens of a sequence on this server.")
    patches: list[PatchInfo]
    vllm_version: str = Field(description="The vLLM release that the patches were written for.")


@router.get("/v1/rope", response_model=RopeInfo)
async def show_rope(request: Request) -> RopeInfo:
    """List the factor sets in use and the patches applied."""
    info: RopeInfo = request.app.state.ropeswitch.rope_info
    return info


def rope_info(
    settings: RopeSettings,
    max_model_len: int,
    patches: Sequence[Patch],
    server_patches: Sequence[Patch] = SERVER_PATCHES,
) -> RopeInfo:
    """Return the route's response.

    Args:
        settings: The engine's settings.
        max_model_len: Maximum tokens of a sequence.
        patches: The engine's patches.
        server_patches: The API server's patches.
    """
    return RopeInfo(
        sets=set_infos(settings.ladder, settings.origins),
        theta=settings.theta,
        rotary_dim=settings.ladder.rotary_dim,
        policy=settings.policy,
        angles=settings.angles,
        max_model_len=max_model_len,
        patches=[
            PatchInfo(target=patch.target, kind=patch.kind, file=patch.file) for patch in (*patches, *server_patches)
        ],
        vllm_version=VLLM_VERSION,
    )


def set_infos(ladder: FactorLadder, origins: Sequence[Origin] = ()) -> list[FactorSetInfo]:
    """Return the sets of a ladder, each with its origin if that is known."""
    return [
        FactorSetInfo(
            name=each.name,
            max_length=each.max_length,
            scale=each.scale,
            start_tokens=each.start_tokens,
            softmax_scale=each.softmax_scale,
            num_factors=len(each.factors),
            factor=None if origin is None else origin.factor,
            source="" if origin is None else origin.source,
        )
        for each, origin in zip_longest(ladder.sets, origins)
    ]
