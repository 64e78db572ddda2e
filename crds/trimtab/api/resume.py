"""Where a new job's policies begin, when it is at a checkpoint and not at the model that the manifest names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from trimtab.api.model import ApiModel
from trimtab.api.rules import Rule, exactly_one_of
from trimtab.api.scalars import Location, MemberName

BEST = "Best"

Step = Annotated[
    int | Literal["Best"],
    WithJsonSchema({"x-kubernetes-int-or-string": True, "minimum": 0, "pattern": "^Best$", "maxLength": 4}),
]
PublicKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{43}=$", max_length=44)]


class ResumeFrom(ApiModel):
    """A checkpoint of another job, which must have a policy of the same name, model and lora for each policy that
    learns here. Their weights are version 0 of this job."""

    rules = (
        exactly_one_of("job", "checkpoint"),
        Rule(
            "has(self.checkpoint) == has(self.publicKey)",
            "publicKey belongs to checkpoint, and must be given with it: whose checkpoints lie there",
            ".publicKey",
        ),
    )

    job: MemberName | None = None
    """Name of an RLJob in the same namespace, running or ended; with `trimtab run`, of a job whose state folder lies
    beside this one's. Where its checkpoints are and whose they are is looked up once, when this job begins."""
    checkpoint: Location | None = None
    """Instead of a job that is there: `s3://bucket/prefix` or a folder that has the checkpoints of each policy in a
    folder of its name. For `trainer.checkpoint.uri` that is `URI/NAMESPACE/JOB`, for the job's own place in object
    storage `s3://BUCKET/PREFIX/checkpoints`."""
    public_key: PublicKey | None = None
    """The key that the job has signed `checkpoint` with, in base64, as in `weights__public_keys` of its Secret. What is
    signed with another one is refused."""
    step: Step | None = None
    """Of the checkpoint, which must be one of those that `trainer.checkpoint.keep` has kept; absent, the newest. `Best`
    is the one of them that had done best, when its version was evaluated, by the time this job was accepted; it goes
    with `job` only."""
    optimizer: bool = False
    """Take over the state of the optimiser as well as the weights; else it begins anew. Schedules of the learning rate
    begin anew in either case."""
