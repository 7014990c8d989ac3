"""``GET /v1/models/{id}``, which OpenAI's API has and vLLM's lacks."""

from typing import Any

from fastapi import APIRouter, HTTPException, Request

router = APIRouter()


@router.get("/v1/models/{model_id:path}")
async def show_model(model_id: str, request: Request) -> dict[str, Any]:
    """Return one of the models that ``GET /v1/models`` lists."""
    models = await request.app.state.openai_serving_models.show_available_models()
    for each in models.model_dump()["data"]:
        if each["id"] == model_id:
            return each
    raise HTTPException(404, f"The model `{model_id}` does not exist.")
