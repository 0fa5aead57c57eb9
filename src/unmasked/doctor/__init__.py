"""Is my attention right? `diagnose` tries any module or function, and names what is wrong as the museum does."""

from unmasked.doctor._diagnose import diagnose
from unmasked.doctor._model import diagnose_model
from unmasked.doctor._report import Finding, Given, Inconclusive, Layer, ModelReport, Open, Passed, Report

__all__ = [
    "Finding", "Given", "Inconclusive", "Layer", "ModelReport", "Open", "Passed", "Report", "diagnose", "diagnose_model",
]  # fmt: skip
