"""Is my attention right? `diagnose` tries any module or function, and names what is wrong as the museum does.

Two kinds of question are asked. Those of `unmasked.probes` need nothing but calls. The other needs the target's
weights: the reference is computed with them, and, where it disagrees, every known mistake; the one that gives the
target's own numbers is its cause.
"""

from unmasked.doctor._diagnose import diagnose
from unmasked.doctor._model import diagnose_model
from unmasked.doctor._report import Finding, Inconclusive, Layer, ModelReport, Report

__all__ = ["Finding", "Inconclusive", "Layer", "ModelReport", "Report", "diagnose", "diagnose_model"]
