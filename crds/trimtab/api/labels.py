"""Labels and annotations on what a job creates: how the operator finds its own again, and people select it."""

from __future__ import annotations

from trimtab.api.model import GROUP

JOB = f"{GROUP}/job"
POOL = f"{GROUP}/pool"
"""On a RolloutPool and its pods, the pool's name in its job; absent on a RolloutPool made by hand."""
POLICY = f"{GROUP}/policy"
ROLE = f"{GROUP}/role"
OWNER = f"{GROUP}/owner"
"""On pods, the name of the RLJob, RolloutPool or Trainer that they belong to."""
ATTEMPT = f"{GROUP}/attempt"
REVISION = f"{GROUP}/revision"
APPLIED_REPLICAS = f"{GROUP}/applied-replicas"
"""An annotation on a job's RolloutPool: what the manifest said when replicas were last set from it. A
scale by hand since then is not overruled.
"""
APPROVE_PROPOSAL = f"{GROUP}/approve-proposal"
"""An annotation on a job: the id of the agent's proposal that a person has approved."""
VICTIMS = f"{GROUP}/victims"
"""An annotation on a job's RolloutPool: pods that should go first, with commas, when it is made smaller."""
AUTOSCALED_REPLICAS = f"{GROUP}/autoscaled-replicas"
"""An annotation on a job's RolloutPool: the size that the autoscaler has given it last. Another size was set
by a person.
"""
