"""``GET /v1/models``, with the aliases if they are listed, and ``GET /v1/models/{id}``, which vLLM lacks."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

router = APIRouter()


@router.get("/v1/models")
async def show_models(request: Request) -> Any:
    """Return vLLM's list of models and adapters, with the names ``MODEL@SET`` under ``--ladder-aliases``."""
    models = await request.app.state.openai_serving_models.show_available_models()
    return models.model_copy(update={"data": request.app.state.ropeswitch.aliases.cards(models.data)})


@router.get("/v1/models/{model_id:path}")
async def show_model(model_id: str, request: Request) -> Any:
    """Return one of the models that ``GET /v1/models`` lists."""
    for each in (await show_models(request)).data:
        if each.id == model_id:
            return each
    return JSONResponse({"error": {"message": f"The model `{model_id}` does not exist.", "param": "model"}}, 404)
