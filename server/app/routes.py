"""``GET /v1/rope``, the factor sets in use, and ``GET /v1/models``, with the aliases if they are listed."""

from itertools import zip_longest
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.model_patches.switch.releases import release, unverified

rope_router = APIRouter()
models_router = APIRouter()


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
    num_layers: int = Field(description="Layers with factors of their own; 0 if all layers rotate alike.")
    factor: float | None = Field(description="Extension ratio to the native window; null for listed factors.")
    source: str = Field(description="Origin of its length, factors and scale.")


class RopeInfo(BaseModel):
    """The ladder in use. A sequence of n tokens uses the first set with n <= max_length."""

    sets: list[FactorSetInfo] = Field(description="Its factor sets, in order of length.")
    theta: float = Field(description="The model's rotary base.")
    rotary_dim: int = Field(description="Rotated values per head.")
    policy: str = Field(description="Ladder policy of requests that choose none: length or reserve.")
    angles: str = Field(description="exact, or hf for Hugging Face's float32 angles.")
    max_model_len: int = Field(description="Maximum tokens of a sequence on this server.")
    dtype: str = Field(description="Type of weights and activations, such as bfloat16.")
    vllm_version: str = Field(description="The vLLM release that the patches were written for.")
    vllm_verified: bool = Field(description="False under --unverified-vllm, for a release without fingerprints.")


@rope_router.get("/v1/rope", response_model=RopeInfo)
async def show_rope(request: Request) -> RopeInfo:
    """List the factor sets in use."""
    info: RopeInfo = request.app.state.ropeswitch.rope_info
    return info


def rope_info(settings: RopeSettings, model: Any) -> RopeInfo:
    """Return the response of ``/v1/rope`` for an engine with these settings and ``vllm.config.ModelConfig``."""
    sets = [
        FactorSetInfo(
            **{name: value for name, value in vars(each).items() if name not in ("factors", "layers")},
            num_factors=len(each.factors),
            num_layers=len(each.layers),
            factor=None if origin is None else origin.factor,
            source="" if origin is None else origin.source,
        )
        for each, origin in zip_longest(settings.ladder.sets, settings.origins)
    ]
    return RopeInfo(
        sets=sets,
        theta=settings.theta,
        rotary_dim=settings.ladder.rotary_dim,
        policy=settings.policy,
        angles=settings.angles,
        max_model_len=model.max_model_len,
        dtype=str(model.dtype).removeprefix("torch."),
        vllm_version=release(),
        vllm_verified=not unverified(),
    )


@models_router.get("/v1/models")
async def show_models(request: Request) -> Any:
    """Return vLLM's list of models and adapters, with the names ``MODEL@SET`` under ``--ladder-aliases``."""
    models = await request.app.state.openai_serving_models.show_available_models()
    return models.model_copy(update={"data": request.app.state.ropeswitch.aliases.cards(models.data)})


@models_router.get("/v1/models/{model_id:path}")
async def show_model(model_id: str, request: Request) -> Any:
    """Return one of the models that ``GET /v1/models`` lists; vLLM has no such route."""
    for each in (await show_models(request)).data:
        if each.id == model_id:
            return each
    return JSONResponse({"error": {"message": f"The model `{model_id}` does not exist.", "param": "model"}}, 404)
