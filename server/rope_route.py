"""``GET /v1/rope``: the ladder in force and the patches that serve it."""

from collections.abc import Sequence

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from ropeswitch.model_patches.guard.fingerprints import VLLM_VERSION, Patch
from ropeswitch.model_patches.switch.settings import RopeSettings
from ropeswitch.server.patches import SERVER_PATCHES

router = APIRouter()


class FactorSetInfo(BaseModel):
    """One factor set of the ladder."""

    name: str
    max_length: int = Field(description="The longest sequence, in tokens, that this set rotates.")
    scale: float = Field(description="What cos and sin are multiplied by (the attention factor).")
    start_tokens: int = Field(description="Positions below it keep the unscaled angles.")
    num_factors: int = Field(description="One factor per rotary frequency.")


class PatchInfo(BaseModel):
    """One symbol of vLLM that ropeswitch replaces, wraps or subclasses."""

    target: str
    kind: str
    file: str = Field(description="The module of ropeswitch that does it.")


class RopeInfo(BaseModel):
    """The ladder in force. A sequence of n tokens uses the first set with n <= max_length."""

    sets: list[FactorSetInfo]
    theta: float = Field(description="The model's rotary base.")
    rotary_dim: int = Field(description="Rotated values per head.")
    angles: str = Field(description="exact, or hf for Hugging Face's float32 angles.")
    max_model_len: int = Field(description="The longest sequence, in tokens, that this server takes.")
    patches: list[PatchInfo]
    vllm_version: str = Field(description="The vLLM release that the patches were written for.")


@router.get("/v1/rope", response_model=RopeInfo)
async def show_rope(request: Request) -> RopeInfo:
    """Tell the factor ladder in force and the patches applied."""
    info: RopeInfo = request.app.state.ropeswitch.rope_info
    return info


def rope_info(settings: RopeSettings, max_model_len: int, patches: Sequence[Patch]) -> RopeInfo:
    """What the route answers for an engine that runs ``settings`` with sequences of up to ``max_model_len`` tokens
    through ``patches``."""
    return RopeInfo(
        sets=[
            FactorSetInfo(
                name=each.name,
                max_length=each.max_length,
                scale=each.scale,
                start_tokens=each.start_tokens,
                num_factors=len(each.factors),
            )
            for each in settings.ladder.sets
        ],
        theta=settings.theta,
        rotary_dim=settings.ladder.rotary_dim,
        angles=settings.angles,
        max_model_len=max_model_len,
        patches=[
            PatchInfo(target=patch.target, kind=patch.kind, file=patch.file) for patch in (*patches, *SERVER_PATCHES)
        ],
        vllm_version=VLLM_VERSION,
    )
