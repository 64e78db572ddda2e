"""What a pod is made from, as a short digest: a pod with another one has to be replaced."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from trimtab.operator.plan.pods import PodPlan

_HEX_DIGITS = 10


def revision_of(pod: PodPlan, *, reads: object) -> str:
    """`reads` is what its programs read of the manifest. Pods that differ in their ordinal alone are interchangeable:
    take the first.
    """
    text = json.dumps([asdict(pod), reads], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_HEX_DIGITS]
