"""All settings of a run, as dataclasses that import neither torch nor numpy.

A recipe is a YAML file that mirrors these classes; the command line overrides single values by their dotted name
(`--training.steps 100`). Defaults follow the UniLMv2 paper where it states a value.
"""

from unicloze.settings.data import DataSettings, TokenizerSettings
from unicloze.settings.model import HeadSettings, ModelSettings
from unicloze.settings.recipe import Bounds, ObjectiveSettings, Provenance, Reading, Recipe, TaskSettings, WindowNeeds
from unicloze.settings.training import DistillationSettings, TrainingSettings
from unicloze.settings.use import DecodingSettings, FinetuningSettings, GenerationSettings, UseSettings
from unicloze.settings.values import (
    DEVICE,
    PYTHON_DOCS,
    SHORTEST_ROW,
    Auto,
    HeadName,
    Mode,
    Order,
    Pairing,
    Pooling,
    Precision,
    PredictionFormat,
    Projection,
    TaskPooling,
    ViewName,
    chosen,
)

__all__ = [
    "DEVICE",
    "PYTHON_DOCS",
    "SHORTEST_ROW",
    "Auto",
    "Bounds",
    "DataSettings",
    "DecodingSettings",
    "DistillationSettings",
    "FinetuningSettings",
    "GenerationSettings",
    "HeadName",
    "HeadSettings",
    "Mode",
    "ModelSettings",
    "ObjectiveSettings",
    "Order",
    "Pairing",
    "Pooling",
    "Precision",
    "PredictionFormat",
    "Projection",
    "Provenance",
    "Reading",
    "Recipe",
    "TaskPooling",
    "TaskSettings",
    "TokenizerSettings",
    "TrainingSettings",
    "UseSettings",
    "ViewName",
    "WindowNeeds",
    "chosen",
]
