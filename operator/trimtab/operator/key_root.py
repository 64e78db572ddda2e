"""The secret that the keys of jobs are derived from. Without one a job's keys are nowhere but in its own Secret."""

from __future__ import annotations

from trimtab.kube.client import KubeClient
from trimtab.operator.own_secrets import SecretSource, SecretUnusable, own_text
from trimtab.operator.pods.job_keys import InvalidRoot, KeyRoot
from trimtab.operator.settings import JobKeySettings

ROOT_KEY = "root"


async def open_root(settings: JobKeySettings | None, client: KubeClient) -> KeyRoot | None:
    """None where the operator has none. Raises SecretUnusable."""
    if settings is None:
        return None
    source = SecretSource(
        setting="job_keys.root",
        given=settings.root,
        file=settings.root_file,
        place=settings.secret,
        key=ROOT_KEY,
        component="job-keys",
        made=lambda: {ROOT_KEY: KeyRoot.generate()},
    )
    own = await own_text(source, client)
    try:
        return KeyRoot(own.text)
    except InvalidRoot as error:
        raise SecretUnusable(f"{own.origin}: {error}") from None
