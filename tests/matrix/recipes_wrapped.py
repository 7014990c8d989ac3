"""Recipes of multimodal models that transformers has no class for."""

from tests.matrix.recipe import Recipe

RECIPES: dict[str, Recipe] = {}
